"""Events as EventBridge delivers them when nodes go, and some that are none of Karpenter's business.

Their form is that of AWS's documentation of EC2 and Health events.
"""

from __future__ import annotations

from typing import Any

Event = dict[str, Any]

INSTANCE = "i-0b662ef9931388ba0"
_ARN = f"arn:aws:ec2:us-west-2:100000000001:instance/{INSTANCE}"


def _event(source: str, detail_type: str, detail: dict[str, Any], resources: list[str]) -> Event:
    return {
        "version": "0",
        "id": "12345678-1234-1234-1234-123456789012",
        "detail-type": detail_type,
        "source": source,
        "account": "100000000001",
        "time": "2026-12-01T17:00:00Z",
        "region": "us-west-2",
        "resources": resources,
        "detail": detail,
    }


def _state_change(state: str) -> Event:
    detail = {"instance-id": INSTANCE, "state": state}
    return _event("aws.ec2", "EC2 Instance State-change Notification", detail, [_ARN])


def _health(service: str, category: str) -> Event:
    detail = {
        "eventArn": f"arn:aws:health:us-west-2::event/{service}/AWS_{service}_MAINTENANCE_SCHEDULED/1",
        "service": service,
        "eventTypeCode": f"AWS_{service}_MAINTENANCE_SCHEDULED",
        "eventTypeCategory": category,
        "startTime": "Tue, 1 Dec 2026 17:00:00 GMT",
        "endTime": "Tue, 1 Dec 2026 18:00:00 GMT",
        "eventDescription": [{"language": "en_US", "latestDescription": "Maintenance is planned."}],
        "affectedEntities": [{"entityValue": INSTANCE}],
    }
    return _event("aws.health", "AWS Health Event", detail, [INSTANCE])


# Rule, without the cluster's name, to the events that it must take.
TAKEN: dict[str, list[Event]] = {
    "spot-interruption": [
        _event(
            "aws.ec2",
            "EC2 Spot Instance Interruption Warning",
            {"instance-id": INSTANCE, "instance-action": action},
            [_ARN],
        )
        for action in ("terminate", "stop", "hibernate")
    ],
    "rebalance": [_event("aws.ec2", "EC2 Instance Rebalance Recommendation", {"instance-id": INSTANCE}, [_ARN])],
    "state-change": [_state_change(state) for state in ("stopping", "stopped", "shutting-down", "terminated")],
    "health": [_health("EC2", "scheduledChange")],
    "capacity-reservation": [
        _event(
            "aws.ec2",
            "EC2 Capacity Reservation Instance Interruption Warning",
            {"instance-id": INSTANCE, "instance-action": "terminate"},
            [_ARN],
        )
    ],
}

# What no rule may take: each would be a message for nothing.
LEFT: list[Event] = [
    _state_change("pending"),
    _state_change("running"),
    _health("RDS", "scheduledChange"),
    _health("EC2", "issue"),
    _event("aws.autoscaling", "EC2 Instance Launch Successful", {"EC2InstanceId": INSTANCE}, [_ARN]),
]
