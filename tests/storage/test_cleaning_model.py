"""A cleaning changes nothing that a reader may ask for: random lives of a log against a plain model, and
ablations."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tidegate.chaos.sim.disk import PowerCut
from tidegate.storage.cleaning.cleaner import Cleaning, clean_now
from tidegate.storage.cleaning.compaction import Compaction
from tidegate.wire.errors import KafkaError

from .cleaning_history import OPERATIONS, CleaningHistory, Step, random_steps, run, run_seed

STEPS = st.lists(
    st.tuples(st.sampled_from(OPERATIONS), st.integers(0, 999), st.integers(0, 999)), max_size=60
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(STEPS)
def test_a_reader_from_the_beginning_reaches_the_same_state(steps: list[Step]) -> None:
    run(steps, CleaningHistory(keys=10))


@pytest.mark.parametrize("seed", range(14))
def test_long_random_lives(seed: int) -> None:
    history = run_seed(seed)
    assert history.results, "nothing was cleaned"


def test_the_model_meets_what_it_is_made_for() -> None:
    """Groups of several segments, several groups, full maps, emptied batches: or the model would prove
    little."""
    results = [result for seed in range(4) for result in run_seed(seed).results]
    assert any(result.map_was_full for result in results)
    assert any(not result.map_was_full for result in results)
    assert any(result.segments_after < result.segments_before for result in results)
    assert any(result.counts.records_kept < result.counts.records_read for result in results)


def goes_red(seeds: range, history: type[CleaningHistory] = CleaningHistory) -> bool:
    for seed in seeds:
        try:
            run_seed(seed, history)
        except (AssertionError, StopIteration):
            return True
    return False


def test_ablation_transaction_state_not_carried_over_groups_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    carried = Cleaning._clean_group

    def forgetful(self: Cleaning, disk, on_loop, compaction, sources) -> None:  # type: ignore[no-untyped-def]
        compaction._with_batches.clear()
        carried(self, disk, on_loop, compaction, sources)

    monkeypatch.setattr(Cleaning, "_clean_group", forgetful)
    assert goes_red(range(20))


def test_ablation_a_marker_that_goes_before_its_data_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Compaction, "_keep_marker", lambda self, view, header: None)
    assert goes_red(range(20))


def test_ablation_a_marker_that_goes_before_its_horizon_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidegate.storage.cleaning.compaction.delete_horizon_ms", lambda header: 0)
    assert goes_red(range(20))


def test_ablation_a_live_producers_last_batch_that_goes_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Compaction, "_is_needed", lambda self, header: header.next_offset >= self._end_offset)
    assert goes_red(range(20))


def test_ablation_a_live_producers_last_marker_that_goes_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Compaction, "_is_last_marker", lambda self, header: False)
    assert goes_red(range(20))


def test_ablation_aborted_records_in_the_key_map_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    from tidegate.storage.cleaning import cleaner
    from tidegate.storage.cleaning.compaction import note_keys
    from tidegate.storage.segment.transaction_index import AbortedRanges

    monkeypatch.setattr(
        cleaner, "note_keys", lambda keys, _aborted, *batch: note_keys(keys, AbortedRanges(()), *batch)
    )
    assert goes_red(range(20))


def test_ablation_cleaning_above_the_last_stable_offset_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    from tidegate.storage.log.log import Log

    class Hasty(CleaningHistory):
        def clean(self, a: int, b: int) -> None:
            with pytest.MonkeyPatch.context() as patch:
                stable = self.log.last_stable_offset
                patch.setattr(
                    Log,
                    "last_stable_offset",
                    property(lambda log: log.high_watermark if log is self.log else stable),
                )
                super().clean(a, b)

    assert goes_red(range(20), Hasty)


# ---- crashes -----------------------------------------------------------------------------------------------


def before_cleaning(seed: int) -> CleaningHistory:
    history = CleaningHistory(keys=10)
    for operation, a, b in random_steps(seed, 70):
        if operation not in ("reopen", "clean"):
            history.step(operation, a, b)
    while history.open:
        history.step("abort", 0, 0)
    history.step("roll", 0, 0)
    history.step("settle", 0, 0)
    return history


def crash_while_cleaning(seed: int, cut_after: int) -> bool:
    """Cleans until the power goes, opens the log again, and checks it; False when the cleaning was over
    before."""
    history = before_cleaning(seed)
    log, disk = history.log, history.disk
    log.set_high_watermark(log.log_end_offset)
    history.cleanings.append((log.log_end_offset, history.now_ms))
    point, end = log.recovery_point, log.log_end_offset
    disk.cut_after = cut_after
    try:
        clean_now(log, disk, history.now_ms)
    except PowerCut:
        interrupted = True
    else:
        interrupted = False
    disk.cut_after = None
    disk.crash(Random(seed * 1000 + cut_after))
    history.log = history.opened(point)
    assert history.log.log_end_offset == end
    history.log.set_high_watermark(end)
    history.check()
    names = disk.list_names(history.log.directory)
    assert not [name for name in names if name.endswith((".cleaned", ".swap", ".deleted"))]
    history.step("clean", 2, 0)
    return interrupted


@pytest.mark.parametrize("seed", range(2))
def test_a_crash_at_any_point_of_a_cleaning_leaves_a_readable_log(seed: int) -> None:
    cut_after = seed
    while crash_while_cleaning(seed, cut_after):
        cut_after += 4
    assert cut_after > 10


def test_ablation_a_swap_that_is_not_atomic_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the decision on disk, what a crash leaves depends on which renames came through."""
    monkeypatch.setattr("tidegate.storage.recovery.recovery.finish_swaps", lambda disk, directory: None)
    with pytest.raises((AssertionError, KafkaError)):
        for cut_after in range(60):
            crash_while_cleaning(0, cut_after)
