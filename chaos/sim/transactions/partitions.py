"""Partitions that transactions write to: three real logs each, of which one leads, and a reader of committed
data behind them.

Modelled: the leader, the followers' positions, and that all three are in sync, so that any of them may lead
next. Every promise about producers, guards, markers and the last stable offset (docs/semantics.md, chapters I
and L) is the product's own: `storage.log`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Final

from ....coordinator.group.classic.records import OffsetKey, decode_key, decode_offset_value
from ....coordinator.transaction.events import SendMarkers
from ....coordinator.transaction.state import TransactionPartition
from ....node.cuts.bounds import bounds_of
from ....proto import cuts_pb2 as pb
from ....storage.log.log import AppendOrigin, Log, LogConfig, VerificationGuard
from ....wire.errors import ErrorCode, KafkaError
from ....wire.records import ControlType, decode_batch, decode_marker, encode_marker, iterate_headers
from ..disk import LyingDisk

DATA_PARTITIONS: Final = 3
OFFSETS: Final = DATA_PARTITIONS
"""The partition where a record is an offset that a consumer group has reached."""
REPLICAS: Final = 3
NOW_MS: Final = 1_700_000_000_000
_CONFIG: Final = LogConfig(index_interval_bytes=400, segment_bytes=4000)
_ALL: Final = 1 << 30
Reply = Callable[[ErrorCode], None]


def value_of(key: bytes | None, value: bytes | None) -> int:
    """The number that a record carries: its value, or the offset that it commits."""
    if key is not None and isinstance(decode_key(key), OffsetKey):
        return decode_offset_value(value or b"").offset
    return int(value or b"0")


class DataPartition:
    """See the module's text.  `violations` are what its reader saw."""

    def __init__(self, name: TransactionPartition, *, lags: bool = False) -> None:
        """`lags`: followers learn late of records and of the high watermark, and a new leader late of
        followers."""
        self.name = name
        self._lags = lags
        self._silent_for = 0
        """So many turns, because its followers have not fetched from it yet, the leader commits nothing."""
        self.disk = LyingDisk()
        self.logs = [
            Log.open(
                self.disk, Path(f"/{number}/{name.topic}-{name.partition}"), topic=name.topic,
                partition=name.partition,
                config=_CONFIG, clean=False, recovery_point=0,
            )
            for number in range(REPLICAS)
        ]  # fmt: skip
        self.leader = 0
        self.epoch = 1
        self.moves = 0
        self.violations: list[str] = []
        self.seen: list[int] = []
        self.seen_at: dict[int, int] = {}
        """The moment in which the reader had a value."""
        self._waiting: list[tuple[int, Reply]] = []
        self._position = 0
        self._stable = 0  # within the leader epoch
        self._exposed = 0  # in any
        self._in_sync = set(range(REPLICAS))
        self._epoch_start = 0
        self._deposed: dict[int, tuple[int, int]] = {}
        """Replicas that do not know that another one leads: the epoch in which each did, and its start."""
        self.log.assign_epoch(1, 0)

    @property
    def log(self) -> Log:
        return self.logs[self.leader]

    # --- appends --------------------------------------------------------------------------------------------

    def append(
        self, at: int, batch: bytes, origin: AppendOrigin, guard: VerificationGuard | None, version: int,
        reply: Reply,
        *, full: bool = False,
    ) -> None:  # fmt: skip
        """At the replica `at`, when that leads.  `reply` when it is committed, or what hinders it."""
        if at != self.leader:
            reply(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            return
        self.disk.capacity = self.disk.used_bytes() if full else None
        try:
            info = self.log.append_leader(
                bytearray(batch),
                leader_epoch=self.epoch,
                origin=origin,
                now_ms=NOW_MS,
                guard=guard,
                transaction_version=version,
            )
        except KafkaError as error:
            reply(error.code)
            return
        finally:
            self.disk.capacity = None
        self._waiting.append((info.next_offset, reply))

    def mark(self, send: SendMarkers, reply: Reply) -> None:
        """A coordinator's marker."""
        kind = ControlType.COMMIT if send.commit else ControlType.ABORT
        marker = encode_marker(kind, send.producer_id, send.producer_epoch, send.coordinator_epoch, NOW_MS)
        self.append(self.leader, marker, AppendOrigin.COORDINATOR, None, send.transaction_version, reply)

    # --- replication ----------------------------------------------------------------------------------------

    def replicate(self, random: Random, *, everything: bool) -> None:
        """Followers take a batch or two, or all; then what all have is committed, and the reader reads on."""
        leader = self.log
        for number, log in enumerate(self.logs):
            if log is leader or number in self._deposed:
                continue
            chance = 0.25 if self._lags else 0.5
            if log.log_end_offset < leader.log_end_offset and (everything or random.random() < chance):
                size = _ALL if everything else random.choice((1, 300))
                log.append_follower(
                    leader.read(log.log_end_offset, size, upper_offset=leader.log_end_offset).data
                )
            if not self._lags or everything or random.random() < 0.2:
                log.set_high_watermark(min(leader.high_watermark, log.log_end_offset))
            if log.log_end_offset >= max(leader.high_watermark, self._epoch_start):
                self._in_sync.add(number)
        if self._silent_for and not everything:
            self._silent_for -= 1
        else:
            leader.set_high_watermark(min(self.logs[number].log_end_offset for number in self._in_sync))
        self._read()
        answered = [reply for offset, reply in self._waiting if offset <= leader.high_watermark]
        self._waiting = [each for each in self._waiting if each[0] > leader.high_watermark]
        for reply in answered:
            reply(ErrorCode.NONE)

    def move(self, to: int, *, unaware: bool = False, silent_for: int = 0) -> None:
        """Another replica leads, if it is in sync; the others truncate the records that it does not have, and
        producers whose request waits send it again.  `unaware`: the former leader does not know it yet."""
        if to not in self._in_sync:
            return
        if unaware:
            self._deposed[self.leader] = self.epoch, self._epoch_start
            self._in_sync.discard(self.leader)
        self.leader, self.epoch, self._stable = to, self.epoch + 1, 0
        self._epoch_start, self._silent_for = self.log.log_end_offset, silent_for
        self.moves += 1
        leader = self.log
        leader.assign_epoch(self.epoch, leader.log_end_offset)
        undecided = [
            view.current_txn_first_offset
            for view in leader.producers.views()
            if view.current_txn_first_offset is not None
        ]
        if undecided and min(undecided) < self._exposed:
            what = (
                f"every transaction is decided below the last stable offset {self._exposed}, and at the next "
                f"leader the one that begins at {min(undecided)} is open"
            )
            self.violations.append(f"{self.name.partition}: {what}")
        for number in range(REPLICAS):
            self._follow(number)
        waiting, self._waiting = self._waiting, []
        for _offset, reply in waiting:
            reply(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def _follow(self, number: int) -> None:
        log = self.logs[number]
        if log is self.log or number in self._deposed:
            return
        end = _common_end(self.log, log)
        if end < log.log_end_offset:
            log.truncate_to(end)

    def learn(self) -> None:
        """Deposed leaders hear of it."""
        deposed, self._deposed = self._deposed, {}
        for number in deposed:
            self._follow(number)

    def bounds(self, at: int, epoch: int) -> pb.PartitionBounds:
        """What the replica `at` answers to a taker of cuts, as leader in this epoch.  Raises KafkaError."""
        here = (self.epoch, self._epoch_start) if at == self.leader else self._deposed.get(at)
        if here is None or here[0] != epoch:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return bounds_of(self.logs[at], *here)

    def read_at(self, cut: pb.CutPartition) -> list[int]:
        """The values that a reader of this cut gets now."""
        undecided = {each.producer_id: each.first_offset for each in cut.undecided}
        waiting = self.log.aborted_transactions(cut.start, cut.end)[::-1]
        hidden: set[int] = set()
        values: list[int] = []
        position = cut.start
        while position < cut.end:
            found = self.log.read(position, 600, upper_offset=cut.end)
            for at, header in iterate_headers(found.data):
                while waiting and waiting[-1].first_offset <= header.base_offset:
                    hidden.add(waiting.pop().producer_id)
                if header.is_control:
                    hidden.discard(header.producer_id)
                elif header.producer_id not in hidden and not (
                    header.is_transactional
                    and header.base_offset >= undecided.get(header.producer_id, cut.end)
                ):
                    values += [value_of(each.key, each.value) for each in decode_batch(found.data, at)]
            position = found.next_offset
        return values

    # --- what readers see -----------------------------------------------------------------------------------

    def _read(self) -> None:
        """A read_committed consumer, as clients do it: below the last stable offset, less the aborted
        transactions."""
        log, stable = self.log, self.log.last_stable_offset
        if stable < self._stable:
            self.violations.append(
                f"{self.name.partition}: the last stable offset went back from {self._stable} to {stable}"
            )
        self._stable, self._exposed = stable, max(stable, self._exposed)
        while self._position < stable:
            found = log.read(self._position, 600, upper_offset=stable)
            if not found.data:
                break
            waiting = log.aborted_transactions(self._position, found.next_offset)[::-1]
            hidden: set[int] = set()
            for at, header in iterate_headers(found.data):
                while waiting and waiting[-1].first_offset <= header.base_offset:
                    hidden.add(waiting.pop().producer_id)
                if header.is_control:
                    hidden.discard(header.producer_id)
                elif header.producer_id not in hidden:
                    self.seen += [
                        value_of(record.key, record.value) for record in decode_batch(found.data, at)
                    ]
            self._position = found.next_offset

    def batches(self) -> bytes:
        """The leader's whole log."""
        data, position = b"", 0
        while position < self.log.log_end_offset:
            found = self.log.read(position, _ALL, upper_offset=self.log.log_end_offset)
            data, position = data + found.data, found.next_offset
        return data

    def committed(self) -> list[tuple[bytes | None, int]]:
        """(key, number) of what the markers in the log have committed, in the order of the records: the
        truth."""
        pending: dict[int, list[tuple[int, bytes | None, int]]] = {}
        decided: list[tuple[int, bytes | None, int]] = []
        data = self.batches()
        for at, header in iterate_headers(data):
            if not header.is_control:
                pending.setdefault(header.producer_id, []).extend(
                    (record.offset, record.key, value_of(record.key, record.value))
                    for record in decode_batch(data, at)
                )
                continue
            marker = decode_marker(data, at)
            ended = pending.pop(header.producer_id, [])
            if marker is not None and marker.control_type is ControlType.COMMIT:
                decided += ended
        return [(key, value) for _offset, key, value in sorted(decided, key=lambda each: each[0])]

    def open_producers(self) -> list[int]:
        return [
            view.producer_id
            for view in self.log.producers.views()
            if view.current_txn_first_offset is not None
        ]


def _common_end(one: Log, other: Log) -> int:
    """Where two logs stop being the same; all that was committed is the same."""
    offset = min(one.high_watermark, other.high_watermark)
    while True:
        ours = one.read(offset, 1, upper_offset=one.log_end_offset) if offset < one.log_end_offset else None
        theirs = (
            other.read(offset, 1, upper_offset=other.log_end_offset)
            if offset < other.log_end_offset
            else None
        )
        if ours is None or theirs is None or ours.data != theirs.data:
            return offset
        offset = ours.next_offset
