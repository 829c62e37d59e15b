"""Batches of idempotent producers that were refused before they reached a log: those behind them are refused
alike.

A client has several batches of a partition in flight.  When the first is refused because this node does not
lead yet (or lacks replicas), and the node leads when the second arrives, the second has a gap before it.  To
call that out of order would be true, and would make librdkafka take a new epoch and send both again.  When
the first was itself a repetition, written before a crash and never acknowledged, then nothing recognises it
under the new epoch, and the record is there twice.  When both get the error of the first, the client repeats
both in their order under the old epoch, and a batch that was written is recognised.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, NamedTuple

from ...controller.state.model import TOPIC_NAME_LENGTH_MAX
from ...wire.errors import ErrorCode

REMEMBERED_MAX: Final = 10_000
REMEMBERED_S: Final = 30.0

GAPS: Final = frozenset({ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID})


class Sender(NamedTuple):
    """One producer's way into one partition."""

    topic: str
    partition: int
    producer_id: int
    producer_epoch: int


class _Refusal(NamedTuple):
    sequence: int
    code: ErrorCode
    at_s: float


def _is_after(sequence: int, other: int) -> bool:
    """Sequences wrap around from 2^31 - 1 to 0 (docs/semantics.md I3)."""
    return 0 < (sequence - other) % 2**31 < 2**30


class RejectedSequences:
    """Bounded in number, size and time; losing an entry costs a client one more epoch, nothing else."""

    def __init__(self) -> None:
        self._refusals: OrderedDict[Sender, _Refusal] = OrderedDict()

    def __len__(self) -> int:
        return len(self._refusals)

    def refused(self, sender: Sender, sequence: int, code: ErrorCode, now_s: float) -> ErrorCode:
        """A batch was refused with `code`; returns the code to answer."""
        known = self._refusals.get(sender)
        if known is not None and now_s - known.at_s > REMEMBERED_S:
            del self._refusals[sender]
            known = None
        if code in GAPS:
            return known.code if known is not None and _is_after(sequence, known.sequence) else code
        # a longer text is no topic, and any length
        if code.retriable and len(sender.topic) <= TOPIC_NAME_LENGTH_MAX:
            first = known.sequence if known is not None and _is_after(sequence, known.sequence) else sequence
            self._refusals[sender] = _Refusal(first, code, now_s)
            self._refusals.move_to_end(sender)
            if len(self._refusals) > REMEMBERED_MAX:
                self._refusals.popitem(last=False)
        return code

    def accepted(self, sender: Sender) -> None:
        """A batch was appended, or recognised as written: whatever was missing before it is there."""
        if self._refusals:
            self._refusals.pop(sender, None)
