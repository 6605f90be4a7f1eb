"""What an import costs: each part loads only what it needs."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

SLOW = ["torch", "transformers", "triton", "accelerate", "huggingface_hub"]
SERVER = ["service.app", "service.rpc", "service.ops", "service.worker", "engine.engine", "prometheus_client"]


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("service.app", SLOW),
        ("service.__main__", [*SLOW, *SERVER, "grpc"]),
        ("service.client", [*SLOW, *SERVER]),
        ("service.gateway.serving", [*SLOW, *SERVER, "engine"]),
        ("engine", SLOW),
        ("engine.text", ["torch", "transformers"]),
        ("soloist.v1.chat_pb2_grpc", [*SLOW, "engine", "service"]),
    ],
)
def test_an_import_brings_only_what_it_needs(module: str, absent: list[str]) -> None:
    code = f"import sys, json, {module}; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert not set(absent) & set(json.loads(done.stdout))


def test_opening_an_engine_imports_neither_transformers_nor_what_buckets_need() -> None:
    code = (
        "import sys, engine.engine; "
        "sys.exit(bool({'transformers', 'boto3', 'botocore', 'runai_model_streamer'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
