"""Somebody with a terminal and no `.proto` file: `buf curl` finds the service by reflection and reads an answer."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

from tests.clients.answers import QUESTION, check_answer
from tests.running_server import RunningServer

# grpcio's reflection service speaks the first version of the protocol only.
CURL = ["curl", "--protocol", "grpc", "--http2-prior-knowledge", "--reflect", "--reflect-protocol", "grpc-v1alpha"]


def test_buf_curl_streams_a_whole_answer_by_reflection(
    real_server: RunningServer, require_tool: Callable[[str], str]
) -> None:
    request = {"messages": [{"role": "ROLE_USER", "content": QUESTION}]}
    url = f"http://{real_server.target}/soloist.v1.ChatService/Chat"
    command = [require_tool("buf"), *CURL, "--data", json.dumps(request), url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, done.stderr
    check_answer(list(_documents(done.stdout)))


def test_reflection_lists_chat_and_health(real_server: RunningServer, require_tool: Callable[[str], str]) -> None:
    command = [require_tool("buf"), *CURL, "--list-services", f"http://{real_server.target}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stderr
    assert {"soloist.v1.ChatService", "grpc.health.v1.Health"} <= set(done.stdout.split())


def _documents(text: str) -> Iterator[dict[str, Any]]:
    """The JSON objects that stand one after another in `text`."""
    decoder, rest = json.JSONDecoder(), text.strip()
    while rest:
        document, end = decoder.raw_decode(rest)
        yield document
        rest = rest[end:].lstrip()
