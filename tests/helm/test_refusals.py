"""Values that pass each by itself and could not work are refused, with what would be right."""

from __future__ import annotations

from typing import Any

import pytest

from engine.checkpoint.s3 import Address
from engine.errors import CheckpointError
from tests.helm.leaves import errors
from tests.helm.rendering import NODES_CHART, RenderError, render, the


@pytest.mark.parametrize("release", ["my.rel", "1abc", "123", "a" * 39 + ".soloist"])
def test_a_release_whose_service_could_have_no_name_is_refused(release: str) -> None:
    with pytest.raises(RenderError, match="set fullnameOverride"):
        render(release=release)
    assert the(render({"fullnameOverride": "chat"}, release=release), "Service")["metadata"]["name"] == "chat"


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"podAnnotations": {"checksum/settings": "fixed"}}, "checksum/settings"),
        ({"podLabels": {"a b": "x"}}, "a b"),
        ({"podLabels": {"a": "x y"}}, "podLabels/a"),
        ({"monitoring": {"podMonitor": {"labels": {"helm.sh/chart": "x"}}}}, "monitoring.podMonitor.labels"),
        *[
            ({"settings": {"traces": url}}, "settings.traces")
            for url in (
                "http://h:0",
                "http://h:99999",
                "http://h:65536",
                "http://h:x",
                "http://h,x:1",
                "http://[fd00::5",
            )
        ],
        *[
            ({"model": {"source": "s3", "s3": {"uri": "s3://bucket/m", "endpoint": url}}}, "endpoint")
            for url in ("http://h:0", "http://h:65536", "http://h:99999", "http://a,b")
        ],
        *[
            ({"model": {"source": "image", "image": {"reference": name}}}, "reference")
            for name in ("reg:5000/model", "model", "reg:5000/model:latest", "reg:5000/a@b/model")
        ],
    ],
)
def test_what_could_not_work_is_refused(values: dict[str, Any], said: str) -> None:
    with pytest.raises(RenderError, match=said):
        render(values)


def test_two_pools_of_one_name_are_refused() -> None:
    pools = {"spot": {"name": "x", "moreInstanceTypes": ["g6.2xlarge"]}, "onDemand": {"name": "x-more"}}
    with pytest.raises(RenderError, match=r"pools\.onDemand\.name is x-more"):
        render({"clusterName": "c", "instanceTypes": ["g6.xlarge"], "pools": pools}, chart=NODES_CHART)


@pytest.mark.parametrize(
    ("url", "port"), [("http://[fd00::5]", 4317), ("http://[fd00::5]:4318/", 4318), ("http://h:65535", 65535)]
)
def test_traces_may_leave_by_the_port_of_their_address(url: str, port: int) -> None:
    policy = the(render({"settings": {"traces": url}}), "NetworkPolicy")
    assert port in [each["port"] for rule in policy["spec"]["egress"] for each in rule["ports"]]


@pytest.mark.parametrize("reference", ["reg:5000/model:1", "model:1", f"reg:5000/model@sha256:{'0' * 64}"])
def test_an_image_with_a_tag_or_digest_is_taken(reference: str) -> None:
    assert errors({"model": {"image": {"reference": reference}}}) == []


@pytest.mark.parametrize(
    "text",
    [
        "s3://b", "s3://bucket", "s3://bucket/", "s3://bucket//", "s3://bucket/m", "s3://bucket//m//", "s3://Bucket/m",
        "s3://b/m", "s3://bucket/a/b.gguf", "s3://bucket/m.safetensors", "s3://bucket/m.bin/", "s3://-bucket/m",
        "s3://bu_cket/m", "s3://bucket/m.pt", "s3:///m", "s3://my.bucket/m",
    ],
)  # fmt: skip
def test_the_schema_takes_the_addresses_that_the_server_takes(text: str) -> None:
    try:
        Address.parse(text)
    except CheckpointError:
        assert errors({"model": {"s3": {"uri": text}}}) != []
    else:
        assert errors({"model": {"s3": {"uri": text}}}) == []
