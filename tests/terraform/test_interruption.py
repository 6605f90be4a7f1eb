"""The word that a node goes, from AWS's events to the queue that Karpenter reads."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.terraform.applied_cluster import CLUSTER, TAGS, AppliedCluster
from tests.terraform.interruption_events import INSTANCE, LEFT, TAKEN

# One apply for all that look at it, in one worker.
pytestmark = [pytest.mark.timeout(400), pytest.mark.xdist_group("terraform-cluster")]


def test_the_queue_is_short_of_memory_and_shut_to_others(cluster: AppliedCluster) -> None:
    sqs = cluster.client("sqs")
    url = sqs.get_queue_url(QueueName=cluster.outputs["interruption_queue_name"])["QueueUrl"]
    attributes = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    assert int(attributes["MessageRetentionPeriod"]) <= 300
    assert attributes["SqsManagedSseEnabled"] == "true"
    sends, tls = json.loads(attributes["Policy"])["Statement"]
    assert (sends["Effect"], sends["Principal"]) == ("Allow", {"Service": "events.amazonaws.com"})
    rules = {rule["Arn"] for rule in cluster.client("events").list_rules()["Rules"]}
    assert set(sends["Condition"]["ArnEquals"]["aws:SourceArn"]) == rules
    assert (tls["Effect"], tls["Action"]) == ("Deny", "sqs:*")
    assert tls["Condition"] == {"Bool": {"aws:SecureTransport": "false"}}
    assert sqs.list_queue_tags(QueueUrl=url)["Tags"] == TAGS


def test_each_rule_takes_its_own_events_and_no_others(cluster: AppliedCluster) -> None:
    events = cluster.client("events")
    patterns = {rule["Name"].removeprefix(f"{CLUSTER}-"): rule["EventPattern"] for rule in events.list_rules()["Rules"]}
    assert set(patterns) == set(TAKEN)

    def takers(event: dict[str, Any]) -> list[str]:
        return [
            name
            for name, pattern in patterns.items()
            if events.test_event_pattern(EventPattern=pattern, Event=json.dumps(event))["Result"]
        ]

    for name, taken in TAKEN.items():
        assert [takers(event) for event in taken] == [[name]] * len(taken)
    assert [takers(event) for event in LEFT] == [[]] * len(LEFT)


def test_what_a_rule_takes_arrives_in_the_queue(cluster: AppliedCluster) -> None:
    """Nobody but AWS may send events of aws.*, so each rule hears a source of ours for a while; its target stays."""
    events, sqs = cluster.client("events"), cluster.client("sqs")
    url = sqs.get_queue_url(QueueName=cluster.outputs["interruption_queue_name"])["QueueUrl"]
    for name, (event, *_) in TAKEN.items():
        rule = f"{CLUSTER}-{name}"
        (target,) = events.list_targets_by_rule(Rule=rule)["Targets"]
        assert target["Arn"] == cluster.outputs["interruption_queue_arn"]
        pattern = events.describe_rule(Name=rule)["EventPattern"]
        drill = json.dumps(json.loads(pattern) | {"source": ["soloist.drill"]})
        events.put_rule(Name=rule, EventPattern=drill)
        sent = {"Source": "soloist.drill", "DetailType": event["detail-type"], "Detail": json.dumps(event["detail"])}
        assert events.put_events(Entries=[sent])["FailedEntryCount"] == 0
        (message,) = sqs.receive_message(QueueUrl=url, WaitTimeSeconds=5)["Messages"]
        events.put_rule(Name=rule, EventPattern=pattern)
        sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
        body = json.loads(message["Body"])
        assert (body["detail-type"], body["detail"]) == (event["detail-type"], event["detail"])
        assert INSTANCE in message["Body"]
