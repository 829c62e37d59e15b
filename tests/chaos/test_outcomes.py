"""What a scripted producer says becomes OK, FAIL or INFO, and never more than is known."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from tidegate.chaos.checks.history import History, OpOutcome
from tidegate.chaos.load import outcomes
from tidegate.chaos.load.outcomes import Ending, Sent
from tidegate.client.connecting.errors import (
    AbortableError,
    CommitOutcomeUnknown,
    FatalError,
    ProducerFenced,
    RetriableError,
)
from tidegate.client.producing.producer import RecordMetadata
from tidegate.client.producing.transaction_manager import State
from tidegate.wire.errors import ErrorCode

UNKNOWN = CommitOutcomeUnknown(ErrorCode.REQUEST_TIMED_OUT, "no answer")
REFUSED = AbortableError(ErrorCode.INVALID_TXN_STATE, "refused")
FENCED = ProducerFenced(ErrorCode.PRODUCER_FENCED, "fenced")
FATAL = FatalError(ErrorCode.UNSUPPORTED_VERSION, "broken")
UNCONFIRMED = RetriableError(ErrorCode.REQUEST_TIMED_OUT, "no answer")
YES = None


@dataclass
class ScriptedProducer:
    """Answers commits and aborts from lists; `deliverable` False: a record was given up."""

    commits: list[Exception | None] = field(default_factory=list)
    aborts: list[Exception | None] = field(default_factory=list)
    deliverable: bool = True
    state: State = State.IN_TRANSACTION

    async def flush(self) -> None:
        if not self.deliverable:
            self.state = State.ABORTABLE_ERROR

    async def commit(self) -> None:
        await self._answer(self.commits)

    async def abort(self) -> None:
        await self._answer(self.aborts)

    @staticmethod
    async def _answer(script: list[Exception | None]) -> None:
        answer = script.pop(0)
        if answer is not None:
            raise answer


def operation(producer: ScriptedProducer, sent: Sequence[Exception | int] = ()) -> tuple[Ending, History]:
    """One transaction with records whose acknowledgements are offsets or errors."""
    history = History(lambda: 0.0)

    async def run() -> Ending:
        futures: Sent = []
        with history.begin("p/1", transactional_id="t") as op:
            for index, answer in enumerate(sent):
                future: asyncio.Future[RecordMetadata] = asyncio.get_running_loop().create_future()
                outcomes.mark_retrieved(future)
                futures.append((op.send(("topic", 0), f"v{index}"), future))
                if isinstance(answer, Exception):
                    future.set_exception(answer)
                else:
                    future.set_result(RecordMetadata("topic", 0, answer, 0))
            return (await outcomes.commit(op, producer, futures)).ending  # type: ignore[arg-type]

    return asyncio.run(run()), history


@pytest.mark.parametrize(
    ("commits", "aborts", "outcome", "ending"),
    [
        ([YES], [], OpOutcome.OK, Ending.COMMITTED),
        ([UNKNOWN, YES], [], OpOutcome.OK, Ending.COMMITTED),
        ([UNKNOWN, UNKNOWN, UNKNOWN], [], OpOutcome.INFO, Ending.OVER),
        ([REFUSED], [YES], OpOutcome.FAIL, Ending.FAILED),
        ([REFUSED], [UNCONFIRMED], OpOutcome.INFO, Ending.OVER),
        ([FENCED], [], OpOutcome.FAIL, Ending.OVER),
        ([FATAL], [], OpOutcome.INFO, Ending.OVER),
        # A no after an unanswered question may be about the question's own success.
        ([UNKNOWN, REFUSED], [], OpOutcome.INFO, Ending.OVER),
        ([UNKNOWN, FENCED], [], OpOutcome.INFO, Ending.OVER),
        ([UNKNOWN, FATAL], [], OpOutcome.INFO, Ending.OVER),
    ],
)
def test_a_commit_is_recorded_as_what_is_known_of_it(
    commits: list[Exception | None], aborts: list[Exception | None], outcome: OpOutcome, ending: Ending
) -> None:
    found, history = operation(ScriptedProducer(list(commits), list(aborts)), [7])
    (op,) = history.ops()
    assert (op.outcome, found) == (outcome, ending)
    assert op.ending is not None, "its commit left"


@pytest.mark.parametrize(
    ("abort", "ending"), [(YES, Ending.FAILED), (UNCONFIRMED, Ending.FAILED), (FATAL, Ending.OVER)]
)
def test_a_transaction_without_a_sent_commit_failed_with_any_abort_result(
    abort: Exception | None, ending: Ending
) -> None:
    found, history = operation(ScriptedProducer(aborts=[abort], deliverable=False), [3, UNCONFIRMED])
    (op,) = history.ops()
    assert (op.outcome, found, op.ending) == (OpOutcome.FAIL, ending, None)


def test_only_acknowledged_records_get_an_offset() -> None:
    _, history = operation(ScriptedProducer(aborts=[YES], deliverable=False), [3, UNCONFIRMED, 5])
    (op,) = history.ops()
    assert [send.offset for send in op.sends] == [3, None, 5]
