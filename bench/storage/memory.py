"""The memory of a partition, an open segment's index and a hundred thousand producers in this process."""

from __future__ import annotations

import gc
import tracemalloc
from pathlib import Path
from uuid import UUID

from tidegate.bench.storage.fixture import CONFIG, NOW_MS, append, batch_of
from tidegate.runtime.disk import RealDisk
from tidegate.storage.directory.log_directory import LogDirectory
from tidegate.storage.producers.producer_snapshot import encode_snapshot
from tidegate.storage.producers.producer_state import AppendOrigin, ProducerState
from tidegate.wire.records import NewRecord, encode_batch, parse_header

PRODUCERS = 100_000


def _in_use() -> int:
    """Bytes that Python's allocators have allocated: exact, also after other work in this process."""
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


def bench_memory(root: Path, partitions: int) -> None:
    print(f"\nmemory (traced)\n{'what':>52} {'MB':>8} {'bytes each':>11}")
    tracemalloc.start()
    directory = LogDirectory(RealDisk(), root / "data", "bench", 1)
    directory.open_all(now_ms=NOW_MS)
    data = batch_of(1 << 12)
    before = _in_use()
    for partition in range(partitions):
        log = directory.create("bench", UUID(int=1), partition, CONFIG, now_ms=NOW_MS)
        append(log, data)
    _say(f"{partitions} partitions, each with a batch", _in_use() - before, partitions)
    before, log = _in_use(), directory.logs["bench", 0]
    for _ in range(25_000):
        append(log, data)
    _say("index of 100 MB in batches of 4 KiB", _in_use() - before, 25_000)
    directory.close(clean=False)
    for batches in (1, 5):
        before = _in_use()
        state = _producers(batches)
        _say(f"{PRODUCERS} producer ids, {batches} batches remembered", _in_use() - before, PRODUCERS)
        print(f"{'their snapshot, in a file':>52} {len(encode_snapshot(state)) / 1e6:8.1f}")
        del state
    tracemalloc.stop()


def _say(what: str, size: int, count: int) -> None:
    print(f"{what:>52} {size / 1e6:8.1f} {size / count:11.0f}")


def _producers(batches: int) -> ProducerState:
    state, offset = ProducerState(max_producer_ids=PRODUCERS), 0
    header = parse_header(
        encode_batch([NewRecord(None, b"v", (), NOW_MS)], producer_id=1, producer_epoch=0, base_sequence=0)
    )
    for sequence in range(batches):
        for producer_id in range(PRODUCERS):
            prepared = state.prepare(AppendOrigin.REPLICATION)
            each = header._replace(
                producer_id=1_000_000 + producer_id, base_sequence=sequence, max_timestamp=NOW_MS + offset
            )
            prepared.check_batch(each, offset)
            offset += 1
            state.publish(prepared, offset)
    assert len(state) == PRODUCERS
    return state
