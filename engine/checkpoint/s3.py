"""Objects of one place in a bucket: what is there, and bytes of it. The only file that knows boto3.

boto3 is imported where it is used: nobody else waits for it. It finds credentials by the standard AWS chain, a pod's
identity included. Each read asks for the version that was listed, so an object that is replaced meanwhile is an error
and never a mixture.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from engine.checkpoint.remote import SCHEME
from engine.checkpoint.s3_answers import AnswerError, BoundedAnswers
from engine.checkpoint.shards import PICKLE_SENTENCE, PICKLE_SUFFIXES
from engine.errors import CheckpointError

GGUF = ".gguf"
SUMS = "SHA256SUMS"
WORD_SUFFIXES = (".json", ".jinja")
READ_SUFFIXES = (*WORD_SUFFIXES, ".safetensors")
_INSTALL = "pip install 'soloist[s3]'"
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_NAME = re.compile(r"\w[\w.+@=,-]{0,254}", re.ASCII)
# Second copies of the same weights, and what is no model by itself.
_UNREAD = ("consolidated", "adapter_")
# Of one folder. A page has up to 1,000 entries; those with other names and folders below are entries too.
_MOST_OBJECTS, _MOST_PAGES = 10_000, 30
_MOST_BYTES = 50 * 10**12  # what S3 takes as one object
_CONNECT_S, _READ_S, _ATTEMPTS = 5, 60, 5


@dataclass(frozen=True, slots=True)
class Address:
    """`s3://bucket/key`; `key` has no slash at its ends."""

    bucket: str
    key: str

    @classmethod
    def parse(cls, text: str) -> Address:
        """Raises CheckpointError where `text` is no address of a folder or GGUF object."""
        bucket, _, key = text.removeprefix(SCHEME).partition("/")
        key = key.strip("/")
        shown = ascii(text)[:160]
        if _BUCKET.fullmatch(bucket) is None or not key or not key.isprintable():
            raise CheckpointError(f"{shown}: is no address of a model; one looks like s3://bucket/models/name")
        if key.endswith(PICKLE_SUFFIXES):
            raise CheckpointError(f"{text} {PICKLE_SENTENCE}")
        if key.endswith(".safetensors"):
            raise CheckpointError(f"{text}: give the prefix that holds it, with its config.json and tokenizer.json")
        return cls(bucket, key)

    @property
    def name(self) -> str:
        """The last part of the key: what to call the model."""
        return self.key.rpartition("/")[2]

    @property
    def is_file(self) -> bool:
        """Whether it names one GGUF object; else it names a prefix."""
        return self.key.endswith(GGUF)

    def __str__(self) -> str:
        return f"{SCHEME}{self.bucket}/{self.key}"


@dataclass(frozen=True, slots=True)
class RemoteObject:
    """An object as it was listed. `etag` is its version."""

    key: str
    size: int
    etag: str

    @property
    def name(self) -> str:
        """Its name in the folder."""
        return self.key.rpartition("/")[2]


class Store:
    """One address and a client for it. Calls may come from several threads."""

    def __init__(self, address: Address, endpoint: str | None) -> None:
        self.address = address
        try:
            import boto3
            from botocore.config import Config
        except ImportError:
            raise CheckpointError(f"{address}: reading from a bucket needs `{_INSTALL}`") from None
        config = Config(
            connect_timeout=_CONNECT_S,
            read_timeout=_READ_S,
            retries={"mode": "standard", "total_max_attempts": _ATTEMPTS},
            max_pool_connections=32,
            # Servers other than Amazon's seldom have a host name for each bucket.
            s3={"addressing_style": "path" if endpoint is not None else "auto"},
        )
        self._endpoint = endpoint
        self._region: str | None = None
        with self._failing():
            self._session = boto3.Session()
            self._client: Any = self._session.client(
                "s3",
                endpoint_url=endpoint,
                config=config,
                # Other servers ignore the region, but a signature has one.
                region_name=self._session.region_name or ("us-east-1" if endpoint is not None else None),
            )
            self._client.meta.events.register_last("before-send.s3", BoundedAnswers(self._client))

    def objects(self) -> dict[str, RemoteObject]:
        """By name: the GGUF object, or what a model folder is read from; and the sums, where there are any."""
        found = {item.name: item for item in self._listed()}
        if self.address.is_file:
            if self.address.name not in found:
                raise CheckpointError(f"{self.address}: there is no such object")
            return {name: item for name, item in found.items() if name in (self.address.name, SUMS)}
        if not found:
            raise CheckpointError(f"{self.address}: there is nothing under this prefix")
        read = {n: item for n, item in found.items() if n.endswith(READ_SUFFIXES) and not n.startswith(_UNREAD)}
        if not any(name.endswith(".safetensors") for name in read):
            pickles = sorted(name for name in found if name.endswith(PICKLE_SUFFIXES))
            if pickles:
                raise CheckpointError(f"{self.address}/{pickles[0]} {PICKLE_SENTENCE}")
            raise CheckpointError(f"{self.address}: there are no safetensors files under this prefix")
        return read | {name: item for name, item in found.items() if name == SUMS}

    def _listed(self) -> Iterator[RemoteObject]:
        """Objects directly in the folder, with names that a file may have."""
        folder = self.address.key.rpartition("/")[0] if self.address.is_file else self.address.key
        prefix = f"{folder}/" if folder else ""
        count = 0
        with self._failing():
            pages = self._client.get_paginator("list_objects_v2").paginate(
                Bucket=self.address.bucket, Prefix=prefix, Delimiter="/"
            )
            for number, page in enumerate(pages, start=1):
                count += len(page.get("Contents", ()))
                if number > _MOST_PAGES or count > _MOST_OBJECTS:
                    raise AnswerError(
                        f"lists more than {_MOST_OBJECTS} objects or {_MOST_PAGES} pages; "
                        "give a prefix that holds one model"
                    )
                for entry in page.get("Contents", ()):
                    item = _object(entry, prefix)
                    if _NAME.fullmatch(item.key.removeprefix(prefix)) is not None:
                        yield item

    def read(self, item: RemoteObject, start: int = 0, size: int | None = None) -> bytes:
        """`size` bytes from `start` on, to the end by default."""
        size = item.size - start if size is None else size
        if size <= 0:
            return b""
        with self._failing(item):
            answer = self._client.get_object(
                Bucket=self.address.bucket, Key=item.key, IfMatch=item.etag, Range=f"bytes={start}-{start + size - 1}"
            )
            data: bytes = answer["Body"].read()
        if len(data) != size:
            raise CheckpointError(f"{self.where(item)}: gave {len(data)} bytes where {size} were asked for")
        return data

    def where(self, item: RemoteObject) -> str:
        """The object's address."""
        return f"{SCHEME}{self.address.bucket}/{item.key}"

    def check_unchanged(self, item: RemoteObject) -> None:
        """Raise CheckpointError where the object is not the one that was listed."""
        with self._failing(item):
            self._client.head_object(Bucket=self.address.bucket, Key=item.key, IfMatch=item.etag)

    @property
    def own_endpoint(self) -> str | None:
        """Where the objects are, unless that is Amazon's."""
        url = str(self._client.meta.endpoint_url)
        return None if re.search(r"\.amazonaws\.com(\.cn)?$", url) else url

    def access(self) -> dict[str, str | None]:
        """Keys, region and endpoint as they hold now, for a library that has no chain of its own."""
        with self._failing():
            found = self._session.get_credentials()
            keys = None if found is None else found.get_frozen_credentials()
            if self._region is None:
                answer = self._client.head_bucket(Bucket=self.address.bucket)
                self._region = answer.get("BucketRegion") or self._client.meta.region_name or "us-east-1"
        return {
            "access_key_id": None if keys is None else keys.access_key,
            "secret_access_key": None if keys is None else keys.secret_key,
            "session_token": None if keys is None else keys.token,
            "region_name": self._region,
            "endpoint": self.own_endpoint,
        }

    @contextmanager
    def _failing(self, item: RemoteObject | None = None) -> Iterator[None]:
        """One sentence for each way in which a server may refuse."""
        from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError, NoCredentialsError
        from botocore.exceptions import ConnectionError as NoConnectionError

        where = str(self.address) if item is None else self.where(item)
        server = self._endpoint or "Amazon S3"
        try:
            yield
        except AnswerError as error:
            raise CheckpointError(f"{where}: {server} {error}") from None
        except ClientError as error:
            raise CheckpointError(f"{where}: {self._refusal(error, server)}") from None
        except NoCredentialsError:
            raise CheckpointError(
                f"{where}: there are no credentials for {server}; give the pod a role, or set AWS_ACCESS_KEY_ID and "
                "AWS_SECRET_ACCESS_KEY"
            ) from None
        except (HTTPClientError, NoConnectionError) as error:
            raise CheckpointError(f"{where}: {server} cannot be reached: {_short(error)}") from None
        except (BotoCoreError, ValueError) as error:
            raise CheckpointError(f"{where}: cannot be read from {server}: {_short(error)}") from None

    def _refusal(self, error: Any, server: str) -> str:
        code = str(error.response.get("Error", {}).get("Code", ""))
        if code == "NoSuchBucket" or (code == "404" and error.operation_name == "HeadBucket"):
            return f"{server} has no bucket {self.address.bucket}"
        if code in ("AccessDenied", "403", "AllAccessDisabled"):
            return "access is denied; the credentials need s3:ListBucket on the bucket and s3:GetObject on its objects"
        if code in (
            "InvalidAccessKeyId",
            "SignatureDoesNotMatch",
            "ExpiredToken",
            "InvalidToken",
            "TokenRefreshRequired",
        ):
            return f"{server} does not accept the credentials ({code})"
        if code in ("PreconditionFailed", "412", "NoSuchKey", "404"):
            return "the object was changed or removed while it was read; start again"
        return f"{server} refuses: {_short(error)}"


def _object(entry: dict[str, Any], prefix: str) -> RemoteObject:
    """An entry of a listing. A server may be anybody's: AnswerError for one that no store of objects would give."""
    key, size, etag = (entry.get(name) for name in ("Key", "Size", "ETag"))
    if key is None or size is None or not etag:
        raise AnswerError(f"lists an object without its key, size or ETag: {ascii(key)[:160]}")
    if not key.startswith(prefix):
        raise AnswerError(f"lists {ascii(key)[:160]}, which is not under the prefix that was asked for")
    if not 0 <= size <= _MOST_BYTES or not etag.isprintable():
        raise AnswerError(f"lists {ascii(key)[:160]} with {size} bytes and ETag {ascii(etag)[:80]}, which cannot be")
    return RemoteObject(key, size, etag)


def _short(error: Exception) -> str:
    return ascii(" ".join(str(error).split()))[1:-1][:200]
