"""The command line: help everywhere, one line for a mistake, and only the imports that are needed."""

from __future__ import annotations

import subprocess
import sys

import pytest

from service.__main__ import SUBCOMMANDS, main


def soloist(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "service", *words], capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize("words", [(), *((name,) for name in SUBCOMMANDS), ("bench", "decode")])
def test_help_everywhere(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main([*words, "--help"])
    assert left.value.code == 0
    assert capsys.readouterr().out.startswith("usage: soloist")


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["--version"])
    assert left.value.code == 0
    assert capsys.readouterr().out.startswith("soloist ")


def test_no_command_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "serve" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["serv"], "serve"),
        (["chat", "--targt", "x"], "did you mean --target?"),
        (["serve", "--queue-dept", "3"], "did you mean --queue-depth?"),
        (["serve", "--queue-depth", "many"], "--queue-depth"),
        (["chat", "--max-tokens", "0"], "from 1 to"),
        (["chat", "--max-tokens", "x"], "--max-tokens"),
        (["bench", "decode", "--new-tokens", "1", "--device", "cpu"], "new_tokens"),
        (["bench"], "MEASUREMENT"),
    ],
)
def test_a_mistake_is_told_without_a_traceback(words: list[str], said: str) -> None:
    done = soloist(*words)
    assert done.returncode in (1, 2)
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.strip().splitlines()[-1].startswith("soloist")


INTERRUPTED = """
import os, runpy, signal, sys

_, moment, *words = sys.argv

class Interrupting:
    def find_spec(self, name, path, target=None):
        if name == moment:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupting())
sys.argv[:] = ["soloist", *words]
runpy.run_module("service", run_name="__main__", alter_sys=True)
"""


@pytest.mark.parametrize("moment", ["engine.errors", "service.cli.parser", "service.cli.serve", "service.settings"])
def test_ctrl_c_while_the_program_is_read_is_one_line(moment: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, moment, "serve"], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (130, "soloist: interrupted before it had begun\n")


@pytest.mark.parametrize("words", [("--help",), ("chat", "--help"), ("serve", "--help"), ("bench", "decode", "--help")])
def test_help_and_chat_do_not_import_torch(words: tuple[str, ...]) -> None:
    program = (
        "import sys\nfrom service.__main__ import main\n"
        f"try:\n    main({list(words)!r})\nexcept SystemExit:\n    pass\n"
        "sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_a_closed_standard_input_is_an_empty_one() -> None:
    run = subprocess.run(
        ["sh", "-c", 'exec "$0" -m service chat <&-', sys.executable], capture_output=True, text=True, check=False
    )

    assert run.returncode == 2
    assert run.stderr == "soloist: the piped input is empty; say something\n"
