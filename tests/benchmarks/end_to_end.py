"""What gRPC costs a reader: one server process, one client process, one host; random weights, real text.

    python -m tests.benchmarks.end_to_end llama-3.1-8b llama-3.2-1b --tokens 2000

For each shape the server's process first plays the answer straight from the engine; then the client streams it and
reads every token. Printed are both rates, their ratio, and the gaps between tokens as the engine makes them and as the
client sees them. The server's interpreter is set as `soloist serve` sets it, but for `--as-is`. Last line JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

from engine.bench.opening import Setup, open_endless
from engine.engine import Engine
from engine.outputs import Token
from engine.params import SamplingParams
from engine.text import AnswerText, ChatText, build_chat_text
from engine.text.source import JsonTokenizer
from service.app import App
from service.client import ChatClient, Delta
from service.process import steady_interpreter
from service.settings import load_settings
from tests.checkpoints import CHAT_TEMPLATE, tiny_tokenizer

_PLAIN_IDS = range(8, 300)  # ordinary tokens of the tiny tokenizer


class SmallText:
    """The text side of a model with random weights: real work for each token, over a small tokenizer."""

    end_ids: frozenset[int] = frozenset()

    def __init__(self, text: ChatText) -> None:
        self._text = text
        self.tokenizer = text.tokenizer
        self.has_template = True

    def prompt_ids(self, messages: Any, tools: Any = None) -> list[int]:
        """As the small model would."""
        return self._text.prompt_ids(messages, tools)

    def answer(self, stop: Any = ()) -> _SmallAnswer:
        """As the small model would, of folded ids."""
        return _SmallAnswer(self._text.answer(stop))


class _SmallAnswer:
    def __init__(self, answer: AnswerText) -> None:
        self._answer = answer

    @property
    def stopped(self) -> str | None:
        return self._answer.stopped

    def push(self, token_id: int) -> str:
        return self._answer.push(_PLAIN_IDS[token_id % len(_PLAIN_IDS)])

    def finish(self) -> str:
        return self._answer.finish()


def open_engine(shape: str, device: str, context: int) -> Engine:
    """The shape with random weights and small text."""
    engine = open_endless(Setup(shape, context, cast("Any", device)))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tokenizer.json"
        tiny_tokenizer().save(str(path))
        engine.text = cast("ChatText", SmallText(build_chat_text(JsonTokenizer(path, {}), CHAT_TEMPLATE)))
    return engine


def play(engine: Engine, tokens: int) -> dict[str, float]:
    """Tokens per second straight from the engine, first token to last, and the gaps between them."""
    context = engine.open_context()
    try:
        with closing(engine.generate(context, list(range(8, 40)), SamplingParams(max_tokens=tokens))) as turn:
            at = [time.perf_counter() for step in turn if isinstance(step, Token)]
    finally:
        context.close()
    return {"engine_rate": (len(at) - 1) / (at[-1] - at[0]), **gaps_of(at, "engine_")}


def gaps_of(at: Sequence[float], whose: str = "") -> dict[str, float]:
    """Median and 99th percentile of the gaps between these times, seconds."""
    gaps = [after - before for before, after in pairwise(at)]
    return {
        f"{whose}gap_median_s": statistics.median(gaps),
        f"{whose}gap_p99_s": statistics.quantiles(gaps, n=100)[98],
    }


@contextmanager
def no_collections() -> Iterator[None]:
    """The client's own garbage collector must not be what is measured."""
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()


async def serve(shape: str, device: str, tokens: int, *, as_is: bool) -> None:
    """Measure the engine in the worker's thread, then serve until standard input closes."""
    figures: dict[str, float] = {}

    def factory(_: Any) -> Any:
        engine = open_engine(shape, device, tokens + 256)
        play(engine, 64)
        if not as_is:
            steady_interpreter()  # as the server will be, for the engine's own figures too
        figures.update(play(engine, tokens))
        return engine

    settings = load_settings({"listen": "127.0.0.1:0", "metrics_listen": "127.0.0.1:0", "slots": 1})
    app = App(settings, factory)
    await app.start()
    await app.ready()
    if not as_is:
        steady_interpreter()
    print(json.dumps({"address": app.address, **figures}), flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await app.close()


async def read(address: str, tokens: int) -> dict[str, float]:
    """Stream one answer and read every token of it."""
    async with ChatClient(address) as chat:
        await chat.ask("warm up", max_tokens=32)
        with no_collections():
            asked = time.perf_counter()
            answer = chat.stream("go on", max_tokens=tokens, temperature=0.0)
            arrivals = [
                (time.perf_counter(), len(event.token_ids)) async for event in answer if isinstance(event, Delta)
            ]
    count = sum(n for _, n in arrivals)
    gaps = [(b - a) / n for (a, _), (b, n) in pairwise(arrivals) for _ in range(n)]
    at = [moment for moment, _ in arrivals]
    return {
        "tokens": count,
        "deltas": len(arrivals),
        "rate": (count - arrivals[0][1]) / (arrivals[-1][0] - arrivals[0][0]),
        "first_token_s": arrivals[0][0] - asked,
        **gaps_of(at),
        "gap_median_s": statistics.median(gaps),  # of tokens: several may share a delta
        "gap_largest_s": max(after - before for before, after in pairwise(at)),
    }


def measure(shape: str, device: str, tokens: int, *, as_is: bool) -> dict[str, Any]:
    """One server process, and this one as its client."""
    command = [sys.executable, "-m", "tests.benchmarks.end_to_end", shape, "--serve", "--device", device]
    command += ["--tokens", str(tokens), *(["--as-is"] if as_is else [])]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        said = json.loads(server.stdout.readline())
        seen = asyncio.run(read(said["address"], tokens))
        server.communicate()
    del said["address"]
    return {"shape": shape, "as_is": as_is, "ratio": seen["rate"] / said["engine_rate"], **said, **seen}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shapes", nargs="+")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--tokens", type=int, default=2000)
    parser.add_argument("--serve", action="store_true", help="be the server of the first shape")
    parser.add_argument("--as-is", action="store_true", help="leave the server's interpreter as Python sets it")
    arguments = parser.parse_args()
    device, tokens, as_is = arguments.device, arguments.tokens, arguments.as_is
    if arguments.serve:
        asyncio.run(serve(arguments.shapes[0], device, tokens, as_is=as_is))
        return
    results = [measure(shape, device, tokens, as_is=as_is) for shape in arguments.shapes]
    print(f"{'':<42} {'engine gap':>19}   client gap")
    print(
        f"{'shape':<14} {'engine':>9} {'client':>9} {'ratio':>6}  {'median':>9} {'p99':>9} {'median':>9} {'p99':>9} "
        f"{'p99/med':>7} {'largest':>9}"
    )
    for r in results:
        print(
            f"{r['shape']:<14} {r['engine_rate']:>7.1f}/s {r['rate']:>7.1f}/s {r['ratio']:>6.3f}  "
            f"{r['engine_gap_median_s'] * 1e3:>6.3f} ms {r['engine_gap_p99_s'] * 1e3:>6.3f} ms "
            f"{r['gap_median_s'] * 1e3:>6.3f} ms {r['gap_p99_s'] * 1e3:>6.3f} ms "
            f"{r['gap_p99_s'] / r['gap_median_s']:>7.3f} {r['gap_largest_s'] * 1e3:>6.2f} ms"
        )
    print(json.dumps(results))


if __name__ == "__main__":
    main()
