"""What a case is, and the labels that most have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

POD = 'namespace="n", pod="p"'
MODEL = 'namespace="n", pod="p", gen_ai_operation_name="chat", gen_ai_request_model="m"'
OF_POD = {"namespace": "n", "pod": "p"}
OF_NAMESPACE = {"namespace": "n"}
OF_MODEL = {"namespace": "n", "gen_ai_request_model": "m"}


@dataclass(frozen=True, slots=True)
class Case:
    """Series, and at which minute which alerts fire: none, or one with these labels.

    Attributes:
        alert: the alert that is looked at; others may fire beside it.
        step_min: between two values, and between two looks at the rules.
        says: its description, where that is put together by a template of its own.
    """

    alert: str
    name: str
    series: Mapping[str, str]
    at_min: int
    fires: Mapping[str, str] | None = None
    step_min: int = 1
    says: str | None = None
