"""A Node application with `@grpc/grpc-js` reads an answer from a real server."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

from tests.clients.answers import QUESTION, check_answer
from tests.conftest import absent
from tests.running_server import RunningServer

NODE_CLIENT = Path(__file__).parent / "node"
PROTO_ROOT = Path(__file__).resolve().parents[2] / "proto"


def test_node_client_that_sends_only_messages_streams_a_whole_answer(
    real_server: RunningServer, require_tool: Callable[[str], str]
) -> None:
    node = require_tool("node")
    if not (NODE_CLIENT / "node_modules").is_dir():
        absent("the Node client's packages are not installed: make node-client")
    command = [node, str(NODE_CLIENT / "ask.mjs"), real_server.target, str(PROTO_ROOT), QUESTION]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, done.stderr
    events = [json.loads(line) for line in done.stdout.splitlines()]
    check_answer(events)
