"""One tree of errors. The edge (service.rpc.status) has one table that maps it to gRPC.

Every message says what was wrong, where, and what would be right.
"""

from __future__ import annotations


class EngineError(Exception):
    """Root of everything the engine raises on purpose."""


class CheckpointError(EngineError):
    """A model on disk cannot be used: unreadable, malformed, unsafe, missing or unclaimed tensors."""


class UnsupportedModelError(CheckpointError):
    """The checkpoint is sound, but its architecture or data type is not served."""


class DeviceError(EngineError):
    """The device asked for is absent or too small."""


class InvalidRequestError(EngineError):
    """The caller's input is wrong. `field` names it in the caller's vocabulary, e.g. `temperature`."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field
        self.message = message


class TemplateError(InvalidRequestError):
    """The chat template refused the messages, in its own sentence, or went beyond its bounds."""

    def __init__(self, message: str) -> None:
        super().__init__("messages", message)


class ContextLengthError(InvalidRequestError):
    """The prompt does not fit into the context. Carries both counts; nothing is ever cut silently.

    `at_least`: the prompt was so long that it was not counted to its end.
    """

    def __init__(self, prompt_tokens: int, context_tokens: int, *, at_least: bool = False) -> None:
        counted = f"at least {prompt_tokens}" if at_least else str(prompt_tokens)
        super().__init__(
            "messages",
            f"the prompt has {counted} tokens; the context holds {context_tokens} with room for at least one answer "
            "token; send fewer or shorter messages",
        )
        self.prompt_tokens = prompt_tokens
        self.context_tokens = context_tokens


class GraphError(EngineError):
    """Graphs were required (`strict_graphs`) and could not be had."""


class StepError(EngineError):
    """One turn's step failed; the engine itself is sound and serves the next turn."""


class OutOfDeviceMemoryError(StepError):
    """The device had no room for this turn's work."""


class ReplayError(EngineError):
    """An answer that was to be repeated came out differently: other numerics made it, or the ids are not its own."""

    def __init__(self, index: int, emitted_id: int, made_id: int) -> None:
        super().__init__(
            f"token {index} of the answer so far is {emitted_id}, and comes out as {made_id} here; resume it where it "
            "began, or in FAST mode"
        )
        self.index = index


class FatalDeviceError(EngineError):
    """The device context is lost (a sticky CUDA error). The process must end: it never serves again."""
