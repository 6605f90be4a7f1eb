"""Decides what IAM policies allow. Runs in the emulator's environment, whose evaluator of policies it uses.

Reads from standard input a JSON object `{"policies": [document, ...], "calls": [call, ...]}`, where a call has
`action`, `resource`, `region` and `keys`, the condition keys of the request. Writes a JSON list of decisions: Allow,
Deny or ImplicitDeny.
"""

from __future__ import annotations

import json
import sys
from typing import Any


def decide(policies: list[Any], call: dict[str, Any]) -> str:
    """What the policies together say to one call."""
    from ministack.core.iam_evaluator import EvalContext, evaluate, parse_policy_document

    context = EvalContext(
        principal_arn="arn:aws:sts::100000000001:assumed-role/karpenter/session",
        principal_type="AssumedRole",
        principal_account="100000000001",
        action=call["action"],
        resource_arn=call["resource"],
        region=call["region"],
        source_ip="127.0.0.1",
        secure_transport=True,
        service_context={key.lower(): value for key, value in call["keys"].items()},
    )
    decision: str = evaluate(context, [parse_policy_document(policy) for policy in policies]).decision
    return decision


if __name__ == "__main__":
    asked = json.load(sys.stdin)
    json.dump([decide(asked["policies"], call) for call in asked["calls"]], sys.stdout)
