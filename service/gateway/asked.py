"""What a request asks for: the tables of all fields of both endpoints, and what they become for the client library."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from service.client import Message, ResponseFormat
from service.client.chat import Sampling
from service.gateway import caps
from service.gateway.errors import wrong
from service.gateway.fields import (
    Field,
    Read,
    Use,
    anything,
    flag,
    items,
    number,
    only,
    read_fields,
    record,
    shown,
    text,
    whole,
)
from service.gateway.messages import read_messages

_INT32, _UINT32 = 2**31 - 1, 2**32 - 1
_token_id: Final = whole(0, _UINT32)
_seed_given: Final = whole(-(2**63), 2**64 - 1)
_NO_TOOLS = "tools are not served"
_ONE_ANSWER = "one answer to a request is all that is served"
LEGACY_MAX_TOKENS: Final = 16  # OpenAI's default of /v1/completions
TEXT_FORM: Final[ResponseFormat] = {}


@dataclass(frozen=True, slots=True)
class Asked:
    """One checked request.

    Attributes:
        model: the name that it gave; None leaves the choice to the gateway.
        sampling: fields of the turn, for the client library.
        include_usage: a last chunk with the usage.
        top_logprobs: None without logprobs.
        renamed: fields of the proto -> what this request calls them.
    """

    model: str | None
    messages: tuple[Message, ...]
    sampling: Sampling
    stream: bool
    include_usage: bool
    top_logprobs: int | None
    renamed: Mapping[str, str] = field(default_factory=dict)


def _texts(most: int) -> Read:
    """One text or several."""

    def read(path: str, value: Any) -> list[str]:
        if isinstance(value, str):
            return [value]
        given = items(path, value)
        caps.no_more_than(path, given, most, "texts")
        return [text(f"{path}[{index}]", stop) for index, stop in enumerate(given)]

    return read


def _ids(path: str, value: Any) -> list[int]:
    given = items(path, value)
    caps.no_more_than(path, given, caps.STOP_TOKEN_IDS, "ids")
    return [_token_id(f"{path}[{index}]", token_id) for index, token_id in enumerate(given)]


def _logit_bias(path: str, value: Any) -> dict[int, float]:
    given = record(path, value)
    caps.no_more_than(path, given, caps.LOGIT_BIAS, "entries")
    biases: dict[int, float] = {}
    for key, bias in given.items():
        if not (key.isascii() and key.isdigit() and len(key) <= 10 and int(key) <= _UINT32):
            raise wrong(f"{path}.{key}", "must have a token id as its name, in digits")
        biases[int(key)] = number(f"{path}.{key}", bias)
    return biases


def _response_format(path: str, value: Any) -> ResponseFormat:
    given = record(path, value)
    kind = given.get("type")
    if not isinstance(kind, str) or kind not in _FORMATS:
        raise wrong(f"{path}.type", f"must be one of {', '.join(_FORMATS)}; got {shown(kind)}")
    known, form = _FORMATS[kind]
    values = read_fields(given, (Field("type", Use.SERVED, text), *known), path)
    for entry in known:
        if entry.name not in values:
            raise wrong(f"{path}.{entry.name}", "is missing", "missing_required_parameter")
    return form(path, values)


def _json_schema_form(path: str, values: Mapping[str, Any]) -> ResponseFormat:
    inner = read_fields(values["json_schema"], _JSON_SCHEMA_FIELDS, f"{path}.json_schema")
    if "schema" not in inner:
        raise wrong(f"{path}.json_schema.schema", "is missing: the JSON schema", "missing_required_parameter")
    caps.fits_in_bytes(f"{path}.json_schema.schema", inner["schema"], caps.JSON_SCHEMA_BYTES)
    return {"json_schema": inner["schema"]}


_JSON_SCHEMA_FIELDS: Final = (
    Field("name", Use.NO_EFFECT, text),
    Field("description", Use.NO_EFFECT, text),
    Field("strict", Use.NO_EFFECT, flag),
    Field("schema", Use.SERVED, record),
)
_Form = Callable[[str, Mapping[str, Any]], ResponseFormat]
_FORMATS: Final[Mapping[str, tuple[tuple[Field, ...], _Form]]] = {
    "text": ((), lambda _path, _values: TEXT_FORM),
    "json_object": ((), lambda _path, _values: {"json_schema": {"type": "object"}}),
    "json_schema": ((Field("json_schema", Use.SERVED, record),), _json_schema_form),
    "regex": ((Field("regex", Use.EXTENSION, text),), lambda _path, values: {"regex": values["regex"]}),
    "choice": (
        (Field("choice", Use.EXTENSION, _texts(caps.CHOICES)),),
        lambda _path, values: {"choice": values["choice"]},
    ),
}


_STREAM_OPTIONS: Final = (
    Field("include_usage", Use.SERVED, flag),
    Field("include_obfuscation", Use.NO_EFFECT, flag),
)


def _stream_options(path: str, value: Any) -> dict[str, Any]:
    return read_fields(record(path, value), _STREAM_OPTIONS, path)


def _seed(path: str, value: Any) -> int:
    """OpenAI's seeds may be negative, ours are 64 bits without a sign: a negative one is its two's complement."""
    return int(_seed_given(path, value)) % 2**64


def _prompt(path: str, value: Any) -> str:
    if isinstance(value, list):
        if len(value) != 1 or not isinstance(value[0], str):
            raise wrong(path, "must be one text; several prompts and token ids are not served", "unsupported_parameter")
        return value[0]
    return text(path, value)


# Fields that go to the turn under their own names.
_OF_TURN: Final = (
    Field("temperature", Use.SERVED, number, "0 is greedy; unset is the model's own"),
    Field("top_p", Use.SERVED, number),
    Field("stop", Use.SERVED, _texts(caps.STOP_STRINGS), "a string or up to 16 of them"),
    Field("seed", Use.SERVED, _seed, "the same request with the same seed has the same words"),
    Field("logit_bias", Use.SERVED, _logit_bias, "token ids of the model that is served"),
    Field("presence_penalty", Use.SERVED, number),
    Field("frequency_penalty", Use.SERVED, number),
    Field("top_k", Use.EXTENSION, whole(0, _INT32)),
    Field("min_p", Use.EXTENSION, number),
    Field("repetition_penalty", Use.EXTENSION, number),
    Field("stop_token_ids", Use.EXTENSION, _ids),
    Field("session_id", Use.EXTENSION, text, "keeps the KV cache warm; so does the header `X-Session-Id`"),
    Field("priority", Use.EXTENSION, whole(-_INT32, _INT32), "higher is served first, as far as the key may"),
    Field(
        "response_format", Use.SERVED, _response_format,
        "`text`, `json_object`, `json_schema`; `regex` and `choice` are extensions",
    ),
)  # fmt: skip
_COMMON: Final = (
    Field("model", Use.SERVED, text, "of `/v1/models`; left out, it is the one that is served"),
    Field("stream", Use.SERVED, flag),
    Field("stream_options", Use.SERVED, _stream_options, "`include_usage`"),
    Field("n", Use.SERVED, only(1, because=_ONE_ANSWER), "1"),
    *_OF_TURN,
    Field("user", Use.NO_EFFECT, text),
)
CHAT_FIELDS: Final = (
    Field("messages", Use.SERVED, read_messages, "see below"),
    Field("max_completion_tokens", Use.SERVED, whole(0, _UINT32), "unset: up to the end of the context"),
    Field("max_tokens", Use.SERVED, whole(0, _UINT32), "the older name of the same"),
    Field("logprobs", Use.SERVED, flag),
    Field("top_logprobs", Use.SERVED, whole(0, _UINT32), "up to 20; needs `logprobs`"),
    *_COMMON,
    Field("safety_identifier", Use.NO_EFFECT, text),
    Field("metadata", Use.NO_EFFECT, record),
    Field("prompt_cache_key", Use.NO_EFFECT, text, "see `session_id`"),
    Field("prompt_cache_retention", Use.NO_EFFECT, text),
    Field("prompt_cache_options", Use.NO_EFFECT, record),
    Field("prediction", Use.NO_EFFECT, anything, "a hint for speed"),
    Field("service_tier", Use.NO_EFFECT, only("auto", "default", because="there is one tier")),
    Field("store", Use.NO_EFFECT, only(False, because="answers are not stored"), "false"),
    Field("modalities", Use.NO_EFFECT, only(["text"], because="only text is served"), '["text"]'),
    Field("parallel_tool_calls", Use.NO_EFFECT, flag),
    Field("tools", Use.REFUSED, only([], because=_NO_TOOLS), "but `[]`"),
    Field("tool_choice", Use.REFUSED, only("none", "auto", because=_NO_TOOLS), "but `none` and `auto`"),
    Field("functions", Use.REFUSED, only([], because=_NO_TOOLS), "but `[]`"),
    Field("function_call", Use.REFUSED, only("none", "auto", because=_NO_TOOLS), "but `none` and `auto`"),
    Field("audio", Use.REFUSED, only(because="only text is served")),
    Field(
        "reasoning_effort",
        Use.REFUSED,
        only("none", because="the model cannot be told how long to think"),
        "but `none`",
    ),
    Field("verbosity", Use.REFUSED, only(because="the model cannot be told how much to say; ask it in a message")),
    Field("web_search_options", Use.REFUSED, only(because="there is no search")),
)
COMPLETION_FIELDS: Final = (
    Field("prompt", Use.SERVED, _prompt, "one text: what a user says, see below"),
    Field("max_tokens", Use.SERVED, whole(0, _UINT32), f"unset: {LEGACY_MAX_TOKENS}, as with OpenAI"),
    Field("logprobs", Use.SERVED, whole(0, _UINT32), "the number of alternatives"),
    *_COMMON,
    Field("best_of", Use.REFUSED, only(1, because=_ONE_ANSWER), "but 1"),
    Field("echo", Use.REFUSED, only(False, because="prompts are not repeated"), "but false"),
    Field("suffix", Use.REFUSED, only("", because="text cannot be put before a given end")),
)


def asked_chat(body: Mapping[str, Any]) -> Asked:
    """Check a request of /v1/chat/completions whole, but for what the model must say. ApiError names the field."""
    values = read_fields(body, CHAT_FIELDS)
    if "messages" not in values:
        raise wrong("messages", "is missing: the conversation, oldest message first", "missing_required_parameter")
    renamed: dict[str, str] = {}
    limits = [name for name in ("max_completion_tokens", "max_tokens") if name in values]
    if len({values[name] for name in limits}) > 1:
        raise wrong("max_tokens", "differs from max_completion_tokens, which is its newer name; send one of them")
    logprobs: bool = values.get("logprobs", False)
    top_logprobs: int | None = values.get("top_logprobs")
    if top_logprobs and not logprobs:
        raise wrong("top_logprobs", "needs `logprobs: true`")
    sampling = _sampling(values)
    if limits:
        sampling["max_tokens"] = values[limits[0]]
        renamed["max_tokens"] = limits[0]
    return _asked(values, values["messages"], sampling, (top_logprobs or 0) if logprobs else None, renamed)


def asked_completion(body: Mapping[str, Any]) -> Asked:
    """The same of /v1/completions: its prompt is what a user says."""
    values = read_fields(body, COMPLETION_FIELDS)
    if "prompt" not in values:
        raise wrong("prompt", "is missing: a text", "missing_required_parameter")
    sampling = _sampling(values)
    sampling["max_tokens"] = values.get("max_tokens", LEGACY_MAX_TOKENS)
    renamed = {"messages[0].content": "prompt", "messages": "prompt", "top_logprobs": "logprobs"}
    return _asked(values, (Message("user", values["prompt"]),), sampling, values.get("logprobs"), renamed)


def _sampling(values: Mapping[str, Any]) -> Sampling:
    sampling: dict[str, Any] = {entry.name: values[entry.name] for entry in _OF_TURN if entry.name in values}
    if sampling.get("response_format") is TEXT_FORM:
        del sampling["response_format"]
    return sampling  # type: ignore[return-value] # the table's names are the type's


def _asked(
    values: Mapping[str, Any],
    messages: tuple[Message, ...],
    sampling: Sampling,
    top_logprobs: int | None,
    renamed: Mapping[str, str],
) -> Asked:
    if top_logprobs is not None:
        sampling["logprobs"] = True
        sampling["top_logprobs"] = top_logprobs
    stream: bool = values.get("stream", False)
    if "stream_options" in values and not stream:
        raise wrong("stream_options", "needs `stream: true`")
    include_usage = bool(values.get("stream_options", {}).get("include_usage", False))
    return Asked(values.get("model"), messages, sampling, stream, include_usage, top_logprobs, renamed)
