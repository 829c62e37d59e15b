"""Partitions with transactions and cuts of them, as nodes make them: the model that readers are held to.

A producer has one transaction at a time.  Its commit is decided before any marker is written, and then all
its records are below the high watermarks; its next transaction begins after all markers.  A cut leaves out
what is open at the log end without the decided commits, and what has its ABORT marker at or above the high
watermark.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from tidegate.client.consuming.cut import Cut, CutPartition, CutTopic
from tidegate.client.consuming.visibility import AtCut, VisibilityFilter
from tidegate.wire.records import (
    BatchHeader,
    ControlType,
    NewRecord,
    assign_in_place,
    encode_batch,
    encode_marker,
    parse_header,
)

TOPIC = "flights"
TOPIC_ID = bytes(15) + b"\7"


@dataclass
class Transaction:
    """`commits`: None while it is undecided."""

    number: int
    first_offsets: dict[int, int] = field(default_factory=dict)
    records: set[tuple[int, int]] = field(default_factory=set)  # partition, offset
    commits: bool | None = None
    unmarked: set[int] = field(default_factory=set)


@dataclass
class Log:
    """A partition.  `aborted`: (producer id, first offset, offset of the marker)."""

    batches: list[tuple[BatchHeader, bytes]] = field(default_factory=list)
    aborted: list[tuple[int, int, int]] = field(default_factory=list)
    end: int = 0
    high_watermark: int = 0

    def append(self, data: bytes) -> int:
        batch, offset = bytearray(data), self.end
        assign_in_place(memoryview(batch), 0, offset, 0)
        header = parse_header(batch)
        self.batches.append((header, bytes(batch)))
        self.end = header.next_offset
        return offset

    def read(self, start: int, end: int, at_cut: AtCut, *, markers_below: int | None = None) -> list[int]:
        """The offsets that a reader of [start, end) shows.  `markers_below`: it finds no others."""
        aborted = [
            (producer_id, first)
            for producer_id, first, marker in self.aborted
            if marker >= start and first < end and (markers_below is None or marker < markers_below)
        ]
        visibility = VisibilityFilter(aborted, at_cut)
        return [
            offset
            for header, data in self.batches
            if header.last_offset >= start
            and header.base_offset < end
            and visibility.shows(header, memoryview(data), 0)
            for offset in range(max(start, header.base_offset), min(end, header.next_offset))
        ]


class History:
    """Random steps; `inside` says what each cut must have."""

    def __init__(self, seed: int, partitions: int = 2, producers: int = 3) -> None:
        self.rng = Random(seed)
        self.logs = [Log() for _ in range(partitions)]
        self.open: dict[int, Transaction] = {}
        self.decided: dict[int, Transaction] = {}
        self.ended: list[Transaction] = []
        self.plain: set[tuple[int, int]] = set()
        self._producers = range(1, producers + 1)
        self._numbers = 0

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.step()

    def step(self) -> None:
        rng = self.rng
        match rng.choice(["write", "write", "write", "plain", "decide", "mark", "mark", "replicate"]):
            case "write":
                free = [each for each in self._producers if each not in self.decided]
                if free:
                    self._write(rng.choice(free))
            case "plain":
                at = rng.randrange(len(self.logs))
                offset = self.logs[at].append(encode_batch([NewRecord(b"k", b"v")] * rng.randint(1, 3)))
                self.plain |= {(at, number) for number in range(offset, self.logs[at].end)}
            case "decide" if self.open:
                self._decide(rng.choice(list(self.open)), commits=rng.random() < 0.6)
            case "mark" if self.decided:
                self._mark(rng.choice(list(self.decided)))
            case "replicate":
                log = rng.choice(self.logs)
                log.high_watermark = rng.randint(log.high_watermark, log.end)
            case _:
                pass

    def _write(self, producer_id: int) -> None:
        if producer_id not in self.open:
            self._numbers += 1
            self.open[producer_id] = Transaction(self._numbers)
        transaction, at = self.open[producer_id], self.rng.randrange(len(self.logs))
        records = [NewRecord(b"k", b"v")] * self.rng.randint(1, 3)
        data = encode_batch(records, producer_id=producer_id, producer_epoch=0, transactional=True)
        offset = self.logs[at].append(data)
        transaction.first_offsets.setdefault(at, offset)
        transaction.records |= {(at, number) for number in range(offset, self.logs[at].end)}

    def _decide(self, producer_id: int, *, commits: bool) -> None:
        transaction = self.open.pop(producer_id)
        transaction.commits, transaction.unmarked = commits, set(transaction.first_offsets)
        self.decided[producer_id] = transaction
        for at, offset in transaction.records if commits else ():
            self.logs[at].high_watermark = max(self.logs[at].high_watermark, offset + 1)

    def _mark(self, producer_id: int) -> None:
        transaction = self.decided[producer_id]
        at = self.rng.choice(sorted(transaction.unmarked))
        transaction.unmarked.remove(at)
        kind = ControlType.COMMIT if transaction.commits else ControlType.ABORT
        marker = self.logs[at].append(encode_marker(kind, producer_id, 0, 0, 0))
        if not transaction.commits:
            self.logs[at].aborted.append((producer_id, transaction.first_offsets[at], marker))
        if not transaction.unmarked:  # complete, once its markers are replicated
            self.ended.append(self.decided.pop(producer_id))
            for log in self.logs:
                log.high_watermark = log.end

    def cut(self) -> Cut:
        """As nodes take it now."""
        parts: dict[int, CutPartition] = {}
        for at, log in enumerate(self.logs):
            open_here = {
                producer_id: transaction.first_offsets[at]
                for producer_id, transaction in (*self.open.items(), *self.decided.items())
                if at in transaction.first_offsets
                and (transaction.commits is None or (not transaction.commits and at in transaction.unmarked))
            }
            aborted = {
                producer_id: first
                for producer_id, first, marker in log.aborted
                if marker >= log.high_watermark
            }
            bound = log.high_watermark
            undecided = {pid: first for pid, first in (aborted | open_here).items() if first < bound}
            parts[at] = CutPartition(0, bound, undecided)
        return Cut({TOPIC: CutTopic(TOPIC_ID, parts)}, f"cut-{self._numbers}", 1)

    def inside(self, cut: Cut) -> set[tuple[int, int]]:
        """The records of this cut, taken now."""
        ends = {at: part.end for (_, at), part in cut.partitions.items()}
        decided = [each for each in (*self.ended, *self.decided.values()) if each.commits]
        below = {(at, offset) for at, offset in self.plain if offset < ends[at]}
        return below.union(*(each.records for each in decided))
