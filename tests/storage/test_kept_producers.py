"""A replay after a cleaning restores the producers as before, wherever the log is truncated later
(docs/semantics.md C5)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tidegate.chaos.sim.disk import LyingDisk
from tidegate.chaos.sim.runs import Broken
from tidegate.chaos.sim.storage.log_history import Shape, StorageHistory
from tidegate.storage.cleaning import cleaner
from tidegate.storage.cleaning.cleaner import clean_now
from tidegate.storage.cleaning.producers import offsets_to_keep
from tidegate.storage.log.log import Log, LogConfig
from tidegate.storage.producers.producer_state import ProducerState
from tidegate.storage.recovery.recovery import replay_batch
from tidegate.storage.segment.batch_scan import ScannedBatch
from tidegate.storage.topic_config import CleanupPolicy
from tidegate.wire.records import parse_header

from .workload import NOW_MS, append, append_marker, batch, marker, open_log

COMPACTED = LogConfig(
    segment_bytes=600, index_interval_bytes=150, cleanup_policy=frozenset({CleanupPolicy.COMPACT})
)
SHAPE = Shape("compact", segment_bytes=500, index_interval_bytes=1)
STEPS_THAT_FOUND_IT = [
    ("follow", 0, 1), ("idempotent", 1, 748723), ("cut", 3, 0), ("idempotent", 2, 438928),
    ("transaction", 1, 0), ("flush", 0, 0),
    ("watermark", 64, 0), ("clean", 0, 0),
]  # fmt: skip
"""Of a history that forgot a producer: its newest batches stood above the high watermark when the log was
cleaned."""


def state_of(producers: ProducerState) -> dict[int, tuple[int, int]]:
    return {each.producer_id: (each.epoch, each.last_sequence) for each in producers.views()}


def replayed(batches: list[ScannedBatch]) -> dict[int, tuple[int, int]]:
    producers = ProducerState()
    for each in batches:
        replay_batch(producers, each)
    return state_of(producers)


STEPS = st.lists(
    st.tuples(
        st.integers(1, 3), st.sampled_from(["batch", "batch", "marker", "bump", "bare"]), st.booleans()
    ),
    max_size=40,
)


@given(STEPS, st.sets(st.integers(1, 3)))
def test_a_replay_after_cleaning_knows_every_live_producer(
    steps: list[tuple[int, str, bool]], live: set[int]
) -> None:
    epochs: dict[int, int] = {}
    sequences: dict[int, int] = {}
    segments: list[list[ScannedBatch]] = [[]]
    for offset, (pid, kind, rolls) in enumerate(steps):
        epoch, sequence = epochs.setdefault(pid, 0), sequences.get(pid, 0)
        if kind == "bump" or kind == "marker":
            epochs[pid] = epoch = epoch + (kind == "bump")
            sequences[pid] = 0 if kind == "bump" else sequence
            data = marker(pid, epoch, commit=True)
        elif kind == "bare":  # a coordinator's: no sequences
            data = batch(pid=pid, epoch=epoch, transactional=True)
        else:
            data, sequences[pid] = batch(pid=pid, epoch=epoch, sequence=sequence), sequence + 1
        stamped = offset.to_bytes(8, "big") + data[8:]
        header = parse_header(stamped)
        segments[-1].append(ScannedBatch(0, header, memoryview(stamped) if header.is_control else None))
        if rolls:
            segments.append([])
    kept = offsets_to_keep((iter(segment) for segment in reversed(segments)), live)
    everything = [each for segment in segments for each in segment]
    wanted = {pid: known for pid, known in replayed(everything).items() if pid in live}
    assert replayed([each for each in everything if each.header.last_offset in kept]) == wanted
    assert len(kept) == len(wanted)  # and no more than that


def test_the_walk_ends_when_every_live_producer_is_found() -> None:
    def segment(*pids: int) -> Iterator[ScannedBatch]:
        for pid in pids:
            yield ScannedBatch(0, parse_header(batch(pid=pid, epoch=0, sequence=0)), None)

    def never() -> Iterator[ScannedBatch]:
        raise AssertionError("walked further than needed")
        yield

    assert offsets_to_keep(iter([segment(1, 2), never()]), {1, 2}) == {0}
    assert offsets_to_keep(iter([never()]), set()) == frozenset()


def cleaned_and_cut(above: str) -> Log:
    """Producer 7 writes below the high watermark; then `above` it, where its batches do not count yet; the
    log is cleaned, what is above is truncated, and the node begins anew from the batches alone."""
    disk = LyingDisk()
    log = open_log(disk, config=COMPACTED)
    for sequence in range(3):
        append(log, batch(pid=7, epoch=0, sequence=sequence))
    for _ in range(6):
        append(log, batch(size=200))
    log.roll()
    settled = log.log_end_offset
    if above == "epoch":
        append(log, batch(pid=7, epoch=1, sequence=0))
    elif above == "marker":
        append_marker(log, marker(7, 1, commit=False))
    else:
        for sequence in range(3, 9):  # more than the five batches that are remembered
            append(log, batch(pid=7, epoch=0, sequence=sequence))
    log.flush_now()
    log.set_high_watermark(settled)
    done = clean_now(log, disk, NOW_MS)
    assert done is not None
    assert done.counts.records_kept < done.counts.records_read
    log.truncate_to(settled)
    log.close(clean=False)
    return open_log(disk, config=COMPACTED)


@pytest.mark.parametrize("above", ["epoch", "marker", "sequences"])
def test_a_truncation_of_newer_batches_does_not_make_a_producer_unknown(above: str) -> None:
    log = cleaned_and_cut(above)
    assert [(view.epoch, view.last_sequence) for view in log.producers.views()] == [(0, 2)]


def test_ablation_producers_kept_by_batches_above_the_watermark_are_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is newest at the log's end says nothing about a replay that ends before it."""
    monkeypatch.setattr(cleaner, "offsets_to_keep", lambda walks, live: frozenset())
    # a snapshot may be left that knows them
    monkeypatch.setattr(ProducerState, "adopt_unknown", lambda self, older: None)
    assert cleaned_and_cut("epoch").producers.views() == []
    with pytest.raises(Broken):
        StorageHistory(shape=SHAPE, steps=STEPS_THAT_FOUND_IT).run()


def test_the_history_that_found_it() -> None:
    StorageHistory(shape=SHAPE, steps=STEPS_THAT_FOUND_IT).run()
