"""From a bucket into a cache folder: in ranges, side by side; what was interrupted goes on where it stopped.

Beside each file that is not whole yet (`NAME.part`) lies a journal of the ranges that are on disk (`NAME.ranges`),
which begins with the version of the object that they are of. A whole file is renamed into place after its digest was
checked, and its version is noted, so that the next start reads nothing twice and another version replaces it.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path

from engine.checkpoint.digest import file_sha256
from engine.checkpoint.remote import RemoteOptions
from engine.checkpoint.s3 import SUMS, Address, RemoteObject, Store
from engine.checkpoint.sums import MAX_SUMS_BYTES, check_sum, read_sums, wanted_sum
from engine.errors import CheckpointError
from engine.events import Progress

RANGE_BYTES = 16 << 20
_THREADS = 8
_VERSIONS = "versions"  # JSON, without the suffix by which a model's own words are known
_log = logging.getLogger(__name__)


def fetch_to_cache(model: str, options: RemoteOptions) -> Path:
    """The local folder or GGUF file of the address `model`, downloaded as far as it is not there.

    Raises CheckpointError in one line: the bucket refuses, a digest is wrong, the disk is full.
    """
    if options.cache is None:
        raise AssertionError("there is no cache to fetch to")
    address = Address.parse(model)
    store = Store(address, options.endpoint)
    # One folder a place: the same prefix of two servers is two models.
    place = hashlib.sha256(f"{options.endpoint or ''}\0{address}".encode()).hexdigest()[:12]
    folder = options.cache / f"{address.name.removesuffix('.gguf')}-{place}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _alone(folder):
            _fetch(store, folder, options)
    except OSError as error:
        raise CheckpointError(f"{folder}: the cache cannot be used: {error.strerror or error}") from error
    return folder / address.name if address.is_file else folder


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Pods of one node may share the cache: one downloads, the others wait for it."""
    with (folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _log.info("another process is filling the model cache: waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _fetch(store: Store, folder: Path, options: RemoteOptions) -> None:
    objects = store.objects()
    listed = objects.pop(SUMS, None)
    sums = None
    if listed is not None:
        sums = read_sums(store.where(listed), store.read(listed, size=min(listed.size, MAX_SUMS_BYTES)))
    wanted = {name: wanted_sum(sums, name, store.where(item)) for name, item in objects.items()}
    versions = _read_versions(folder)
    missing = {
        name: _Partial(store, item, folder)
        for name, item in objects.items()
        if versions.get(name) != _version(item, wanted[name]) or not (folder / name).is_file()
    }
    total = sum(item.size for item in objects.values())
    needed = sum(partial.missing_bytes for partial in missing.values())
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise CheckpointError(
            f"{folder}: the cache has {_in_bytes(free)} free; {store.address} takes {_in_bytes(needed)} more"
        )
    progress = _Told(options, total - needed, total)
    # The words before the weights: a model that cannot be talked to should be known before gigabytes come.
    for name in sorted(missing, key=lambda name: objects[name].size):
        missing[name].fetch(progress)
        found = None if wanted[name] is None else file_sha256(missing[name].part)
        if found is not None and found != wanted[name]:
            missing[name].forget()
        check_sum(store.where(objects[name]), found or "", wanted[name])
        missing[name].finish()
        versions[name] = _version(objects[name], wanted[name])
        _write_versions(folder, versions)
    _remove_others(folder, set(objects))


def _in_bytes(count: int) -> str:
    """In the largest unit of which there is one."""
    power = min(max(count.bit_length() - 1, 0) // 10, 4)
    return f"{count / 1024**power:.1f} {('KiB', 'MiB', 'GiB', 'TiB')[power - 1]}" if power else f"{count} bytes"


def _version(item: RemoteObject, wanted: str | None) -> list[str | int | None]:
    return [item.etag, item.size, wanted]


def _read_versions(folder: Path) -> dict[str, list[str | int | None]]:
    """What is known of the files that are whole; nothing where that note is damaged."""
    try:
        noted = json.loads((folder / _VERSIONS).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return noted if type(noted) is dict else {}


def _write_versions(folder: Path, versions: dict[str, list[str | int | None]]) -> None:
    written = folder / f"{_VERSIONS}.new"
    written.write_text(json.dumps(versions), encoding="utf-8")
    written.replace(folder / _VERSIONS)


def _remove_others(folder: Path, names: set[str]) -> None:
    """Files of an older model at this address: left there, they would be read with the new ones."""
    for path in folder.iterdir():
        if path.name not in names | {_VERSIONS, "lock"} and path.is_file():
            path.unlink()


class _Told:
    """Bytes that are on disk, told as they come; any thread."""

    def __init__(self, options: RemoteOptions, done: int, total: int) -> None:
        self._listener, self._done, self._total = options.listener, done, total
        self._lock = threading.Lock()
        self.add(0)

    def add(self, count: int) -> None:
        with self._lock:
            self._done += count
            self._listener(Progress("download", self._done, self._total, "bytes"))


class _Partial:
    """One file on its way."""

    def __init__(self, store: Store, item: RemoteObject, folder: Path) -> None:
        self._store, self._item, self._folder = store, item, folder
        self.part = folder / f"{item.name}.part"
        self._journal = folder / f"{item.name}.ranges"
        self._have = self._read_journal()

    @property
    def missing_bytes(self) -> int:
        # Counted from what is there: a server may tell of a size with ranges without number.
        size = self._item.size
        return size - sum(min(RANGE_BYTES, size - s) for s in self._have if s < size and s % RANGE_BYTES == 0)

    def _ranges(self) -> Iterator[tuple[int, int]]:
        for start in range(0, self._item.size, RANGE_BYTES):
            yield start, min(RANGE_BYTES, self._item.size - start)

    def _read_journal(self) -> set[int]:
        """Where the ranges begin that are on disk; none where they are of another version."""
        try:
            lines = self._journal.read_text(encoding="utf-8").split("\n")
        except (OSError, UnicodeDecodeError):
            return set()
        same = lines[0] == self._item.etag and self.part.is_file() and self.part.stat().st_size == self._item.size
        # The last line may be cut: only what ends with its newline was written whole.
        return {int(line) for line in lines[1:-1] if line.isascii() and line.isdigit()} if same else set()

    def fetch(self, progress: _Told) -> None:
        """Every range that is missing, several at a time. The first that fails ends the rest."""
        if self._have:
            _log.info("%s: goes on where it stopped, with %d bytes missing", self._item.name, self.missing_bytes)
        else:
            self._begin()
        missing = [(start, size) for start, size in self._ranges() if start not in self._have]
        stop = threading.Event()
        with self.part.open("r+b") as file, self._journal.open("a", encoding="utf-8") as journal:
            lock = threading.Lock()

            def one(start: int, size: int) -> None:
                if stop.is_set():
                    return
                data = self._store.read(self._item, start, size)
                os.pwrite(file.fileno(), data, start)
                os.fdatasync(file.fileno())  # before the journal says so
                with lock:
                    journal.write(f"{start}\n")
                    journal.flush()
                progress.add(size)

            with ThreadPoolExecutor(_THREADS, thread_name_prefix="download") as threads:
                futures = [threads.submit(one, start, size) for start, size in missing]
                done, _ = wait(futures, return_when=FIRST_EXCEPTION)
                if any(future.exception() for future in done):
                    stop.set()
            for future in futures:
                future.result()

    def _begin(self) -> None:
        self._journal.unlink(missing_ok=True)
        with self.part.open("wb") as file:
            file.truncate(self._item.size)
        self._journal.write_text(f"{self._item.etag}\n", encoding="utf-8")

    def forget(self) -> None:
        """Its bytes are wrong: keep none of them."""
        self._journal.unlink(missing_ok=True)
        self.part.unlink(missing_ok=True)

    def finish(self) -> None:
        """Whole and right: into place, in one step."""
        self.part.replace(self._folder / self._item.name)
        self._journal.unlink(missing_ok=True)
        directory = os.open(self._folder, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
