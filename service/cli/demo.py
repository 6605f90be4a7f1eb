"""`soloist demo`: one whole chat: a server on the embedded model, one question over gRPC, the figures of the turn."""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
import time

from engine.config import EngineConfig
from service.app import App, StartError
from service.cli.ask import AnswerError, Transcript, ask
from service.cli.errors import CommandError, UsageError
from service.cli.figures import TurnFigures, eager_text
from service.cli.line_reader import NotTextError, checked_text
from service.client import ChatClient, ServerInfo
from service.client.chat import Sampling
from service.settings import Settings

QUESTION = "What is the capital of France?"
ANY_PORT = "127.0.0.1:0"
CONTEXT = 2048  # the embedded model's own 8192 would only take memory
# The embedded model is small and repeats itself; both keep its answers short and the same on every run.
SAMPLING: Sampling = {"temperature": 0.0, "repetition_penalty": 1.1}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `soloist demo`."""
    parser.add_argument("--prompt", default=QUESTION, metavar="TEXT", help="the question (default: %(default)s)")
    parser.add_argument(
        "--max-tokens", type=int, default=128, metavar="N", help="answer tokens at most (default: %(default)s)"
    )
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto", help="default: %(default)s")


def run(arguments: argparse.Namespace) -> int:
    """Show one chat; 0 when the answer came whole."""
    started_s = time.monotonic()
    if arguments.max_tokens < 1:
        raise UsageError(f"--max-tokens: must be at least 1; got {arguments.max_tokens}")
    try:
        question = checked_text(arguments.prompt, "--prompt")
    except NotTextError as error:
        raise UsageError(str(error)) from None
    settings = Settings(
        engine=EngineConfig(device=arguments.device, context=CONTEXT, slots=1),
        listen=ANY_PORT,
        metrics_listen=ANY_PORT,
    )
    # What the server has to say is said by this command.
    logging.getLogger("soloist").addHandler(logging.NullHandler())
    try:
        asyncio.run(_show(settings, question, {**SAMPLING, "max_tokens": arguments.max_tokens}, started_s))
    except (AnswerError, StartError) as error:
        raise CommandError(str(error)) from None
    return 0


async def _show(settings: Settings, question: str, sampling: Sampling, started_s: float) -> None:
    print("starting a server on the embedded model ...", file=sys.stderr, flush=True)
    app = App(settings)
    await app.start()
    try:
        await app.ready()
        ready_s = time.monotonic() - started_s
        async with ChatClient(app.address) as client:
            print(_heading(await client.server_info(), app))
            print(f"\n> {question}", flush=True)
            outcome = await ask(client, Transcript(), question, sampling, sys.stdout)
    finally:
        await app.close()
    print(f"\n{_table(outcome.figures, ready_s)}")


def _heading(info: ServerInfo, app: App) -> str:
    graphs = f"{info.graphs.captured} graphs" if info.graphs.enabled else f"no graphs: {info.graphs.eager_reason}"
    return (
        f"{info.model} on {info.device} in {info.precision}, {graphs}\n"
        f"gRPC {app.address}, metrics http://{app.metrics_address}/metrics"
    )


def _table(figures: TurnFigures, ready_s: float) -> str:
    first_s, rate = figures.first_token_s, figures.tokens_per_s
    rows = (
        ("start to ready", f"{ready_s:.2f} s"),
        ("time to first token", "none came" if first_s is None else f"{first_s:.3f} s"),
        ("tokens/s", "-" if rate is None else f"{rate:.1f}"),
        ("tokens", f"{figures.completion_tokens} after a prompt of {figures.prompt_tokens}"),
        ("graph replays", str(figures.replays)),
        ("eager steps", eager_text(figures.eager)),
    )
    return "\n".join(f"{name:<20} {value}" for name, value in rows)
