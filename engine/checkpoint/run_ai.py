"""Parts of objects in order, through Run:ai Model Streamer: many connections in native code, bounded buffers.

The streamer gives parts in the order in which they arrive. A digest needs them in the order of the file, so they are
asked for in groups: while one group is used, the next one is on its way, and each takes half of the buffer at most.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from engine.checkpoint.s3 import RemoteObject, Store
from engine.errors import CheckpointError

_ATTEMPTS = 3
_PAUSE_S = 1.0
_VIRTUAL_ADDRESSING = "RUNAI_STREAMER_S3_USE_VIRTUAL_ADDRESSING"


@dataclass(frozen=True, slots=True)
class Span:
    """`size` bytes from `offset` on."""

    offset: int
    size: int


def _address_by_path(store: Store) -> None:
    """Servers other than Amazon's seldom have a host name for each bucket, and the streamer has no argument for it.

    Raises CheckpointError where the variable that it has says otherwise. Set before the streamer has threads, and left
    so: Amazon's server takes both forms.
    """
    said = os.environ.setdefault(_VIRTUAL_ADDRESSING, "0")
    if said != "0":
        raise CheckpointError(
            f"{store.address}: buckets of {store.own_endpoint} are addressed by path, which {_VIRTUAL_ADDRESSING}="
            f"{ascii(said)[1:-1][:40]} forbids; leave it unset, or set --model-cache"
        )


class Streamer:
    """Reads objects of one store, with at most `buffer_bytes` of host memory, or twice the largest span."""

    def __init__(self, store: Store, buffer_bytes: int) -> None:
        try:
            from runai_model_streamer.file_streamer.file_streamer import FileStreamer
            from runai_model_streamer.s3_utils.s3_utils import S3Credentials
        except ImportError:
            raise CheckpointError(
                f"{store.address}: streaming from a bucket needs `pip install 'soloist[s3]'`; "
                "with --model-cache the model is downloaded first"
            ) from None
        if store.own_endpoint is not None:
            _address_by_path(store)
        self._store, self._half = store, buffer_bytes // 2
        self._make, self._credentials = FileStreamer, S3Credentials

    def spans(self, item: RemoteObject, spans: Sequence[Span]) -> Iterator[Tensor]:
        """The bytes of each span `[size]` uint8, in the order of `spans`, each good until the next one is asked for.

        Raises CheckpointError where the object cannot be read, after a few attempts.
        """
        groups = list(self._groups(spans))
        with ThreadPoolExecutor(1, thread_name_prefix="stream") as ahead:
            coming = ahead.submit(self._read, item, groups[0]) if groups else None
            for index in range(len(groups)):
                assert coming is not None
                parts = coming.result()
                coming = ahead.submit(self._read, item, groups[index + 1]) if index + 1 < len(groups) else None
                while parts:
                    yield parts.pop(0)

    def _groups(self, spans: Sequence[Span]) -> Iterator[list[Span]]:
        group: list[Span] = []
        held = 0
        for span in spans:
            if group and held + span.size > self._half:
                yield group
                group, held = [], 0
            group.append(span)
            held += span.size
        if group:
            yield group

    def _read(self, item: RemoteObject, group: list[Span]) -> list[Tensor]:
        """One group. A connection that breaks costs one group at most."""
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                return self._read_once(item, group)
            except (ValueError, RuntimeError, OSError) as error:
                if attempt == _ATTEMPTS:
                    reason = ascii(" ".join(str(error).split()))[1:-1][:160]
                    raise CheckpointError(f"{self._store.where(item)}: cannot be streamed: {reason}") from error
                time.sleep(_PAUSE_S * attempt)
        raise AssertionError("the last attempt returns or raises")

    def _read_once(self, item: RemoteObject, group: list[Span]) -> list[Tensor]:
        from runai_model_streamer.file_streamer.requests_iterator import FileChunks

        full = [index for index, span in enumerate(group) if span.size]
        parts: list[Tensor] = [torch.empty(0, dtype=torch.uint8)] * len(group)
        if not full:
            return parts
        access = self._store.access()
        chunks = FileChunks(0, self._store.where(item), [group[i].offset for i in full], [group[i].size for i in full])
        streamer: Any
        with self._make() as streamer:
            # Owned: a part stays good when the next ones come.
            streamer.stream_files(
                [chunks], self._credentials(**access), "cpu", memory_limit=max(1, chunks.total_size()), owned=True
            )
            for _, index, part in streamer.get_chunks():
                parts[full[index]] = part.view(-1)
        for span, part in zip(group, parts, strict=True):
            if part.numel() != span.size:
                raise ValueError(f"{part.numel()} bytes came where {span.size} were asked for")
        return parts
