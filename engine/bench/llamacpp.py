"""llama.cpp on the same GGUF file, through its Python package `xllamacpp`; it times its own decode steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from engine.bench.contender import Turn
from engine.bench.extras import need
from engine.bench.opening import Setup, torch_device
from engine.checkpoint.locate import EMBEDDED, embedded_path
from engine.errors import DeviceError, InvalidRequestError
from engine.threads import available_threads


class LlamaCppContender:
    """llama.cpp's server object as a contender, without its HTTP."""

    def __init__(self, server: Any) -> None:
        self._server = server

    def turn(self, prompt_ids: Sequence[int], new_tokens: int) -> Turn:
        """See Contender. Its figures, like ours, run from the first token to the last; it tells no ids."""
        answer = self._server.handle_completions(
            {
                "prompt": list(prompt_ids),
                "max_tokens": new_tokens,
                "temperature": 0.0,
                "ignore_eos": True,
                "cache_prompt": False,
            }
        )
        if "timings" not in answer:
            raise DeviceError(f"llama.cpp refused to answer: {answer}")
        return Turn((), answer["timings"]["predicted_ms"] / 1e3, None)


def need_llamacpp() -> Any:
    """The package. Raises MissingExtraError."""
    return need("xllamacpp", "a comparison with llama.cpp", "install it with: pip install xllamacpp")


@contextmanager
def open_llamacpp(setup: Setup) -> Iterator[LlamaCppContender]:
    """The file of `setup` in llama.cpp with as many threads. Raises MissingExtraError or InvalidRequestError."""
    xllamacpp = need_llamacpp()
    path = embedded_path() if setup.model == EMBEDDED else Path(setup.model)
    if path.suffix != ".gguf":
        raise InvalidRequestError("model", f"llama.cpp reads GGUF files alone; got {setup.model}")
    params = xllamacpp.CommonParams()
    params.model.path = str(path)
    params.n_ctx = setup.context
    params.n_parallel = 1
    params.n_gpu_layers = 99 if torch_device(setup.device).type == "cuda" else 0
    params.cpuparams.n_threads = setup.threads or available_threads()
    params.verbosity = -1
    server = xllamacpp.Server(params)
    try:
        yield LlamaCppContender(server)
    finally:
        del server
