"""What the transaction simulator may do, and its data partitions: SEMANTICS 1-16 in short."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tidegate.coordinator.transaction.events import SendMarkers
from tidegate.coordinator.transaction.markers import MarkerQueue
from tidegate.coordinator.transaction.shard import TransactionShard
from tidegate.coordinator.transaction.state import TransactionPartition
from tidegate.wire.errors import ErrorCode


@dataclass
class Faults:
    """What a run may do, and which safeguards it leaves out."""

    transaction_version: int = 2
    duplicate: float = 0.15
    late: float = 0.03
    late_markers: float = 0.05
    lose: float = 0.03
    resend: float = 0.05
    refuse: float = 0.02
    crash_client: float = 0.003
    kill: float = 0.003
    depose: float = 0.004
    learn: float = 0.02  # how soon a deposed leader hears of it
    max_epoch: int = 4
    skip_barrier: bool = False
    check_marker_epoch: bool = True
    check_coordinator_epoch: bool = True
    queue: type[MarkerQueue] = MarkerQueue
    shard: type[TransactionShard] = TransactionShard


@dataclass
class Producer:
    epoch: int
    next_sequence: int = 0
    coordinator_epoch: int = -1
    is_open: bool = False


class DataPartition:
    """What a partition leader knows of producers, and its log: ("data", pid, epoch, value) and ("marker", pid, epoch, commit)."""

    def __init__(self, name: TransactionPartition, faults: Faults) -> None:
        self.name = name
        self.faults = faults
        self.producers: dict[int, Producer] = {}
        self.guards: dict[int, object] = {}
        self.log: list[tuple[str, int, int, Any]] = []

    def check(self, pid: int, epoch: int, sequence: int) -> ErrorCode | None:
        """None: may be appended; NONE: a duplicate; else the error."""
        known = self.producers.get(pid)
        if known is None or epoch > known.epoch:
            return None if sequence == 0 else ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        if epoch < known.epoch:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        if sequence < known.next_sequence:
            return ErrorCode.NONE
        return None if sequence == known.next_sequence else ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER

    def is_open(self, pid: int, epoch: int) -> bool:
        known = self.producers.get(pid)
        return known is not None and known.is_open and known.epoch == epoch

    def append(self, pid: int, epoch: int, sequence: int, value: Any) -> None:
        known = self.producers.get(pid)
        if known is None or epoch > known.epoch:
            known = Producer(epoch, coordinator_epoch=known.coordinator_epoch if known else -1)
            self.producers[pid] = known
        known.is_open = True
        known.next_sequence = sequence + 1
        self.guards.pop(pid, None)
        self.log.append(("data", pid, epoch, value))

    def mark(self, send: SendMarkers) -> ErrorCode:
        known = self.producers.setdefault(send.producer_id, Producer(-1))
        if self.faults.check_coordinator_epoch and send.coordinator_epoch < known.coordinator_epoch:
            return ErrorCode.TRANSACTION_COORDINATOR_FENCED
        if self.faults.check_marker_epoch:
            if send.transaction_version >= 2 and send.producer_epoch == known.epoch and known.is_open:
                return ErrorCode.INVALID_PRODUCER_EPOCH
            if send.producer_epoch < known.epoch:
                return ErrorCode.INVALID_PRODUCER_EPOCH
        if send.producer_epoch > known.epoch:
            known.epoch, known.next_sequence = send.producer_epoch, 0
        known.coordinator_epoch = max(known.coordinator_epoch, send.coordinator_epoch)
        known.is_open = False
        self.guards.pop(send.producer_id, None)  # whoever was being verified for the decided transaction must ask again
        self.log.append(("marker", send.producer_id, send.producer_epoch, send.commit))
        return ErrorCode.NONE

    def visible(self) -> set[Any]:
        """What a read_committed reader sees."""
        pending: dict[int, list[Any]] = {}
        seen: set[Any] = set()
        for kind, pid, _, what in self.log:
            if kind == "data":
                pending.setdefault(pid, []).append(what)
            elif what:
                seen.update(pending.pop(pid, ()))
            else:
                pending.pop(pid, None)
        return seen
