"""The clients that a shard has not answered yet, and the effects that wait with them.

A *parked* answer is known and waits until the high watermark reaches its offset: what it rests on may still
be lost.  A *waiting* client has no answer yet: it waits under a token until the shard names that.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic

from ..runtime import logs
from ..wire.errors import ErrorCode, KafkaError
from .outcome import EffectT, EventT, ReplyT
from .shard_view import ShardMetrics

log = logs.get(__name__)

Caller = Callable[[ReplyT | KafkaError], None]
"""The way back to the client: called exactly once, with its reply or an error."""
Answer = Callable[[KafkaError | None], None]
"""A reply whose value is known: called with None it sends that value, called with an error it sends the error
instead."""


def answer_to(caller: Caller[ReplyT], reply: ReplyT | KafkaError) -> Answer:
    return lambda error: caller(reply if error is None else error)


@dataclass(slots=True)
class Parked(Generic[EffectT]):
    """Answers and effects that wait for the high watermark to reach `offset`."""

    offset: int
    deadline_ms: int
    answers: list[Answer]
    effects: Sequence[EffectT]


class Callers(Generic[EventT, ReplyT, EffectT]):
    """Those of one shard."""

    def __init__(self, topic: str, metrics: ShardMetrics) -> None:
        self._topic = topic
        self._metrics = metrics
        self.parked: deque[Parked[EffectT]] = deque()
        self.waiting: dict[int, tuple[EventT, Caller[ReplyT]]] = {}

    def take(self, answers: Sequence[tuple[int, ReplyT | KafkaError]]) -> list[Answer]:
        """The answers to those of these clients that still wait; they wait no longer."""
        found = [(self.waiting.pop(token, None), reply) for token, reply in answers]
        return [answer_to(client[1], reply) for client, reply in found if client is not None]

    def deliver(self, answers: Sequence[Answer], error: KafkaError | None) -> None:
        for answer in answers:
            try:
                answer(error)
            except Exception:  # the other clients still get their answers; this one times out and retries
                self._metrics.reply_failures += 1
                log.exception("coordinator_reply_failed", topic=self._topic)

    def take_all(self, error: KafkaError) -> list[Answer]:
        """The answers to every parked or waiting client; parked effects stay."""
        answers = [answer for parked in self.parked for answer in parked.answers]
        answers += [answer_to(caller, error) for _, caller in self.waiting.values()]
        for parked in self.parked:
            parked.answers = []
        self.waiting.clear()
        return answers

    def reject(self, answers: Sequence[Answer], error: KafkaError) -> None:
        self._metrics.replies_not_coordinator += len(answers)
        self.deliver(answers, error)

    def expire(self, now_ms: int, partition: int) -> None:
        """Parked clients past their deadline get COORDINATOR_NOT_AVAILABLE."""
        message = f"{self._topic}-{partition}: not replicated in time; it may still be committed"
        for parked in list(self.parked):
            if parked.deadline_ms > now_ms:
                break
            answers, parked.answers = parked.answers, []
            self._metrics.replies_timed_out += len(answers)
            self.deliver(answers, KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, message))
        while self.parked and not self.parked[0].answers and not self.parked[0].effects:
            self.parked.popleft()
