from __future__ import annotations

import pytest

from tests.aws_emulator import AwsEmulator
from tests.engine.checkpoint.bucket import Bucket


@pytest.fixture
def bucket(aws_emulator: AwsEmulator, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    """An empty bucket in an account of its own. Credentials come as they come in a pod: from the environment."""
    account = aws_emulator.new_account()
    for name, value in account.environment.items():
        if name != "AWS_ENDPOINT_URL":
            monkeypatch.setenv(name, value)
    # One attempt each: what a test breaks should stay broken.
    monkeypatch.setattr("engine.checkpoint.s3._ATTEMPTS", 1)
    monkeypatch.setattr("engine.checkpoint.run_ai._PAUSE_S", 0.0)
    client = account.client("s3")
    name = f"models-{account.account_id}"  # bucket names are everybody's
    client.create_bucket(Bucket=name)
    return Bucket(name, account, client)
