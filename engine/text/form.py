"""The form that a caller wants an answer to have, as frozen data, its sizes checked where it is made."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from engine.errors import InvalidRequestError
from engine.params import MAX_CHOICE_BYTES, MAX_CHOICES, MAX_JSON_SCHEMA_BYTES, MAX_REGEX_BYTES


class FormKind(StrEnum):
    """What describes the answer."""

    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    CHOICE = "choice"


_FIELDS = {
    FormKind.JSON_SCHEMA: "response_format.json_schema",
    FormKind.REGEX: "response_format.regex",
    FormKind.CHOICE: "response_format.choice.choices",
}
_CAPS = {FormKind.JSON_SCHEMA: MAX_JSON_SCHEMA_BYTES, FormKind.REGEX: MAX_REGEX_BYTES}


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """A JSON schema, a regular expression that the whole answer matches, or texts of which the answer is one.

    `texts` holds the schema or the expression alone, or the choices. Raises InvalidRequestError, naming the field, for
    one that is empty, too long, or no Unicode.
    """

    kind: FormKind
    texts: tuple[str, ...]

    def __post_init__(self) -> None:
        if self.kind is FormKind.CHOICE:
            if not 1 <= len(self.texts) <= MAX_CHOICES:
                raise InvalidRequestError(self.field, f"must hold 1 to {MAX_CHOICES} texts; got {len(self.texts)}")
            for index, text in enumerate(self.texts):
                _check_text(f"{self.field}[{index}]", text, MAX_CHOICE_BYTES)
        else:
            assert len(self.texts) == 1, "a schema and an expression are one text"
            _check_text(self.field, self.texts[0], _CAPS[self.kind])

    @classmethod
    def json_schema(cls, schema: str) -> AnswerForm:
        """An answer that is a JSON document which fits `schema`, itself JSON."""
        return cls(FormKind.JSON_SCHEMA, (schema,))

    @classmethod
    def regex(cls, expression: str) -> AnswerForm:
        """An answer that matches `expression` from its first character to its last."""
        return cls(FormKind.REGEX, (expression,))

    @classmethod
    def choice(cls, choices: tuple[str, ...]) -> AnswerForm:
        """An answer that is one of `choices`."""
        return cls(FormKind.CHOICE, choices)

    @property
    def field(self) -> str:
        """What the caller knows it by."""
        return _FIELDS[self.kind]


def _check_text(field: str, text: str, cap: int) -> None:
    if not text:
        raise InvalidRequestError(field, "is empty; leave response_format unset for a free answer")
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise InvalidRequestError(field, "holds unpaired surrogates; send valid Unicode") from None
    if size > cap:
        raise InvalidRequestError(field, f"holds at most {cap} bytes; got {size}")
