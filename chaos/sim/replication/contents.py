"""What logs hold, record by record, read once: a log that only grew is read from where the last look ended.

What lies below a log's start may be gone from it; such records are `GONE`, if they were not read before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from uuid import UUID

from ....storage.log.log import Log
from ....wire.records import iterate_headers
from .node import SimulatedNode

Key = tuple[UUID, int]
Record = tuple[int, int]
"""(the id of its batch, which stands in the batch as a timestamp; its place in the batch)."""

READ_MAX = 1 << 24
GONE: Record = (-1, -1)


def agree(
    held: Sequence[Record], others: Sequence[Record], length: int, gone_below: int, begin: int = 0
) -> bool:
    """Whether both have the same records from `begin` on up to `length`.  Either may have lost some at the
    front, below `gone_below`."""
    gone = max(_gone(held, length), _gone(others, length))
    first = max(gone, begin)
    return gone <= gone_below and held[first:length] == others[first:length]


def _gone(records: Sequence[Record], length: int) -> int:
    return next(
        (at for at, record in enumerate(records[:length]) if record != GONE), min(len(records), length)
    )


@dataclass(slots=True)
class _Read:
    log: Log
    cuts: int
    records: list[Record] = field(default_factory=list)


class Contents:
    """The records of logs, and of nodes that are down."""

    def __init__(self) -> None:
        self._read: dict[int, _Read] = {}
        self._left: dict[tuple[int, Key], list[Record]] = {}
        self._start_left: dict[tuple[int, Key], int] = {}

    def of(self, log: Log) -> list[Record]:
        """All records, from offset 0.  Not to be changed."""
        read = self._read.get(id(log))
        if read is None or read.log is not log:
            read = self._read[id(log)] = _Read(log, log.truncations)
        # perhaps in the middle of a truncation: the log had at least these records, and cannot be read
        if log.is_offline:
            return read.records
        if read.cuts != log.truncations:
            read.cuts = log.truncations
            read.records.clear()
        end = log.log_end_offset
        read.records.extend([GONE] * (log.log_start_offset - len(read.records)))
        if len(read.records) < end:
            data = log.read(len(read.records), READ_MAX, upper_offset=end).data
            for _, header in iterate_headers(data):
                first = max(0, len(read.records) - header.base_offset)
                read.records.extend(
                    (header.base_timestamp, place) for place in range(first, header.last_offset_delta + 1)
                )
        return read.records

    def log_of(self, node: SimulatedNode, key: Key) -> Log | None:
        """The node's log of a partition, when it is up and has one."""
        directory = node.directory
        if directory is None:
            return None
        for name, topic_id in directory.topic_ids.items():
            if (topic_id, name[1]) == key and name in directory.logs:
                return directory.logs[name]
        return None

    def kept_by(
        self, node: SimulatedNode, key: Key, flushed: bool, *, within_a_change: bool = False
    ) -> Sequence[Record] | None:
        """The records of a partition that the node would have after a stop: all flushed records, or, when its
        topic does not require flushes, all records; None: no log. In the middle of a change the log cannot be
        read: then the records of the last look count, which may have been before the node's last stop."""
        if node.directory is None:
            return self._left.get((node.node_id, key))
        log = self.log_of(node, key)
        if log is None:
            return None
        read = self._read.get(id(log))
        held = (
            self.of(log)
            if not within_a_change
            else read.records
            if read is not None and read.log is log
            else self._left.get((node.node_id, key), [])
        )
        return held[: log.flushed_end_offset] if flushed else held

    def kept_start(self, node: SimulatedNode, key: Key) -> int:
        """The offset below which the node would show no record of a partition after a stop, whatever its log
        start is then."""
        if node.directory is None:
            return self._start_left.get((node.node_id, key), 0)
        log = self.log_of(node, key)
        return 0 if log is None else log.noted_start_offset

    def node_stops(self, node: SimulatedNode, keys: dict[Key, bool], *, within_a_change: bool) -> None:
        """To be called before the node ends: notes the records that the node keeps of each partition (`keys`:
        whether its topic flushes)."""
        if node.directory is None:
            return  # it ends before it has opened a log: its contents were noted before
        for key, flushed in keys.items():
            self._start_left[node.node_id, key] = self.kept_start(node, key)
            kept = self.kept_by(node, key, flushed, within_a_change=within_a_change)
            if kept is None:
                self._left.pop((node.node_id, key), None)
            else:
                self._left[node.node_id, key] = list(kept)
