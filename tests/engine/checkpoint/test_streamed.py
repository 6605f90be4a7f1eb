"""Models that stream from a bucket to the device: the same as from a disk, in bounded memory, and checked."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
import torch

from engine.checkpoint import Checkpoint, open_checkpoint, open_model
from engine.checkpoint.digest import file_sha256, folder_sha256
from engine.config import EngineConfig
from engine.engine import Engine
from engine.errors import CheckpointError
from engine.events import EngineEvent, Progress
from engine.outputs import Token
from engine.params import SamplingParams
from tests.checkpoints import Sizes, write_tiny_folder
from tests.engine.checkpoint.bucket import Bucket
from tests.faulty_proxy import Asked, Fault, faulty_proxy
from tests.gguf_checkpoints import write_tiny_gguf


def tensors(checkpoint: Checkpoint) -> dict[str, torch.Tensor]:
    return {stored.name: stored.data.clone() for stored in checkpoint.tensors()}


def assert_same(streamed: Checkpoint, local: Checkpoint) -> None:
    here, there = tensors(local), tensors(streamed)
    assert list(here) == list(there)
    assert all(torch.equal(here[name], there[name]) for name in here)
    assert streamed.digest() == local.digest()
    assert (streamed.architecture, streamed.total_bytes, streamed.name) == (
        local.architecture,
        local.total_bytes,
        local.name,
    )


def refusal(bucket: Bucket, model: str, pin: str | None = None) -> str:
    with pytest.raises(CheckpointError) as caught:
        tensors(open_checkpoint(model, pin, bucket.options()))
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("sums", [False, True])
def test_a_folder_streams_as_it_lies_on_a_disk(tmp_path: Path, bucket: Bucket, sums: bool) -> None:
    folder = write_tiny_folder(tmp_path / "tiny", shards=3, dtype=torch.bfloat16)
    model = bucket.upload(folder, "some/where/tiny", sums=sums)
    assert_same(open_checkpoint(model, None, bucket.options()), open_checkpoint(str(folder)))


@pytest.mark.parametrize("sums", [False, True])
def test_a_gguf_object_streams_as_it_lies_on_a_disk(tmp_path: Path, bucket: Bucket, sums: bool) -> None:
    # Factors of the rotation are read when the file is opened, from its data.
    factors = tuple(1.0 + step / 2 for step in range(8))
    file = write_tiny_gguf(tmp_path / "tiny.gguf", rope_factors=factors, quantisation="Q8_0")
    model = bucket.upload(file, "some/tiny.gguf", sums=sums)
    assert_same(open_checkpoint(model, None, bucket.options()), open_checkpoint(str(file)))


def test_an_engine_says_the_same_from_a_bucket(tmp_path: Path, bucket: Bucket) -> None:
    folder = write_tiny_folder(tmp_path / "tiny", shards=2)
    model = bucket.upload(folder, "tiny")

    def answer(config: EngineConfig) -> tuple[list[int], str]:
        events: list[EngineEvent] = []
        engine = Engine.open(config, events.append)
        try:
            context = engine.open_context()
            turn = engine.generate(context, list(range(9, 30)), SamplingParams(temperature=0.8, seed=5, max_tokens=12))
            ids = [step.token_id for step in turn if isinstance(step, Token)]
            context.close()
        finally:
            engine.close()
        loaded = [event for event in events if isinstance(event, Progress) and event.phase == "load"]
        assert loaded[-1].done == loaded[-1].total > 0
        return ids, engine.info.fingerprint

    local = answer(EngineConfig(model=str(folder), device="cpu"))
    assert answer(EngineConfig(model=model, device="cpu", s3_endpoint=bucket.account.url)) == local


def test_connections_that_break_cost_a_group_and_not_the_load(tmp_path: Path, bucket: Bucket) -> None:
    folder = write_tiny_folder(tmp_path / "tiny")
    model = bucket.upload(folder, "tiny", sums=True)
    broken: set[str] = set()

    def break_each_range_once(asked: Asked) -> Fault:
        if not asked.path.endswith(".safetensors") or asked.method != "GET" or asked.range in broken:
            return "none"
        broken.add(str(asked.range))
        return "cut"

    with faulty_proxy(bucket.account.url) as proxy:
        opened = open_checkpoint(model, None, bucket.options(endpoint=proxy.url))
        proxy.fault = break_each_range_once
        assert_same(opened, open_checkpoint(str(folder)))
    assert broken


def test_a_server_that_goes_is_one_sentence(tmp_path: Path, bucket: Bucket) -> None:
    model = bucket.upload(write_tiny_folder(tmp_path / "tiny"), "tiny")
    with faulty_proxy(bucket.account.url) as proxy:
        opened = open_checkpoint(model, None, bucket.options(endpoint=proxy.url))
        proxy.fault = lambda asked: "refuse"
        with pytest.raises(CheckpointError) as caught:
            tensors(opened)
    assert model in str(caught.value)
    assert "\n" not in str(caught.value)


def test_promise_14_one_flipped_bit_in_a_bucket_is_refused(tmp_path: Path, bucket: Bucket) -> None:
    folder = write_tiny_folder(tmp_path / "tiny", shards=2)
    shard = "model-00002-of-00002.safetensors"
    model = bucket.upload(folder, "tiny", sums=True)
    bucket.flip(f"tiny/{shard}")
    assert f"s3://{bucket.name}/tiny/{shard}: its sha256 is" in refusal(bucket, model)
    bucket.upload(folder, "tiny", sums=True)
    bucket.flip("tiny/tokenizer.json")
    assert f"s3://{bucket.name}/tiny/tokenizer.json: its sha256 is" in refusal(bucket, model)

    file = write_tiny_gguf(tmp_path / "tiny.gguf")
    model = bucket.upload(file, "g/tiny.gguf", sums=True)
    bucket.flip("g/tiny.gguf")
    assert f"s3://{bucket.name}/g/tiny.gguf: its sha256 is" in refusal(bucket, model)


def test_promise_14_the_pin_of_a_disk_is_the_pin_of_a_bucket(tmp_path: Path, bucket: Bucket) -> None:
    folder, file = write_tiny_folder(tmp_path / "tiny", shards=2), write_tiny_gguf(tmp_path / "tiny.gguf")
    for source, key, pin in (
        (folder, "tiny", folder_sha256(folder)),
        (file, "tiny.gguf", file_sha256(file)),
    ):
        model = bucket.upload(source, key)
        tensors(open_checkpoint(model, pin, bucket.options()))
        wrong = hashlib.sha256(b"other").hexdigest()
        assert f"{model}: its sha256 is {pin}; the pin asks for {wrong}" in refusal(bucket, model, wrong)


def test_sums_that_cannot_be_used_are_refused(tmp_path: Path, bucket: Bucket) -> None:
    model = bucket.upload(write_tiny_folder(tmp_path / "tiny"), "tiny")
    bucket.put("tiny/SHA256SUMS", b"not what sha256sum prints")
    assert "SHA256SUMS: line 1 is not of the form" in refusal(bucket, model)
    bucket.put("tiny/SHA256SUMS", f"{'0' * 64}  other.json\n".encode())
    assert "SHA256SUMS beside it does not name" in refusal(bucket, model)


def test_what_a_bucket_refuses_is_one_sentence(tmp_path: Path, bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "has no bucket nobodys" in refusal(bucket, "s3://nobodys/tiny")
    assert "there is nothing under this prefix" in refusal(bucket, f"s3://{bucket.name}/none")
    assert "there is no such object" in refusal(bucket, f"s3://{bucket.name}/none.gguf")
    assert "one looks like s3://bucket/models/name" in refusal(bucket, f"s3://{bucket.name}")
    assert "one looks like s3://bucket/models/name" in refusal(bucket, "s3://Models/a")
    bucket.put("pickled/config.json", b"{}")
    bucket.put("pickled/pytorch_model.bin", b"...")
    assert "pytorch_model.bin is a pickle" in refusal(bucket, f"s3://{bucket.name}/pickled")
    assert "is a pickle" in refusal(bucket, f"s3://{bucket.name}/pickled/pytorch_model.bin")
    model = bucket.upload(write_tiny_folder(tmp_path / "tiny"), "tiny")
    nowhere = bucket.options(endpoint="http://127.0.0.1:9")
    with pytest.raises(CheckpointError, match=r"http://127\.0\.0\.1:9 cannot be reached"):
        open_checkpoint(model, None, nowhere)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    assert "there are no credentials" in refusal(bucket, model)


def test_a_variable_of_the_streamer_that_contradicts_is_not_kept_in_silence(
    tmp_path: Path, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = bucket.upload(write_tiny_folder(tmp_path / "tiny"), "tiny")
    monkeypatch.setenv("RUNAI_STREAMER_S3_USE_VIRTUAL_ADDRESSING", "1")
    assert "RUNAI_STREAMER_S3_USE_VIRTUAL_ADDRESSING=1 forbids; leave it unset" in refusal(bucket, model)

    monkeypatch.delenv("RUNAI_STREAMER_S3_USE_VIRTUAL_ADDRESSING")
    opened = open_checkpoint(model, None, bucket.options())
    assert os.environ["RUNAI_STREAMER_S3_USE_VIRTUAL_ADDRESSING"] == "0", "before any thread reads"
    monkeypatch.setattr(os.environ, "setdefault", None)
    tensors(opened)


def test_credentials_come_from_the_pods_identity(
    tmp_path: Path, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_tiny_folder(tmp_path / "tiny")
    model = bucket.upload(folder, "tiny")
    token = tmp_path / "token"
    token.write_text("of this pod")
    shown: list[str | None] = []

    class Agent(BaseHTTPRequestHandler):
        """What EKS runs on each node: temporary keys for a pod's token."""

        def do_GET(self) -> None:
            shown.append(self.headers.get("Authorization"))
            keys = {"AccessKeyId": bucket.account.account_id, "SecretAccessKey": "test", "Token": "session"}
            body = json.dumps(keys | {"Expiration": "2099-01-01T00:00:00Z"}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    with HTTPServer(("127.0.0.1", 0), Agent) as agent:
        thread = threading.Thread(target=agent.serve_forever)
        thread.start()
        monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"http://127.0.0.1:{agent.server_port}/v1/credentials")
        monkeypatch.setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", str(token))
        try:
            assert_same(open_checkpoint(model, None, bucket.options()), open_checkpoint(str(folder)))
        finally:
            agent.shutdown()
            thread.join()
    assert set(shown) == {"of this pod"}


def test_a_model_that_is_not_native_asks_for_a_cache(tmp_path: Path, bucket: Bucket) -> None:
    folder = write_tiny_folder(tmp_path / "other", model_type="gpt2", architectures=["GPT2LMHeadModel"])
    model = bucket.upload(folder, "other")
    with pytest.raises(CheckpointError, match="set --model-cache"):
        open_model(model, None, bucket.options())


def test_an_object_that_is_replaced_meanwhile_is_refused(tmp_path: Path, bucket: Bucket) -> None:
    model = bucket.upload(write_tiny_folder(tmp_path / "tiny", seed=1), "tiny")
    opened = open_checkpoint(model, None, bucket.options())
    bucket.upload(write_tiny_folder(tmp_path / "tiny", seed=2), "tiny")
    with pytest.raises(CheckpointError, match="was changed or removed while it was read"):
        tensors(opened)


_PEAK = """
import sys, threading
from engine.checkpoint import RemoteOptions, open_checkpoint

def kib(name):
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(name + ":"))

def load(model):
    return sum(stored.data.numel() for stored in open_checkpoint(model, None, options).tensors())

endpoint, small, large, buffer_bytes = sys.argv[1:]
options = RemoteOptions(endpoint=endpoint, buffer_bytes=int(buffer_bytes))
load(small)  # libraries, threads, connections
before = kib("VmHWM")
load(large)
print((kib("VmHWM") - before) * 1024)
"""


def test_memory_stays_under_the_cap(tmp_path: Path, bucket: Bucket) -> None:
    sizes = Sizes(layers=6, width=512, heads=8, kv_heads=2, head_dim=64, ffn_width=2048)
    folder = write_tiny_folder(tmp_path / "large", sizes=sizes, shards=2)
    total = sum(path.stat().st_size for path in folder.iterdir())
    small = bucket.upload(write_tiny_folder(tmp_path / "tiny"), "tiny")
    large = bucket.upload(folder, "large", sums=True)
    buffer_bytes = 16 << 20
    assert total > 4 * buffer_bytes
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run(
        [sys.executable, "-c", _PEAK, bucket.account.url, small, large, str(buffer_bytes)],
        capture_output=True, text=True, env=environment, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout) < buffer_bytes + (64 << 20)  # what the native client and the allocator keep
