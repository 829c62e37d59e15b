"""The steps of a storage history that append, as a leader and as a follower; the model learns what must be
stored."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ....storage.log.log import AppendOrigin, Log
from ....wire.errors import KafkaError
from ....wire.records import (
    ControlType,
    NewRecord,
    assign_in_place,
    encode_batch,
    encode_marker,
    iterate_headers,
)
from ..disk import PowerCut
from .checks import read_all
from .model import LogModel
from .steps import NOW_MS


class AppendSteps:
    """One log and its model; `a` and `b` of a step choose sizes, keys, timestamps and producers."""

    log: Log

    def __init__(self) -> None:
        self.model = LogModel()
        self.leader_epoch = 0
        self.counter = 0
        # rejected appends: until a sync, a crash may bring their bytes back
        self.ghosts: list[tuple[int, bytes]] = []
        self.last_append: tuple[bytes, int, int] | None = None

    def _value(self, a: int, size: int) -> bytes | None:
        """A value that never repeats; at times a tombstone."""
        self.counter += 1
        return None if a % 11 == 0 else b"%d." % self.counter + b"v" * size

    def _batch(
        self,
        a: int,
        b: int,
        *,
        pid: int = -1,
        epoch: int = -1,
        sequence: int = -1,
        transactional: bool = False,
    ) -> bytes:
        size = (a >> 4) % 120
        records = [
            NewRecord(
                b"key%d" % ((b >> 8) % 5 + i), self._value(a + i, size), (), NOW_MS + (b >> 4) % 1000 + 7 * i
            )
            for i in range(1 + a % 3)
        ]
        return encode_batch(
            records,
            producer_id=pid,
            producer_epoch=epoch,
            base_sequence=sequence,
            transactional=transactional,
        )

    def _lead(
        self, data: bytes, *, origin: AppendOrigin = AppendOrigin.CLIENT, transaction_version: int = 0
    ) -> None:
        """An append as the leader; the model learns what must be stored, also when the power fails during the
        append."""
        stored, offset, guard = bytearray(data), self.log.log_end_offset, None
        for position, header in list(iterate_headers(data)):
            assign_in_place(stored, position, offset, self.leader_epoch)
            offset += header.last_offset_delta + 1
            opens = header.is_transactional and not header.is_control
            if opens and not self.log.producers.has_open_transaction(
                header.producer_id, header.producer_epoch
            ):
                guard = self.log.producers.start_verification(
                    header.producer_id, header.producer_epoch, header.base_sequence
                )
        with self._attempt(stored):
            info = self.log.append_leader(
                data, leader_epoch=self.leader_epoch, origin=origin, now_ms=NOW_MS, guard=guard,
                transaction_version=transaction_version,
            )  # fmt: skip
        assert not info.duplicate
        assert info.next_offset == self.log.log_end_offset == self.model.end

    @contextmanager
    def _attempt(self, stored: bytes | bytearray) -> Iterator[None]:
        """The appended batch becomes part of the model, unless the log rejects it."""
        try:
            yield
        except PowerCut:
            self.model.append(stored)  # the batch may or may not be there; the restart shows which
            raise
        except KafkaError:
            self.ghosts.append((self.model.end, bytes(stored)))
            raise
        self.model.append(stored)

    def append(self, a: int, b: int) -> None:
        self._lead(self._batch(a, b))

    def _next(self, pid: int) -> tuple[int, int]:
        """Epoch and next sequence, as the producer itself knows them."""
        known = self.model.replay().producers.get(pid)
        if known is None:
            return 0, 0
        return max(0, known.epoch), known.batches[-1][0] + 1 if known.batches else 0

    def idempotent(self, a: int, b: int) -> None:
        pid = 100 + b % 2
        epoch, sequence = self._next(pid)
        offset = self.log.log_end_offset
        data = self._batch(a, b, pid=pid, epoch=epoch, sequence=sequence)
        self._lead(data)
        self.last_append = data, offset, self.log.log_end_offset

    def repeat(self, _a: int, _b: int) -> None:
        """The producer sends its last batch again: when that batch is still in the log, nothing is
        appended."""
        if self.last_append is None:
            return
        data, first, end = self.last_append
        there = [b.data[21:] for b in self.model.batches if b.header.base_offset == first]
        if there != [data[21:]]:  # all behind offset, length, leader epoch, magic and checksum
            return
        before = self.log.log_end_offset
        info = self.log.append_leader(
            data, leader_epoch=self.leader_epoch, origin=AppendOrigin.CLIENT, now_ms=NOW_MS
        )
        still = self.model.batches[-1].header.base_offset - first < 5
        assert info.duplicate or not still
        assert (info.first_offset, info.next_offset, self.log.log_end_offset) == (first, end, before)

    def transaction(self, a: int, b: int) -> None:
        pid = 200 + b % 3
        epoch, sequence = self._next(pid)
        self._lead(self._batch(a, b, pid=pid, epoch=epoch, sequence=sequence, transactional=True))

    def commit(self, a: int, b: int) -> None:
        self._end(a, b, ControlType.COMMIT)

    def abort(self, a: int, b: int) -> None:
        self._end(a, b, ControlType.ABORT)

    def _end(self, _a: int, b: int, control: ControlType) -> None:
        pid = 200 + b % 3
        epoch, _ = self._next(pid)
        data = encode_marker(control, pid, epoch + 1, 0, NOW_MS + (b >> 4) % 1500)
        self._lead(data, origin=AppendOrigin.COORDINATOR, transaction_version=2)

    def follow(self, a: int, b: int) -> None:
        """A fetch from another leader: several batches, and a part of one more."""
        self.leader_epoch += b % 2
        offset, parts = self.log.log_end_offset, []
        if self.log.config.is_compacted:
            offset += b % 3  # the leader has cleaned
        for turn in range(1 + b % 3):
            data = bytearray(self._batch(a + turn, b))
            assign_in_place(data, 0, offset, self.leader_epoch)
            offset += 1 + (a + turn) % 3
            parts.append(bytes(data))
        whole = b"".join(parts)
        with self._attempt(whole):
            info = self.log.append_follower(whole + parts[0][: b % len(parts[0])])
        assert info.next_offset == self.log.log_end_offset == offset

    def epoch(self, _a: int, _b: int) -> None:
        """An election: this node leads in a new epoch."""
        self.leader_epoch += 1
        self.log.assign_epoch(self.leader_epoch, self.log.log_end_offset)

    def roll(self, _a: int, _b: int) -> None:
        self.log.roll()

    def raise_ghosts(self, flushed: int) -> None:
        """A full disk stored a part of a rejected append, and a crash undid its truncation: the outcome of
        the append was not promised, and its whole batches count."""
        for offset, data in self.ghosts:
            if not self.log.log_start_offset <= offset < self.log.log_end_offset:
                continue
            there = b"".join(
                batch.data for batch in read_all(self.log, offset, self.log.log_end_offset, 100_000)
            )
            ends = [at + header.size_bytes for at, header in iterate_headers(data)]
            whole = max((end for end in ends if there[:end] == data[:end]), default=0)
            if whole and flushed <= offset:
                self.model.keep(sum(b.header.next_offset <= offset for b in self.model.batches), offset)
                self.model.append(data[:whole])
        self.ghosts.clear()
