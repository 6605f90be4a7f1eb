"""`soloist chat`: talk to a running server. Interactive on a terminal; one answer with --prompt or piped input."""

from __future__ import annotations

import argparse
import asyncio
import difflib
import io
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.params import MAX_PENALTY, MAX_TEMPERATURE
from service.bounded_file import read_bounded
from service.cli.ask import AnswerError, Transcript, ask
from service.cli.errors import CommandError, UsageError
from service.cli.line_reader import LineReader, NotTextError, checked_text
from service.cli.numbers import number, whole_number
from service.client import ChatClient, ChatError, ResponseFormat, Tls
from service.client.chat import Sampling
from service.settings import SETTINGS, state_directory

PROMPT = "> "
LONGEST_KEY_FILE = 4096  # bytes
LONGEST_DEADLINE_S = 86_400.0
COMMANDS = {
    "/help": "this list",
    "/reset": "forget the conversation and begin a new session",
    "/system": "/system TEXT begins a new session with this system message; /system alone shows it",
    "/exit": "leave; so do Ctrl-D and a second Ctrl-C",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `soloist chat`."""
    listens_at = next(setting.shown_default for setting in SETTINGS if setting.name == "listen")
    parser.add_argument("--target", default=listens_at, metavar="HOST:PORT", help="the server (default: %(default)s)")
    parser.add_argument("--prompt", metavar="TEXT", help="ask this one question, print the answer and leave")
    parser.add_argument("--system", metavar="TEXT", help="the system message of the conversation")
    parser.add_argument(
        "--max-tokens",
        type=whole_number(1, 2**32 - 1),
        metavar="N",
        help="answer tokens at most (default: to the end of the context)",
    )
    parser.add_argument(
        "--temperature", type=number(0, MAX_TEMPERATURE), metavar="T", help="0 is greedy (default: the model's own)"
    )
    parser.add_argument(
        "--repetition-penalty",
        type=number(0, MAX_PENALTY, above=True),
        metavar="P",
        help="above 1 discourages repeating (default: the model's own)",
    )
    parser.add_argument(
        "--seed",
        type=whole_number(0, 2**64 - 1),
        metavar="N",
        help="the same seed and words give the same answer (default: the server chooses)",
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json-schema", type=Path, metavar="FILE", help="answers are JSON that fits the schema in FILE")
    form.add_argument("--regex", metavar="EXPRESSION", help="answers match this expression as a whole")
    form.add_argument("--choice", action="append", metavar="TEXT", help="answers are one of these; say it for each")
    parser.add_argument(
        "--timeout",
        type=number(0, LONGEST_DEADLINE_S, above=True),
        metavar="SECONDS",
        help="deadline of each answer (default: none)",
    )
    parser.add_argument("--tls", action="store_true", help="speak TLS; a certificate that gRPC trusts is needed")
    parser.add_argument("--tls-ca", type=Path, metavar="FILE", help="speak TLS; PEM certificate of the server's signer")
    parser.add_argument("--tls-cert", type=Path, metavar="FILE", help="PEM certificate for a server that asks for one")
    parser.add_argument("--tls-key", type=Path, metavar="FILE", help="and its PEM key")
    parser.add_argument("--api-key-file", type=Path, metavar="FILE", help="file with the API key to send")
    parser.add_argument("--stats", action="store_true", help="print the figures of each answer to stderr")


def run(arguments: argparse.Namespace) -> int:
    """Chat as `arguments` say; 0 when the conversation ended well."""
    # What a terminal cannot show becomes `?`: an answer never ends in an encoding error.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    try:
        system = None if arguments.system is None else checked_text(arguments.system, "--system")
        question = _only_question(arguments.prompt)
    except NotTextError as error:
        raise UsageError(str(error)) from None
    # One runner, so one event loop and one connection, for the whole conversation. It turns Ctrl-C into the
    # cancellation of the answer that is running, which is what interrupts it on the server too.
    with asyncio.Runner() as runner:
        try:
            session = Session.open(runner, arguments, Transcript(system))
        except ChatError as error:  # a file for TLS that cannot be used
            raise UsageError(str(error)) from None
        try:
            if question is None:
                state = state_directory()
                Conversation(session, LineReader(state and state / "chat_history")).run()
            else:
                session.answer(question)
        except AnswerError as error:
            raise (UsageError if error.wrongly_asked else CommandError)(str(error)) from None
        finally:
            session.close()
    return 0


def _only_question(prompt: str | None) -> str | None:
    """The one question of a run that is not interactive, or None."""
    if prompt is None and sys.stdin.isatty():
        return None
    if prompt is None:
        question = sys.stdin.buffer.read().decode("utf-8", "surrogateescape")
        name = "the piped input"
    else:
        question, name = prompt, "--prompt"
    if not question.strip():
        raise UsageError(f"{name} is empty; say something")
    return checked_text(question, name)


@dataclass(slots=True)
class Session:
    """One connection, and the conversation that runs over it."""

    runner: asyncio.Runner
    client: ChatClient
    transcript: Transcript
    sampling: Sampling
    deadline_s: float | None
    stats: bool

    @classmethod
    def open(cls, runner: asyncio.Runner, arguments: argparse.Namespace, transcript: Transcript) -> Session:
        """Connect as the flags say. Whether a server is there shows at the first question."""

        async def connect() -> ChatClient:
            return ChatClient(arguments.target, tls=_tls(arguments), api_key=_api_key(arguments.api_key_file))

        sampling: Sampling = {}
        for name in ("max_tokens", "temperature", "repetition_penalty", "seed"):
            value = getattr(arguments, name)
            if value is not None:
                sampling[name] = value
        if (response_format := _response_format(arguments)) is not None:
            sampling["response_format"] = response_format
        return cls(runner, runner.run(connect()), transcript, sampling, arguments.timeout, arguments.stats)

    def answer(self, question: str) -> None:
        """Ask, and stream the answer to stdout.

        Raises:
            AnswerError: there was no whole answer.
            KeyboardInterrupt: Ctrl-C. What was answered so far is remembered.
        """
        outcome = self.runner.run(
            ask(self.client, self.transcript, question, self.sampling, sys.stdout, self.deadline_s)
        )
        if self.stats:
            _tell(outcome.figures.line())
        if outcome.reason == "length":
            _tell("the answer reached its limit of tokens")
        elif outcome.reason not in ("stop", "tool_calls"):
            raise AnswerError(f"the answer was broken off by the server: {outcome.reason}")

    def close(self) -> None:
        """Close the connection."""
        self.runner.run(self.client.close())


class Conversation:
    """Reads what the person says until they leave. A Ctrl-C breaks off the answer; one more, right after, leaves."""

    def __init__(self, session: Session, lines: LineReader) -> None:
        self._session = session
        self._lines = lines

    def run(self) -> None:
        """Talk until Ctrl-D, /exit or two Ctrl-C in a row."""
        _tell("/help lists the commands; Ctrl-C interrupts an answer, Ctrl-D leaves")
        interrupted = False
        try:
            while True:
                try:
                    line = self._lines.read(PROMPT)
                    if line.strip() and not self._heard(line):
                        return
                    interrupted = False
                except KeyboardInterrupt:
                    print()
                    if interrupted:
                        return
                    interrupted = True
                    _tell("interrupted; once more leaves")
                except (AnswerError, NotTextError) as error:
                    interrupted = False
                    _tell(str(error))
        except (EOFError, KeyboardInterrupt):  # the latter when the second came before the first was dealt with
            print()
        finally:
            self._lines.save()

    def _heard(self, line: str) -> bool:
        """Answer a line or obey it; False when the person leaves."""
        if line.startswith("//"):
            self._session.answer(line[1:])
            return True
        if not line.startswith("/"):
            self._session.answer(line)
            return True
        command, _, rest = line.strip().partition(" ")
        match command:
            case "/help":
                for name, meaning in COMMANDS.items():
                    _tell(f"{name:8} {meaning}")
            case "/reset":
                self._session.transcript = Transcript(self._session.transcript.system)
                _tell("a new session")
            case "/system" if rest.strip():
                self._session.transcript = Transcript(rest.strip())
                _tell("a new session with this system message")
            case "/system":
                _tell(self._session.transcript.system or "no system message: the model's own default stands")
            case "/exit":
                return False
            case _:
                _tell(
                    f"{command} is no command{_nearest(command, list(COMMANDS))}; "
                    "begin with // to say a line that starts with /"
                )
        return True


def _tls(arguments: argparse.Namespace) -> Tls | None:
    files = (arguments.tls_ca, arguments.tls_cert, arguments.tls_key)
    return Tls(*files) if arguments.tls or any(files) else None


def _response_format(arguments: argparse.Namespace) -> ResponseFormat | None:
    if arguments.json_schema is not None:
        try:
            return {"json_schema": read_bounded(arguments.json_schema).decode("utf-8")}
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "is not UTF-8 text"
            raise UsageError(f"--json-schema {arguments.json_schema}: {reason}") from None
    if arguments.regex is not None:
        return {"regex": arguments.regex}
    return None if arguments.choice is None else {"choice": arguments.choice}


def _api_key(path: Path | None) -> str | None:
    """A flag with the key itself would stand in the list of processes."""
    try:
        return None if path is None else read_bounded(path, LONGEST_KEY_FILE).decode("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is not ASCII text"
        raise UsageError(f"--api-key-file {path}: {reason}") from None


def _nearest(word: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(word, known, n=1)
    return f"; did you mean {close[0]}?" if close else ""


def _tell(text: str) -> None:
    """Say something that is no part of an answer."""
    print(text, file=sys.stderr)
