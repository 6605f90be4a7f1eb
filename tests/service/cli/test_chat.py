"""`soloist chat` as people use it: through pipes and on a real terminal, against a real gRPC server."""

from __future__ import annotations

import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.fakes import FakeEngine, echo, endless, saying, text_of
from tests.service.cli.terminal import CTRL_C, CTRL_D, UP, Terminal, terminal
from tests.service.cli.threaded_server import ThreadedServer

CHAT = (sys.executable, "-m", "service", "chat")
NOBODY = "127.0.0.1:1"  # a port where nothing listens

Talk = Callable[..., Terminal]
Environment = dict[str, str]


def piped(
    server: ThreadedServer, environment: Environment, *flags: str | bytes, said: bytes = b""
) -> subprocess.CompletedProcess[bytes]:
    command = [*CHAT, "--target", server.target, *flags]
    return subprocess.run(command, input=said, capture_output=True, env=environment, timeout=60, check=False)


@pytest.fixture
def talk(server: ThreadedServer, environment: Environment) -> Iterator[Talk]:
    """Opens a terminal with `soloist chat` on it, at its prompt."""
    with ExitStack() as stack:

        def start(*flags: str) -> Terminal:
            command = (*CHAT, "--target", server.target, *flags)
            opened = stack.enter_context(terminal(command, environment))
            opened.at_prompt()
            return opened

        yield start


def assert_one_line(stderr: bytes) -> None:
    lines = stderr.decode().strip().splitlines()
    assert len(lines) == 1, stderr
    assert lines[0].startswith("soloist: ")


# One answer.


def test_prompt_gives_the_answer_and_nothing_else(
    server: ThreadedServer, engine: FakeEngine, environment: Environment
) -> None:
    engine.answer = saying("Paris, 한국 🎹\nand a tab\there")
    done = piped(server, environment, "--prompt", "Where?")
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.decode() == "Paris, 한국 🎹\nand a tab\there\n"


def test_piped_input_is_one_question(server: ThreadedServer, engine: FakeEngine, environment: Environment) -> None:
    done = piped(server, environment, said=b"one\ntwo\n")
    assert done.returncode == 0
    assert text_of(engine.prompts[0]) == "user:one\ntwo\n\n"


def test_system_message_and_limits_are_sent(
    server: ThreadedServer, engine: FakeEngine, environment: Environment
) -> None:
    engine.answer = saying("abcdefgh")
    done = piped(server, environment, "--system", "Be brief.", "--max-tokens", "3", "--prompt", "Hi", "--seed", "7")
    assert done.stdout == b"abc\n"
    assert done.stderr.decode().strip() == "the answer reached its limit of tokens"
    assert text_of(engine.prompts[0]) == "system:Be brief.\nuser:Hi\n"


@pytest.mark.parametrize(
    ("flags", "field"),
    [
        (("--regex", "a+"), "response_format.regex"),
        (("--choice", "yes", "--choice", "no"), "response_format.choice.choices"),
        (("--json-schema", "schema.json"), "response_format.json_schema"),
    ],
)
def test_forms_are_sent(
    server: ThreadedServer, environment: Environment, tmp_path: Path, flags: tuple[str, ...], field: str
) -> None:
    (tmp_path / "schema.json").write_text('{"type": "null"}')
    flags = tuple(str(tmp_path / flag) if flag.endswith(".json") else flag for flag in flags)
    done = piped(server, environment, *flags, "--prompt", "Hi")
    assert done.returncode == 2
    assert_one_line(done.stderr)
    assert f"{field}: the fake knows no grammar" in done.stderr.decode()


def test_a_schema_that_is_not_there_is_told_in_one_line(server: ThreadedServer, environment: Environment) -> None:
    done = piped(server, environment, "--json-schema", "/nowhere.json", "--prompt", "Hi")
    assert done.returncode == 2
    assert_one_line(done.stderr)
    assert "--json-schema /nowhere.json: No such file" in done.stderr.decode()


@pytest.mark.parametrize("limit", ["0", "-3", "many", "4294967296"])
def test_a_limit_that_is_none_is_refused_with_what_would_be_right(
    server: ThreadedServer, environment: Environment, limit: str
) -> None:
    done = piped(server, environment, "--prompt", "Hi", f"--max-tokens={limit}")
    assert done.returncode == 2
    assert_one_line(done.stderr)
    assert f"--max-tokens: must be a whole number from 1 to 4294967295; got '{limit}'" in done.stderr.decode()


def test_stats_go_to_stderr(server: ThreadedServer, environment: Environment) -> None:
    done = piped(server, environment, "--prompt", "Hi", "--stats")
    for part in (b"tokens/s", b"first token", b"replays", b"eager steps 0"):
        assert part in done.stderr
        assert part not in done.stdout


def test_promise_19_model_text_cannot_control_the_terminal(
    server: ThreadedServer, engine: FakeEngine, environment: Environment
) -> None:
    engine.answer = saying("a\x1b]0;owned\x07b\x1b[2Jc\x08\x9b31md\r\ne")
    done = piped(server, environment, "--prompt", "Hi")
    shown = done.stdout.decode()
    assert not [c for c in shown if (ord(c) < 32 or 127 <= ord(c) < 160) and c not in "\n\t"]
    assert shown.startswith("a")


def test_txt_11_bytes_that_are_no_text_are_refused(server: ThreadedServer, environment: Environment) -> None:
    for done in (
        piped(server, environment, "--prompt", b"caf\xe9"),
        piped(server, environment, said=b"caf\xe9\n"),
        piped(server, environment, "--prompt", "Hi", "--system", b"\xff"),
    ):
        assert done.returncode == 2
        assert_one_line(done.stderr)
        assert b"not valid UTF-8: byte 0x" in done.stderr
        assert done.stdout == b""


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--prompt", "  "), b"empty"),
        ((), b"empty"),
        (("--prompt", "Hi", "--temperature", "-1"), b"temperature"),
        (("--prompt", "Hi", "--temperature", "nan"), b"temperature"),
        (
            ("--prompt", "Hi", "--seed", "-1"),
            b"--seed: must be a whole number from 0 to 18446744073709551615; got '-1'",
        ),
        (("--prompt", "Hi", "--seed", str(2**64)), b"--seed: must be a whole number"),
        (("--prompt", "Hi", "--seed", "9" * 5000), b"--seed: must be a whole number"),
        (("--prompt", "Hi", "--temperature", "1e39"), b"--temperature: must be a number from 0 to 100; got '1e39'"),
        (("--prompt", "Hi", "--repetition-penalty", "0"), b"--repetition-penalty: must be a number above 0"),
        (("--prompt", "Hi", "--timeout", "inf"), b"--timeout: must be a number above 0"),
        (("--prompt", "Hi", "--api-key-file", "/dev/zero"), b"--api-key-file /dev/zero: is larger than 4096 bytes"),
        (("--prompt", "Hi", "--json-schema", "/dev/zero"), b"--json-schema /dev/zero: is larger than"),
        (("--prompt", "Hi", "--tls-ca", "/dev/zero"), b"/dev/zero: is larger than"),
        (("--prompt", "x" * 5000), b"tokens"),
    ],
)
def test_a_wrong_question_is_a_usage_error(
    server: ThreadedServer, environment: Environment, flags: tuple[str, ...], said: bytes
) -> None:
    done = piped(server, environment, *flags)
    assert done.returncode == 2
    assert_one_line(done.stderr)
    assert said in done.stderr


def test_no_server_is_told_in_one_line(environment: Environment) -> None:
    command = [*CHAT, "--target", NOBODY, "--prompt", "Hi"]
    done = subprocess.run(command, capture_output=True, env=environment, timeout=60, check=False)
    assert done.returncode == 1
    assert_one_line(done.stderr)
    assert b"no server answers" in done.stderr


def test_a_failing_model_is_told_in_one_line(
    server: ThreadedServer, engine: FakeEngine, environment: Environment
) -> None:
    engine.fail(3, RuntimeError("secret of the insides"))
    done = piped(server, environment, "--prompt", "Hi")
    assert done.returncode == 1
    assert b"Traceback" not in done.stderr
    assert b"secret" not in done.stderr


def test_a_reader_who_leaves_ends_the_command_quietly(
    server: ThreadedServer, engine: FakeEngine, environment: Environment
) -> None:
    engine.hold()
    engine.answer = endless
    command = [*CHAT, "--target", server.target, "--prompt", "Hi"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)
    assert process.stdout is not None
    assert process.stderr is not None
    engine.allow(5)
    assert process.stdout.read(1) == b"w"
    process.stdout.close()
    engine.release()
    assert process.wait(60) == 1
    assert process.stderr.read() == b""
    process.stderr.close()


def test_interrupting_one_answer_ends_the_command_and_the_turn(
    server: ThreadedServer, engine: FakeEngine, environment: Environment
) -> None:
    engine.hold()
    engine.answer = endless
    command = [*CHAT, "--target", server.target, "--prompt", "Hi"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)
    engine.allow(5)
    assert process.stdout is not None
    assert process.stdout.read(1) == b"w"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    engine.release()
    assert process.returncode == 130
    assert (out[-1:], err) == (b"\n", b"")
    assert engine.decode_steps < 100


# A conversation on a terminal.


def test_a_conversation_keeps_its_session(talk: Talk, engine: FakeEngine) -> None:
    engine.answer = saying("Paris.")
    chat = talk("--stats")
    chat.type("Capital of France?\n")
    chat.expect("Paris.\r\n")
    assert "0 cached" in chat.expect("eager steps")
    chat.expect("> ")
    chat.type("And of Italy?\n")
    chat.expect("Paris.\r\n")
    assert " 0 cached" not in chat.expect("eager steps")
    assert text_of(engine.prompts[1]) == "user:Capital of France?\nassistant:Paris.\nuser:And of Italy?\n"
    chat.at_prompt()
    chat.type(CTRL_D)
    assert chat.leave() == 0


def test_ctrl_c_interrupts_the_answer_and_keeps_the_session(talk: Talk, engine: FakeEngine) -> None:
    engine.hold()
    engine.answer = endless
    chat = talk()
    chat.type("Go on for ever\n")
    engine.allow(5)
    chat.expect("word")
    chat.type(CTRL_C)
    chat.expect("interrupted")
    engine.answer = echo
    engine.release()
    chat.expect("> ")
    chat.type("Still there?\n")
    chat.expect("user:Still there?\r\n")
    asked = text_of(engine.prompts[1])
    assert asked.startswith("user:Go on for ever\nassistant:word")
    assert asked.endswith("user:Still there?\n")
    chat.at_prompt()
    chat.type(CTRL_C)
    chat.expect("once more leaves")
    chat.at_prompt()
    chat.type(CTRL_C)
    assert chat.leave() == 0


def test_ctrl_c_in_an_answer_and_once_more_leaves(talk: Talk, engine: FakeEngine) -> None:
    engine.hold()
    engine.answer = endless
    chat = talk()
    chat.type("Go on for ever\n")
    engine.allow(5)
    chat.expect("word")
    chat.type(CTRL_C)
    chat.expect("interrupted")
    chat.at_prompt()
    chat.type(CTRL_C)
    assert chat.leave() == 0
    engine.release()


def test_commands(talk: Talk, engine: FakeEngine) -> None:
    engine.answer = saying("ok")
    chat = talk("--system", "Be brief.")
    chat.type("/help\n")
    for command in ("/help", "/reset", "/system", "/exit"):
        chat.expect(command)
    chat.type("/system\n")
    chat.expect("Be brief.")
    chat.type("hello\n")
    chat.expect("ok\r\n")
    chat.type("/reset\n")
    chat.expect("a new session")
    chat.type("again\n")
    chat.expect("ok\r\n")
    assert text_of(engine.prompts[1]) == "system:Be brief.\nuser:again\n"
    chat.type("/system Be long.\n")
    chat.expect("a new session with this system message")
    chat.type("//etc/hosts\n")
    chat.expect("ok\r\n")
    assert text_of(engine.prompts[2]) == "system:Be long.\nuser:/etc/hosts\n"
    chat.type("/rest\n")
    chat.expect("did you mean /reset?")
    chat.type("/exit\n")
    assert chat.leave() == 0


def test_promise_19_an_answer_on_a_terminal_has_no_escapes(talk: Talk, engine: FakeEngine) -> None:
    engine.answer = saying("x\x1b]0;owned\x07y\x1b[2Jz END")
    chat = talk()
    chat.type("Hi\n")
    chat.expect("Hi\r\n")
    shown = chat.expect("END")
    assert "\x1b]0" not in shown
    assert "\x1b[2J" not in shown
    assert "\x07" not in shown


def test_txt_11_bytes_typed_that_are_no_text_are_refused_and_the_chat_goes_on(talk: Talk, engine: FakeEngine) -> None:
    engine.answer = saying("fine")
    chat = talk()
    chat.type(b"caf\xff au lait\n")
    chat.expect("not valid UTF-8: byte 0xff")
    assert engine.prompts == []
    chat.expect("> ")
    chat.type("Hi\n")
    chat.expect("fine")


def test_a_failed_answer_is_told_and_the_chat_goes_on(talk: Talk, engine: FakeEngine) -> None:
    engine.answer = saying("fine")
    engine.fail(0, RuntimeError("boom"))
    chat = talk()
    chat.type("First\n")
    chat.expect("> ")
    chat.type("Second\n")
    chat.expect("fine")
    assert text_of(engine.prompts[1]) == "user:Second\n"


def test_history_is_there_the_next_time(talk: Talk, engine: FakeEngine, tmp_path: Path) -> None:
    engine.answer = saying("ok")
    chat = talk()
    chat.type("remember me\n")
    chat.expect("ok\r\n")
    chat.at_prompt()
    chat.type(CTRL_D)
    assert chat.leave() == 0
    history = tmp_path / "state" / "soloist" / "chat_history"
    assert "remember me" in history.read_text()
    assert stat.S_IMODE(history.stat().st_mode) == 0o600

    chat = talk()
    chat.type(UP)
    chat.expect("remember me")
    chat.type("\n")
    chat.expect("ok\r\n")
    assert text_of(engine.prompts[1]) == "user:remember me\n"


def test_history_that_cannot_be_written_is_done_without(talk: Talk, engine: FakeEngine, tmp_path: Path) -> None:
    engine.answer = saying("ok")
    (tmp_path / "state").write_text("a file where the directory should be")
    chat = talk()
    chat.type("Hi\n")
    chat.expect("ok\r\n")
    chat.at_prompt()
    chat.type(CTRL_D)
    assert chat.leave() == 0
