"""Models that are downloaded from a bucket into a cache: once, whole, right, and from where it stopped."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from engine.checkpoint import open_checkpoint, open_model
from engine.checkpoint.digest import folder_sha256
from engine.errors import CheckpointError
from engine.events import EngineEvent, Progress
from tests.checkpoints import write_tiny_folder
from tests.engine.checkpoint.bucket import Bucket
from tests.faulty_proxy import Asked, Fault, FaultyProxy, faulty_proxy
from tests.gguf_checkpoints import write_tiny_gguf

SHARD = "model.safetensors"
RANGE = 32 << 10


@pytest.fixture(autouse=True)
def small_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.checkpoint.download.RANGE_BYTES", RANGE)
    monkeypatch.setattr("engine.checkpoint.download._THREADS", 2)


def assert_same_files(folder: Path, cached: Path) -> None:
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {
        path.name: path.read_bytes() for path in cached.iterdir() if path.name not in ("versions", "lock")
    }


def cached_folder(cache: Path) -> Path:
    (folder,) = cache.iterdir()
    return folder


def after(count: int, fault: Fault) -> tuple[list[str], Callable[[Asked], Fault]]:
    """The ranges of the shard that were let through, and a fault for the ones beyond `count`."""
    passed: list[str] = []

    def decide(asked: Asked) -> Fault:
        if asked.method != "GET" or not asked.path.endswith(SHARD):
            return "none"
        if len(passed) >= count:
            return fault
        passed.append(str(asked.range))
        return "none"

    return passed, decide


def test_a_model_is_downloaded_once(tmp_path: Path, bucket: Bucket) -> None:
    folder = write_tiny_folder(tmp_path / "tiny", shards=2)
    model = bucket.upload(folder, "a/tiny", sums=True)
    events: list[EngineEvent] = []
    with faulty_proxy(bucket.account.url) as proxy:
        options = bucket.options(tmp_path / "cache", proxy.url, listener=events.append)
        first = open_checkpoint(model, folder_sha256(folder), options)
        asked = len(proxy.asked)
        again = open_checkpoint(model, None, options)
        assert len(proxy.asked) == asked + 2, "the list and the sums"
    assert first.name == again.name == "tiny"
    assert first.digest() == open_checkpoint(str(folder)).digest()
    assert_same_files(folder, cached_folder(tmp_path / "cache"))

    total = sum(path.stat().st_size for path in folder.iterdir())
    told = [event for event in events if isinstance(event, Progress)]
    assert {(event.phase, event.total, event.unit) for event in told} == {("download", total, "bytes")}
    counts = [event.done for event in told]
    assert counts == sorted(counts)
    assert (counts[0], counts[-1]) == (0, total)


def test_a_gguf_object_and_a_model_for_transformers_are_downloaded_too(tmp_path: Path, bucket: Bucket) -> None:
    file = write_tiny_gguf(tmp_path / "tiny.gguf")
    model = bucket.upload(file, "g/tiny.gguf", sums=True)
    opened = open_checkpoint(model, None, bucket.options(tmp_path / "cache"))
    assert (opened.name, opened.digest()) == ("tiny", open_checkpoint(str(file)).digest())
    other = write_tiny_folder(tmp_path / "other", model_type="gpt2", architectures=["GPT2LMHeadModel"])
    generic = open_model(bucket.upload(other, "other"), None, bucket.options(tmp_path / "cache2"))
    assert generic.name == "other"


def test_an_interrupted_download_goes_on_where_it_stopped(tmp_path: Path, bucket: Bucket) -> None:
    folder = write_tiny_folder(tmp_path / "tiny")
    model = bucket.upload(folder, "tiny", sums=True)
    ranges = -(-(folder / SHARD).stat().st_size // RANGE)
    assert ranges > 6
    with faulty_proxy(bucket.account.url) as proxy:
        options = bucket.options(tmp_path / "cache", proxy.url)
        passed, proxy.fault = after(3, "cut")
        with pytest.raises(CheckpointError) as caught:
            open_checkpoint(model, None, options)
        assert SHARD in str(caught.value)
        assert "\n" not in str(caught.value)
        assert not (cached_folder(tmp_path / "cache") / SHARD).exists()

        proxy.fault = lambda asked: "none"
        proxy.asked.clear()
        open_checkpoint(model, None, options)
        again = proxy.ranges(SHARD)
    assert len(again) == ranges - len(passed) == ranges - 3
    assert not set(again) & set(passed)
    assert_same_files(folder, cached_folder(tmp_path / "cache"))


_FETCH = """
import sys
from pathlib import Path
from engine.checkpoint import RemoteOptions, download, open_checkpoint
download.RANGE_BYTES, download._THREADS = int(sys.argv[4]), 2
open_checkpoint(sys.argv[1], None, RemoteOptions(sys.argv[2], Path(sys.argv[3])))
"""


def test_a_killed_download_goes_on_where_it_stopped(tmp_path: Path, bucket: Bucket) -> None:
    folder = write_tiny_folder(tmp_path / "tiny")
    model = bucket.upload(folder, "tiny", sums=True)
    with faulty_proxy(bucket.account.url) as proxy:
        passed, proxy.fault = after(4, "hold")
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        arguments = [model, proxy.url, str(tmp_path / "cache"), str(RANGE)]
        process = subprocess.Popen([sys.executable, "-c", _FETCH, *arguments], env=environment)
        journal = _wait_for_held_requests(proxy, tmp_path / "cache", process)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert {f"bytes={start}" for start in journal} == {value.partition("-")[0] for value in passed}

        proxy.fault = lambda asked: "none"
        proxy.asked.clear()
        open_checkpoint(model, None, bucket.options(tmp_path / "cache", proxy.url))
        again = proxy.ranges(SHARD)
    assert len(again) == -(-(folder / SHARD).stat().st_size // RANGE) - 4
    assert not set(again) & set(passed)
    assert_same_files(folder, cached_folder(tmp_path / "cache"))


def _wait_for_held_requests(proxy: FaultyProxy, cache: Path, process: subprocess.Popen[bytes]) -> list[str]:
    """Until both threads are held, and what came before is on the disk. What the journal says."""
    ends_s = time.monotonic() + 60
    while time.monotonic() < ends_s:
        assert process.poll() is None, "it ended by itself"
        if len(proxy.ranges(SHARD)) == 6:
            lines = (cached_folder(cache) / f"{SHARD}.ranges").read_text().splitlines()
            if len(lines) == 5:
                return lines[1:]
        time.sleep(0.02)
    raise AssertionError(proxy.asked)


def test_promise_14_one_flipped_bit_is_refused_and_not_kept(tmp_path: Path, bucket: Bucket) -> None:
    folder = write_tiny_folder(tmp_path / "tiny")
    model = bucket.upload(folder, "tiny", sums=True)
    bucket.flip(f"tiny/{SHARD}")
    with pytest.raises(CheckpointError, match=f"{bucket.name}/tiny/{SHARD}: its sha256 is .*; SHA256SUMS asks for"):
        open_checkpoint(model, None, bucket.options(tmp_path / "cache"))
    assert not list(cached_folder(tmp_path / "cache").glob(f"{SHARD}*"))
    bucket.upload(folder, "tiny", sums=True)
    open_checkpoint(model, None, bucket.options(tmp_path / "cache"))


def test_a_bit_that_flips_in_the_cache_is_seen_by_the_pin(tmp_path: Path, bucket: Bucket) -> None:
    folder = write_tiny_folder(tmp_path / "tiny")
    model, pin = bucket.upload(folder, "tiny"), folder_sha256(folder)
    open_checkpoint(model, pin, bucket.options(tmp_path / "cache"))
    shard = cached_folder(tmp_path / "cache") / SHARD
    content = bytearray(shard.read_bytes())
    content[-100] ^= 1
    shard.write_bytes(content)
    with pytest.raises(CheckpointError, match=f"the pin asks for {pin}"):
        open_checkpoint(model, pin, bucket.options(tmp_path / "cache"))


def test_a_new_model_at_the_address_replaces_the_old_one(tmp_path: Path, bucket: Bucket) -> None:
    old = write_tiny_folder(tmp_path / "old", shards=2, seed=1)
    new = write_tiny_folder(tmp_path / "new", seed=2)
    model = bucket.upload(old, "tiny")
    open_checkpoint(model, None, bucket.options(tmp_path / "cache"))
    for path in old.iterdir():
        bucket.client.delete_object(Bucket=bucket.name, Key=f"tiny/{path.name}")
    bucket.upload(new, "tiny")
    opened = open_checkpoint(model, None, bucket.options(tmp_path / "cache"))
    assert_same_files(new, cached_folder(tmp_path / "cache"))
    want = open_checkpoint(str(new))
    assert all(torch.equal(a.data, b.data) for a, b in zip(opened.tensors(), want.tensors(), strict=True))


def test_a_part_of_another_version_is_begun_anew(tmp_path: Path, bucket: Bucket) -> None:
    model = bucket.upload(write_tiny_folder(tmp_path / "tiny", seed=1), "tiny")
    with faulty_proxy(bucket.account.url) as proxy:
        options = bucket.options(tmp_path / "cache", proxy.url)
        _, proxy.fault = after(3, "cut")
        with pytest.raises(CheckpointError):
            open_checkpoint(model, None, options)
        folder = write_tiny_folder(tmp_path / "tiny", seed=2)
        bucket.upload(folder, "tiny")
        proxy.fault = lambda asked: "none"
        open_checkpoint(model, None, options)
    assert_same_files(folder, cached_folder(tmp_path / "cache"))


def test_two_that_share_a_cache_download_once(tmp_path: Path, bucket: Bucket) -> None:
    folder = write_tiny_folder(tmp_path / "tiny")
    model = bucket.upload(folder, "tiny", sums=True)
    with faulty_proxy(bucket.account.url) as proxy, ThreadPoolExecutor(3) as threads:
        options = bucket.options(tmp_path / "cache", proxy.url)
        opened = list(threads.map(lambda _: open_checkpoint(model, None, options).digest(), range(3)))
        asked = proxy.ranges(SHARD)
    assert len(set(opened)) == 1
    assert len(asked) == len(set(asked))


def test_a_cache_without_room_says_how_much_there_is(
    tmp_path: Path, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = bucket.upload(write_tiny_folder(tmp_path / "tiny"), "tiny")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=1000))
    with pytest.raises(CheckpointError, match=r"the cache has 1000 bytes free"):
        open_checkpoint(model, None, bucket.options(tmp_path / "cache"))
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="the cache cannot be used"):
        open_checkpoint(model, None, bucket.options(tmp_path / "file"))


def test_pickles_are_not_even_downloaded(tmp_path: Path, bucket: Bucket) -> None:
    folder = write_tiny_folder(tmp_path / "tiny")
    model = bucket.upload(folder, "tiny")
    bucket.put("tiny/pytorch_model.bin", b"a pickle")
    open_checkpoint(model, None, bucket.options(tmp_path / "cache"))
    assert_same_files(folder, cached_folder(tmp_path / "cache"))
    bucket.put("pickled/model.pt", b"a pickle")
    with pytest.raises(CheckpointError, match="is a pickle"):
        open_checkpoint(f"s3://{bucket.name}/pickled", None, bucket.options(tmp_path / "cache"))
