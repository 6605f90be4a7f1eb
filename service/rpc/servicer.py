"""soloist.v1.ChatService: from a request on the wire to a turn, and its events back.

Errors are raised, not answered: service.rpc.calls makes statuses of them.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import ExitStack, aclosing
from dataclasses import dataclass
from typing import Protocol, cast

from engine.errors import ContextLengthError, InvalidRequestError
from service.errors import CallerLimitError, NotReadyError, OtherNumericsError, QueueFullError
from service.events import Load, Refusal, ServiceEvent, TurnEvent, TurnRefused, TurnRequest
from service.rpc.access import Caller, CallerTurns
from service.rpc.calls import Context, current_call
from service.rpc.converse import Conversation, Say
from service.rpc.convert import asked_turn, chat_event, counted_messages
from service.rpc.limits import proto_limits
from service.rpc.model import ServedModel
from service.rpc.prompts import PromptRoom
from soloist.v1 import chat_pb2, chat_pb2_grpc

SERVICE_NAME: str = chat_pb2.DESCRIPTOR.services_by_name["ChatService"].full_name

# The answer's end has to reach the client before its own timer fires.
_MARGIN_SHARE = 0.05
_MARGIN_S = 0.1

# CountTokens counts more than fits, so that a client learns how much to leave out; and no end of text.
_COUNTED_CONTEXTS = 4

_NEVER_STARTED = chat_pb2.Finished(reason=chat_pb2.FINISH_REASON_CANCELLED)


class Turns(Protocol):
    """Where turns are played; service.conversation.Conversations is one."""

    def turn(self, request: TurnRequest) -> AsyncGenerator[TurnEvent, None]:
        """Plays one turn; closing the generator cancels it."""
        ...

    def interrupt(self, request_id: str) -> bool:
        """Breaks a turn off, which then ends in Finished; False if no such turn plays or waits."""
        ...

    def stalled(self, request_id: str) -> None:
        """Says that this turn will be closed because its reader does not read."""
        ...


@dataclass(frozen=True, slots=True)
class EdgeLimits:
    """What the edge bounds by itself; see service.settings."""

    queue_depth: int
    max_active_turns: int


@dataclass(frozen=True, slots=True)
class _Served:
    model: ServedModel
    turns: Turns
    load: Callable[[], Load]


class ChatServicer(chat_pb2_grpc.ChatServiceServicer):
    """The five methods. Refuses chats with NotReadyError until `serve` is called."""

    def __init__(
        self,
        limits: EdgeLimits,
        prompts: PromptRoom,
        version: str,
        tell: Callable[[ServiceEvent], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limits = limits
        self._prompts = prompts
        self._version = version
        self._tell = tell
        self._clock = clock
        self._served: _Served | None = None
        self._of_callers = CallerTurns()

    def serve(self, model: ServedModel, turns: Turns, load: Callable[[], Load]) -> None:
        """The model is open: from now on chats are played by `turns`, and `load` says how busy they are."""
        self._served = _Served(model, turns, load)

    async def Chat(  # noqa: N802 - named by the proto
        self, request: chat_pb2.ChatRequest, context: Context
    ) -> AsyncGenerator[chat_pb2.ChatEvent, None]:
        async with aclosing(self._play(Say(request, current_call().request_id), context)) as events:
            async for event in events:
                yield event

    async def Converse(  # noqa: N802 - named by the proto
        self, request_iterator: AsyncIterator[chat_pb2.ConverseRequest], context: Context
    ) -> AsyncGenerator[chat_pb2.ChatEvent, None]:
        served = self._model()
        conversation = Conversation(
            current_call().request_id, lambda say: self._play(say, context), served.turns.interrupt
        )
        async with aclosing(conversation.events(request_iterator)) as events:
            async for event in events:
                yield event

    async def GetServerInfo(  # noqa: N802 - named by the proto
        self, request: chat_pb2.GetServerInfoRequest, context: Context
    ) -> chat_pb2.GetServerInfoResponse:
        model = self._model().model
        graphs = model.graphs()
        return chat_pb2.GetServerInfoResponse(
            model=model.name,
            version=self._version,
            limits=proto_limits(model.context, self._limits.queue_depth, self._limits.max_active_turns),
            graphs=chat_pb2.GraphState(
                enabled=graphs.enabled,
                captured=graphs.captured,
                pool_bytes=graphs.pool_bytes,
                context_tokens=graphs.context,
                eager_reason=graphs.eager_reason or "",
            ),
            numerics_fingerprint=model.fingerprint,
            device=model.device,
            precision=model.precision,
            decoder=model.decoder,
        )

    async def CountTokens(  # noqa: N802 - named by the proto
        self, request: chat_pb2.CountTokensRequest, context: Context
    ) -> chat_pb2.CountTokensResponse:
        model = self._model().model
        ids = await self._prompts.ids(model.text, counted_messages(request), model.context * _COUNTED_CONTEXTS)
        return chat_pb2.CountTokensResponse(prompt_tokens=len(ids))

    async def GetLoad(  # noqa: N802 - named by the proto
        self, request: chat_pb2.GetLoadRequest, context: Context
    ) -> chat_pb2.GetLoadResponse:
        load = self._model().load()
        return chat_pb2.GetLoadResponse(
            active_turns=load.active_turns,
            queued_turns=load.queued_turns,
            predicted_wait_seconds=load.predicted_wait_s,
            inter_token_seconds=load.inter_token_s,
            kv_tokens_used=load.kv_tokens_used,
            kv_tokens_total=load.kv_tokens_total,
            draining=load.draining,
        )

    def _model(self) -> _Served:
        if self._served is None:
            raise NotReadyError
        return self._served

    async def _play(self, say: Say, context: Context) -> AsyncGenerator[chat_pb2.ChatEvent, None]:
        """One turn, from its request to its last event."""
        caller = current_call().identify()  # again at each say: a key may be withdrawn while a conversation goes on
        with ExitStack() as held:
            try:
                served = self._model()
                held.enter_context(self._of_callers.one_more(caller))
                turn = await self._turn_request(say, served.model, caller, context)
            except (InvalidRequestError, OtherNumericsError, QueueFullError, CallerLimitError, NotReadyError) as error:
                self._tell(TurnRefused(say.request_id, _refusal(error), caller.scope or ""))
                raise
            if say.interrupted:  # while its prompt was read: it was never a turn
                yield chat_pb2.ChatEvent(finished=_NEVER_STARTED)
                return
            async with aclosing(served.turns.turn(turn)) as events:
                async for event in events:
                    try:
                        yield chat_event(event, served.model.name)
                    except GeneratorExit:
                        if current_call().stalled:
                            served.turns.stalled(say.request_id)
                        raise

    async def _turn_request(self, say: Say, model: ServedModel, caller: Caller, context: Context) -> TurnRequest:
        asked = asked_turn(say.request, model.defaults, model.vocabulary)
        caller.check(asked.session_id, asked.priority)
        prompt_ids = await self._prompts.ids(model.text, asked.messages, model.context)
        sampling = await self._prompts.sampling(model.text, asked.sampling, asked.form)
        if len(prompt_ids) >= model.context:
            raise ContextLengthError(len(prompt_ids), model.context)
        turn = TurnRequest(
            request_id=say.request_id,
            prompt_ids=prompt_ids,
            sampling=sampling,
            stop=asked.stop,
            session_id=asked.session_id,
            priority=asked.priority,
            deadline_s=self._deadline_s(context),
            caller=caller.scope or "",
            trace=current_call().trace,
        )
        return turn if asked.resume is None else asked.resume.of_turn(turn, model.fingerprint, model.context)

    def _deadline_s(self, context: Context) -> float | None:
        left_s = cast("float | None", context.time_remaining())  # None without a deadline, whatever its stub says
        if left_s is None:
            return None
        return self._clock() + left_s - min(_MARGIN_S, left_s * _MARGIN_SHARE)


def _refusal(error: Exception) -> Refusal:
    match error:
        case QueueFullError():
            return Refusal.QUEUE_FULL
        case CallerLimitError():
            return Refusal.CALLER_LIMIT
        case NotReadyError():
            return Refusal.NOT_READY
        case _:
            return Refusal.INVALID_REQUEST
