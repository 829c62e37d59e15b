"""The kinds of anomalies that a check can find, and one anomaly with its evidence."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from .history import Op, Partition, Value


class AnomalyKind(StrEnum):
    """The names are those of Jepsen's kafka workload where that has one (docs/semantics.md V3 to V6)."""

    LOST_WRITE = "lost-write"
    """A record that must have committed is not there."""
    UNSEEN = "unseen"
    """A record of a successful operation that no reader read, in a partition without a final read: lost, or
    only late."""
    DUPLICATE = "duplicate"
    """One record at two offsets of a partition."""
    INCONSISTENT_OFFSETS = "inconsistent-offsets"
    """Two records at one offset of a partition."""
    UNWRITTEN_VALUE = "unwritten-value"
    """A record that no client wrote there."""
    ABORTED_READ = "G1a"
    """A record of a transaction that definitely failed was read."""
    PRECOMMITTED_READ = "precommitted-read"
    """A transaction read a record that it wrote itself, before its commit."""
    TORN_TRANSACTION = "torn-transaction"
    """Readers see some of a transaction's records and not the others."""
    INTERNAL_POLL_SKIP = "int-poll-skip"
    INTERNAL_NONMONOTONIC_POLL = "int-nonmonotonic-poll"
    POLL_SKIP = "poll-skip"
    NONMONOTONIC_POLL = "nonmonotonic-poll"
    INTERNAL_NONMONOTONIC_SEND = "int-nonmonotonic-send"
    NONMONOTONIC_SEND = "nonmonotonic-send"
    TORN_OFFSET_COMMIT = "torn-offset-commit"
    """The offsets of a transaction are committed and its records are not, or the other way round."""
    CONSUMED_TWICE = "consumed-twice"
    CONSUMED_NEVER = "consumed-never"
    ZOMBIE_ACKNOWLEDGED = "zombie-acknowledged"
    """A transaction ended well although a newer producer of its transactional id had been initialised before
    it ended."""
    G0 = "G0"
    G0_PROCESS = "G0-process"
    G0_REALTIME = "G0-realtime"
    G1C = "G1c"
    G1C_PROCESS = "G1c-process"
    G1C_REALTIME = "G1c-realtime"


@dataclass(frozen=True, slots=True)
class Anomaly:
    """One broken promise: what, where, and the operations (by index) that prove it."""

    kind: AnomalyKind
    message: str
    partition: Partition | None = None
    value: Value | None = None
    ops: tuple[int, ...] = ()

    def __str__(self) -> str:
        where = f" in {self.partition[0]}-{self.partition[1]}" if self.partition else ""
        return f"{self.kind}{where}: {self.message}"


def about(
    kind: AnomalyKind,
    message: str,
    *ops: Op | None,
    partition: Partition | None = None,
    value: Value | None = None,
) -> Anomaly:
    return Anomaly(kind, message, partition, value, tuple(op.index for op in ops if op is not None))
