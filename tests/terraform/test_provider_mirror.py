"""Where the provider comes from, and what the check does where Terraform is not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.terraform import check, provider_mirror
from tests.terraform.provider_mirror import PROVIDER, cli_configuration


@pytest.fixture(autouse=True)
def searched_anew() -> Iterator[None]:
    provider_mirror.provider_mirror.cache_clear()
    yield
    provider_mirror.provider_mirror.cache_clear()


def test_a_mirror_is_found_where_it_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mirror = tmp_path / "share" / "plugins"
    (mirror / PROVIDER).mkdir(parents=True)
    monkeypatch.setattr(provider_mirror, "USUAL_ROOTS", (str(tmp_path),))
    monkeypatch.delenv("TF_PLUGIN_CACHE_DIR", raising=False)
    assert f'path = "{mirror}"' in cli_configuration()


def test_without_one_the_registry_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provider_mirror, "USUAL_ROOTS", (str(tmp_path), str(tmp_path / "absent")))
    monkeypatch.delenv("TF_PLUGIN_CACHE_DIR", raising=False)
    assert "provider_installation" not in cli_configuration()


@pytest.mark.parametrize(("ci", "code"), [("true", 1), ("", 0)])
def test_without_terraform_the_check_says_so_and_fails_in_ci_only(
    ci: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CI", ci)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert check.main() == code
    assert "terraform is not installed" in capsys.readouterr().out
