"""Maps the client's results to outcomes in the history: OK, FAIL or INFO, never more than the evidence
proves.

* `commit()` returned: OK.
* The coordinator rejected the commit, or the client aborted without sending one: FAIL.  No record may ever be
  visible, whether or not the abort was confirmed.
* The coordinator did not answer: the client repeats the request (the coordinator recognises it).  Without an
  answer it is INFO. After a first request without an answer, any answer but success is INFO as well.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from ...client.connecting.errors import AbortableError, CommitOutcomeUnknown, FatalError, ProducerFenced
from ...client.producing.producer import Producer, RecordMetadata
from ...client.producing.transaction_manager import State
from ...wire.errors import KafkaError
from ..checks.history import OpenOp

COMMIT_QUESTIONS_MAX: Final = 3

Sent = list[tuple[int, "asyncio.Future[RecordMetadata]"]]
"""Number of the send in its operation, and its acknowledgement."""


class Ending(Enum):
    """The end of a transaction, and whether its client can continue."""

    COMMITTED = auto()
    FAILED = auto()
    """The operation had no effect; the client continues."""
    OVER = auto()
    """Unknown, or the client is of no use any more: make a new one."""


@dataclass(frozen=True, slots=True)
class TransactionOutcome:
    """An ending and, unless it is a commit, the reason."""

    ending: Ending
    why: str = ""


async def commit(op: OpenOp, producer: Producer, sent: Sent) -> TransactionOutcome:
    """Waits for the records, commits, and sets the outcome of `op`."""
    await producer.flush()
    note_acknowledged(op, sent)
    if producer.state is not State.IN_TRANSACTION:
        return await abort(op, producer, f"a record was not delivered: {_first_failure(sent)}")
    op.ending()
    unknown: KafkaError | None = None
    for _ in range(COMMIT_QUESTIONS_MAX):
        try:
            await producer.commit()
        except CommitOutcomeUnknown as error:
            unknown = error
        except ProducerFenced as error:
            return (
                fail(op, f"fenced: {error}")
                if unknown is None
                else leave_open(op, f"{unknown}; then fenced: {error}")
            )
        except AbortableError as error:
            if unknown is None:
                return await abort(op, producer, f"refused: {error}", commit_left=True)
            return leave_open(op, f"{unknown}; then refused: {error}")
        except KafkaError as error:
            return leave_open(op, str(error) if unknown is None else f"{unknown}; then {error}")
        else:
            op.ok()
            return TransactionOutcome(Ending.COMMITTED)
    return leave_open(op, str(unknown))


async def abort(op: OpenOp, producer: Producer, why: str, *, commit_left: bool = False) -> TransactionOutcome:
    """Aborts the transaction, and sets the outcome of `op`.  `commit_left`: its commit was sent, and
    rejected."""
    try:
        await producer.abort()
    except KafkaError as error:
        message = f"{why}; the abort: {error}"
        if commit_left:
            return leave_open(op, message)
        op.fail(message)
        return TransactionOutcome(Ending.OVER if isinstance(error, FatalError) else Ending.FAILED, message)
    op.fail(why)
    return TransactionOutcome(Ending.FAILED, why)


def fail(op: OpenOp, why: str) -> TransactionOutcome:
    """Certainly not committed, and the client cannot continue."""
    op.fail(why)
    return TransactionOutcome(Ending.OVER, why)


def leave_open(op: OpenOp, why: str) -> TransactionOutcome:
    """The outcome is unknown."""
    op.info(why)
    return TransactionOutcome(Ending.OVER, why)


def note_acknowledged(op: OpenOp, sent: Sent) -> None:
    """Writes the offsets of acknowledged records into the history."""
    for number, future in sent:
        if future.done() and not future.cancelled() and future.exception() is None:
            op.acknowledged(number, future.result().offset)


def _first_failure(sent: Sent) -> BaseException | None:
    failures = (future.exception() for _, future in sent if future.done() and not future.cancelled())
    return next((failure for failure in failures if failure is not None), None)


def mark_retrieved(future: asyncio.Future[RecordMetadata]) -> None:
    """Retrieves the exception of a record, so that asyncio does not log it: the transaction's outcome reports
    it."""
    future.add_done_callback(lambda done: None if done.cancelled() else done.exception())
