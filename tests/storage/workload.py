"""Batches and logs for the tests of this folder, and a plain model of what a log must answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from tidegate.runtime.disk import Disk
from tidegate.storage.log.log import AppendInfo, AppendOrigin, Log, LogConfig, VerificationGuard
from tidegate.wire.records import (
    BatchHeader,
    Compression,
    ControlType,
    NewRecord,
    decode_marker,
    encode_batch,
    encode_marker,
    iterate_headers,
)

NOW_MS = 1_700_000_000_000
FOLDER = Path("/data/flights-0")
SMALL = LogConfig(segment_bytes=2000, index_interval_bytes=300)
"""Segments of a few batches, indexes of a few entries: every boundary is near."""


def batch(
    count: int = 1,
    *,
    size: int = 20,
    pid: int = -1,
    epoch: int = -1,
    sequence: int = -1,
    transactional: bool = False,
    timestamp_ms: int = NOW_MS,
    base_offset: int = 0,
    leader_epoch: int = -1,
    compression: Compression = Compression.NONE,
) -> bytes:
    records = [NewRecord(b"key%d" % i, b"v" * size, (), timestamp_ms + i) for i in range(count)]
    return encode_batch(
        records,
        producer_id=pid,
        producer_epoch=epoch,
        base_sequence=sequence,
        transactional=transactional,
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        compression=compression,
    )


def marker(pid: int, epoch: int, *, commit: bool, coordinator_epoch: int = 0) -> bytes:
    return encode_marker(
        ControlType.COMMIT if commit else ControlType.ABORT, pid, epoch, coordinator_epoch, NOW_MS
    )


def open_log(
    disk: Disk,
    *,
    folder: Path = FOLDER,
    config: LogConfig = SMALL,
    clean: bool = False,
    recovery_point: int = 0,
    **rest: Any,
) -> Log:
    return Log.open(
        disk,
        folder,
        topic="flights",
        partition=0,
        config=config,
        clean=clean,
        recovery_point=recovery_point,
        **rest,
    )


def append(
    log: Log,
    data: bytes,
    *,
    leader_epoch: int = 0,
    guard: VerificationGuard | None = None,
    now_ms: int = NOW_MS,
) -> AppendInfo:
    """As a client; transactional batches get a guard of their own when their transaction is not open."""
    header = next((header for _, header in iterate_headers(data)), None)
    if (
        guard is None
        and header is not None
        and header.is_transactional
        and not log.producers.has_open_transaction(header.producer_id, header.producer_epoch)
    ):
        guard = log.producers.start_verification(
            header.producer_id, header.producer_epoch, header.base_sequence
        )
    return log.append_leader(
        data, leader_epoch=leader_epoch, origin=AppendOrigin.CLIENT, now_ms=now_ms, guard=guard
    )


def append_marker(log: Log, data: bytes, *, version: int = 2, leader_epoch: int = 0) -> AppendInfo:
    return log.append_leader(
        data,
        leader_epoch=leader_epoch,
        origin=AppendOrigin.COORDINATOR,
        now_ms=NOW_MS,
        transaction_version=version,
    )


class Stored(NamedTuple):
    header: BatchHeader
    data: bytes


def stored(
    log: Log, start: int | None = None, *, max_bytes: int = 700, upper: int | None = None
) -> list[Stored]:
    """All batches from `start`, by as many reads as it takes."""
    offset = log.log_start_offset if start is None else start
    upper = log.log_end_offset if upper is None else upper
    found: list[Stored] = []
    while offset < upper:
        result = log.read(offset, max_bytes, upper_offset=upper)
        if not result.data:
            break
        batches = [
            Stored(h, bytes(result.data[p : p + h.size_bytes])) for p, h in iterate_headers(result.data)
        ]
        assert sum(len(b.data) for b in batches) == len(result.data), (
            "a read returned something else than whole batches"
        )
        assert batches[0].header.base_offset == result.first_offset
        assert batches[-1].header.next_offset <= result.next_offset > offset  # less before a gap
        found += batches
        offset = result.next_offset
    return found


class Model:
    """What a log of these batches must say, computed the slow and obvious way."""

    def __init__(self, batches: list[Stored]) -> None:
        self.open: dict[int, int] = {}
        self.ended: list[tuple[int, int, int, bool]] = []  # pid, first, marker, aborted
        for header, data in batches:
            if header.is_control:
                found = decode_marker(data)
                assert found is not None
                first = self.open.pop(header.producer_id, None)
                if first is not None:
                    self.ended.append(
                        (
                            header.producer_id,
                            first,
                            header.base_offset,
                            found.control_type is ControlType.ABORT,
                        )
                    )
            elif header.is_transactional:
                self.open.setdefault(header.producer_id, header.base_offset)

    def last_stable_offset(self, high_watermark: int) -> int:
        undecided = [first for _pid, first, marker_at, _aborted in self.ended if marker_at >= high_watermark]
        return min([high_watermark, *self.open.values(), *undecided])

    def aborted(self, start: int, upper: int) -> list[tuple[int, int]]:
        return sorted(
            (
                (pid, first)
                for pid, first, last, aborted in self.ended
                if aborted and last >= start and first < upper
            ),
            key=lambda pair: pair[1],
        )
