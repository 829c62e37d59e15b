"""Committed offsets: plain and transactional, stable reads, expiry, deletion, failover (docs/semantics.md O1
to O6)."""

from __future__ import annotations

from typing import Any

import pytest
from tidegate.coordinator.group.classic.events import (
    ClassicGroupConfig,
    JoinGroup,
    LeaveGroup,
    LeavingMember,
    SyncGroup,
)
from tidegate.coordinator.group.events import (
    DeleteGroup,
    DeleteOffsets,
    FetchedOffset,
    GroupConfig,
    ListGroups,
    OffsetCommit,
    OffsetFetch,
    OffsetToCommit,
    TopicsDeleted,
    TxnOffsetCommit,
)
from tidegate.coordinator.group.offsets import OffsetStore
from tidegate.coordinator.group.shard import GroupShard
from tidegate.coordinator.outcome import ProducerIdentity
from tidegate.wire.errors import ErrorCode, KafkaError
from tidegate.wire.records import iterate_headers

from .coordinator_doubles import Catalog, Driver, LimitedLog, MemoryLog, code_of

G, T0, T1, OTHER = "readers", ("flights", 0), ("flights", 1), ("other", 0)
DAY_MS = 24 * 3600 * 1000
UNSTABLE = ErrorCode.UNSTABLE_OFFSET_COMMIT
PATIENT = ClassicGroupConfig(
    initial_rebalance_delay_ms=0, max_session_timeout_ms=2**31, new_member_join_timeout_ms=2**31
)


class Offsets(Driver):
    def __init__(
        self, *, log: MemoryLog | None = None, existing: frozenset[str] | None = None, **config: Any
    ) -> None:
        settings = GroupConfig(**({"classic": ClassicGroupConfig(initial_rebalance_delay_ms=0)} | config))
        catalog = None if existing is None else Catalog(**dict.fromkeys(existing, 1))
        super().__init__(lambda partition, epoch: GroupShard(settings, catalog), log=log)
        self.load(epoch=1 if log is None else log.epochs[0] + 1)

    def put(self, offset: int, place: tuple[str, int] = T0, **fields: Any) -> Any:
        return self.ask(OffsetCommit(G, (OffsetToCommit(*place, offset),), **fields))

    def put_in_transaction(
        self, offset: int, producer_id: int = 7, place: tuple[str, int] = T0, **fields: Any
    ) -> Any:
        return self.ask(TxnOffsetCommit(G, producer_id, 0, (OffsetToCommit(*place, offset),), **fields))

    def mark(self, commit: bool, producer_id: int = 7) -> list[Any]:
        """The node appended a marker; returns its answer, once all is committed."""
        producer = ProducerIdentity(producer_id, 0)
        done: list[Any] = []
        offset = self.log.append_marker(0, producer, commit)
        self.runtime.replay_marker(0, self.log.epochs[0], producer, commit, offset, done.append)
        assert done == []
        self.commit()
        return done

    def get(self, place: tuple[str, int] = T0, *, stable: bool = False) -> int | ErrorCode:
        found = self.ask(OffsetFetch(G, (place,), stable)).offsets[place]
        return found.error if found.error else found.offset

    def join(self, subscription: bytes | None = None) -> None:
        protocols = (("range", SUBSCRIPTION if subscription is None else subscription),)
        self.ask(JoinGroup(G, "", None, "c", "/h", 10_000, 60_000, "consumer", protocols, "m1", False))
        self.ask(SyncGroup(G, 1, "m1"))


SUBSCRIPTION = b"\x00\x01" + b"\x00\x00\x00\x01" + b"\x00\x07flights" + b"\xff\xff\xff\xff"


@pytest.fixture
def offsets() -> Offsets:
    return Offsets()


def test_the_next_coordinator_reads_an_offset_with_its_metadata(offsets: Offsets) -> None:
    offsets.ask(OffsetCommit(G, (OffsetToCommit(*T0, 5, 3, "note"),)))
    for reader in (offsets, Offsets(log=offsets.log)):
        found = reader.ask(OffsetFetch(G, (T0, T1))).offsets
        assert found == {T0: FetchedOffset(5, 3, "note"), T1: FetchedOffset()}
        assert reader.ask(OffsetFetch(G, None)).offsets == {T0: FetchedOffset(5, 3, "note")}


def test_an_unknown_group_has_no_offsets_and_no_error(offsets: Offsets) -> None:
    assert offsets.get() == -1


def test_a_read_does_not_show_a_commit_that_may_be_lost(offsets: Offsets) -> None:
    offsets.put(1)
    offsets.submit("write", OffsetCommit(G, (OffsetToCommit(*T0, 2),)))
    assert offsets.submit("read", OffsetFetch(G, (T0,))) is None
    offsets.commit()
    assert offsets.replies["read"].offsets[T0].offset == 2


def test_metadata_that_is_too_long_is_refused_and_the_others_are_written(offsets: Offsets) -> None:
    long = OffsetToCommit(*T1, 6, metadata="x" * 4_097)
    reply = offsets.ask(OffsetCommit(G, (OffsetToCommit(*T0, 5), long)))
    assert reply.errors == {T0: ErrorCode.NONE, T1: ErrorCode.OFFSET_METADATA_TOO_LARGE}
    assert offsets.get(T0) == 5
    assert offsets.get(T1) == -1
    reply = offsets.ask(TxnOffsetCommit(G, 7, 0, (OffsetToCommit(*T0, 9), long)))
    assert reply.errors == {T0: ErrorCode.NONE, T1: ErrorCode.OFFSET_METADATA_TOO_LARGE}
    offsets.mark(True)
    assert offsets.get(T0) == 9
    assert offsets.get(T1) == -1


@pytest.mark.parametrize("in_transaction", [False, True])
def test_a_commit_too_large_for_the_log_gets_invalid_commit_offset_size(in_transaction: bool) -> None:
    """All offsets of a request are one batch."""
    log = LimitedLog()
    log.epochs[0] = 0
    offsets = Offsets(log=log)
    offsets.put(5)
    many = tuple(OffsetToCommit("flights", number, 6, metadata="x" * 4_096) for number in range(300))
    event: Any = TxnOffsetCommit(G, 7, 0, many) if in_transaction else OffsetCommit(G, many)
    assert code_of(offsets.ask(event)) is ErrorCode.INVALID_COMMIT_OFFSET_SIZE
    assert offsets.get(stable=True) == 5
    assert offsets.failures == []


# --- transactions -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("commit", "after"), [(True, 9), (False, 5)])
def test_an_offset_in_a_transaction_counts_when_the_transaction_does(
    offsets: Offsets, commit: bool, after: int
) -> None:
    offsets.put(5)
    offsets.put_in_transaction(9)
    assert offsets.get() == 5
    assert offsets.get(stable=True) is UNSTABLE
    assert offsets.get(T1, stable=True) == -1
    assert offsets.mark(commit) == [None]
    assert offsets.get() == after
    assert offsets.get(stable=True) == after
    assert Offsets(log=offsets.log).get(stable=True) == after


def test_the_batch_is_transactional_and_carries_the_producer_and_the_guard(offsets: Offsets) -> None:
    guard = object()
    offsets.put_in_transaction(9, guard=guard)
    *_, (_, header) = iterate_headers(bytes(offsets.log.data[0]))
    assert header.is_transactional
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (
        7,
        0,
        -1,
    )
    assert offsets.log.guards == [guard]


def test_undecided_offsets_survive_the_coordinator(offsets: Offsets) -> None:
    offsets.put(5)
    offsets.put_in_transaction(9)
    after = Offsets(log=offsets.log)
    assert after.get(stable=True) is UNSTABLE
    after.mark(True)
    assert after.get(stable=True) == 9


def test_a_plain_commit_after_the_transactional_record_stays(offsets: Offsets) -> None:
    """docs/semantics.md O2: the order of the records decides, not that of the marker."""
    offsets.put_in_transaction(9)
    offsets.put(11)
    offsets.mark(True)
    assert offsets.get() == 11
    assert Offsets(log=offsets.log).get() == 11


def test_the_marker_of_one_producer_leaves_the_others_undecided(offsets: Offsets) -> None:
    offsets.put_in_transaction(9, producer_id=7)
    offsets.put_in_transaction(10, producer_id=8)
    offsets.mark(True, producer_id=7)
    assert offsets.get() == 9
    assert offsets.get(stable=True) is UNSTABLE
    offsets.mark(False, producer_id=8)
    assert offsets.get(stable=True) == 9


def test_the_last_offset_of_a_transaction_counts(offsets: Offsets) -> None:
    offsets.put_in_transaction(9)
    offsets.put_in_transaction(12)
    offsets.mark(True)
    assert offsets.get() == 12


def test_a_marker_without_pending_offsets_changes_nothing(offsets: Offsets) -> None:
    offsets.put(5)
    assert offsets.mark(True) == [None]
    assert offsets.get() == 5


def test_a_stable_read_of_all_offsets_includes_the_undecided_ones(offsets: Offsets) -> None:
    offsets.put(5)
    offsets.put_in_transaction(9, place=T1)
    assert set(offsets.ask(OffsetFetch(G, None)).offsets) == {T0}
    found = offsets.ask(OffsetFetch(G, None, True)).offsets
    assert found[T0].offset == 5
    assert found[T1].error is UNSTABLE


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"generation": 1, "member_id": "m1"}, ErrorCode.NONE),
        ({}, ErrorCode.NONE),  # producers before KIP-447 name no member
        ({"generation": 0, "member_id": "m1"}, ErrorCode.ILLEGAL_GENERATION),
        ({"generation": 1, "member_id": "m9"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"generation": 1, "member_id": "m1", "group_instance_id": "one"}, ErrorCode.UNKNOWN_MEMBER_ID),
    ],
)
def test_a_producer_is_fenced_with_its_consumer(
    offsets: Offsets, fields: dict[str, Any], error: ErrorCode
) -> None:
    """KIP-447."""
    offsets.join()
    assert code_of(offsets.put_in_transaction(9, **fields)) is error
    assert (offsets.get(stable=True) is UNSTABLE) is (error is ErrorCode.NONE)


def test_a_generation_of_an_unknown_group_is_refused(offsets: Offsets) -> None:
    assert (
        code_of(offsets.put_in_transaction(9, generation=1, member_id="m1")) is ErrorCode.ILLEGAL_GENERATION
    )
    assert code_of(offsets.put(9, generation=1, member_id="m1")) is ErrorCode.ILLEGAL_GENERATION


# --- expiry and deletion ------------------------------------------------------------------------------------


def wait(offsets: Offsets, ms: int) -> None:
    offsets.tick(ms)
    offsets.commit()


def test_offsets_of_a_group_without_members_expire_with_the_group(offsets: Offsets) -> None:
    offsets.put(5)
    wait(offsets, 7 * DAY_MS - 1)
    assert offsets.get() == 5
    wait(offsets, 600_001)
    assert offsets.get() == -1
    assert offsets.ask(ListGroups()).groups == ()
    assert Offsets(log=offsets.log).get() == -1


def test_offsets_expire_only_after_the_last_member_has_left() -> None:
    offsets = Offsets(classic=PATIENT)
    offsets.ask(
        JoinGroup(G, "", None, "c", "/h", 20 * DAY_MS, 60_000, "consumer", (("range", b""),), "m1", False)
    )
    offsets.ask(SyncGroup(G, 1, "m1"))
    offsets.put(5, generation=1, member_id="m1")
    wait(offsets, 8 * DAY_MS)
    assert offsets.get() == 5
    offsets.ask(LeaveGroup(G, (LeavingMember("m1"),)))
    wait(offsets, 6 * DAY_MS)
    assert offsets.get() == 5
    wait(offsets, 2 * DAY_MS)
    assert offsets.get() == -1
    assert offsets.ask(ListGroups()).groups == ()


@pytest.mark.parametrize(
    ("metadata", "left"),
    [(SUBSCRIPTION, {T0}), (b"\0\1" + bytes(4), set()), (b"", {T0, OTHER}), (b"\0\1\xff", {T0, OTHER})],
    ids=["reads one", "reads none", "says nothing", "is cut"],
)
def test_what_the_members_of_a_group_do_not_read_any_more_expires(
    metadata: bytes, left: set[tuple[str, int]]
) -> None:
    """KIP-211; of a group whose subscriptions cannot be understood everything stays."""
    offsets = Offsets(classic=PATIENT)
    offsets.ask(
        JoinGroup(
            G, "", None, "c", "/h", 20 * DAY_MS, 60_000, "consumer", (("range", metadata),), "m1", False
        )
    )
    offsets.ask(SyncGroup(G, 1, "m1"))
    for place in (T0, OTHER):
        offsets.put(5, place, generation=1, member_id="m1")
    wait(offsets, 7 * DAY_MS - 1)
    assert offsets.get(T0) == offsets.get(OTHER) == 5
    wait(offsets, 600_001)
    assert {place for place in (T0, OTHER) if offsets.get(place) == 5} == left
    assert [group.group_id for group in offsets.ask(ListGroups()).groups] == [G], "it has a member"


def test_nothing_expires_while_a_group_rebalances() -> None:
    offsets = Offsets(classic=PATIENT)
    offsets.put(5, OTHER)
    protocols = (("range", SUBSCRIPTION),)
    offsets.ask(JoinGroup(G, "", None, "c", "/h", 20 * DAY_MS, 2**31 - 1, "consumer", protocols, "m1", False))
    wait(offsets, 8 * DAY_MS)
    assert offsets.get(OTHER) == 5, "the leader has not said what is read"


def test_offsets_with_an_open_transaction_do_not_expire(offsets: Offsets) -> None:
    """docs/semantics.md O4."""
    offsets.put(5)
    offsets.put_in_transaction(9)
    wait(offsets, 8 * DAY_MS)
    assert offsets.get() == 5
    offsets.mark(False)
    wait(offsets, 600_001)
    assert offsets.get() == -1


def test_a_retention_of_its_own_is_kept(offsets: Offsets) -> None:
    offsets.put(5, retention_ms=1_000)
    offsets.put(6, T1, retention_ms=20 * DAY_MS)
    wait(offsets, 8 * DAY_MS)
    assert offsets.get(T0) == -1
    assert Offsets(log=offsets.log).get(T1) == 6


def test_a_deletion_whose_second_batch_is_refused_may_be_repeated() -> None:
    offsets = Offsets(expiration_batch_max=1)
    offsets.put(5)
    offsets.put(6, T1)
    offsets.put(7, OTHER)

    def refuse(_partition: int) -> None:
        offsets.log.refuse = KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS, "no")

    offsets.log.on_append = refuse
    assert code_of(offsets.ask(DeleteGroup(G))) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    offsets.log.refuse = offsets.log.on_append = None
    assert code_of(offsets.ask(DeleteGroup(G))) is ErrorCode.NONE
    assert offsets.ask(OffsetFetch(G, None)).offsets == {}


def test_a_group_with_an_open_transaction_is_not_deleted(offsets: Offsets) -> None:
    offsets.put_in_transaction(9)
    assert code_of(offsets.ask(DeleteGroup(G))) is ErrorCode.NON_EMPTY_GROUP
    offsets.mark(True)
    assert code_of(offsets.ask(DeleteGroup(G))) is ErrorCode.NONE
    assert offsets.get() == -1


def test_offsets_in_use_are_not_deleted(offsets: Offsets) -> None:
    offsets.join()
    offsets.put(5, generation=1, member_id="m1")
    offsets.put(6, ("old", 0), generation=1, member_id="m1")
    reply = offsets.ask(DeleteOffsets(G, (T0, ("old", 0), ("never", 3))))
    assert reply.errors == {
        T0: ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,
        ("old", 0): ErrorCode.NONE,
        ("never", 3): ErrorCode.NONE,
    }
    assert offsets.get() == 5
    assert offsets.get(("old", 0)) == -1
    assert code_of(offsets.ask(DeleteOffsets("nobody", (T0,)))) is ErrorCode.GROUP_ID_NOT_FOUND


def test_no_offsets_are_deleted_while_a_subscription_is_unreadable(offsets: Offsets) -> None:
    """Kafka takes such a member for one that reads every topic (ClassicGroup.isSubscribedToTopic)."""
    offsets.join(b"?")
    offsets.put(5, generation=1, member_id="m1")
    assert offsets.ask(DeleteOffsets(G, (T0,))).errors == {T0: ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC}
    assert offsets.get() == 5


def test_offsets_of_deleted_topics_are_deleted_in_bounded_batches() -> None:
    offsets = Offsets(expiration_batch_max=1)
    for number in range(3):
        offsets.ask(OffsetCommit(f"g{number}", (OffsetToCommit(*T0, 5), OffsetToCommit("other", 0, 1))))
    offsets.ask(TopicsDeleted(frozenset({"flights"})))
    offsets.now_ms += 1
    offsets.put(1)
    for _ in range(4):
        wait(offsets, 1)
    for number in range(3):
        assert set(offsets.ask(OffsetFetch(f"g{number}", None)).offsets) == {("other", 0)}
    assert offsets.get() == 1
    end = offsets.log.end[0]
    wait(offsets, 1)
    assert offsets.log.end[0] == end, "and then it is over"


def test_a_topic_that_is_deleted_twice_keeps_no_offset_of_its_second_life() -> None:
    """Also when the log has refused the tombstones of its first one until then."""
    offsets = Offsets()
    offsets.put(5)
    offsets.log.refuse = KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS)
    offsets.submit("first", TopicsDeleted(frozenset({"flights"})))
    offsets.log.refuse = None
    offsets.now_ms += 1
    offsets.put(6)
    offsets.now_ms += 1
    offsets.ask(TopicsDeleted(frozenset({"flights"})))
    assert offsets.get() == -1


def many(offsets: Offsets, count: int) -> None:
    """Offsets of so many partitions that one batch of the longest names would not hold the tombstones of
    all."""
    for first in range(0, count, 500):
        places = tuple(OffsetToCommit("flights", index, 5) for index in range(first, first + 500))
        assert code_of(offsets.ask(OffsetCommit(G, places))) is ErrorCode.NONE


@pytest.mark.parametrize("how", ["topic deleted", "group deleted", "expired"])
def test_no_batch_of_tombstones_is_larger_than_the_log_takes(how: str) -> None:
    """One that was refused as too large would be refused for ever."""
    offsets = Offsets()
    many(offsets, 2_500)
    loaded = len(offsets.log.data[0])
    if how == "topic deleted":
        offsets.ask(TopicsDeleted(frozenset({"flights"})))
        for _ in range(3):
            wait(offsets, 1)
    elif how == "group deleted":
        assert code_of(offsets.ask(DeleteGroup(G))) is ErrorCode.NONE
    else:
        wait(offsets, 8 * DAY_MS)
        for _ in range(3):
            wait(offsets, 600_001)
    assert not offsets.ask(OffsetFetch(G, None)).offsets
    assert offsets.ask(ListGroups()).groups == ()
    headers = [header for _, header in iterate_headers(bytes(offsets.log.data[0][loaded:]))]
    assert sum(header.record_count for header in headers) == 2_500
    assert max(header.record_count for header in headers) <= 1_000


def test_a_name_that_no_record_can_hold_is_the_clients_mistake(offsets: Offsets) -> None:
    assert (
        code_of(offsets.ask(OffsetCommit("g" * 32_768, (OffsetToCommit(*T0, 5),))))
        is ErrorCode.INVALID_REQUEST
    )
    assert code_of(offsets.ask(OffsetCommit("g" * 32_767, (OffsetToCommit(*T0, 5),)))) is ErrorCode.NONE


def test_the_longer_the_name_of_a_group_the_fewer_tombstones_a_batch_holds() -> None:
    offsets, group = Offsets(), "g" * 30_000
    for index in range(40):
        offsets.ask(OffsetCommit(group, (OffsetToCommit("flights", index, 5),)))
    assert code_of(offsets.ask(DeleteGroup(group))) is ErrorCode.NONE
    assert not offsets.ask(OffsetFetch(group, None)).offsets
    assert max(header.size_bytes for _, header in iterate_headers(bytes(offsets.log.data[0]))) < 1 << 20


@pytest.mark.parametrize("by", ["the coordinator", "the next coordinator", "a coordinator elected after it"])
@pytest.mark.parametrize("also_committed", [True, False])
def test_an_undecided_offset_goes_with_its_topic(by: str, also_committed: bool) -> None:
    """It would come back with the marker, for a new topic of the same name; and cleaning keeps the tombstone
    (docs/semantics.md O2)."""
    offsets = Offsets()
    if also_committed:
        offsets.put(5)
    offsets.put_in_transaction(9)
    offsets.put_in_transaction(3, place=OTHER)
    offsets.put_in_transaction(10, producer_id=8)
    if by == "a coordinator elected after it":
        offsets = Offsets(log=offsets.log, existing=frozenset({"other"}))
    else:
        offsets.ask(TopicsDeleted(frozenset({"flights"})))
    for _ in range(3):
        wait(offsets, 1)
    end = offsets.log.end[0]
    wait(offsets, 1)
    assert offsets.log.end[0] == end, "and then it is over"
    offsets.put_in_transaction(11, producer_id=9)  # of the new topic
    if by == "the next coordinator":
        offsets = Offsets(log=offsets.log)
    for producer_id in (7, 8):
        offsets.mark(True, producer_id)
    assert offsets.get() == -1
    assert offsets.get(OTHER) == 3
    offsets.mark(True, 9)
    assert offsets.get(stable=True) == 11


def test_a_new_topics_undecided_offset_survives_the_old_topics_deletion() -> None:
    offsets = Offsets(expiration_batch_max=1)
    offsets.ask(OffsetCommit("first", (OffsetToCommit(*T1, 5),)))
    offsets.put(5)
    offsets.ask(TopicsDeleted(frozenset({"flights"})))
    offsets.now_ms += 1
    offsets.put_in_transaction(9)
    for _ in range(3):
        wait(offsets, 1)
    offsets.mark(True)
    assert offsets.get() == 9


def test_offsets_of_topics_deleted_meanwhile_go_at_the_election() -> None:
    before = Offsets()
    before.ask(OffsetCommit(G, (OffsetToCommit(*T0, 5), OffsetToCommit("other", 0, 1))))
    after = Offsets(log=before.log, existing=frozenset({"other"}))
    wait(after, 1)
    assert set(after.ask(OffsetFetch(G, None)).offsets) == {("other", 0)}
    after.put(2)  # a new topic of the same name
    wait(after, 1)
    assert after.get() == 2


# --- ablation -----------------------------------------------------------------------------------------------


def test_materialising_by_marker_order_instead_of_record_order_is_caught(
    offsets: Offsets, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without rule O2 the consumer would go back from 11 to 9."""

    def careless(self: OffsetStore, producer_id: int, commit: bool) -> set[str]:
        for group_id, pending in self._pending.pop(producer_id, {}).items():
            self._committed.setdefault(group_id, {}).update(
                {k: v for k, v in pending.items() if v is not None and commit}
            )
            del self._undecided[group_id]  # of this one producer
        return set()

    monkeypatch.setattr(OffsetStore, "replay_marker", careless)
    offsets.put_in_transaction(9)
    offsets.put(11)
    offsets.mark(True)
    assert offsets.get() == 9
