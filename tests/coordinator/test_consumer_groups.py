"""Consumer groups (KIP-848) step by step: epochs, reconciliation, deadlines, static members, changing topics,
kinds of groups."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from tidegate.coordinator.fields import FieldWriter, RecordFormatError
from tidegate.coordinator.group.classic.events import Heartbeat, JoinGroup, LeaveGroup, LeavingMember
from tidegate.coordinator.group.consumer import groups as groups_module
from tidegate.coordinator.group.consumer.assignors import assign_uniform
from tidegate.coordinator.group.consumer.groups import PATTERN_RETRY_MS
from tidegate.coordinator.group.consumer.patterns import TopicPattern
from tidegate.coordinator.group.consumer.records import (
    CurrentAssignment,
    Key,
    RecordKind,
    encode_key,
    encode_value,
)
from tidegate.coordinator.group.consumer.state import MemberState
from tidegate.coordinator.group.events import (
    DeleteGroup,
    DeleteOffsets,
    DescribeGroup,
    ExpireOffsets,
    GroupType,
    ListGroups,
    OffsetCommit,
    OffsetFetch,
    OffsetToCommit,
)
from tidegate.coordinator.group.shard import GroupShard
from tidegate.coordinator.outcome import ReplayedRecord
from tidegate.wire.errors import ErrorCode, KafkaError

from .consumer_group_driver import REBALANCE_MS, SESSION_MS, Consumers, G, numbers, owned
from .coordinator_doubles import Catalog, code_of

ONE = (OffsetToCommit("flights", 0, 5),)


def classic_join(member_id: str = "", **fields: Any) -> JoinGroup:
    reply: dict[str, Any] = {"new_member_id": "classic", "require_known_member_id": False} | fields
    return JoinGroup(G, member_id, None, "c", "/h", 10_000, 60_000, "consumer", (("range", b"sub"),), **reply)


@pytest.fixture
def groups() -> Consumers:
    return Consumers()


# --- epochs and reconciliation ------------------------------------------------------------------------------


def test_the_first_member_gets_everything_at_once(groups: Consumers) -> None:
    answer = groups.join("a")
    assert (answer.member_id, answer.member_epoch, numbers(answer.assignment)) == ("a", 1, [0, 1, 2, 3])
    assert answer.heartbeat_interval_ms == 5_000
    assert groups.beat("a", 1).assignment is None  # nothing new


def test_a_partition_moves_only_after_it_was_given_up(groups: Consumers) -> None:
    groups.join("a")
    joined = groups.join("b")
    assert (joined.member_epoch, numbers(joined.assignment)) == (2, [])  # not released yet
    reply = groups.beat("a", 1, owned=owned(0, 1, 2, 3))
    assert (reply.member_epoch, numbers(reply.assignment)) == (1, [0, 1])  # its epoch waits for it
    assert groups.beat("b", 2).assignment is None
    assert groups.beat("a", 1).assignment is None  # says nothing of what it has: it still has it
    done = groups.beat("a", 1, owned=owned(0, 1))
    assert done.member_epoch == 2
    assert numbers(groups.beat("b", 2).assignment) == [2, 3]
    assert groups.describe().state.value == "Stable"


def counted_assignor(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the groups that were assigned."""
    sizes: list[int] = []

    def assign(subscriptions: Any, *rest: Any) -> Any:
        sizes.append(len(subscriptions))
        return assign_uniform(subscriptions, *rest)

    monkeypatch.setitem(groups_module.ASSIGNORS, "uniform", assign)  # type: ignore[attr-defined]
    return sizes


def test_members_that_join_together_are_given_their_shares_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """KIP-1263: the first is served at once, the others when the interval is over, by one computation for all
    of them."""
    sizes = counted_assignor(monkeypatch)
    groups = Consumers(Catalog(flights=40), assignment_interval_ms=1_000)
    first = groups.join("m0")
    assert len(first.assignment) == 40
    assert sizes == [1]
    groups.now_ms += 300
    for number in range(1, 40):
        reply = groups.join(f"m{number}")
        assert (reply.assignment, reply.heartbeat_interval_ms) == (frozenset(), 700), (
            "come back when it is due"
        )
    assert sizes == [1]
    assert groups.describe().state.value == "Assigning"
    groups.now_ms += 700
    reply = groups.beat("m7", groups.group.current["m7"].epoch, owned=frozenset())
    assert sizes == [1, 40]
    assert reply.heartbeat_interval_ms == 5_000
    groups.settle(*(f"m{number}" for number in range(40)))
    assert sizes == [1, 40]
    assert all(len(groups.group.current[f"m{n}"].assigned) == 1 for n in range(40))


def test_without_the_interval_every_join_is_a_computation(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = counted_assignor(monkeypatch)
    groups = Consumers(Catalog(flights=40))
    for number in range(10):
        groups.join(f"m{number}")
    assert sizes == list(range(1, 11))


def test_a_change_of_what_a_member_reads_does_not_wait_for_the_interval() -> None:
    """Its old share may hold what it does not read any more."""
    groups = Consumers(Catalog(flights=4, other=2), assignment_interval_ms=60_000)
    groups.join("a")
    reply = groups.beat("a", 1, topic_names=("other",), owned=owned(0, 1, 2, 3))
    assert numbers(reply.assignment) == []
    assert groups.group.target_epoch == groups.group.epoch == 2


def test_a_pattern_that_is_not_matched_yet_revokes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    groups = Consumers(Catalog(flights=4, flown=2))
    groups.join("a", topic_names=(), topic_regex="fl.*")
    assert groups.group.topics.keys() == {"flights", "flown"}
    groups.catalog.set("flags", 1)
    with monkeypatch.context() as unknown:
        unknown.setattr(Catalog, "matching", lambda *_: None)
        reply = groups.beat("a", 1)
        assert reply.member_epoch == 1
        assert groups.group.topics.keys() == {"flights", "flown"}
    assert groups.beat("a", 1).member_epoch == 2
    assert groups.group.topics.keys() == {
        "flights",
        "flown",
        "flags",
    }


def test_a_target_waits_for_a_pattern_that_is_not_matched_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    groups = Consumers(Catalog(flights=4))
    groups.join("a", topic_names=(), topic_regex="fl.*")
    with monkeypatch.context() as unknown:
        unknown.setattr(Catalog, "matching", lambda *_: None)
        joined = groups.join("b", topic_names=(), topic_regex="fl.*")
        assert (joined.member_epoch, numbers(joined.assignment)) == (
            1,
            [],
        )
        assert joined.heartbeat_interval_ms == PATTERN_RETRY_MS
        assert groups.group.topics.keys() == {"flights"}
        assert groups.group.target_epoch == 1
    groups.tick(PATTERN_RETRY_MS)
    groups.beat("a", 1, owned=owned(0, 1, 2, 3))
    assert groups.group.target_epoch == groups.group.epoch == 2
    assert len(groups.group.target["b"]) == 2


def test_no_pattern_is_held_against_a_topic_while_a_heartbeat_is_handled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A dear one takes milliseconds for a name: only the catalog, which has a budget, does that."""
    groups = Consumers(Catalog(flights=4, flown=2, other=1))
    monkeypatch.setattr(Catalog, "matching", lambda *_: ["flights", "flown"])
    monkeypatch.setattr(TopicPattern, "matches", lambda *_: pytest.fail("here"))
    groups.join("a", topic_names=(), topic_regex="fl.*")
    groups.join("b", topic_names=("other",), topic_regex="fl.*")
    monkeypatch.setattr(Catalog, "matching", lambda *_: None)
    groups.catalog.set("flags", 1)
    groups.beat("a", 1)
    assert groups.group.topics.keys() == {"flights", "flown", "other"}


def test_a_group_may_have_a_session_and_a_heartbeat_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    own: dict[str, tuple[int | None, int | None]] = {}
    groups = Consumers()
    monkeypatch.setattr(
        groups.shard.groups.consumers, "_group_timeouts", lambda group_id: own.get(group_id, (None, None))
    )
    assert groups.join("a").heartbeat_interval_ms == 5_000
    own[G] = (60_000, 9_000)
    assert groups.beat("a", 1).heartbeat_interval_ms == 9_000, "the next heartbeat tells it"
    groups.tick(SESSION_MS)
    groups.commit()
    assert "a" in groups.group.members
    own[G] = (8_000, None)  # and the node's interval does not fit it
    assert groups.beat("a", 1).heartbeat_interval_ms == 4_000
    groups.tick(8_000)
    groups.commit()
    assert "a" not in groups.group.members


def test_what_nothing_changes_writes_nothing(groups: Consumers) -> None:
    groups.join("a")
    written = groups.runtime.metrics_of(0).records_written
    for _ in range(3):
        groups.beat("a", 1)
        groups.beat(
            "a", 1, owned=owned(0, 1, 2, 3), rebalance_timeout_ms=REBALANCE_MS, topic_names=("flights",)
        )
    assert groups.runtime.metrics_of(0).records_written == written


def test_a_member_that_subscribes_anew_raises_the_group_epoch(groups: Consumers) -> None:
    groups.catalog.set("trains", 2)
    groups.join("a")
    answer = groups.beat("a", 1, topic_names=("flights", "trains"))
    assert answer.member_epoch == 2
    assert numbers(answer.assignment, UUID(int=2)) == [0, 1]
    assert groups.group.epoch == groups.group.target_epoch == 2


def test_a_member_that_leaves_gives_everything_up(groups: Consumers) -> None:
    groups.join("a")
    groups.join("b")
    assert groups.beat("a", -1).member_epoch == -1
    assert numbers(groups.beat("b", 2).assignment) == [0, 1, 2, 3]
    assert code_of(groups.beat("a", 1)) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_fenced_member_joins_again_with_its_id(groups: Consumers) -> None:
    """KAFKA-19233: epoch 0 of a known member is no older epoch, and gets the whole assignment."""
    groups.join("a")
    groups.join("b")
    groups.settle("a", "b")
    assert code_of(groups.beat("a", 7)) is ErrorCode.FENCED_MEMBER_EPOCH
    answer = groups.join("a")
    assert answer.member_epoch == 2
    assert numbers(answer.assignment) == [0, 1]
    assert groups.group.epoch == 2  # nothing has changed


# --- deadlines ----------------------------------------------------------------------------------------------


def test_a_silent_member_is_removed_when_its_session_ends(groups: Consumers) -> None:
    groups.join("a")
    groups.join("b")
    for _ in range(4):
        groups.tick(SESSION_MS // 2 - 1)
        groups.beat("b", groups.group.current["b"].epoch)
    groups.commit()
    assert groups.group.members.keys() == {"b"}
    assert groups.assigned("b") == [0, 1, 2, 3]


def test_a_member_that_lives_but_keeps_what_it_shall_give_up_is_removed(groups: Consumers) -> None:
    """The rebalance timeout: heartbeats alone do not help."""
    groups.join("a")
    groups.join("b")
    for _ in range(5):
        assert "a" in groups.group.members
        groups.beat("a", 1, owned=owned(0, 1, 2, 3))
        groups.beat("b", groups.group.current["b"].epoch)
        groups.tick(REBALANCE_MS // 5)
    assert groups.group.members.keys() == {"b"}
    groups.beat("b", groups.group.current["b"].epoch)
    assert groups.assigned("b") == [0, 1, 2, 3]


def test_the_time_to_revoke_ends_with_the_revocation(groups: Consumers) -> None:
    groups.join("a")
    groups.join("b")
    groups.beat("a", 1, owned=owned(0, 1, 2, 3))
    groups.settle("a", "b")
    for _ in range(4):
        groups.tick(REBALANCE_MS // 2)
        for member_id in "ab":
            groups.beat(member_id, groups.group.current[member_id].epoch)
    assert groups.group.members.keys() == {"a", "b"}


def test_a_removal_whose_append_failed_is_repeated(groups: Consumers) -> None:
    groups.join("a")
    groups.log.refuse = KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS)
    groups.tick(SESSION_MS)
    assert "a" in groups.group.members
    groups.log.refuse = None
    groups.tick(SESSION_MS)
    assert not groups.group.members


def test_a_new_coordinator_restarts_sessions_and_revocation_deadlines(groups: Consumers) -> None:
    groups.join("a")
    groups.join("b")
    groups.beat("a", 1, owned=owned(0, 1, 2, 3))
    groups.tick(SESSION_MS - 1)
    other = Consumers(groups.catalog, log=groups.log)
    assert vars(other.group) == vars(groups.group)
    other.tick(SESSION_MS - 1)
    assert other.group.members.keys() == {"a", "b"}
    other.beat("b", 2)
    other.tick(REBALANCE_MS - SESSION_MS + 1)
    assert other.group.members.keys() == {"b"}


def test_an_absent_coordinator_extends_sessions_and_revocations(groups: Consumers) -> None:
    groups.join("a")
    groups.join("b")
    groups.beat("a", 1, owned=owned(0, 1, 2, 3))
    groups.away(2 * REBALANCE_MS)
    groups.tick(SESSION_MS - 1)
    groups.commit()
    assert groups.group.members.keys() == {"a", "b"}
    for _ in range(REBALANCE_MS // SESSION_MS + 1):
        for member in groups.group.members:
            groups.beat(
                member, groups.group.current[member].epoch, owned=owned(0, 1, 2, 3) if member == "a" else None
            )
        groups.tick(SESSION_MS - 1)
    groups.commit()
    assert groups.group.members.keys() == {"b"}, (
        "a member that does not revoke its partitions is removed in the end"
    )


# --- static members -----------------------------------------------------------------------------------------


def test_an_instance_that_left_for_a_while_gets_its_assignment_back(groups: Consumers) -> None:
    groups.join("a", instance_id="i")
    groups.join("b")
    groups.settle("a", "b")
    had = groups.assigned("a")
    assert groups.beat("a", -2, instance_id="i").member_epoch == -2
    back = groups.join("c", instance_id="i")
    assert numbers(back.assignment) == had
    assert back.member_epoch == 2
    assert groups.group.epoch == 2
    assert groups.group.members.keys() == {"b", "c"}
    assert code_of(groups.beat("a", 2, instance_id="i")) is ErrorCode.FENCED_INSTANCE_ID
    assert code_of(groups.beat("a", 2)) is ErrorCode.UNKNOWN_MEMBER_ID


def test_with_ranges_an_instance_keeps_its_run_under_any_member_id() -> None:
    """As in Kafka's RangeAssignor: runs go to static members first, by instance; a restart under another id
    moves nothing."""
    groups = Consumers(Catalog(flights=6), assignors=("range",), assignment_interval_ms=0)
    for member_id, instance in (("x", "i1"), ("m", None), ("k", "i2")):
        groups.join(member_id, instance_id=instance)
        groups.settle(*groups.group.members)
    assert [groups.assigned(member_id) for member_id in ("x", "k", "m")] == [[0, 1], [2, 3], [4, 5]]
    groups.beat("x", -2, instance_id="i1")
    groups.join("zz", instance_id="i1")
    groups.settle("zz", "k", "m")
    groups.join("a")
    groups.settle("zz", "k", "m", "a")
    assert [groups.assigned(member_id) for member_id in ("zz", "k", "a", "m")] == [[0, 1], [2, 3], [4], [5]]


def test_an_instance_may_come_back_under_the_same_member_id(groups: Consumers) -> None:
    groups.join("a", instance_id="i")
    groups.join("b")
    groups.settle("a", "b")
    groups.beat("a", -2, instance_id="i")
    assert groups.beat("a", -2, instance_id="i").member_epoch == -2  # repeated
    back = groups.join("a", instance_id="i")
    assert numbers(back.assignment) == [0, 1]
    assert back.member_epoch == groups.group.epoch == 2


def test_an_instance_that_does_not_come_back_is_given_up_with_its_session(groups: Consumers) -> None:
    groups.join("a", instance_id="i")
    groups.tick(SESSION_MS - 1)
    groups.beat("a", -2, instance_id="i")
    groups.tick(1)
    assert not groups.group.members  # leaving does not renew the session


def test_an_administrator_takes_out_static_members_by_their_instance_ids(groups: Consumers) -> None:
    """KIP-345 by LeaveGroup, as Kafka does for consumer groups; a member that is named by its member id
    leaves by its heartbeat."""
    groups.join("a", instance_id="i")
    groups.join("b")
    leaving = (LeavingMember("", "i"), LeavingMember("", "nobody"), LeavingMember("b"))
    codes = [code.name for _, code in groups.ask(LeaveGroup(G, leaving)).results]
    assert codes == ["NONE", "UNKNOWN_MEMBER_ID", "UNKNOWN_MEMBER_ID"]
    assert groups.group.members.keys() == {"b"}
    assert groups.group.epoch == 3
    assert numbers(groups.beat("b", 2).assignment) == [0, 1, 2, 3]


def test_a_living_instance_is_not_replaced(groups: Consumers) -> None:
    groups.join("a", instance_id="i")
    assert code_of(groups.join("b", instance_id="i")) is ErrorCode.UNRELEASED_INSTANCE_ID
    assert code_of(groups.beat("b", -1, instance_id="i")) is ErrorCode.FENCED_INSTANCE_ID
    assert code_of(groups.beat("b", 1, instance_id="nobody")) is ErrorCode.UNKNOWN_MEMBER_ID
    assert groups.group.members.keys() == {"a"}


def test_an_instance_may_come_back_with_another_subscription(groups: Consumers) -> None:
    groups.catalog.set("trains", 2)
    groups.join("a", instance_id="i")
    groups.beat("a", -2, instance_id="i")
    back = groups.join("c", "trains", instance_id="i")
    assert numbers(back.assignment) == []
    assert numbers(back.assignment, UUID(int=2)) == [0, 1]
    assert groups.group.epoch == 2


# --- topics -------------------------------------------------------------------------------------------------


def test_created_grown_and_deleted_topics_raise_the_group_epoch(groups: Consumers) -> None:
    groups.join("a", "flights", "trains")
    groups.catalog.set("trains", 1)
    assert numbers(groups.beat("a", 1).assignment, UUID(int=2)) == [0]
    groups.catalog.set("flights", 6)
    assert numbers(groups.beat("a", 2).assignment) == [0, 1, 2, 3, 4, 5]
    groups.catalog.set("trains", 0)
    assert numbers(groups.beat("a", 3).assignment, UUID(int=2)) == []
    groups.catalog.set("ships", 9)  # not theirs
    assert groups.beat("a", 3).assignment is None
    assert groups.group.epoch == 4


def test_a_topic_that_is_made_anew_is_another_topic(groups: Consumers) -> None:
    groups.join("a")
    groups.catalog.set("flights", 0)
    groups.catalog.set("flights", 4)
    reply = groups.beat("a", 1, owned=owned(0, 1, 2, 3))
    assert reply.assignment == frozenset()
    assert numbers(groups.beat("a", 1, owned=frozenset()).assignment, UUID(int=2)) == [0, 1, 2, 3]


def test_topics_are_subscribed_to_by_a_regular_expression_as_they_come(groups: Consumers) -> None:
    groups.join("a", topic_names=None, topic_regex="fl.*|tr[a-z]+s")
    assert groups.assigned("a") == [0, 1, 2, 3]
    groups.catalog.set("trains", 2)
    groups.catalog.set("train-stations", 2)
    groups.beat("a", 1)
    assert groups.group.topics.keys() == {"flights", "trains"}
    groups.beat("a", 2, topic_regex="")  # an empty one is none
    assert groups.group.subscribed_topics() == set()


# --- what a group is made of --------------------------------------------------------------------------------


def test_a_full_group_takes_no_new_member_but_its_own(groups: Consumers) -> None:
    small = Consumers(max_size=2)
    small.join("a", instance_id="i")
    small.join("b")
    assert code_of(small.join("c")) is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert code_of(small.join("b")) is ErrorCode.NONE
    small.beat("a", -2, instance_id="i")
    assert code_of(small.join("d", instance_id="i")) is ErrorCode.NONE


def test_the_group_uses_the_assignor_that_most_members_name() -> None:
    groups = Consumers(Catalog(flights=4, trains=4))
    both = ("flights", "trains")
    groups.join("a", *both, assignor="range")
    groups.join("b", *both, assignor="range")
    groups.join("c", *both)
    assert groups.describe().assignor == "range"
    groups.settle("a", "b", "c")
    # the same run of both topics
    assert all(groups.assigned(m) == groups.assigned(m, UUID(int=2)) for m in "abc")
    assert Consumers(assignors=("range", "uniform")).shard.config.consumer.assignors[0] == "range"


def test_a_description_tells_epochs_members_and_assignments(groups: Consumers) -> None:
    groups.join("a", instance_id="i", rack_id="r", client_id="client", client_host="/h")
    groups.join("b")
    found = groups.describe()
    assert (found.state.value, found.epoch, found.assignment_epoch, found.assignor) == (
        "Reconciling",
        2,
        2,
        "uniform",
    )
    member = {each.member_id: each for each in found.members}["a"]
    assert (member.instance_id, member.rack_id, member.client_id, member.client_host) == (
        "i",
        "r",
        "client",
        "/h",
    )
    assert (numbers(member.assignment), numbers(member.target)) == ([0, 1, 2, 3], [0, 1])
    assert found.topic_names == {UUID(int=1): "flights"}
    groups.beat("b", -1)
    assert groups.describe().state.value == "Assigning"


def test_list_groups_shows_type_and_state_and_filters_by_them(groups: Consumers) -> None:
    groups.join("a")
    groups.ask(OffsetCommit("simple", ONE))
    found = {group.group_id: group for group in groups.ask(ListGroups()).groups}
    assert (found[G].type, found[G].state.value, found[G].protocol_type) == (
        GroupType.CONSUMER,
        "Stable",
        "consumer",
    )
    assert found["simple"].type is GroupType.CLASSIC
    for filters, names in (
        (((), ("consumer",)), {G}),
        (((), ("classic",)), {"simple"}),
        ((("empty",), ()), {"simple"}),
    ):
        states, types = map(frozenset, filters)
        assert {group.group_id for group in groups.ask(ListGroups(states, types)).groups} == names
    assert groups.ask(DescribeGroup(G)).state.value == "Dead"  # no classic group


# --- kinds of groups ----------------------------------------------------------------------------------------


def test_a_group_with_members_is_of_one_kind(groups: Consumers) -> None:
    groups.join("a")
    assert code_of(groups.ask(classic_join())) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert code_of(groups.ask(Heartbeat(G, 1, "a"))) is ErrorCode.UNKNOWN_MEMBER_ID
    other = Consumers()
    other.submit("classic", classic_join())
    other.commit()
    assert code_of(other.join("a")) is ErrorCode.GROUP_ID_NOT_FOUND
    assert G not in other.shard.groups.consumers.groups


def test_a_group_without_members_changes_its_kind_and_keeps_its_offsets(groups: Consumers) -> None:
    groups.join("a")
    groups.ask(OffsetCommit(G, ONE, 1, "a", knows_member_epochs=True))
    groups.beat("a", -1)
    groups.submit("classic", classic_join())
    groups.commit()
    assert G not in groups.shard.groups.consumers.groups
    assert groups.shard.groups.classic[G].members
    reloaded = Consumers(groups.catalog, log=groups.log)
    assert G not in reloaded.shard.groups.consumers.groups
    assert reloaded.ask(OffsetFetch(G, (("flights", 0),))).offsets[("flights", 0)].offset == 5
    # And back, on the coordinator that knows the classic group as an empty one.
    assert reloaded.join("b").member_epoch == 1
    assert Consumers(groups.catalog, log=groups.log).group.members.keys() == {"b"}


def test_a_refused_change_of_kind_leaves_the_group_as_it_was(groups: Consumers) -> None:
    groups.join("a")
    groups.beat("a", -1)
    groups.log.refuse = KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS)
    groups.submit("classic", classic_join())
    groups.log.refuse = None
    assert groups.group.epoch == 2
    groups.tick(400_000)
    groups.commit()
    assert code_of(groups.join("b")) is ErrorCode.NONE


def test_deleting_takes_a_group_without_members_and_all_its_records(groups: Consumers) -> None:
    groups.join("a")
    groups.ask(OffsetCommit(G, ONE, 1, "a", knows_member_epochs=True))
    assert code_of(groups.ask(DeleteGroup(G))) is ErrorCode.NON_EMPTY_GROUP
    deleted = groups.ask(DeleteOffsets(G, (("flights", 0), ("trains", 0)))).errors
    assert [code.name for code in deleted.values()] == ["GROUP_SUBSCRIBED_TO_TOPIC", "NONE"]
    groups.beat("a", -1)
    assert groups.describe().state.value == "Empty"
    assert code_of(groups.ask(DeleteGroup(G))) is ErrorCode.NONE
    reloaded = Consumers(groups.catalog, log=groups.log)
    assert not reloaded.shard.groups.consumers.groups
    assert reloaded.ask(ListGroups()).groups == ()


def test_offsets_that_members_of_a_group_read_do_not_expire(groups: Consumers) -> None:
    groups.join("a")
    groups.ask(OffsetCommit(G, (*ONE, OffsetToCommit("not-read", 0, 7)), 1, "a", knows_member_epochs=True))
    groups.now_ms += 8 * 24 * 3600 * 1000
    groups.ask(ExpireOffsets((G,)))
    fetched = groups.ask(OffsetFetch(G, (("flights", 0), ("not-read", 0)))).offsets
    assert fetched["flights", 0].offset == 5, "offsets of a topic without a reader expire (KIP-211)"
    assert fetched["not-read", 0].offset == -1, "offsets of a topic without a reader expire (KIP-211)"
    groups.beat("a", -1)
    groups.ask(ExpireOffsets((G,)))
    assert G not in groups.shard.groups.consumers.groups
    assert groups.ask(ListGroups()).groups == ()


def test_a_record_that_a_later_release_wrote_is_not_guessed_at() -> None:
    shard = Consumers().shard
    key = encode_key(Key(RecordKind.GROUP, G))
    with pytest.raises(RecordFormatError, match="later release"):
        shard.replay(ReplayedRecord(0, 0, key, b"\x00\x01" + encode_value(RecordKind.GROUP, 1)[2:]))
    writer = FieldWriter()
    writer.int16(9)  # a kind that does not exist here: skipped
    writer.string(G)
    shard.replay(ReplayedRecord(0, 0, writer.finish(), b"\x00\x00"))
    assert isinstance(shard, GroupShard)
    assert not shard.groups.consumers.groups
    state = encode_value(RecordKind.CURRENT, CurrentAssignment(3, 2, MemberState.STABLE, owned(0), owned(1)))
    with pytest.raises(RecordFormatError, match="member state"):
        shard.replay(
            ReplayedRecord(
                0, 0, encode_key(Key(RecordKind.CURRENT, G, "m")), state[:10] + b"\x07" + state[11:]
            )
        )
