"""What gRPC costs a reader: one server process, one client process, one host; random weights, real text.

    python -m tests.benchmarks.end_to_end llama-3.1-8b llama-3.2-1b --tokens 2000

For each shape the server's process first plays the answer straight from the engine; then the client streams it and
reads every token. Printed are both rates, their ratio, and the gaps between tokens as the client sees them. Last line
JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import closing
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


def rate_of_engine(engine: Engine, tokens: int) -> float:
    """Tokens per second straight from the engine, first token to last."""
    context = engine.open_context()
    try:
        with closing(engine.generate(context, list(range(8, 40)), SamplingParams(max_tokens=tokens))) as turn:
            at = [time.perf_counter() for step in turn if isinstance(step, Token)]
    finally:
        context.close()
    return (len(at) - 1) / (at[-1] - at[0])


async def serve(shape: str, device: str, tokens: int) -> None:
    """Measure the engine in the worker's thread, then serve until standard input closes."""
    rates: list[float] = []

    def factory(_: Any) -> Any:
        engine = open_engine(shape, device, tokens + 256)
        rate_of_engine(engine, 64)
        rates.append(rate_of_engine(engine, tokens))
        return engine

    settings = load_settings({"listen": "127.0.0.1:0", "metrics_listen": "127.0.0.1:0", "slots": 1})
    app = App(settings, factory)
    await app.start()
    await app.ready()
    print(json.dumps({"address": app.address, "engine_rate": rates[0]}), flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await app.close()


async def read(address: str, tokens: int) -> dict[str, float]:
    """Stream one answer and read every token of it."""
    async with ChatClient(address) as chat:
        await chat.ask("warm up", max_tokens=32)
        asked = time.perf_counter()
        answer = chat.stream("go on", max_tokens=tokens, temperature=0.0)
        arrivals = [(time.perf_counter(), len(event.token_ids)) async for event in answer if isinstance(event, Delta)]
    count = sum(n for _, n in arrivals)
    gaps = [(b - a) / n for (a, _), (b, n) in pairwise(arrivals) for _ in range(n)]
    whole = [b - a for (a, _), (b, _) in pairwise(arrivals)]
    return {
        "tokens": count,
        "deltas": len(arrivals),
        "rate": (count - arrivals[0][1]) / (arrivals[-1][0] - arrivals[0][0]),
        "first_token_s": arrivals[0][0] - asked,
        "gap_median_s": statistics.median(gaps),
        "gap_p99_s": statistics.quantiles(whole, n=100)[98],
        "gap_largest_s": max(whole),
    }


def measure(shape: str, device: str, tokens: int) -> dict[str, Any]:
    """One server process, and this one as its client."""
    command = [sys.executable, "-m", "tests.benchmarks.end_to_end", shape, "--serve", "--device", device]
    command += ["--tokens", str(tokens)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        said = json.loads(server.stdout.readline())
        seen = asyncio.run(read(said["address"], tokens))
        server.communicate()
    return {"shape": shape, "engine_rate": said["engine_rate"], "ratio": seen["rate"] / said["engine_rate"], **seen}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shapes", nargs="+")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--tokens", type=int, default=2000)
    parser.add_argument("--serve", action="store_true", help="be the server of the first shape")
    arguments = parser.parse_args()
    if arguments.serve:
        asyncio.run(serve(arguments.shapes[0], arguments.device, arguments.tokens))
        return
    results = [measure(shape, arguments.device, arguments.tokens) for shape in arguments.shapes]
    print(
        f"{'shape':<14} {'engine':>9} {'client':>9} {'ratio':>6} {'median':>9} {'p99':>9} {'p99/med':>7} {'largest':>9}"
    )
    for r in results:
        print(
            f"{r['shape']:<14} {r['engine_rate']:>7.1f}/s {r['rate']:>7.1f}/s {r['ratio']:>6.3f} "
            f"{r['gap_median_s'] * 1e3:>6.3f} ms {r['gap_p99_s'] * 1e3:>6.3f} ms "
            f"{r['gap_p99_s'] / r['gap_median_s']:>7.3f} {r['gap_largest_s'] * 1e3:>6.2f} ms"
        )
    print(json.dumps(results))


if __name__ == "__main__":
    main()
