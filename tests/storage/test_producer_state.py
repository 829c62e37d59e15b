"""The rules of producers and markers (docs/semantics.md I1 to I13, L1 to L4), as tables over the pure core;
each safeguard with its ablation."""

from __future__ import annotations

from dataclasses import fields

import pytest
from tidegate.storage.producers.producer_snapshot import SnapshotInvalid, decode_snapshot, encode_snapshot
from tidegate.storage.producers.producer_state import (
    AppendOrigin,
    BatchMetadata,
    PreparedAppend,
    ProducerEntry,
    ProducerState,
    VerificationGuard,
)
from tidegate.wire.errors import ErrorCode, KafkaError
from tidegate.wire.records import BatchHeader, decode_marker, parse_header

from .workload import NOW_MS, batch, marker

CLIENT, COORDINATOR, REPLICATION = AppendOrigin.CLIENT, AppendOrigin.COORDINATOR, AppendOrigin.REPLICATION
SEQUENCE_MAX = 2**31 - 1


class Partition:
    """A producer state with the offsets that a log would give."""

    def __init__(self, **limits: int) -> None:
        self.state = ProducerState(**limits)
        self.end = 0

    def append(
        self,
        data: bytes,
        origin: AppendOrigin = CLIENT,
        guard: VerificationGuard | None = None,
        version: int = 2,
    ) -> PreparedAppend:
        header = parse_header(data)
        prepared = self.state.prepare(origin, guard, version)
        prepared.check_batch(header, self.end, decode_marker(data) if header.is_control else None)
        self.end += header.last_offset_delta + 1
        self.state.publish(prepared, self.end)
        return prepared

    def begin(self, pid: int, epoch: int, sequence: int = 0, count: int = 1) -> int:
        """The first batch of a transaction, verified; returns its offset."""
        offset = self.end
        guard = self.state.start_verification(pid, epoch, sequence)
        self.append(batch(count, pid=pid, epoch=epoch, sequence=sequence, transactional=True), guard=guard)
        return offset

    def end_transaction(
        self, pid: int, epoch: int, *, commit: bool = True, coordinator_epoch: int = 0, version: int = 2
    ) -> None:
        self.append(
            marker(pid, epoch, commit=commit, coordinator_epoch=coordinator_epoch),
            COORDINATOR,
            version=version,
        )


def refused(code: ErrorCode) -> pytest.RaisesExc[KafkaError]:
    return pytest.raises(KafkaError, check=lambda error: error.code == code)


# ---- sequences ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("known", "epoch", "sequence", "error"),
    [
        ([], 0, 0, None),
        # rule I5: an unknown producer begins at 0; this makes clients do so
        ([], 0, 1, ErrorCode.UNKNOWN_PRODUCER_ID),
        ([(0, 0, 3)], 0, 3, None),
        ([(0, 0, 3)], 0, 4, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),  # a gap
        ([(0, 0, 3)], 0, 2, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),  # an overlap
        ([(0, 0, 3)], 1, 0, None),
        ([(0, 0, 3)], 1, 3, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),  # rule I4: a new epoch begins at 0
        ([(1, 0, 3)], 0, 3, ErrorCode.INVALID_PRODUCER_EPOCH),  # a zombie
        ([(1, 0, 3)], 0, 0, ErrorCode.INVALID_PRODUCER_EPOCH),
    ],
)
def test_sequences_and_epochs(
    known: list[tuple[int, int, int]], epoch: int, sequence: int, error: ErrorCode | None
) -> None:
    partition = Partition()
    for known_epoch, known_sequence, count in known:
        partition.append(batch(count, pid=7, epoch=known_epoch, sequence=known_sequence))
    before = partition.state.as_comparable()
    data = batch(1, pid=7, epoch=epoch, sequence=sequence)
    if error is None:
        partition.append(data)
        assert partition.state.as_comparable() != before
    else:
        with refused(error):
            partition.append(data)
        assert partition.state.as_comparable() == before


def at_sequence(last: int) -> Partition:
    """A producer whose last batch ended at sequence `last`, as if it had written for years."""
    partition = Partition()
    header = parse_header(batch(3, pid=7, epoch=0, sequence=0))._replace(
        base_sequence=(last - 2) & SEQUENCE_MAX
    )
    prepared = partition.state.prepare(REPLICATION)
    prepared.check_batch(header, 0)
    partition.state.publish(prepared, 3)
    partition.end = 3
    return partition


@pytest.mark.parametrize(
    ("last", "following", "accepted"),
    [
        (SEQUENCE_MAX, 0, True),
        (SEQUENCE_MAX, 1, False),
        (SEQUENCE_MAX - 1, SEQUENCE_MAX, True),
        (1, 2, True),
        (1, 0, False),
    ],
)
def test_sequences_wrap_from_the_greatest_to_zero(last: int, following: int, accepted: bool) -> None:
    partition = at_sequence(last)
    assert partition.state.get(7).last_sequence == last  # type: ignore[union-attr]
    if accepted:
        partition.append(batch(1, pid=7, epoch=0, sequence=following))
    else:
        with refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER):
            partition.append(batch(1, pid=7, epoch=0, sequence=following))


def test_the_last_five_batches_are_recognised_and_older_ones_are_not() -> None:
    partition = Partition()
    for index in range(7):
        partition.append(batch(2, pid=7, epoch=0, sequence=2 * index))
    found = [
        partition.state.find_duplicate(parse_header(batch(2, pid=7, epoch=0, sequence=2 * i)))
        for i in range(7)
    ]
    assert [each and each.first_offset for each in found] == [None, None, 4, 6, 8, 10, 12]


@pytest.mark.parametrize(("count", "sequence", "epoch"), [(1, 0, 0), (3, 0, 0), (2, 1, 0), (2, 0, 1)])
def test_a_duplicate_has_exactly_the_same_sequences_and_epoch(count: int, sequence: int, epoch: int) -> None:
    partition = Partition()
    partition.append(batch(2, pid=7, epoch=0, sequence=0))
    assert (
        partition.state.find_duplicate(parse_header(batch(count, pid=7, epoch=epoch, sequence=sequence)))
        is None
    )
    assert partition.state.find_duplicate(parse_header(batch(2, pid=7, epoch=0, sequence=0))) is not None


def test_a_batch_that_shares_only_the_last_sequence_is_no_duplicate() -> None:
    """Rule I2: acknowledged as a repetition, its other records would be lost."""
    partition = Partition()
    partition.append(batch(3, pid=7, epoch=0, sequence=0))
    for count, sequence in ((1, 2), (2, 1)):
        again = batch(count, pid=7, epoch=0, sequence=sequence)
        assert partition.state.find_duplicate(parse_header(again)) is None
        with refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER):
            partition.append(again)


def test_batches_that_overtake_a_transactions_first_are_out_of_order() -> None:
    """Rule I5: both asked for verification; a producer that gets UNKNOWN_PRODUCER_ID would abort its
    transaction."""
    partition = Partition()
    guard = partition.state.start_verification(7, 1, 0)
    assert partition.state.start_verification(7, 1, 5) is guard
    with refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER):
        partition.append(batch(1, pid=7, epoch=1, sequence=5, transactional=True), guard=guard)
    partition.append(batch(5, pid=7, epoch=1, sequence=0, transactional=True), guard=guard)
    partition.append(batch(1, pid=7, epoch=1, sequence=5, transactional=True))


def test_a_duplicate_across_the_wrap_is_recognised() -> None:
    partition = at_sequence(1)  # sequences 2^31-1, 0, 1
    header = parse_header(batch(3, pid=7, epoch=0, sequence=0))._replace(base_sequence=SEQUENCE_MAX)
    assert partition.state.find_duplicate(header) is not None


def test_a_coordinators_append_is_checked_for_the_epoch_a_followers_not() -> None:
    partition = Partition()
    partition.append(batch(1, pid=7, epoch=3, sequence=0))
    partition.append(batch(1, pid=7, epoch=3, transactional=True), COORDINATOR)  # no sequences, no guard
    with refused(ErrorCode.INVALID_PRODUCER_EPOCH):
        partition.append(batch(1, pid=7, epoch=2, transactional=True), COORDINATOR)
    prepared = partition.append(batch(1, pid=7, epoch=2, sequence=40), REPLICATION)
    assert len(prepared.warnings) == 1


# ---- transactions ------------------------------------------------------------------------------------------


def test_a_batch_outside_of_an_open_transaction_is_refused() -> None:
    partition = Partition()
    partition.begin(7, 0)
    with refused(ErrorCode.INVALID_TXN_STATE):
        partition.append(batch(1, pid=7, epoch=0, sequence=1))


def test_a_new_epoch_may_not_go_on_with_the_transaction_of_the_old_one() -> None:
    partition = Partition()
    partition.begin(7, 0)
    guard = partition.state.start_verification(7, 1, 0)
    with refused(ErrorCode.INVALID_TXN_STATE):
        partition.append(batch(1, pid=7, epoch=1, sequence=0, transactional=True), guard=guard)


def test_the_first_append_of_a_transaction_needs_the_very_guard() -> None:
    partition = Partition()
    data = batch(1, pid=7, epoch=0, sequence=0, transactional=True)
    with refused(ErrorCode.INVALID_TXN_STATE):
        partition.append(data)
    guard = partition.state.start_verification(7, 0, 0)
    with refused(ErrorCode.INVALID_TXN_STATE):
        partition.append(data, guard=VerificationGuard(7, 0))
    assert partition.state.start_verification(7, 0, 1) is guard, (
        "requests of one transaction share their guard"
    )
    partition.append(data, guard=guard)
    partition.append(batch(1, pid=7, epoch=0, sequence=1, transactional=True))  # open now: no guard is needed


def late_verification() -> Partition:
    """KIP-890's ABA: verified for the first transaction, which is then aborted; a second one waits for its
    own verification."""
    partition = Partition()
    stale = partition.state.start_verification(7, 0, 0)
    partition.end_transaction(7, 0, commit=False, version=0)
    partition.state.start_verification(7, 0, 0)
    partition.append(batch(1, pid=7, epoch=0, sequence=0, transactional=True), guard=stale)
    return partition


def test_a_guard_of_an_aborted_transaction_does_not_open_the_next() -> None:
    with refused(ErrorCode.INVALID_TXN_STATE):
        late_verification()


def test_ablation_a_guard_compared_by_state_opens_a_hanging_transaction(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def by_state(self: ProducerState, guard: VerificationGuard | None, producer_id: int, epoch: int) -> bool:
        return guard is not None and producer_id in self._verifications and guard.epoch == epoch

    monkeypatch.setattr(ProducerState, "guard_holds", by_state)
    assert late_verification().state.has_open_transaction(7)


def test_a_marker_keeps_the_guard_of_the_next_transaction() -> None:
    """TV2: the marker of the transaction of epoch 0 carries epoch 1, and may come while the next one, of
    epoch 1, is enlisted."""
    partition = Partition()
    partition.begin(7, 0)
    guard = partition.state.start_verification(7, 1, 0)
    partition.end_transaction(7, 1, version=2)
    partition.append(batch(1, pid=7, epoch=1, sequence=0, transactional=True), guard=guard)
    assert partition.state.has_open_transaction(7)


def test_the_marker_of_a_transaction_voids_its_own_guard() -> None:
    """A timeout has ended epoch 1's transaction before its first append.  The marker of TV2 carries the next
    epoch, and clients recover from INVALID_PRODUCER_EPOCH (KAFKA-19690); that of TV1 may carry the same."""
    for version, epoch, code in (
        (2, 2, ErrorCode.INVALID_PRODUCER_EPOCH),
        (1, 1, ErrorCode.INVALID_TXN_STATE),
    ):
        partition = Partition()
        guard = partition.state.start_verification(7, 1, 0)
        partition.end_transaction(7, epoch, commit=False, version=version)
        with refused(code):
            partition.append(batch(1, pid=7, epoch=1, sequence=0, transactional=True), guard=guard)


def test_a_guard_of_an_older_epoch_is_void_and_an_older_epoch_gets_none() -> None:
    partition = Partition()
    old = partition.state.start_verification(7, 0, 0)
    assert partition.state.start_verification(7, 1, 0) is not old
    with refused(ErrorCode.INVALID_TXN_STATE):
        partition.append(batch(1, pid=7, epoch=0, sequence=0, transactional=True), guard=old)
    with refused(ErrorCode.INVALID_PRODUCER_EPOCH):
        partition.state.start_verification(7, 0, 0)


def test_during_verification_sequences_above_the_lowest_are_rejected() -> None:
    partition = Partition()
    partition.append(batch(5, pid=7, epoch=0, sequence=0))
    guard = partition.state.start_verification(7, 0, 6)
    partition.state.start_verification(7, 0, 5)
    with refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER):
        partition.append(batch(1, pid=7, epoch=0, sequence=6, transactional=True), guard=guard)
    partition.append(batch(1, pid=7, epoch=0, sequence=5, transactional=True), guard=guard)


# ---- markers -----------------------------------------------------------------------------------------------


MARKERS = [
    # version, current epoch, open, marker epoch, accepted
    (0, 5, True, 5, True),
    (0, 5, True, 6, True),
    (0, 5, True, 4, False),
    (0, 5, False, 5, True),
    (2, 5, True, 6, True),
    (2, 5, True, 5, False),  # a late marker of the transaction before: KAFKA-17754
    (2, 5, True, 4, False),
    (2, 5, False, 5, True),  # the retry of a marker that is here already: KAFKA-19999
    (2, 5, False, 4, False),
    (2, 5, False, 6, True),
]


def run_marker(version: int, is_open: bool, epoch: int) -> Partition:
    partition = Partition()
    partition.begin(7, 5)
    if not is_open:
        partition.end_transaction(7, 5, version=0)
    partition.end_transaction(7, epoch, version=version)
    return partition


@pytest.mark.parametrize(("version", "current", "is_open", "epoch", "accepted"), MARKERS)
def test_marker_epochs(version: int, current: int, is_open: bool, epoch: int, accepted: bool) -> None:
    if accepted:
        assert not run_marker(version, is_open, epoch).state.has_open_transaction(7)
    else:
        with refused(ErrorCode.INVALID_PRODUCER_EPOCH):
            run_marker(version, is_open, epoch)


def test_ablation_unchecked_marker_epochs_end_the_wrong_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PreparedAppend, "_check_marker_epoch", lambda self, header, entry: None)
    wrong = [row for row in MARKERS if not row[4]]
    assert all(
        not run_marker(version, is_open, epoch).state.has_open_transaction(7)
        for version, _, is_open, epoch, _ in wrong
    )


def test_a_marker_from_an_older_coordinator_epoch_is_refused() -> None:
    partition = Partition()
    partition.begin(7, 0)
    partition.end_transaction(7, 1, coordinator_epoch=4)
    partition.begin(7, 1)
    with refused(ErrorCode.TRANSACTION_COORDINATOR_FENCED):
        partition.end_transaction(7, 2, coordinator_epoch=3)
    partition.end_transaction(7, 2, coordinator_epoch=4)


def test_a_marker_without_a_transaction_only_raises_the_epochs() -> None:
    partition = Partition()
    partition.end_transaction(7, 3, coordinator_epoch=2)
    entry = partition.state.get(7)
    assert entry is not None
    assert (entry.epoch, entry.coordinator_epoch) == (3, 2)
    assert partition.state.first_unstable_offset is None
    with refused(ErrorCode.INVALID_PRODUCER_EPOCH):
        partition.append(batch(1, pid=7, epoch=2, sequence=0))


def test_followers_take_markers_of_any_epoch() -> None:
    partition = Partition()
    partition.begin(7, 5)
    prepared = partition.append(marker(7, 4, commit=True, coordinator_epoch=-1), REPLICATION)
    assert prepared.warnings
    assert not partition.state.has_open_transaction(7)


def test_an_emptied_control_batch_has_no_effect() -> None:
    partition = Partition()
    partition.begin(7, 0)
    header = parse_header(marker(7, 1, commit=True))._replace(record_count=0)
    partition.state.prepare(REPLICATION).check_batch(header, 1, None)
    assert partition.state.has_open_transaction(7)


# ---- last stable offset, bounds ----------------------------------------------------------------------------


def test_an_ended_transaction_bounds_readers_until_its_marker_replicates() -> None:
    partition = Partition()
    first = partition.begin(7, 0)
    second = partition.begin(8, 0)
    assert partition.state.first_unstable_offset == first
    partition.end_transaction(7, 1)  # marker at offset 2
    assert partition.state.first_unstable_offset == first
    partition.state.set_high_watermark(2)
    assert partition.state.first_unstable_offset == first, (
        "a high watermark *at* the marker does not cover it"
    )
    partition.state.set_high_watermark(3)
    assert partition.state.first_unstable_offset == second
    partition.end_transaction(8, 1)
    partition.state.set_high_watermark(4)
    assert partition.state.first_unstable_offset is None


def test_the_lso_holds_when_transactions_end_in_another_order() -> None:
    partition = Partition()
    offsets = [partition.begin(pid, 0) for pid in (1, 2, 3)]
    for pid in (2, 1, 3):
        partition.end_transaction(pid, 1)
    expected = {3: offsets[0], 4: offsets[0], 5: offsets[2], 6: None}
    for watermark, first in expected.items():
        partition.state.set_high_watermark(watermark)
        assert partition.state.first_unstable_offset == first, watermark


def test_an_abort_notes_the_stable_offset_that_holds_after_it() -> None:
    partition = Partition()
    partition.begin(1, 0)
    second = partition.begin(2, 0)
    prepared = partition.append(marker(1, 1, commit=False), COORDINATOR)
    assert prepared.completed[0].last_stable_offset == second
    prepared = partition.append(marker(2, 1, commit=False), COORDINATOR)
    assert prepared.completed[0].last_stable_offset == partition.end


def test_idle_producers_expire_unless_their_transaction_is_open() -> None:
    partition = Partition(expiration_ms=1000)
    partition.append(batch(1, pid=1, epoch=0, sequence=0))
    partition.begin(2, 0)
    partition.append(batch(1, pid=3, epoch=0, sequence=0))
    assert partition.state.expire(50_000) == 0, "no producer counts as idle before the first look"
    partition.end_transaction(3, 1)
    assert partition.state.expire(50_999) == 0
    assert partition.state.expire(51_000) == 1
    assert [each.producer_id for each in partition.state.entries()] == [2, 3]
    assert partition.state.expire(99_000) == 1
    assert [each.producer_id for each in partition.state.entries()] == [2]


def test_a_producer_of_old_records_is_not_idle() -> None:
    """KAFKA-9144: the timestamps are the client's own, and say nothing of when it was last here."""
    partition = Partition(expiration_ms=1000)
    for sequence in range(5):
        partition.append(batch(1, pid=1, epoch=0, sequence=sequence, timestamp_ms=NOW_MS - 3 * 86_400_000))
        assert partition.state.expire(10_000 + sequence * 999) == 0
    assert [each.producer_id for each in partition.state.entries()] == [1]


def test_producers_are_bounded_and_the_least_recently_used_goes() -> None:
    partition = Partition(max_producer_ids=3)
    partition.begin(1, 0)
    for pid in (2, 3, 2, 4):
        entry = partition.state.get(pid)
        partition.append(batch(1, pid=pid, epoch=0, sequence=0 if entry is None else entry.last_sequence + 1))
    assert sorted(each.producer_id for each in partition.state.entries()) == [1, 2, 4]
    partition = Partition(max_producer_ids=2)
    partition.begin(1, 0)
    partition.begin(2, 0)
    with refused(ErrorCode.THROTTLING_QUOTA_EXCEEDED):
        partition.append(batch(1, pid=3, epoch=0, sequence=0))


def test_a_refused_batch_among_several_leaves_nothing_behind() -> None:
    partition = Partition()
    partition.append(batch(1, pid=7, epoch=0, sequence=0))
    before = partition.state.as_comparable()
    prepared = partition.state.prepare(CLIENT)
    prepared.check_batch(parse_header(batch(1, pid=7, epoch=0, sequence=1)), 1)
    with refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER):
        prepared.check_batch(parse_header(batch(1, pid=7, epoch=0, sequence=5)), 2)
    assert partition.state.as_comparable() == before


# ---- snapshots ---------------------------------------------------------------------------------------------


def rich_state() -> ProducerState:
    partition = Partition()
    partition.append(batch(3, pid=1, epoch=0, sequence=0))
    partition.begin(2, 0)
    partition.begin(3, 4)
    partition.end_transaction(3, 5, commit=False, coordinator_epoch=9)
    return partition.state


def test_a_snapshot_gives_the_same_state_back() -> None:
    state, loaded = rich_state(), ProducerState()
    decode_snapshot(encode_snapshot(state), loaded)
    assert loaded.as_comparable() == state.as_comparable()
    assert (loaded.end_offset, loaded.first_unstable_offset) == (
        state.end_offset,
        state.first_unstable_offset,
    )
    assert [e.producer_id for e in loaded.entries()] == [e.producer_id for e in state.entries()]


def fields_lost(entry: ProducerEntry, kept: ProducerEntry | None) -> list[str]:
    """What a comparison, a copy, or the snapshot that `kept` was read from lose of `entry`, which has another
    value than the default in every field."""
    found, copy = [], entry.copy()
    for name in (each.name for each in fields(entry) if each.init):
        (other := entry.copy()).__setattr__(name, getattr(type(entry)(8), name))
        if other.as_tuple() == entry.as_tuple():
            found.append(f"{name} shows nothing, or is not compared")
        if getattr(copy, name) != getattr(entry, name):
            found.append(f"{name} is not copied")
        if getattr(kept, name) != getattr(entry, name):
            found.append(f"{name} is not in the snapshot")
    return found


def test_each_field_of_a_producer_is_copied_compared_and_kept() -> None:
    """A field that is left out in memory and in a replay alike would be lost without a difference.  One that
    the snapshot does not write yet is no field (`test_two_releases.py`)."""
    entry, loaded = ProducerEntry(7, 2, 5, 1700, 3, (BatchMetadata(9, 14, 4, 1700),)), ProducerState()
    loaded.restore([entry], [], 15)
    decode_snapshot(encode_snapshot(loaded), again := ProducerState())
    assert fields_lost(entry, again.get(7)) == []
    entry.idle_since_ms = 3
    assert entry.copy().idle_since_ms == -1, "of the process alone"
    assert [each.name for each in fields(ProducerEntry) if not each.init] == ["idle_since_ms"]


def test_any_damage_to_a_snapshot_is_noticed() -> None:
    data = encode_snapshot(rich_state())
    for position in range(len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 0x10
        with pytest.raises(SnapshotInvalid):
            decode_snapshot(bytes(damaged), ProducerState())
        with pytest.raises(SnapshotInvalid):
            decode_snapshot(data[:position], ProducerState())


def test_headers_without_a_producer_change_no_producer() -> None:
    partition = Partition()
    partition.append(batch(3))
    assert len(partition.state) == 0
    assert isinstance(parse_header(batch(3)), BatchHeader)
