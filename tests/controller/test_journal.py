"""The journal keeps what it has said is kept, and refuses to open when it cannot know."""

from __future__ import annotations

import contextlib
import errno
import random
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from tidegate.chaos.sim.disk import LyingDisk, PowerCut
from tidegate.chaos.sim.quorum.promises import Promises
from tidegate.controller.raft.durable_note import DurableNote
from tidegate.controller.raft.failure import RaftFatal
from tidegate.controller.raft.journal import _VOTE, DurableJournal
from tidegate.controller.raft.messages import VoteRequest, VoterRecord
from tidegate.controller.raft.snapshot_store import Snapshot, SnapshotStore
from tidegate.runtime.disk import RealDisk

JOURNAL = 0x7EA
FOLDER = Path("/data/raft")
ENTRIES, VOTE, NOTE = FOLDER / "entries", FOLDER / "vote", FOLDER / "durable"


def opened(disk: LyingDisk, cluster_id: str = "", node_id: int = 1) -> DurableJournal:
    return DurableJournal(disk, FOLDER, node_id=node_id, new_id=JOURNAL, cluster_id=cluster_id)


def filled(disk: LyingDisk, count: int = 5) -> DurableJournal:
    journal = opened(disk)
    for index in range(2, 2 + count):
        journal.add(b"command %d" % index, index, 1)
        journal.sync()
    return journal


def test_entries_term_and_vote_survive_a_restart(tmp_path: Path) -> None:
    folder = tmp_path / "raft"
    journal = DurableJournal(RealDisk(), folder, node_id=1, new_id=JOURNAL)
    journal.set_term(3, 2)
    journal.add(b"a", 2, 3)
    journal.add(b"b", 3, 3)
    journal.sync()
    journal.close()
    again = DurableJournal(RealDisk(), folder, node_id=1, new_id=JOURNAL)
    assert again[:] == [(b"\x01", 1, 0), (b"a", 2, 3), (b"b", 3, 3)]
    assert (again.term, again.voted_for) == (3, 2)


def test_synced_entries_survive_a_power_cut_and_the_rest_is_truncated() -> None:
    for seed in range(300):
        disk = LyingDisk()
        journal, rng = filled(disk, 3), random.Random(seed)
        for index in range(5, 5 + rng.randrange(1, 6)):
            journal.add(rng.randbytes(rng.randrange(1, 60)), index, 1)
        if rng.random() < 0.7:
            journal._write_pending()
        disk.crash(rng)
        again = opened(disk)
        assert again[:4] == journal[:4]
        assert again[:] == journal[: len(again)]
        again.add(b"next", again[-1][1] + 1, 2)
        again.sync()
        disk.crash(rng)
        assert opened(disk)[-1] == (b"next", len(again), 2)


def test_a_truncated_tail_does_not_come_back_after_a_conflict() -> None:
    for seed in range(200):
        disk = LyingDisk()
        journal = filled(disk, 6)
        journal.truncate_from(4)
        journal.add(b"from the new leader", 4, 2)
        if seed % 2:
            journal._write_pending()
        disk.crash(random.Random(seed))
        again = opened(disk)
        assert again[:3] == journal[:3]
        assert again[3:] in ([], [(b"from the new leader", 4, 2)])


def test_a_truncation_that_the_disk_loses_after_a_failed_sync_is_no_damage() -> None:
    """The next sync succeeds without it, and a power cut brings the old tail back behind the new entry."""
    disk = LyingDisk()
    journal = filled(disk, 6)
    old = disk.read(ENTRIES)
    journal.truncate_from(4)
    journal.add(b"from the new leader", 4, 2)
    journal.sync()
    new = disk.read(ENTRIES)
    disk.put(ENTRIES, new + old[len(new) :])
    again = opened(disk)
    assert again[:] == journal[:]
    assert opened(disk)[:] == journal[:], "the remains are gone"


def test_damage_to_durable_entries_stops_the_node() -> None:
    """Every single byte of an entry that later records declare durable."""
    disk = LyingDisk()
    filled(disk, 4)
    whole = disk.read(ENTRIES)
    record = len(whole) // 5
    for position in range(record, 3 * record, 3):
        damaged = bytearray(whole)
        damaged[position] ^= 0x40
        disk.put(ENTRIES, bytes(damaged))
        with pytest.raises(RaftFatal, match=r"damaged|readable"):
            opened(disk)
        disk.put(ENTRIES, whole)


@pytest.mark.parametrize("cut", range(1, 40))
def test_a_torn_last_record_is_truncated(cut: int) -> None:
    disk = LyingDisk()
    journal = filled(disk, 4)
    journal.add(b"command 6", 6, 1)
    journal._write_pending()  # and no sync
    disk.put(ENTRIES, disk.read(ENTRIES)[:-cut])
    again = opened(disk)
    assert again[:] == journal[: len(again)]
    assert len(again) == len(journal) - 1


@pytest.mark.parametrize("noted", [True, False], ids=["as it is", "ablation: no note"])
def test_what_the_disk_loses_of_the_last_durable_batch_stops_the_node(noted: bool) -> None:
    """Shortened at any place, or any bit of it flipped: nothing later says that it was durable, only the note
    does."""
    disk = LyingDisk()
    last = len(filled(disk, 4))
    whole, believed = disk.read(ENTRIES), 0
    begin = len(whole) - len(whole) // 5
    shortened = [whole[:length] for length in range(len(whole) // 5, len(whole))]
    flipped = [
        whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :] for at in range(begin, len(whole))
    ]
    for damaged in (*shortened, *flipped):
        if not noted:
            disk.remove(NOTE)
        disk.put(ENTRIES, damaged)
        try:
            believed += len(opened(disk)) < last
        except RaftFatal as refused:
            assert "damaged" in str(refused)
            assert disk.read(ENTRIES) == damaged, "nothing more is taken from it"
    assert believed == 0 if noted else believed > len(flipped)


@pytest.mark.parametrize("lowered", [True, False], ids=["as it is", "ablation: not lowered"])
def test_the_durable_note_is_lowered_before_truncations_and_snapshots(
    monkeypatch: pytest.MonkeyPatch, lowered: bool
) -> None:
    """A conflict with the leader, and a snapshot of less than what is here: a crash at any step of them
    leaves no false alarm."""
    if not lowered:
        monkeypatch.setattr(DurableNote, "lower_to", lambda note, place: None)
    cuts = alarms = 0
    for make in (
        lambda journal: journal.truncate_from(3),
        lambda journal: journal.reset([(b"\x01", 3, 1)]),
        lambda journal: journal.trim_to(4),
    ):
        for step in range(12):
            disk = LyingDisk()
            journal = filled(disk, 6)
            disk.cut_after = step
            try:
                make(journal)
            except PowerCut:
                cuts += 1
            disk.cut_after = None
            disk.crash(random.Random(step))
            try:
                opened(disk)
            except RaftFatal:
                alarms += 1
    assert cuts >= 10
    assert alarms == 0 if lowered else alarms > 0


@pytest.mark.parametrize("content", [b"", b"garbage", bytes(20)])
def test_a_note_that_cannot_be_read_says_nothing(content: bytes) -> None:
    disk = LyingDisk()
    journal = filled(disk, 4)
    disk.put(NOTE, content)
    again = opened(disk)
    assert again[:] == journal[:]
    assert DurableNote(disk, NOTE).position == (1, 5), "and is written anew"


def test_zeros_after_the_last_record_are_truncated() -> None:
    disk = LyingDisk()
    journal = filled(disk, 4)
    disk.put(ENTRIES, disk.read(ENTRIES) + bytes(4096))
    assert opened(disk)[:] == journal[:]


@pytest.mark.parametrize("missing", [ENTRIES, VOTE])
def test_a_missing_file_is_never_replaced_by_a_fresh_one(missing: Path) -> None:
    disk = LyingDisk()
    filled(disk)
    disk.remove(missing)
    with pytest.raises(RaftFatal, match=f"{missing.name} is missing"):
        opened(disk)


def test_a_damaged_vote_stops_the_node() -> None:
    disk = LyingDisk()
    filled(disk)
    disk.flip_bit(VOTE, 10)
    with pytest.raises(RaftFatal, match="damaged"):
        opened(disk)


def test_a_crash_during_the_very_first_start_leaves_nothing_in_the_way() -> None:
    for operation in range(12):
        disk = LyingDisk()
        disk.fail_after = operation
        try:
            opened(disk)
        except OSError as error:
            assert error.errno == errno.ENOSPC
        disk.crash(random.Random(operation))
        assert opened(disk)[:] == [(b"\x01", 1, 0)]


def test_the_folder_of_another_cluster_or_node_is_refused() -> None:
    disk = LyingDisk()
    journal = opened(disk)
    journal.bind_cluster("blue")
    assert opened(disk).cluster_id == "blue"
    with pytest.raises(RaftFatal, match="belongs to cluster blue"):
        opened(disk, cluster_id="green")
    with pytest.raises(RaftFatal, match="belongs to node 1"):
        opened(disk, node_id=2)


def test_a_second_vote_in_one_term_and_an_older_term_are_refused() -> None:
    journal = opened(LyingDisk())
    journal.set_term(5, 2)
    for term, vote in ((5, 3), (5, None), (4, 2)):
        with pytest.raises(RaftFatal):
            journal.set_term(term, vote)
    journal.set_term(5, 2)
    journal.set_term(6, None)
    journal.set_term(6, 1)


def _append_and_sync(journal: DurableJournal) -> None:
    journal.add(b"x", 7, 1)
    journal.sync()


@pytest.mark.parametrize(
    "use",
    [
        _append_and_sync,
        lambda journal: journal.truncate_from(4),
        lambda journal: journal.trim_to(4),
        lambda journal: journal.set_term(9, 1),
    ],
)
@pytest.mark.parametrize("operation", [0, 1, 2])
def test_a_failed_write_or_sync_is_final(use: Callable[[DurableJournal], None], operation: int) -> None:
    disk = LyingDisk()
    journal = filled(disk)
    disk.fail_after = operation
    try:
        use(journal)
    except OSError:
        disk.fail_after = None
        with pytest.raises(RaftFatal, match="failed before"):
            _append_and_sync(journal)
        disk.crash(random.Random(operation))
        assert opened(disk)[:3] == journal[:3]


def test_a_crash_at_any_point_of_a_trim_leaves_a_readable_pair() -> None:
    for operation in range(9):
        disk = LyingDisk()
        journal = filled(disk, 8)
        store = SnapshotStore(disk, FOLDER)
        disk.fail_after = operation
        try:
            store.store(Snapshot.make(6, 1, b"state after six"))
            journal.trim_to(6)
        except OSError:
            pass
        disk.crash(random.Random(operation))
        again, snapshot = opened(disk), SnapshotStore(disk, FOLDER).latest
        first = again[0][1]
        assert again[-1][1] == 9
        assert first == 1 or (snapshot is not None and snapshot.index >= first)


def test_a_damaged_snapshot_stops_the_node_an_older_one_replaces_none() -> None:
    disk = LyingDisk()
    disk.make_directory(FOLDER)
    store = SnapshotStore(disk, FOLDER)
    assert store.store(Snapshot.make(9, 2, b"newer"))
    assert not store.store(Snapshot.make(8, 2, b"older"))
    latest = SnapshotStore(disk, FOLDER).latest
    assert latest is not None
    assert bytes(latest.state) == b"newer"
    disk.flip_bit(FOLDER / "snapshot", disk.size(FOLDER / "snapshot") - 1)
    with pytest.raises(RaftFatal, match="damaged"):
        SnapshotStore(disk, FOLDER)


def as_of_the_version_before(disk: LyingDisk) -> None:
    """Rewrites the vote file without what that version did not know: id, vote right and voter_records."""
    body = bytearray(disk.read(VOTE)[4:])
    del body[_VOTE.size :]
    body[4:6] = (1).to_bytes(2, "little")
    disk.put(VOTE, zlib.crc32(body).to_bytes(4, "little") + bytes(body))


@pytest.mark.parametrize(
    ("use", "voting"),
    [
        (lambda journal: None, False),
        (lambda journal: journal.set_term(1, None), True),
        (lambda journal: journal.set_term(1, 3), True),
        (_append_and_sync, True),
    ],
)
def test_a_folder_of_the_older_version_has_a_vote_unless_it_is_empty(
    use: Callable[[DurableJournal], None], voting: bool
) -> None:
    disk = LyingDisk()
    journal = opened(disk)
    if use is _append_and_sync:
        journal.add(b"x", 2, 1)
        journal.sync()
    else:
        use(journal)
    as_of_the_version_before(disk)
    again = DurableJournal(disk, FOLDER, node_id=1, new_id=77)
    assert (again.voting, again.journal_id, again.voter_records) == (voting, 77, {})
    once_more = DurableJournal(disk, FOLDER, node_id=1, new_id=78)
    assert (once_more.voting, once_more.journal_id) == (voting, 77), "the id is kept from the first start on"


def test_a_vote_is_stored_only_after_the_entries_it_was_given_for() -> None:
    for seed in range(100):
        disk = LyingDisk()
        journal, rng = opened(disk), random.Random(seed)
        assert not journal.voting
        assert journal.is_empty
        journal.add(b"returns", 2, 1)
        disk.fail_after = rng.randrange(8)
        try:
            journal.store_voter_records(VoterRecord(1, JOURNAL, 2), VoterRecord(2, 9, 0), voting=True)
            journal.bind_cluster("blue")
        except OSError:
            pass
        disk.crash(rng)
        again = opened(disk)
        assert again.journal_id == JOURNAL
        assert not again.voting or (
            again[-1][1] == 2 and again.voter_records == {1: (1, JOURNAL, 2), 2: (2, 9, 0)}
        )


class NamesAreBelieved(DurableJournal):
    def _make_names_durable(self, folder: Path) -> None:
        pass


class PagesAreBelieved(DurableJournal):
    def _make_durable(self, claimed: int, data: bytes) -> None:
        pass


def _a_life(journal: DurableJournal, promises: Promises) -> None:
    """Everything that changes a file, and the promises that follow from it."""
    promises.watch(journal)
    for _ in range(2):
        term = journal.term + 1
        journal.set_term(term, 1)
        promises.sent(journal, VoteRequest(term, 1, 1, preliminary=False))
        for _ in range(3):
            journal.add(b"x" * 40, journal[-1][1] + 1, term)
            journal.add(b"y", journal[-1][1] + 1, term)
            journal.sync()
            promises.of_journal(journal)
        journal.truncate_from(journal[-1][1])
        journal.trim_to(journal[2][1])
        promises.of_journal(journal)


def _lost_after_kill_and_power_cut(
    journal_class: type[DurableJournal], change: int, seed: int, sync_fails: bool
) -> str:
    """A life that ends at this change, a short second one in the same page cache, a power cut; what the third
    one misses."""
    disk, rng, promises = LyingDisk(), random.Random(seed), Promises()
    promises.of_journal(opened(disk))
    if sync_fails:
        disk.fail_sync_after = change
    else:
        disk.cut_after = change
    with contextlib.suppress(PowerCut, OSError):
        _a_life(opened(disk), promises)
    disk.kill()
    second = journal_class(disk, FOLDER, node_id=1, new_id=JOURNAL)
    promises.watch(second)
    promises.of_journal(second)
    if seed % 2:
        second.add(b"in the second life", second[-1][1] + 1, second.term or 1)
        second.sync()
        promises.of_journal(second)
    promises.vote_term, promises.vote = second.term, second.voted_for
    disk.crash(rng)
    try:
        return promises.missing_in(opened(disk))
    except RaftFatal as error:
        return str(error)


@pytest.mark.parametrize("sync_fails", [False, True])
def test_entries_in_the_page_cache_of_a_killed_process_are_synced_first(sync_fails: bool) -> None:
    """At every write, sync, rename and truncation, and for each sync that fails."""
    for change in range(70):
        for seed in range(6):
            assert _lost_after_kill_and_power_cut(DurableJournal, change, seed, sync_fails) == "", (
                change,
                seed,
            )


@pytest.mark.parametrize(
    ("journal_class", "sync_fails"),
    [(NamesAreBelieved, False), (PagesAreBelieved, False), (PagesAreBelieved, True)],
)
def test_without_that_it_would_be_lost(journal_class: type[DurableJournal], sync_fails: bool) -> None:
    found = [
        (change, seed)
        for change in range(70)
        for seed in range(6)
        if _lost_after_kill_and_power_cut(journal_class, change, seed, sync_fails)
    ]
    assert found
