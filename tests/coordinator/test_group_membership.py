"""The classic group protocol: every (state, request) pair, and the ways through a rebalance (KIP-345,
KIP-394, KIP-814)."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest
from tidegate.coordinator.batches import BATCH_BYTES_MAX, BATCH_HEADER_BYTES, in_batches
from tidegate.coordinator.group import groups as shard_groups
from tidegate.coordinator.group.classic.events import (
    Acknowledged,
    ClassicGroupConfig,
    Heartbeat,
    JoinGroup,
    JoinReply,
    LeaveGroup,
    LeavingMember,
    SyncGroup,
    SyncReply,
)
from tidegate.coordinator.group.classic.membership import ClassicGroup
from tidegate.coordinator.group.classic.records import (
    OffsetKey,
    decode_key,
    encode_group_key,
    encode_offset_key,
)
from tidegate.coordinator.group.classic.state import RULES, VALID_PREVIOUS, GroupRequest, GroupState
from tidegate.coordinator.group.events import (
    DeleteGroup,
    DeleteOffsets,
    DescribeGroup,
    ExpireOffsets,
    GroupConfig,
    ListGroups,
    OffsetCommit,
    OffsetFetch,
    OffsetToCommit,
    TxnOffsetCommit,
)
from tidegate.coordinator.group.shard import GroupShard
from tidegate.coordinator.outcome import CoordinatorRecord
from tidegate.wire.errors import ErrorCode, KafkaError
from tidegate.wire.records import decode_batch, iterate_headers

from .coordinator_doubles import Driver, LimitedLog, MemoryLog, code_of
from .replayed_state import check_load, checked

G = "readers"
SERVER_ERROR = ErrorCode.UNKNOWN_SERVER_ERROR
R, S = GroupRequest, GroupState
ONE = (OffsetToCommit("flights", 0, 5),)
SUBSCRIPTION = b"\0\1" + b"\0\0\0\1" + b"\0\7flights" + b"\xff\xff\xff\xff"
SESSION_MS, REBALANCE_MS = 10_000, 60_000


class Groups(Driver):
    """One group shard behind a runtime."""

    def __init__(self, *, log: MemoryLog | None = None, now_ms: int = 1_000_000, **config: Any) -> None:
        settings = GroupConfig(classic=ClassicGroupConfig(**({"initial_rebalance_delay_ms": 0} | config)))
        self.batch_bytes_max = BATCH_BYTES_MAX
        super().__init__(
            lambda partition, epoch: checked(
                GroupShard(settings, batch_bytes_max=lambda: self.batch_bytes_max), self.violations
            ),
            log=log,
            now_ms=now_ms,
        )
        self.numbers = count(1)

    def join(self, label: str, member_id: str = "", instance: str | None = None, **changes: Any) -> Any:
        fields: dict[str, Any] = {
            "group_id": G,
            "member_id": member_id,
            "group_instance_id": instance,
            "client_id": "client",
            "client_host": "/127.0.0.1",
            "session_timeout_ms": SESSION_MS,
            "rebalance_timeout_ms": REBALANCE_MS,
            "protocol_type": "consumer",
            "protocols": (("range", SUBSCRIPTION),),
            "new_member_id": "" if member_id else f"m{next(self.numbers)}",
            "require_known_member_id": False,
        }
        self.submit(label, JoinGroup(**(fields | changes)))
        self.commit()
        return self.replies.get(label)

    def sync(
        self, label: str, member_id: str, generation: int, instance: str | None = None, **assignments: bytes
    ) -> Any:
        self.submit(
            label,
            SyncGroup(G, generation, member_id, instance, "consumer", "range", tuple(assignments.items())),
        )
        self.commit()
        return self.replies.get(label)

    def beat(self, member_id: str, generation: int, instance: str | None = None) -> ErrorCode:
        return code_of(self.ask(Heartbeat(G, generation, member_id, instance)))

    @property
    def group(self) -> ClassicGroup:
        return self.shard.groups.classic[G]

    @property
    def shard(self) -> GroupShard:
        (_, _, shard), *_ = self.runtime.shards()
        assert isinstance(shard, GroupShard)
        return shard

    @property
    def state(self) -> GroupState:
        return self.shard.state_of(G)

    def stable(self, members: int = 1) -> int:
        """Brings m1..mN into a stable generation, m1 leading; returns the generation."""
        for number in range(1, members + 1):
            self.join(f"j{number}")
            for other in range(1, number):
                self.join(f"j{other}", f"m{other}")
        generation: int = self.replies["j1"].generation
        self.sync(
            "s1",
            "m1",
            generation,
            **{f"m{number}": b"a%d" % number for number in range(1, members + 1)},  # type: ignore[arg-type]
        )
        for number in range(2, members + 1):
            self.sync(f"s{number}", f"m{number}", generation)
        assert self.state is S.STABLE
        return generation


@pytest.fixture
def groups() -> Groups:
    made = Groups()
    made.load()
    return made


# --- the table ----------------------------------------------------------------------------------------------

# What a caller sees, written independently of the table.  "waits": no answer yet.  Columns in the order of
# the states.
COLUMNS = (S.EMPTY, S.PREPARING_REBALANCE, S.COMPLETING_REBALANCE, S.STABLE, S.DEAD)
UNKNOWN, BUSY, OK = "UNKNOWN_MEMBER_ID", "REBALANCE_IN_PROGRESS", "NONE"
EXPECTED = {
    R.JOIN_NEW: (OK, "waits", "waits", "waits", OK),
    # the member asking is the leader, and the last that was missing
    R.JOIN_KNOWN: (UNKNOWN, OK, OK, "waits", UNKNOWN),
    R.SYNC: (UNKNOWN, BUSY, OK, OK, UNKNOWN),
    R.HEARTBEAT: (UNKNOWN, BUSY, OK, OK, UNKNOWN),
    R.LEAVE: (UNKNOWN, OK, OK, OK, UNKNOWN),
    R.COMMIT_MEMBER: (UNKNOWN, OK, BUSY, OK, "ILLEGAL_GENERATION"),
    R.COMMIT_SIMPLE: (OK, UNKNOWN, UNKNOWN, UNKNOWN, OK),
    R.COMMIT_TRANSACTION: (OK, OK, OK, OK, OK),
    R.FETCH_OFFSETS: ("5 of flights, 5 of other",) * 4 + ("-1 of flights, -1 of other",),
    R.DELETE_OFFSETS: ("deletes flights, other",) + ("deletes other",) * 3 + ("GROUP_ID_NOT_FOUND",),
    R.DESCRIBE: (
        "Empty, 0 members",
        "PreparingRebalance, 2 members",
        "CompletingRebalance, 2 members",
        "Stable, 2 members",
        "Dead, 0 members",
    ),
    R.EXPIRE_OFFSETS: ("deletes flights, group, other", "nothing", "nothing", "deletes other", "nothing"),
    R.DELETE_GROUP: (OK, "NON_EMPTY_GROUP", "NON_EMPTY_GROUP", "NON_EMPTY_GROUP", "GROUP_ID_NOT_FOUND"),
}


def bring_to(groups: Groups, state: GroupState, *, has_offsets: bool = False) -> int:
    """Two members m1 (leader) and m2 at most; returns the generation."""
    if state is S.DEAD:
        return 1
    if has_offsets:
        groups.ask(OffsetCommit(G, tuple(OffsetToCommit(topic, partition, 5) for topic, partition in PLACES)))
    if state is S.EMPTY:
        generation = groups.stable()
        groups.ask(LeaveGroup(G, (LeavingMember("m1"),)))
        return generation + 1
    generation = groups.stable(2)
    if state is S.STABLE:
        return generation
    groups.join("again", "m2", protocols=(("range", SUBSCRIPTION + b"other"),))
    if state is S.COMPLETING_REBALANCE:
        groups.join("again1", "m1")
        return generation + 1
    return generation


def run(groups: Groups, request: GroupRequest, generation: int) -> str:
    match request:
        case R.JOIN_NEW:
            groups.join("x")
        case R.JOIN_KNOWN:
            groups.join("x", "m1")
        case R.SYNC:
            groups.sync("x", "m1", generation, m1=b"a1")
        case R.HEARTBEAT:
            groups.submit("x", Heartbeat(G, generation, "m1"))
        case R.LEAVE:
            groups.submit("x", LeaveGroup(G, (LeavingMember("m1"),)))
        case R.COMMIT_MEMBER:
            groups.submit("x", OffsetCommit(G, ONE, generation, "m1"))
        case R.COMMIT_SIMPLE:
            groups.submit("x", OffsetCommit(G, ONE))
        case R.COMMIT_TRANSACTION:
            groups.submit("x", TxnOffsetCommit(G, 7, 0, ONE))
        case R.DELETE_GROUP:
            groups.submit("x", DeleteGroup(G))
        case R.FETCH_OFFSETS | R.DELETE_OFFSETS | R.DESCRIBE | R.EXPIRE_OFFSETS:
            return run_on_offsets(groups, request)
    groups.commit()
    reply = groups.replies.get("x", "waits")
    if hasattr(reply, "results"):
        return str(reply.results[0][1].name)
    if hasattr(reply, "errors"):
        return str(next(iter(reply.errors.values())).name)
    return reply if isinstance(reply, str) else code_of(reply).name


PLACES = (("flights", 0), ("other", 0))
ON_OFFSETS = {R.FETCH_OFFSETS, R.DELETE_OFFSETS, R.DESCRIBE, R.EXPIRE_OFFSETS}


def run_on_offsets(groups: Groups, request: GroupRequest) -> str:
    """The group has an offset of `flights`, which its members read, and one of `other`, both long past their
    time."""
    match request:
        case R.FETCH_OFFSETS:
            found = groups.ask(OffsetFetch(G, PLACES)).offsets
            return ", ".join(f"{found[place].offset} of {place[0]}" for place in PLACES)
        case R.DESCRIBE:
            described = groups.ask(DescribeGroup(G))
            return f"{described.state.value}, {len(described.members)} members"
        case _:
            event: Any = DeleteOffsets(G, PLACES) if request is R.DELETE_OFFSETS else ExpireOffsets((G,))
    groups.now_ms += 8 * 24 * 3600 * 1000
    before = len(groups.log.data.get(0, b""))
    reply = groups.ask(event)
    if isinstance(reply, KafkaError):
        return reply.code.name
    written = bytes(groups.log.data.get(0, b"")[before:])
    removed = (
        decode_key(bytes(record.key or b""))
        for position, _ in iterate_headers(written)
        for record in decode_batch(written, position)
        if record.value is None
    )
    gone = sorted(key.topic if isinstance(key, OffsetKey) else "group" for key in removed)
    return f"deletes {', '.join(gone)}" if gone else "nothing"


@pytest.mark.parametrize(("state", "request_"), RULES, ids=lambda value: value.name)
def test_every_pair_has_its_outcome(groups: Groups, state: GroupState, request_: GroupRequest) -> None:
    generation = bring_to(groups, state, has_offsets=request_ in ON_OFFSETS)
    assert groups.state is state
    assert run(groups, request_, generation) == EXPECTED[request_][COLUMNS.index(state)]
    check_load(groups.shard, groups.loaded())


def test_the_expectations_cover_the_whole_table() -> None:
    assert {(state, request) for request in EXPECTED for state in COLUMNS} == set(RULES)
    assert set(RULES) == {(state, request) for state in S for request in R}


def test_no_state_is_entered_from_where_it_may_not() -> None:
    for target in S:
        for previous in S:
            group = ClassicGroup(G, previous)
            if previous in VALID_PREVIOUS[target]:
                group.enter(target)
            else:
                with pytest.raises(AssertionError, match="may not follow"):
                    group.enter(target)


# --- joining ------------------------------------------------------------------------------------------------


def test_a_group_of_two_rebalances_and_each_member_gets_its_assignment(groups: Groups) -> None:
    first = groups.join("a")
    assert first == JoinReply("m1", 1, "consumer", "range", "m1", first.members)
    assert [m.member_id for m in first.members] == ["m1"]
    assert groups.join("b") is None, "m1 must join again first"
    assert groups.beat("m1", 1) is ErrorCode.REBALANCE_IN_PROGRESS
    leader = groups.join("a2", "m1")
    assert [m.member_id for m in leader.members] == ["m1", "m2"]
    assert groups.replies["b"].members == ()
    assert groups.replies["b"].generation == leader.generation == 2
    assert groups.sync("s2", "m2", 2) is None, "the leader has not assigned yet"
    assert groups.sync("s1", "m1", 2, m1=b"p0", m2=b"p1") == SyncReply("consumer", "range", b"p0")
    assert groups.replies["s2"] == SyncReply("consumer", "range", b"p1")
    assert groups.beat("m1", 2) is ErrorCode.NONE
    assert groups.sync("s2", "m2", 2).assignment == b"p1"


def test_no_member_gets_an_uncommitted_assignment(groups: Groups) -> None:
    groups.join("a")
    groups.submit("s", SyncGroup(G, 1, "m1", None, "consumer", "range", (("m1", b"p0"),)))
    assert "s" not in groups.replies
    groups.commit()
    assert groups.replies["s"].assignment == b"p0"


def test_a_refused_assignment_leaves_the_group_as_it_was(groups: Groups) -> None:
    groups.join("a")
    groups.log.refuse = KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS, "no")
    assert code_of(groups.sync("s", "m1", 1, m1=b"p0")) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert groups.state is S.COMPLETING_REBALANCE
    groups.log.refuse = None
    assert groups.sync("s", "m1", 1, m1=b"p0").assignment == b"p0"


def test_a_new_client_gets_its_member_id_before_it_joins(groups: Groups) -> None:
    """KIP-394."""
    reply = groups.join("a", require_known_member_id=True)
    assert reply == JoinReply("m1", error=ErrorCode.MEMBER_ID_REQUIRED)
    assert groups.group.members == {}
    assert groups.join("a", "m1", require_known_member_id=True).generation == 1
    assert code_of(groups.join("b", "nobody")) is ErrorCode.UNKNOWN_MEMBER_ID


def test_an_unused_member_id_expires(groups: Groups) -> None:
    groups.join("a", require_known_member_id=True)
    groups.tick(SESSION_MS)
    groups.commit()
    assert groups.state is S.DEAD
    assert groups.shard.groups.classic == {}


def test_the_first_rebalance_waits_for_more_members_but_not_for_ever() -> None:
    groups = Groups(initial_rebalance_delay_ms=3_000)
    groups.load()
    assert groups.join("a", rebalance_timeout_ms=7_000) is None
    groups.tick(2_000)
    groups.join("b", rebalance_timeout_ms=7_000)
    groups.tick(1_000)
    groups.commit()
    assert groups.replies == {}, "a member came in the window: it is extended"
    groups.tick(3_000)
    groups.commit()
    assert {label: reply.generation for label, reply in groups.replies.items()} == {"a": 1, "b": 1}


def test_the_protocol_is_the_shared_one_that_most_members_prefer(groups: Groups) -> None:
    groups.join("a", protocols=(("range", b""), ("sticky", b"")))
    groups.join("b", protocols=(("sticky", b""), ("range", b"")))
    groups.join("c", protocols=(("sticky", b""), ("range", b""), ("other", b"")))
    groups.join("a", "m1", protocols=(("range", b""), ("sticky", b"")))
    groups.join("b", "m2", protocols=(("sticky", b""), ("range", b"")))
    groups.commit()
    assert groups.replies["c"].protocol_name == "sticky"
    for protocols, kind in (
        ((("other", b""),), "consumer"),
        ((("range", b""),), "connect"),
        ((), "consumer"),
    ):
        refused = groups.join("d", protocols=protocols, protocol_type=kind)
        assert code_of(refused) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


@pytest.mark.parametrize("session_timeout_ms", [5_999, 1_800_001])
def test_a_session_timeout_out_of_bounds_is_refused(groups: Groups, session_timeout_ms: int) -> None:
    assert (
        code_of(groups.join("a", session_timeout_ms=session_timeout_ms)) is ErrorCode.INVALID_SESSION_TIMEOUT
    )


def test_a_full_group_rejects_further_members() -> None:
    groups = Groups(max_size=1)
    groups.load()
    groups.join("a")
    assert code_of(groups.join("b")) is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert groups.join("a", "m1").generation == 1


def test_an_empty_group_id_is_refused(groups: Groups) -> None:
    assert code_of(groups.join("a", group_id="")) is ErrorCode.INVALID_GROUP_ID


def test_a_lost_join_answer_is_given_again(groups: Groups) -> None:
    groups.join("a")
    assert [m.member_id for m in groups.join("a", "m1").members] == ["m1"]
    assert groups.group.generation == 1


def test_an_unchanged_follower_that_rejoins_starts_no_rebalance(groups: Groups) -> None:
    generation = groups.stable(2)
    assert groups.join("x", "m2").generation == generation
    assert groups.state is S.STABLE
    assert groups.join("x", "m1") is None, "the leader's wish to assign anew counts"
    assert groups.state is S.PREPARING_REBALANCE, "the leader's wish to assign anew counts"


@pytest.mark.parametrize("generation", [0, 2, 99])
def test_another_generation_is_refused(groups: Groups, generation: int) -> None:
    groups.stable()
    assert groups.beat("m1", generation) is ErrorCode.ILLEGAL_GENERATION
    assert code_of(groups.sync("s", "m1", generation)) is ErrorCode.ILLEGAL_GENERATION
    assert code_of(groups.ask(OffsetCommit(G, ONE, generation, "m1"))) is ErrorCode.ILLEGAL_GENERATION


def test_a_sync_that_names_another_protocol_is_refused(groups: Groups) -> None:
    groups.stable()
    assert (
        code_of(groups.ask(SyncGroup(G, 1, "m1", None, "consumer", "sticky")))
        is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    )


# --- leaving and timing out ---------------------------------------------------------------------------------


def test_members_leave_together_each_with_its_result(groups: Groups) -> None:
    groups.stable(3)
    reply = groups.ask(LeaveGroup(G, (LeavingMember("m2"), LeavingMember("nobody"), LeavingMember("m3"))))
    assert [code for _, code in reply.results] == [
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.NONE,
    ]
    assert groups.join("a", "m1").generation == 4


def test_the_last_member_leaves_an_empty_group_behind_that_the_log_knows(groups: Groups) -> None:
    groups.stable()
    groups.ask(LeaveGroup(G, (LeavingMember("m1"),)))
    assert groups.state is S.EMPTY
    after = Groups(log=groups.log)
    after.load(epoch=2)
    assert after.state is S.EMPTY
    assert after.group.generation == 2
    assert after.join("a").generation == 3


def test_a_silent_member_is_removed_and_the_others_rebalance(groups: Groups) -> None:
    generation = groups.stable(2)
    groups.tick(SESSION_MS - 1)
    assert groups.beat("m1", generation) is ErrorCode.NONE
    groups.tick(1)
    assert groups.beat("m1", generation) is ErrorCode.REBALANCE_IN_PROGRESS
    assert list(groups.group.members) == ["m1"]
    assert groups.join("a", "m1").generation == generation + 1


def test_a_member_that_does_not_rejoin_is_removed_at_the_rebalance_timeout(groups: Groups) -> None:
    generation = groups.stable(2)
    groups.join("c")
    groups.join("a", "m1")
    for _ in range(REBALANCE_MS // 5_000):
        assert groups.beat("m2", generation) in (ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.UNKNOWN_MEMBER_ID)
        groups.tick(5_000)
    groups.commit()
    assert list(groups.group.members) == ["m1", "m3"]
    assert groups.replies["a"].generation == generation + 1


def test_a_member_that_waits_is_alive(groups: Groups) -> None:
    generation = groups.stable(2)
    groups.join("c")
    groups.join("a", "m1")
    for _ in range(3):
        groups.tick(SESSION_MS - 1)
        assert groups.beat("m2", generation) is ErrorCode.REBALANCE_IN_PROGRESS
    assert set(groups.group.members) == {"m1", "m2", "m3"}


def test_a_member_that_never_syncs_is_removed(groups: Groups) -> None:
    groups.stable(2)
    groups.join("b", "m2", protocols=(("range", b"new"),))
    leader = groups.join("a", "m1")
    groups.sync("s1", "m1", leader.generation, m1=b"x", m2=b"y")
    for _ in range(REBALANCE_MS // 5_000):
        groups.beat("m1", leader.generation)
        groups.beat("m2", leader.generation)
        groups.tick(5_000)
    assert list(groups.group.members) == ["m1"]
    assert groups.state is S.PREPARING_REBALANCE


# --- static membership --------------------------------------------------------------------------------------


def static_pair(groups: Groups) -> int:
    groups.join("a", instance="one")
    groups.join("b", instance="two")
    generation: int = groups.join("a", "m1", instance="one").generation
    groups.sync("s1", "m1", generation, "one", m1=b"a1", m2=b"a2")
    groups.sync("s2", "m2", generation, "two")
    return generation


def test_a_static_member_keeps_its_assignment_over_a_restart(groups: Groups) -> None:
    generation = static_pair(groups)
    back = groups.join("b", instance="two")
    assert (back.member_id, back.generation, back.leader) == (
        "m3",
        generation,
        "m1",
    )
    assert groups.state is S.STABLE
    assert groups.sync("s", "m3", generation, "two").assignment == b"a2"
    assert groups.beat("m2", generation, "two") is ErrorCode.FENCED_INSTANCE_ID
    assert groups.beat("m2", generation) is ErrorCode.UNKNOWN_MEMBER_ID
    after = Groups(log=groups.log)
    after.load(epoch=2)
    assert after.beat("m3", generation, "two") is ErrorCode.NONE, "the new id is in the log"


@pytest.mark.parametrize("supports", [False, True])
def test_a_static_leader_that_restarts_does_not_assign_anew(groups: Groups, supports: bool) -> None:
    generation = static_pair(groups)
    back = groups.join("a", instance="one", supports_skipping_assignment=supports)
    assert back.generation == generation
    assert back.skip_assignment is supports
    assert (back.leader == back.member_id) is supports
    assert bool(back.members) is supports
    assert groups.sync("s", back.member_id, generation, "one").assignment == b"a1"


def test_a_static_member_that_changes_the_protocol_rebalances(groups: Groups) -> None:
    static_pair(groups)
    assert groups.join("b", instance="two", protocols=(("other", b""), ("range", b""))) is not None
    assert groups.join("a", "m1", instance="one", protocols=(("other", b""), ("range", b""))) is None
    assert groups.state is S.PREPARING_REBALANCE


def test_a_second_incarnation_fences_the_first_while_it_waits(groups: Groups) -> None:
    groups.stable()
    groups.join("old", instance="one")
    groups.join("new", instance="one")
    assert code_of(groups.replies["old"]) is ErrorCode.FENCED_INSTANCE_ID
    assert "new" not in groups.replies


def test_a_static_member_may_miss_a_rebalance_within_its_session(groups: Groups) -> None:
    static_pair(groups)
    groups.join("c", session_timeout_ms=100_000)
    groups.join("a", "m1", instance="one", session_timeout_ms=100_000)
    groups.tick(SESSION_MS)
    groups.commit()
    assert set(groups.group.members) == {"m1", "m3"}
    assert groups.state is S.COMPLETING_REBALANCE


def test_a_static_member_leaves_by_its_instance_alone(groups: Groups) -> None:
    static_pair(groups)
    reply = groups.ask(
        LeaveGroup(G, (LeavingMember("", "two"), LeavingMember("", "three"), LeavingMember("m9", "one")))
    )
    assert [c for _, c in reply.results] == [
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.FENCED_INSTANCE_ID,
    ]


# --- failover -----------------------------------------------------------------------------------------------


def test_a_new_coordinator_knows_the_generation_and_renews_the_sessions(groups: Groups) -> None:
    generation = groups.stable(2)
    after = Groups(log=groups.log)
    after.now_ms = groups.now_ms + 10 * SESSION_MS
    after.runtime.tick()
    after.load(epoch=2)
    after.tick(SESSION_MS - 1)
    assert after.beat("m1", generation) is ErrorCode.NONE
    assert after.sync("s", "m2", generation).assignment == b"a2"
    after.tick(SESSION_MS - 1)
    after.tick(1)
    after.commit()
    assert after.state in (S.PREPARING_REBALANCE, S.EMPTY), "but a session is bounded"


def test_an_absence_of_the_coordinator_restarts_sessions(groups: Groups) -> None:
    """The quorum was away for longer than a session, and the same node goes on."""
    generation = groups.stable(2)
    groups.away(10 * SESSION_MS)
    groups.tick(SESSION_MS - 1)
    assert groups.state is S.STABLE
    assert groups.beat("m1", generation) is ErrorCode.NONE
    groups.tick(1)
    groups.commit()
    assert set(groups.group.members) == {"m1"}, "but a session is bounded"


def test_an_absence_of_the_coordinator_extends_the_rebalance_deadline(groups: Groups) -> None:
    generation = groups.stable(2)
    assert groups.join("again", "m1") is None

    def spend(milliseconds: int) -> None:
        """The other member lives, and does not join."""
        for _ in range(milliseconds // 5_000):
            groups.tick(5_000)
            assert groups.beat("m2", generation) is ErrorCode.REBALANCE_IN_PROGRESS

    spend(REBALANCE_MS // 2)
    groups.away(2 * REBALANCE_MS)
    assert code_of(groups.replies["again"]) is ErrorCode.NOT_COORDINATOR
    assert groups.join("once more", "m1") is None
    spend(REBALANCE_MS // 2 - 5_000)
    groups.tick(4_999)
    assert groups.state is S.PREPARING_REBALANCE
    groups.tick(1)
    groups.commit()
    assert set(groups.group.members) == {"m1"}
    assert groups.replies["once more"].generation == generation + 1


def test_waiting_members_hear_that_the_coordinator_moved(groups: Groups) -> None:
    groups.stable()
    assert groups.join("b") is None
    groups.runtime.unload(0, 2)
    assert code_of(groups.replies["b"]) is ErrorCode.NOT_COORDINATOR


def test_groups_are_listed_and_described(groups: Groups) -> None:
    groups.stable()
    (line,) = groups.ask(ListGroups()).groups
    assert (line.group_id, line.protocol_type, line.state) == (G, "consumer", S.STABLE)
    assert groups.ask(ListGroups(frozenset({"empty"}))).groups == ()
    described = groups.ask(DescribeGroup(G))
    assert described.members[0].assignment == b"a1"
    assert described.protocol_name == "range"
    assert groups.ask(DescribeGroup("nobody")).state is S.DEAD


def test_a_rebalancing_group_shows_the_assignments_of_its_members(groups: Groups) -> None:
    """As in Kafka: a member goes on with its last assignment until it has the next one; the protocol is not
    settled."""
    generation = groups.stable()
    groups.join("newcomer")
    assert groups.state is S.PREPARING_REBALANCE
    shown = [(m.member_id, m.assignment, m.metadata) for m in groups.ask(DescribeGroup(G)).members]
    assert shown == [("m1", b"a1", b""), ("m2", b"", b"")]
    groups.join("again", "m1")
    assert groups.state is S.COMPLETING_REBALANCE
    assert groups.group.generation == generation + 1
    assert [m.assignment for m in groups.ask(DescribeGroup(G)).members] == [b"a1", b""]


def test_a_deleted_group_is_gone_for_good(groups: Groups) -> None:
    bring_to(groups, S.EMPTY)
    assert groups.ask(DeleteGroup(G)) == Acknowledged()
    assert groups.state is S.DEAD
    after = Groups(log=groups.log)
    after.load(epoch=2)
    assert after.state is S.DEAD


def test_a_generation_too_large_for_the_log_is_a_server_error_for_all() -> None:
    groups = Groups(log=LimitedLog())
    groups.load()
    groups.stable(2)
    groups.join("j1", "m1")
    generation = groups.join("j2", "m2").generation
    assert groups.sync("s2", "m2", generation) is None
    assert code_of(groups.sync("s1", "m1", generation, m1=bytes(600_000), m2=bytes(600_000))) is SERVER_ERROR
    assert code_of(groups.replies["s2"]) is SERVER_ERROR
    assert groups.sync("s2", "m2", generation) is None
    assert groups.sync("s1", "m1", generation, m1=b"1", m2=b"2").assignment == b"1"
    assert groups.replies["s2"].assignment == b"2"
    assert groups.failures == []


# --- what the log takes at once -----------------------------------------------------------------------------


def test_an_election_with_many_groups_writes_batches_that_the_log_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The topic's max.message.bytes may be small; what one group needs stays together."""
    before = Groups()
    before.load()
    names = [f"group-{number:02}" for number in range(20)]
    for name in names:
        member = before.join(name, group_id=name).member_id
        before.submit(name, SyncGroup(name, 1, member, None, "consumer", "range", ((member, b"share"),)))
        before.commit()

    def two_records(of: object, group: ClassicGroup, now_ms: int) -> list[CoordinatorRecord]:
        offset = encode_offset_key(group.group_id, "t" * 100, 0)
        return [CoordinatorRecord(encode_group_key(group.group_id), None), CoordinatorRecord(offset, None)]

    monkeypatch.setattr(shard_groups.Groups, "_begin_sessions", two_records)
    begin = len(before.log.data[0])
    after = Groups(log=before.log)
    after.batch_bytes_max = 1000
    after.load(epoch=before.log.epochs[0] + 1)
    batches = [header for _, header in iterate_headers(bytes(before.log.data[0][begin:]))]
    assert len(batches) > 3
    assert sum(each.record_count for each in batches) == 2 * len(names)
    assert all(
        each.record_count % 2 == 0 and each.size_bytes <= 1000 + BATCH_HEADER_BYTES for each in batches
    )
    assert not after.shard.groups.classic
    assert after.failures == []


def test_records_are_packed_into_batches_without_tearing_a_unit() -> None:
    def unit(*sizes: int) -> list[CoordinatorRecord]:
        return [CoordinatorRecord(b"k" * (size - 24), b"") for size in sizes]

    packed = in_batches([unit(50), unit(), unit(30, 30), unit(100), unit(60, 60), unit(40)], 100)
    assert [[len(record.key) + 24 for record in batch] for batch in packed] == [
        [50],
        [30, 30],
        [100],
        [60, 60],
        [40],
    ]
    assert in_batches([], 100) == in_batches([unit()], 100) == []
