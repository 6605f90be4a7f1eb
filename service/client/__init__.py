"""The client library: `ChatClient` and what it gives back. Needs gRPC and the generated proto, no torch and no server.

async with ChatClient("localhost:50051") as chat:
    async for event in chat.stream("What is the capital of France?"):
        if isinstance(event, Delta):
            print(event.text, end="", flush=True)
"""

from __future__ import annotations

from service.client.answers import (
    Answer,
    BrokenAnswer,
    Delta,
    Event,
    Finished,
    GraphState,
    Logprob,
    Message,
    Resumed,
    Role,
    ServerInfo,
    ServerLoad,
    Started,
    TokenLogprobs,
)
from service.client.chat import ChatClient
from service.client.errors import (
    BadRequestError,
    BrokenStreamError,
    ChatError,
    ClosedError,
    DeadlineError,
    OverloadedError,
    ResumeRefusedError,
    ServerError,
    UnauthenticatedError,
    UnavailableError,
)
from service.client.formats import ResponseFormat
from service.client.retries import Retries
from service.client.trust import Tls

__all__ = [
    "Answer",
    "BadRequestError",
    "BrokenAnswer",
    "BrokenStreamError",
    "ChatClient",
    "ChatError",
    "ClosedError",
    "DeadlineError",
    "Delta",
    "Event",
    "Finished",
    "GraphState",
    "Logprob",
    "Message",
    "OverloadedError",
    "ResponseFormat",
    "ResumeRefusedError",
    "Resumed",
    "Retries",
    "Role",
    "ServerError",
    "ServerInfo",
    "ServerLoad",
    "Started",
    "Tls",
    "TokenLogprobs",
    "UnauthenticatedError",
    "UnavailableError",
]
