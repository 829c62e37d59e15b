"""Ten thousand histories of logs on disks that lie, against a plain model (`chaos/sim/storage/log_history.py`
and its neighbours).

A failure prints the seed, all steps, and the fewest of them that break the same promise.
TIDEGATE_STORAGE_SEED moves the range of seeds, TIDEGATE_STORAGE_HISTORIES its length; `tidegate chaos sim
storage --seeds N` runs as many as one likes.
"""

from __future__ import annotations

import os
from collections import Counter
from functools import partial

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tidegate.chaos.sim.disk import Lie
from tidegate.chaos.sim.runs import Broken, run_seeds
from tidegate.chaos.sim.shrink import kind_of
from tidegate.chaos.sim.storage.folders_history import FoldersHistory
from tidegate.chaos.sim.storage.kinds import HistoryType, history_of, shortened
from tidegate.chaos.sim.storage.log_history import WEIGHTS, StorageHistory
from tidegate.chaos.sim.storage.rot_history import RotHistory
from tidegate.storage.cleaning.cleaner import Cleaning
from tidegate.storage.cleaning.compaction import Compaction
from tidegate.storage.directory.folder_notes import FolderNotes
from tidegate.storage.directory.log_directory import LogDirectory
from tidegate.storage.directory.renamed_folders import RenamedFolders
from tidegate.storage.durability.flush import Durability, FlushTicket
from tidegate.storage.log import replacement
from tidegate.storage.producers.producer_state import ProducerEntry, ProducerState
from tidegate.storage.recovery import recovery
from tidegate.storage.segment import batch_slices as segment_read
from tidegate.storage.segment.segment import Segment
from tidegate.storage.segment.swap import SEGMENT_SUFFIXES
from tidegate.storage.segment.transaction_index import AbortedRanges

FIRST_SEED = int(os.environ.get("TIDEGATE_STORAGE_SEED", "0"))
HISTORIES = int(os.environ.get("TIDEGATE_STORAGE_HISTORIES", "4000"))
SHARES = 8
STEPS = st.lists(
    st.tuples(st.sampled_from(list(WEIGHTS)), st.integers(0, 1 << 20), st.integers(0, 1 << 20)), max_size=30
)


@pytest.mark.parametrize("share", range(SHARES))
@pytest.mark.parametrize(
    ("kind", "percent", "length"), [("log", 48, 14), ("folders", 4, 25), ("moves", 4, 40), ("rot", 44, 9)]
)
def test_thousands_of_crash_histories_break_no_promise(
    kind: str, percent: int, length: int, share: int
) -> None:
    each = HISTORIES * percent // 100 // SHARES
    run_kind(kind, FIRST_SEED + share * each, each, length)


@pytest.mark.parametrize("share", range(2))
def test_long_histories_break_no_promise(share: int) -> None:
    run_kind("log", FIRST_SEED + share * 10, 10, 200)


def run_kind(kind: str, first: int, count: int, length: int) -> None:
    print(f"histories ({kind}) of seeds {first} to {first + count - 1}, {length} steps each")
    report = run_seeds(first, count, history_of(kind, length))
    assert not report.broken, report.describe()
    assert report.histories == count
    assert report.counts["crashes"] >= count


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 1 << 16), STEPS)
def test_no_list_of_steps_breaks_a_promise(seed: int, steps: list[tuple[str, int, int]]) -> None:
    StorageHistory(seed, steps=steps).run()


def test_a_seed_always_gives_the_same_history() -> None:
    images = []
    for _ in range(2):
        history = StorageHistory(77, length=60)
        history.run()
        images.append([(path, history.disk.read(path)) for path in history.disk.files()])
    assert images[0] == images[1]


# ---- ablations ---------------------------------------------------------------------------------------------


def first_broken(history: HistoryType, *, seeds: int = 600, length: int = 120) -> Broken | None:
    found: list[Broken] = []

    def until_broken(seed: int) -> dict[str, int]:
        if not found:
            try:
                history(seed, length=length).run()
            except Broken as broken:
                found.append(broken)
        return {}

    run_seeds(0, seeds, until_broken)
    return found[0] if found else None


class Compacted(StorageHistory):
    """Cleaned as often as possible, and the power goes then."""

    ALWAYS_COMPACTED = True
    CUT = ("clean",)


class CutAtCheckpoints(StorageHistory):
    CUT = ("checkpoint",)


def test_ablation_without_the_folder_sync_flushed_segments_vanish() -> None:
    assert first_broken(partial(StorageHistory, lies=Lie.FOLDER_SYNC)) is not None


def test_ablation_a_disk_that_does_not_sync_is_found() -> None:
    assert first_broken(partial(StorageHistory, lies=Lie.FILE_SYNC)) is not None


def test_ablation_a_checkpoint_that_is_not_written_atomically_is_found() -> None:
    assert first_broken(partial(CutAtCheckpoints, lies=Lie.ATOMIC_REPLACEMENT)) is not None


def test_ablation_an_acknowledgement_before_the_flush_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def at_once(ticket: FlushTicket) -> None:
        ticket.ran = True

    monkeypatch.setattr(FlushTicket, "run", at_once)
    assert first_broken(StorageHistory) is not None


def test_ablation_a_failed_sync_that_is_tried_again_is_found() -> None:
    class Retrying(StorageHistory):
        def sync_fails(self, a: int, b: int) -> None:
            ticket, self.ticket = self.ticket or self.log.begin_flush(), None
            self.disk.fail_sync_after = b % 3
            try:
                ticket.run()
            except OSError:
                ticket.run()  # and now it succeeds
            self.disk.fail_sync_after = None
            self.log.finish_flush(ticket)

    assert first_broken(Retrying) is not None


def test_ablation_publishing_before_the_append_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Entries that are not copied are changed by the check of a batch whose write then fails."""
    monkeypatch.setattr(ProducerEntry, "copy", lambda self: self)
    assert first_broken(StorageHistory) is not None


def test_ablation_a_lso_without_unreplicated_transactions_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ProducerState, "_note_unreplicated", lambda self, first, marker_offset: None)
    assert first_broken(StorageHistory) is not None


def test_ablation_snapshots_left_behind_by_a_truncation_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Durability, "drop_snapshots", lambda self, which: None)
    assert first_broken(StorageHistory) is not None


def test_ablation_a_truncation_that_keeps_the_recovery_point_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(FolderNotes, "lower", lambda self, key, offset: None)
    assert first_broken(StorageHistory) is not None


def test_ablation_a_recovery_that_does_not_check_batches_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    trusting = recovery.scan_batches  # type: ignore[attr-defined]
    monkeypatch.setattr(recovery, "scan_batches", lambda *args, check=False, **rest: trusting(*args, **rest))
    assert first_broken(StorageHistory) is not None


def test_ablation_a_recovery_that_trusts_indexes_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """All segments but the last count as durable, with whatever index files they have."""

    def check_nothing(loader: recovery._Loader, segments: list[Segment]) -> None:
        loader.recovery_point = max(loader.recovery_point, segments[-1].base_offset)

    monkeypatch.setattr(recovery._Loader, "verify_checksums", check_nothing)
    assert first_broken(StorageHistory) is not None


def test_ablation_a_swap_without_a_decision_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Old segments go, then the new one takes its name: a crash in between leaves neither."""
    decided: dict[object, list[int]] = {}

    def decide(disk, directory, old_bases, new_base):  # type: ignore[no-untyped-def]
        path = replacement.swap_path(directory, new_base)  # type: ignore[attr-defined]
        decided[path] = list(old_bases)
        return path

    def finish(disk, directory, path):  # type: ignore[no-untyped-def]
        new_base = int(path.name[:20])
        for base in decided.pop(path):
            for suffix in SEGMENT_SUFFIXES:
                old = directory / f"{base:020d}.{suffix}"
                if disk.exists(old):
                    disk.remove(old)
        for suffix in SEGMENT_SUFFIXES:
            cleaned = directory / f"{new_base:020d}.{suffix}.cleaned"
            if disk.exists(cleaned):
                disk.rename(cleaned, directory / f"{new_base:020d}.{suffix}")
        disk.sync_directory(directory)
        return []

    monkeypatch.setattr(replacement, "decide_swap", decide)
    monkeypatch.setattr(replacement, "finish_swap", finish)
    assert first_broken(Compacted) is not None


def test_ablation_transactions_that_are_known_of_one_group_only_are_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """KAFKA-8351: the marker of a transaction stands in another group than its records."""
    whole = Cleaning._clean_group

    def alone(self, disk, on_loop, compaction, sources):  # type: ignore[no-untyped-def]
        entries = [entry for source in sources for entry in source.segment.aborted.entries]
        compaction._aborted = AbortedRanges(entries)
        compaction._with_batches.clear()
        whole(self, disk, on_loop, compaction, sources)

    monkeypatch.setattr(Cleaning, "_clean_group", alone)
    assert first_broken(Compacted) is not None


def test_ablation_a_marker_that_goes_before_its_records_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Compaction, "_keep_marker", lambda self, view, header: None)
    assert first_broken(Compacted) is not None


# Of several data folders.


def folders_broken() -> Broken | None:
    return first_broken(FoldersHistory, seeds=400, length=60)


def test_ablation_without_the_folder_sync_partitions_vanish_or_come_back() -> None:
    assert first_broken(partial(FoldersHistory, lies=Lie.FOLDER_SYNC), seeds=400, length=60) is not None


def test_ablation_a_deletion_that_does_not_rename_first_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left of a folder that was being emptied passes for a log that has lost its data."""
    kept = lambda self, key, _topic_id, _suffix: self._folder / f"{key[0]}-{key[1]}"  # noqa: E731
    monkeypatch.setattr(RenamedFolders, "take_name_away", kept)
    assert folders_broken() is not None


def test_ablation_a_new_log_with_the_notes_of_a_deleted_one_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FolderNotes, "forget", lambda self, key, identity: None)
    assert folders_broken() is not None


def test_ablation_a_folder_that_stays_in_use_after_a_failed_sync_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(LogDirectory, "go_offline", lambda self, error: None)
    assert folders_broken() is not None


def test_threads_that_open_logs_take_turns_by_the_seed() -> None:
    """Or the histories of several folders would not show what parallel opening does, nor show it again."""
    images, handed_on = [], 0
    for _ in range(2):
        history = FoldersHistory(7, length=60)
        assert history.threads > 1
        history.run()
        handed_on = history.handed_on
        images.append(
            [(p, d.read(p)) for d in history.disk.disks.values() for p in d.files() if p.suffix == ".log"]
        )
    assert images[0] == images[1]
    assert handed_on > 10


# Of flipped bits.


def test_rot_is_met_everywhere() -> None:
    """In batches and in every kind of file, found and harmless: or these histories would prove little."""
    outcomes: Counter[str] = Counter()
    for seed in range(400):
        history = RotHistory(seed, length=25)
        history.run()
        outcomes += history.outcomes
    for each in (
        "checksum wrong",
        "log refused",
        "read refused",
        "no harm: .index",
        "no harm: .timeindex",
        "no harm: .snapshot",
        "no harm: .seal",
        "no harm: partition-checkpoint",
        "no harm: leader-epoch-checkpoint",
    ):
        assert outcomes[each], f"{each}: {outcomes}"


def rot_broken() -> Broken | None:
    return first_broken(RotHistory, seeds=1500, length=20)


def test_ablation_snapshots_without_a_checksum_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidegate.storage.producers.producer_snapshot.crc32c", lambda data: 0)
    assert rot_broken() is not None


def test_ablation_a_reader_that_is_led_past_a_damaged_batch_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_read, "_nothing", lambda data, next_offset: segment_read.NOTHING)
    assert rot_broken() is not None


def test_ablation_damage_in_flushed_data_that_is_cut_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = recovery._begin_scan

    def unknowing(loader, loaded, *, whole_scan=whole, whole):  # type: ignore[no-untyped-def]
        first = whole_scan(loader, loaded, whole=whole)
        loader.flushed_end = 0
        return first

    monkeypatch.setattr(recovery, "_begin_scan", unknowing)
    assert rot_broken() is not None


# What shortens a history.


def test_a_broken_history_is_made_short_and_breaks_in_the_same_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FlushTicket, "run", lambda ticket: setattr(ticket, "ran", True))
    broken = first_broken(StorageHistory)
    assert broken is not None
    seed = int(str(broken).split()[1].rstrip(":"))
    short = shortened(StorageHistory, seed, StorageHistory(seed, length=120).steps)
    assert len(short) <= 5
    with pytest.raises(Broken) as again:
        StorageHistory(seed, steps=short).run()
    assert kind_of(str(again.value)) == kind_of(str(broken))
