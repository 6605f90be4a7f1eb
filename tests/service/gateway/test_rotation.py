"""Keys and certificates that change while a gateway runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from service.keys import hash_of, new_key
from tests.fakes import saying
from tests.service.gateway.running import HELLO, NotingEngine, gateway
from tests.service.running import running


@pytest.fixture(autouse=True)
def _looks_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.file_watch.LOOK_EVERY_S", 0.0)


async def test_its_own_key_is_the_one_that_the_file_holds_now(tmp_path: Path) -> None:
    keys, own = tmp_path / "keys.yaml", tmp_path / "own"

    def rotate() -> None:
        key = new_key()
        keys.write_text(f"keys:\n  - name: web\n    hash: {hash_of(key)}\n", encoding="utf-8")
        own.write_text(key, encoding="ascii")

    rotate()
    async with (
        running(NotingEngine(answer=saying("Hi")), keys=str(keys)) as app,
        gateway(app.address, api_key_file=str(own)) as gate,
    ):
        assert (await gate.ask(HELLO)).status_code == 200
        rotate()
        assert (await gate.ask(HELLO)).status_code == 200
        own.write_text("", encoding="ascii")
        assert (await gate.ask(HELLO)).status_code == 200, "what cannot be used leaves the one before"
