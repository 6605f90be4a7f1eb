"""terraform/platform applied to an emulated AWS, read back by another tool than Terraform, and destroyed.

Cost Explorer is not in the emulator, so Cost Anomaly Detection is off here: terraform/platform/tests has its promises.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.aws_emulator import AwsAccount, AwsEmulator
from tests.helm.rendering import render, server, server_pod, the
from tests.helm.validation import faults
from tests.terraform.inventory import inventory
from tests.terraform.roots import Root, TerraformFailedError, copy_root

# The provider waits most of a minute until the lifecycle of a bucket looks the same ten times in a row.
pytestmark = [pytest.mark.early, pytest.mark.timeout(400)]

CLUSTER = "cuda-graph-inference"
TAGS = {"environment": "dev", "owner": "platform-team", "model": "llama-3.1-8b"}


@dataclass(frozen=True, slots=True)
class Applied:
    """The root after its apply. `before` is what the account held before: a cluster."""

    root: Root
    account: AwsAccount
    before: dict[str, list[str]]
    outputs: dict[str, Any]
    state: dict[str, Any]

    def client(self, service: str) -> Any:
        return self.account.client(service)


@pytest.fixture(scope="module")
def applied(terraform: str, aws_emulator: AwsEmulator, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Applied]:
    account = aws_emulator.new_account()
    role = f"arn:aws:iam::{account.account_id}:role/cluster"
    # As the other root made it, as far as this one can tell: it knows the name and nothing more.
    account.client("eks").create_cluster(
        name=CLUSTER, roleArn=role, resourcesVpcConfig={"subnetIds": ["subnet-1", "subnet-2"]}
    )
    before = inventory(account)
    root = copy_root(terraform, "platform", tmp_path_factory.mktemp("platform"), account)
    root.apply(
        owner=TAGS["owner"],
        model=TAGS["model"],
        monthly_budget_usd=400,
        alert_emails=["platform@example.com"],
        cost_anomaly_detection=False,
        night_stop={"enabled": True, "timezone": "Europe/Berlin"},
    )
    state = json.loads(root.run("show", "-json"))["values"]["root_module"]
    yield Applied(root, account, before, root.outputs(), state)
    if root.state():  # a test failed before the last one
        root.destroy()


def test_nobody_else_reads_the_models(applied: Applied) -> None:
    s3, bucket = applied.client("s3"), applied.outputs["model_bucket"]
    assert bucket == f"{CLUSTER}-models-{applied.account.account_id}-us-east-1"
    blocked = s3.get_public_access_block(Bucket=bucket)["PublicAccessBlockConfiguration"]
    assert set(blocked.values()) == {True}
    assert len(blocked) == 4
    (statement,) = json.loads(s3.get_bucket_policy(Bucket=bucket)["Policy"])["Statement"]
    assert (statement["Effect"], statement["Principal"], statement["Action"]) == ("Deny", "*", "s3:*")
    assert statement["Condition"] == {"Bool": {"aws:SecureTransport": "false"}}
    assert set(statement["Resource"]) == {f"arn:aws:s3:::{bucket}", f"arn:aws:s3:::{bucket}/*"}
    (rule,) = s3.get_bucket_encryption(Bucket=bucket)["ServerSideEncryptionConfiguration"]["Rules"]
    assert rule["ApplyServerSideEncryptionByDefault"]["SSEAlgorithm"] == "AES256"


def test_nothing_stays_in_the_bucket_that_nobody_wants(applied: Applied) -> None:
    s3, bucket = applied.client("s3"), applied.outputs["model_bucket"]
    assert s3.get_bucket_versioning(Bucket=bucket)["Status"] == "Enabled"
    rules = {rule["ID"]: rule for rule in s3.get_bucket_lifecycle_configuration(Bucket=bucket)["Rules"]}
    assert set(rules) == {"stale-caches", "what-nobody-sees"}
    assert {rule["Status"] for rule in rules.values()} == {"Enabled"}
    stale, unseen = rules["stale-caches"], rules["what-nobody-sees"]
    assert (stale["Filter"]["Prefix"], stale["Expiration"]["Days"]) == ("cache/", 30)
    assert "Days" not in unseen["Expiration"]
    assert unseen["AbortIncompleteMultipartUpload"] == {"DaysAfterInitiation": 1}
    assert unseen["NoncurrentVersionExpiration"]["NoncurrentDays"] == 7


def test_a_tag_of_an_image_is_that_image_for_good(applied: Applied) -> None:
    ecr = applied.client("ecr")
    (repository,) = ecr.describe_repositories()["repositories"]
    assert repository["repositoryUri"] == applied.outputs["ecr_repository_url"]
    assert repository["imageTagMutability"] == "IMMUTABLE"
    assert repository["imageScanningConfiguration"] == {"scanOnPush": True}
    policy = json.loads(ecr.get_lifecycle_policy(repositoryName=repository["repositoryName"])["lifecyclePolicyText"])
    assert [rule["selection"]["tagStatus"] for rule in policy["rules"]] == ["untagged", "any"]


def test_pods_of_one_service_account_may_read_models_and_no_more(applied: Applied) -> None:
    eks, iam = applied.client("eks"), applied.client("iam")
    (listed,) = eks.list_pod_identity_associations(clusterName=CLUSTER, namespace="soloist")["associations"]
    association = eks.describe_pod_identity_association(clusterName=CLUSTER, associationId=listed["associationId"])[
        "association"
    ]
    assert association["serviceAccount"] == "soloist"
    assert association["roleArn"] == applied.outputs["soloist_role_arn"]
    role = association["roleArn"].rpartition("/")[2]
    (trust,) = iam.get_role(RoleName=role)["Role"]["AssumeRolePolicyDocument"]["Statement"]
    assert trust["Principal"] == {"Service": "pods.eks.amazonaws.com"}
    assert set(trust["Action"]) == {"sts:AssumeRole", "sts:TagSession"}
    assert trust["Condition"]["StringEquals"] == {
        "aws:RequestTag/eks-cluster-name": CLUSTER,
        "aws:RequestTag/kubernetes-namespace": "soloist",
        "aws:RequestTag/kubernetes-service-account": "soloist",
    }
    assert iam.list_attached_role_policies(RoleName=role)["AttachedPolicies"] == []
    (name,) = iam.list_role_policies(RoleName=role)["PolicyNames"]
    bucket = f"arn:aws:s3:::{applied.outputs['model_bucket']}"
    statements = iam.get_role_policy(RoleName=role, PolicyName=name)["PolicyDocument"]["Statement"]
    assert {(each["Effect"], each["Action"], each["Resource"]) for each in statements} == {
        ("Allow", "s3:ListBucket", bucket),
        ("Allow", "s3:GetObject", f"{bucket}/*"),
    }


def test_the_budget_tells_before_the_bill_does(applied: Applied) -> None:
    budgets, account = applied.client("budgets"), applied.account.account_id
    (budget,) = budgets.describe_budgets(AccountId=account)["Budgets"]
    assert budget["BudgetLimit"] == {"Amount": "400", "Unit": "USD"}
    assert (budget["TimeUnit"], budget["BudgetType"], budget["CostFilters"]) == ("MONTHLY", "COST", {})
    named = {"AccountId": account, "BudgetName": budget["BudgetName"]}
    alerts = budgets.describe_notifications_for_budget(**named)["Notifications"]
    assert {(alert["NotificationType"], alert["Threshold"]) for alert in alerts} == {
        ("ACTUAL", 80),
        ("FORECASTED", 100),
    }
    topic = applied.outputs["alerts_topic_arn"]
    for alert in alerts:
        alert.pop("NotificationState", None)
        told = budgets.describe_subscribers_for_notification(**named, Notification=alert)["Subscribers"]
        assert told == [{"SubscriptionType": "SNS", "Address": topic}]
    (email,) = applied.client("sns").list_subscriptions_by_topic(TopicArn=topic)["Subscriptions"]
    assert (email["Protocol"], email["Endpoint"]) == ("email", "platform@example.com")
    policy = json.loads(applied.client("sns").get_topic_attributes(TopicArn=topic)["Attributes"]["Policy"])
    (statement,) = policy["Statement"]
    assert set(statement["Principal"]["Service"]) == {
        "budgets.amazonaws.com", "costalerts.amazonaws.com", "cloudwatch.amazonaws.com",
    }  # fmt: skip


def test_idle_gpus_ring_and_an_empty_cluster_does_not(applied: Applied) -> None:
    (alarm,) = applied.client("cloudwatch").describe_alarms()["MetricAlarms"]
    assert alarm["TreatMissingData"] == "notBreaching"
    assert alarm["AlarmActions"] == alarm["OKActions"] == [applied.outputs["alerts_topic_arn"]]
    assert (alarm["ComparisonOperator"], alarm["Threshold"]) == ("LessThanThreshold", 1.0)
    # The emulator does not tell an alarm's queries.
    (query,) = _resource(applied, "aws_cloudwatch_metric_alarm")["metric_query"]
    assert alarm["EvaluationPeriods"] * query["period"] == 120 * 60
    assert query["expression"] == (
        f"SELECT MAX(node_gpu_utilization) FROM \"ContainerInsights\" WHERE ClusterName = '{CLUSTER}'"
    )
    agent = applied.client("eks").describe_addon(clusterName=CLUSTER, addonName="amazon-cloudwatch-observability")
    assert json.loads(agent["addon"]["configurationValues"]) == {
        "containerLogs": {"enabled": False},
        "manager": {"applicationSignals": {"autoMonitor": {"monitorAllServices": False}}},
    }
    (listed,) = applied.client("eks").list_pod_identity_associations(
        clusterName=CLUSTER, namespace="amazon-cloudwatch"
    )["associations"]
    assert listed["serviceAccount"] == "cloudwatch-agent"
    # Made before the agent would make it, without an end.
    (group,) = applied.client("logs").describe_log_groups()["logGroups"]
    assert group["logGroupName"] == f"/aws/containerinsights/{CLUSTER}/performance"
    assert group["retentionInDays"] == 3


def test_the_dashboard_shows_the_gpus_of_this_cluster(applied: Applied) -> None:
    body = applied.client("cloudwatch").get_dashboard(DashboardName=f"{CLUSTER}-gpus")["DashboardBody"]
    widgets = json.loads(body)["widgets"]
    assert [widget["type"] for widget in widgets] == ["text", "metric", "metric", "alarm"]
    for graph in widgets[1:3]:
        ((query,),) = graph["properties"]["metrics"]
        assert f"ClusterName = '{CLUSTER}'" in query["expression"]
        assert graph["properties"]["region"] == "us-east-1"
    # No widget lies on another.
    cells = [
        (x, y)
        for widget in widgets
        for x in range(widget["x"], widget["x"] + widget["width"])
        for y in range(widget["y"], widget["y"] + widget["height"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24


def test_the_night_terminates_gpu_nodes_of_this_cluster_alone(applied: Applied) -> None:
    schedule = applied.client("scheduler").get_schedule(Name=f"{CLUSTER}-night-stop")
    assert schedule["ScheduleExpression"] == "cron(30 19 ? * MON-FRI *)"
    assert schedule["ScheduleExpressionTimezone"] == "Europe/Berlin"
    asked = json.loads(schedule["Target"]["Input"])
    runbook = f"arn:aws:iam::{applied.account.account_id}:role/{CLUSTER}-night-runbook"
    assert asked["Parameters"] == {"AutomationAssumeRole": [runbook]}
    pools = {f"gpu-{kind}" for kind in ("spot", "spot-more", "on-demand")}
    assert [(target["Key"], set(target["Values"])) for target in asked["Targets"]] == [
        ("tag:karpenter.sh/nodepool", pools)
    ]
    policy = applied.client("iam").get_role_policy(
        RoleName=f"{CLUSTER}-night-runbook", PolicyName="terminate-gpu-nodes"
    )["PolicyDocument"]
    (ends,) = [each for each in policy["Statement"] if "ec2:TerminateInstances" in each["Action"]]
    condition = ends["Condition"]["StringEquals"]
    assert condition[f"ec2:ResourceTag/kubernetes.io/cluster/{CLUSTER}"] == "owned"
    assert set(condition["ec2:ResourceTag/karpenter.sh/nodepool"]) == pools


def test_the_schedule_may_start_that_runbook_with_that_role(applied: Applied) -> None:
    iam, account = applied.client("iam"), applied.account.account_id
    schedule = applied.client("scheduler").get_schedule(Name=f"{CLUSTER}-night-stop")
    role = schedule["Target"]["RoleArn"].rpartition("/")[2]
    (name,) = iam.list_role_policies(RoleName=role)["PolicyNames"]
    starts, passes = iam.get_role_policy(RoleName=role, PolicyName=name)["PolicyDocument"]["Statement"]
    runbook = json.loads(schedule["Target"]["Input"])["DocumentName"]
    assert starts["Action"] == "ssm:StartAutomationExecution"
    # A document of AWS's own, and so of no account; what begins is of this one.
    assert {
        f"arn:aws:ssm:us-east-1::document/{runbook}", f"arn:aws:ssm:us-east-1:{account}:automation-execution/*",
    } <= set(starts["Resource"])  # fmt: skip
    assert (passes["Action"], passes["Resource"]) == (
        "iam:PassRole", f"arn:aws:iam::{account}:role/{CLUSTER}-night-runbook",
    )  # fmt: skip


def test_everything_that_can_be_tagged_is(applied: Applied) -> None:
    managed = [each for each in applied.state["resources"] if each["mode"] == "managed"]
    assert len(managed) > 20
    for resource in managed:
        if "tags_all" in resource["values"]:
            assert resource["values"]["tags_all"] == TAGS, resource["address"]
    bucket = applied.client("s3").get_bucket_tagging(Bucket=applied.outputs["model_bucket"])["TagSet"]
    assert {tag["Key"]: tag["Value"] for tag in bucket} == TAGS


def test_the_chart_takes_the_outputs_as_its_values(applied: Applied) -> None:
    documents = render(applied.outputs["soloist_values"])
    assert faults(documents) == []
    pod = server_pod(documents)
    assert server(documents)["image"].startswith(applied.outputs["ecr_repository_url"] + ":")
    (association,) = [
        each
        for each in applied.client("eks").list_pod_identity_associations(clusterName=CLUSTER)["associations"]
        if each["namespace"] == "soloist"
    ]
    assert pod["serviceAccountName"] == association["serviceAccount"]
    assert the(documents, "ServiceAccount")["metadata"]["name"] == association["serviceAccount"]
    assert applied.outputs["model_uri"] == f"s3://{applied.outputs['model_bucket']}/models/{TAGS['model']}"
    assert applied.outputs["model_uri"] in json.dumps(documents)


def test_the_way_down_stops_at_models_and_leaves_nothing_else(applied: Applied) -> None:
    s3, bucket = applied.client("s3"), applied.outputs["model_bucket"]
    s3.put_object(Bucket=bucket, Key="models/llama-3.1-8b/config.json", Body=b"{}")
    with pytest.raises(TerraformFailedError, match="BucketNotEmpty"):
        applied.root.destroy()
    held = s3.list_object_versions(Bucket=bucket)["Versions"]
    assert [version["Key"] for version in held] == ["models/llama-3.1-8b/config.json"]
    for version in held:
        s3.delete_object(Bucket=bucket, Key=version["Key"], VersionId=version["VersionId"])

    applied.root.destroy()
    assert applied.root.state() == []
    assert inventory(applied.account) == applied.before
    eks = applied.client("eks")
    assert eks.list_addons(clusterName=CLUSTER)["addons"] == []
    assert eks.list_pod_identity_associations(clusterName=CLUSTER)["associations"] == []
    with pytest.raises(ClientError, match="ResourceNotFound"):
        applied.client("scheduler").get_schedule(Name=f"{CLUSTER}-night-stop")


def _resource(applied: Applied, kind: str) -> dict[str, Any]:
    (found,) = [each for each in applied.state["resources"] if each["type"] == kind]
    values: dict[str, Any] = found["values"]
    return values
