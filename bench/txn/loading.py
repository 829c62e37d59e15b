"""How long a new coordinator takes to turn its log into state: 100,000 transactional ids and 1,000,000
committed offsets.

One partition of each state topic, in CPU seconds, without the node around it: the log is read as the node
reads it, in chunks of whole batches, and handed to the runtime.  One record a batch, as coordinators write
transactions; ten a batch, as consumers of ten partitions commit their offsets.  The raw loop reads the same
bytes and verifies no more than the batches' checksums.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tidegate.coordinator.group.classic import records as group_records
from tidegate.coordinator.group.events import GroupConfig
from tidegate.coordinator.group.shard import GroupShard
from tidegate.coordinator.outcome import Shard
from tidegate.coordinator.runtime import CoordinatorRuntime
from tidegate.coordinator.shard_view import Phase
from tidegate.coordinator.transaction import records as transaction_records
from tidegate.coordinator.transaction.events import TransactionConfig
from tidegate.coordinator.transaction.shard import TransactionShard
from tidegate.coordinator.transaction.state import TransactionMetadata, TransactionState
from tidegate.node.coordinators.coordinator_host import LOAD_CHUNK_BYTES
from tidegate.runtime.disk import RealDisk
from tidegate.storage.log.log import AppendOrigin, Log, LogConfig
from tidegate.wire.records import NewRecord, encode_batch, iterate_headers, validate_batch

NOW_MS = 1_700_000_000_000
TARGET_S = 10.0
Pair = tuple[bytes, bytes]


class _LoadedLog:
    """The state log of a load: nothing is appended, and all of it is committed."""

    def __init__(self, log: Log) -> None:
        self._log = log

    def append(self, partition: int, leader_epoch: int, batch: bytes, guard: object | None = None) -> int:
        raise AssertionError("a load appends nothing")

    def high_watermark(self, partition: int) -> int:
        return self._log.log_end_offset


def _transactions(count: int) -> Iterable[Sequence[Pair]]:
    for number in range(count):
        name = f"orders-service-{number:08d}"
        entry = TransactionMetadata(
            name,
            number,
            7,
            60_000,
            TransactionState.COMPLETE_COMMIT,
            NOW_MS,
            start_ms=NOW_MS,
            transaction_version=2,
        )
        yield [(transaction_records.encode_key(name), transaction_records.encode_value(entry))]


def _offsets(count: int) -> Iterable[Sequence[Pair]]:
    for first in range(0, count, 10):
        group = f"billing-consumers-{first // 1000:06d}"
        yield [
            (
                group_records.encode_offset_key(group, "payments", number),
                group_records.encode_offset_value(group_records.OffsetValue(number * 100, 3, "", NOW_MS)),
            )
            for number in range(first, first + 10)
        ]


async def bench_loading(root: Path) -> None:
    print(f"\nloading a coordinator's log, CPU seconds of one core (target: both within {TARGET_S:.0f})")
    print(f"{'what':>28} {'MB':>6} {'seconds':>8} {'k records/s':>12} {'raw s':>7} {'ratio':>6}")
    total = 0.0
    total += _load(
        root / "t", "100,000 transactional ids", _transactions(100_000), 100_000,
        lambda: TransactionShard(TransactionConfig(), lambda: None, 1), lambda shard: len(shard.transactions),
    )  # fmt: skip
    total += _load(
        root / "o", "1,000,000 committed offsets", _offsets(1_000_000), 1_000_000,
        lambda: GroupShard(GroupConfig()), lambda shard: shard.offsets.count(),
    )  # fmt: skip
    print(f"{'both':>28} {'':>6} {total:8.2f}")


def _load(
    path: Path, what: str, batches: Iterable[Sequence[Pair]], count: int, make: Any, known: Any
) -> float:
    log = Log.open(
        RealDisk(), path, topic="state", partition=0, config=LogConfig(), clean=False, recovery_point=0
    )
    for pairs in batches:
        data = encode_batch([NewRecord(key, value, (), NOW_MS) for key, value in pairs])
        log.append_leader(bytearray(data), leader_epoch=1, origin=AppendOrigin.COORDINATOR, now_ms=NOW_MS)
    log.flush_now()
    raw_s = _raw(log)
    shard: Shard[Any, Any, Any] = make()
    runtime = CoordinatorRuntime(
        "state", lambda _partition, _epoch: shard, _LoadedLog(log), lambda *_: None, steady_ms=lambda: 0
    )
    end = log.log_end_offset
    begun = time.process_time()
    runtime.begin_load(0, 1, end)
    position = 0
    while position < end:
        position = runtime.load_batches(0, 1, log.read(position, LOAD_CHUNK_BYTES, upper_offset=end).data)
    runtime.finish_load(0, 1)
    seconds = time.process_time() - begun
    if runtime.phase(0) is not Phase.ACTIVE or known(shard) != count:
        raise SystemExit(f"{what}: {known(shard)} of {count} are there, and the shard is {runtime.phase(0)}")
    size, rate = log.size_bytes / 1e6, count / seconds / 1e3
    print(
        f"{what:>28} {size:6.0f} {seconds:8.2f} {rate:12.0f} {raw_s:7.2f} {raw_s / seconds:6.2f}", flush=True
    )
    log.close(clean=False)
    return seconds


def _raw(log: Log) -> float:
    begun, position, end = time.process_time(), 0, log.log_end_offset
    while position < end:
        found = log.read(position, LOAD_CHUNK_BYTES, upper_offset=end)
        view = memoryview(found.data)
        for at, _header in iterate_headers(view):
            validate_batch(view, at)
        position = found.next_offset
    return time.process_time() - begun
