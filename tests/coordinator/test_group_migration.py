"""A group that moves between the protocols while it has members (KIP-848's online migration).

The codes, generations and assignments are those that Kafka 4.1.1 gave to the same requests, unless a test
says otherwise.
"""

from __future__ import annotations

import random
import struct
from typing import Any

import pytest
from tidegate.controller.state.model import RESOURCES_LEVEL
from tidegate.coordinator.batches import BATCH_BYTES_MAX
from tidegate.coordinator.fields import FieldWriter
from tidegate.coordinator.group import migration
from tidegate.coordinator.group.classic.consumer_protocol import (
    read_assignment,
    read_subscription,
    write_assignment,
)
from tidegate.coordinator.group.classic.events import (
    ClassicGroupConfig,
    Heartbeat,
    JoinGroup,
    LeaveGroup,
    LeavingMember,
    SyncGroup,
    SyncReply,
)
from tidegate.coordinator.group.consumer.records import (
    ClassicMember,
    MemberMetadata,
    RecordKind,
    decode_value,
    encode_value,
)
from tidegate.coordinator.group.events import (
    DescribeGroup,
    GroupConfig,
    ListGroups,
    OffsetCommit,
    OffsetFetch,
    OffsetToCommit,
)
from tidegate.coordinator.group.levels import NEWEST_LEVEL
from tidegate.coordinator.group.policy import MigrationPolicy
from tidegate.coordinator.group.shard import GroupShard
from tidegate.coordinator.silence import Silences
from tidegate.wire.errors import ErrorCode, KafkaError

from .consumer_group_driver import SESSION_MS, Consumers, G, numbers, owned
from .coordinator_doubles import Catalog, LimitedLog, MemoryLog, code_of

ONE = (OffsetToCommit("flights", 0, 5),)
CLASSIC_SESSION_MS, REBALANCE_MS = 30_000, 60_000
NONE, REBALANCE = ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS
UNKNOWN, GENERATION = ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION


def subscription(*topics: str, owns: tuple[int, ...] = (), user_data: bytes | None = None) -> bytes:
    """ConsumerProtocolSubscription 1; what it owns is of the topic "flights"."""
    writer = FieldWriter()
    writer.int16(1)
    writer.array(len(topics))
    for topic in topics:
        writer.string(topic)
    writer.parts += (
        struct.pack(">i", -1) if user_data is None else struct.pack(">i", len(user_data)) + user_data
    )
    writer.array(1 if owns else 0)
    if owns:
        writer.string("flights")
        writer.int32s(owns)
    return writer.finish()


def share(*partitions: int) -> bytes:
    return write_assignment([("flights", number) for number in partitions], 1)


class Mixed(Consumers):
    """Asks as members of both protocols do."""

    batch_bytes_max = BATCH_BYTES_MAX

    def __init__(
        self,
        *,
        policy: str = "bidirectional",
        level: int = NEWEST_LEVEL,
        log: MemoryLog | None = None,
        **kept: Any,
    ) -> None:
        self.policy, self.level, self.labels = policy, level, 0
        super().__init__(kept.pop("catalog", None), log=log, **kept)

    def make_shard(self, settings: GroupConfig) -> GroupShard:
        settings = GroupConfig(
            classic=ClassicGroupConfig(initial_rebalance_delay_ms=0),
            consumer=settings.consumer,
            migration_policy=MigrationPolicy(self.policy),
        )
        return GroupShard(
            settings, self.catalog, lambda: self.level, batch_bytes_max=lambda: self.batch_bytes_max
        )

    def classic(self, member_id: str = "m", owns: tuple[int, ...] = (), **fields: Any) -> Any:
        """JoinGroup; an answer, or the label under which it will be."""
        answer: dict[str, Any] = {
            "group_id": G, "member_id": member_id, "group_instance_id": None, "client_id": "c",
            "client_host": "/h",
            "session_timeout_ms": CLASSIC_SESSION_MS, "rebalance_timeout_ms": REBALANCE_MS,
            "protocol_type": "consumer",
            "protocols": (("range", subscription("flights", owns=owns)),), "new_member_id": "new",
            "require_known_member_id": False,
        }  # fmt: skip
        self.labels += 1
        self.submit(self.labels, JoinGroup(**(answer | fields)))
        self.commit()
        return self.replies.get(self.labels, self.labels)

    def sync(self, member_id: str, generation: int, instance: str | None = None, **shares: bytes) -> Any:
        """SyncGroup; an answer, or the label under which it will be."""
        self.labels += 1
        self.submit(
            self.labels,
            SyncGroup(G, generation, member_id, instance, "consumer", "range", tuple(shares.items())),
        )
        self.commit()
        return self.replies.get(self.labels, self.labels)

    def live(self, member_id: str, generation: int, instance: str | None = None) -> ErrorCode:
        return code_of(self.ask(Heartbeat(G, generation, member_id, instance)))

    def leave(self, *members: str) -> list[ErrorCode]:
        reply = self.ask(LeaveGroup(G, tuple(LeavingMember(name) for name in members)))
        return [code for _, code in reply.results]

    def stable_classic(self, **fields: Any) -> None:
        """A group of "m", which has all four partitions in generation 1."""
        joined = self.classic("", new_member_id="m", **fields)
        assert (joined.member_id, joined.generation) == ("m", 1)
        assert code_of(self.sync("m", 1, fields.get("group_instance_id"), m=share(0, 1, 2, 3))) is NONE

    def again(self) -> Mixed:
        """The next coordinator on the same log."""
        return Mixed(policy=self.policy, log=self.log, catalog=self.catalog, now_ms=self.now_ms)

    def kind(self) -> str:
        (listing,) = self.ask(ListGroups()).groups
        return f"{listing.type.value} {listing.state.value}"


def parts(reply: Any) -> list[int]:
    return sorted(number for _, number in read_assignment(reply.assignment).partitions)


@pytest.fixture
def groups() -> Mixed:
    return Mixed()


def upgraded(groups: Mixed) -> None:
    """ "m" is a classic member with everything, "c" has joined by the consumer protocol."""
    groups.stable_classic()
    joined = groups.join("c")
    assert (joined.member_epoch, numbers(joined.assignment)) == (2, [])


def settled(groups: Mixed) -> None:
    """Each of them has two partitions, at epoch 2."""
    upgraded(groups)
    assert groups.classic(owns=(0, 1, 2, 3)).generation == 1
    assert groups.classic(owns=(0, 1)).generation == 2
    assert parts(groups.sync("m", 2)) == [0, 1]
    assert numbers(groups.beat("c", 2, owned=frozenset()).assignment) == [2, 3]


# --- up -----------------------------------------------------------------------------------------------------


def test_a_consumer_member_upgrades_a_classic_group_without_double_reads(groups: Mixed) -> None:
    upgraded(groups)
    assert groups.kind() == "consumer Reconciling"
    assert G not in groups.shard.groups.classic
    assert groups.assigned("m") == [0, 1, 2, 3]
    assert groups.group.current["m"].epoch == 1
    assert groups.live("m", 1) is REBALANCE
    assert code_of(groups.sync("m", 1)) is REBALANCE, "it has not joined again"
    answer = groups.classic(owns=(0, 1, 2, 3))
    assert (answer.generation, answer.protocol_type, answer.protocol_name, answer.leader) == (
        1,
        "consumer",
        "range",
        "",
    )
    assert parts(groups.sync("m", 1)) == [0, 1], "what it must give up is left out"
    assert numbers(groups.beat("c", 2).assignment) is None, "not before it is given up"
    assert groups.live("m", 1) is REBALANCE
    assert groups.classic(owns=(0, 1)).generation == 2
    assert parts(groups.sync("m", 2)) == [0, 1]
    assert groups.live("m", 2) is NONE
    assert groups.classic(owns=(0, 1)).generation == 2, "a join that changes nothing"
    assert numbers(groups.beat("c", 2).assignment) == [2, 3]
    assert groups.kind() == "consumer Stable"
    described = {each.member_id: each.is_classic for each in groups.describe().members}
    assert described == {"m": True, "c": False}


def test_an_eager_member_which_owns_nothing_as_it_joins_moves_in_one_round(groups: Mixed) -> None:
    upgraded(groups)
    assert groups.classic(owns=()).generation == 2
    assert parts(groups.sync("m", 2)) == [0, 1]
    assert groups.live("m", 2) is NONE
    assert groups.kind() == "consumer Reconciling"
    assert numbers(groups.beat("c", 2).assignment) == [2, 3]


def test_a_classic_member_joins_again_when_all_it_waits_for_is_free() -> None:
    """One rebalance for the whole share, as in Kafka: an eager member gives up everything for each."""
    groups = Mixed(catalog=Catalog(flights=6))
    for member_id in ("c", "d"):
        groups.join(member_id)
    groups.settle("c", "d")
    joined = groups.classic("", new_member_id="m")
    assert parts(groups.sync("m", joined.generation)) == []
    kept = {}
    for member_id in ("c", "d"):
        epoch = groups.group.current[member_id].epoch
        kept[member_id] = groups.beat(member_id, epoch, owned=groups.group.current[member_id].assigned)
    groups.beat("c", kept["c"].member_epoch, owned=kept["c"].assignment)
    assert len(groups.group.target["m"] - groups.group.holders.keys()) == 1
    assert groups.live("m", joined.generation) is NONE, "d still holds the other one"
    groups.beat("d", kept["d"].member_epoch, owned=kept["d"].assignment)
    assert groups.live("m", joined.generation) is REBALANCE
    again = groups.classic()
    assert parts(groups.sync("m", again.generation)) == numbers(groups.group.target["m"])
    assert groups.kind() == "consumer Stable"


def test_a_member_joins_again_when_the_awaited_partition_is_free(groups: Mixed) -> None:
    settled(groups)
    assert groups.beat("c", -1).member_epoch == -1
    assert groups.kind() == "classic PreparingRebalance"


def test_members_that_wait_for_a_rebalance_join_the_consumer_group(groups: Mixed) -> None:
    groups.stable_classic()
    waiting = groups.classic("", new_member_id="second")
    assert isinstance(waiting, int)
    assert groups.live("m", 1) is REBALANCE
    groups.join("c")
    assert code_of(groups.replies[waiting]) is REBALANCE
    assert groups.group.members.keys() == {"m", "second", "c"}
    assert groups.classic("second").generation == 2
    assert groups.assigned("m") == [0, 1, 2, 3]


@pytest.mark.parametrize("synced", [False, True])
def test_members_without_a_share_come_along(groups: Mixed, synced: bool) -> None:
    """In CompletingRebalance no member has one yet: the consumer gets its own at once."""
    groups.classic("", new_member_id="m")
    if synced:
        groups.sync("m", 1, m=b"")
    joined = groups.join("c")
    assert len(joined.assignment) == 2
    assert groups.group.current["m"].epoch == 1
    assert groups.live("m", 1) is REBALANCE
    assert groups.classic().generation == 2


@pytest.mark.parametrize(
    ("fields", "share_of_m", "reason"),
    [
        ({"protocol_type": "connect"}, b"", "does not use the consumer embedded protocol"),
        ({"protocols": (("range", b"junk"),)}, b"", "malformed"),
        ({}, share(0)[:-4] + struct.pack(">i", 1) + b"z", "custom assignor"),
    ],
)
def test_what_cannot_be_a_consumer_group_stays_a_classic_one(
    groups: Mixed, fields: dict[str, Any], share_of_m: bytes, reason: str
) -> None:
    joined = groups.classic("", new_member_id="m", **fields)
    protocol = fields.get("protocol_type", "consumer")
    groups.ask(SyncGroup(G, joined.generation, "m", None, protocol, "range", (("m", share_of_m),)))
    refused = groups.join("c")
    assert code_of(refused) is ErrorCode.GROUP_ID_NOT_FOUND
    assert reason in refused.message
    assert groups.kind() == "classic Stable"
    assert groups.live("m", 1) is NONE


def test_what_a_sticky_assignor_repeats_in_its_user_data_is_no_hindrance(groups: Mixed) -> None:
    """Kafka refuses it as a custom assignor's: a group of librdkafka's cooperative-sticky members could not
    move."""
    protocols = (("cooperative-sticky", subscription("flights")),)
    joined = groups.classic("", new_member_id="m", protocols=protocols)
    answer = share(0, 1, 2, 3)[:-4] + struct.pack(">i", 1) + b"z"
    groups.ask(SyncGroup(G, joined.generation, "m", None, "consumer", "cooperative-sticky", (("m", answer),)))
    assert groups.join("c").member_epoch == 2
    assert groups.assigned("m") == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("policy", "up", "down"),
    [
        ("bidirectional", True, True),
        ("upgrade", True, False),
        ("downgrade", False, True),
        ("disabled", False, False),
    ],
)
def test_the_policy_says_which_migrations_are_allowed(policy: str, up: bool, down: bool) -> None:
    groups = Mixed(policy=policy)
    groups.stable_classic()
    assert code_of(groups.join("c")) is (NONE if up else ErrorCode.GROUP_ID_NOT_FOUND)
    mixed = Mixed(policy=policy)
    mixed.join("c")
    assert code_of(mixed.classic("", new_member_id="m")) is NONE
    mixed.beat("c", -1)
    assert mixed.kind().split()[0] == ("classic" if down else "consumer")


def test_no_group_migrates_while_a_coordinator_may_be_of_an_older_version() -> None:
    groups = Mixed(level=RESOURCES_LEVEL - 1)
    groups.stable_classic()
    assert code_of(groups.join("c")) is ErrorCode.GROUP_ID_NOT_FOUND
    assert groups.live("m", 1) is NONE
    other = Mixed(level=RESOURCES_LEVEL - 1)
    other.join("c")
    assert code_of(other.classic("", new_member_id="m")) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_an_upgrade_whose_append_fails_leaves_the_classic_group(groups: Mixed) -> None:
    groups.stable_classic()
    groups.log.refuse = KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS, "no")
    assert code_of(groups.join("c")) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    groups.log.refuse = None
    assert groups.kind() == "classic Stable"
    assert groups.live("m", 1) is NONE
    upgraded_again = groups.join("c")
    assert upgraded_again.member_epoch == 2


# --- members of both protocols ------------------------------------------------------------------------------


def test_classic_members_of_a_consumer_group_get_classic_error_codes(groups: Mixed) -> None:
    settled(groups)
    assert [groups.live("m", 3), groups.live("m", 1), groups.live("x", 2), groups.live("c", 2)] == [
        GENERATION, GENERATION, UNKNOWN, UNKNOWN,
    ]  # fmt: skip
    assert code_of(groups.sync("m", 3)) is GENERATION
    assert code_of(groups.sync("x", 2)) is UNKNOWN
    wrong = groups.ask(SyncGroup(G, 2, "m", None, "consumer", "roundrobin"))
    assert code_of(wrong) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    for generation, code in ((2, NONE), (1, GENERATION), (7, GENERATION)):
        for version_9 in (False, True):
            asked = OffsetCommit(G, ONE, generation, "m", knows_member_epochs=version_9)
            assert code_of(groups.ask(asked)) is code
    assert code_of(groups.ask(OffsetCommit(G, ONE, 2, "c"))) is ErrorCode.UNSUPPORTED_VERSION
    for member, epoch, code in (
        ("m", 2, NONE),
        ("m", 0, GENERATION),
        ("m", 3, GENERATION),
        ("c", 2, NONE),
        ("x", 1, UNKNOWN),
    ):
        assert code_of(groups.ask(OffsetFetch(G, None, False, member, epoch))) is code
    assert groups.ask(DescribeGroup(G)).state.value == "Dead"


def test_new_classic_members_join_a_consumer_group(groups: Mixed) -> None:
    settled(groups)
    named = groups.classic("", new_member_id="named", require_known_member_id=True)
    assert (named.error, named.member_id) == (ErrorCode.MEMBER_ID_REQUIRED, "named")
    assert groups.classic("named").generation == 3
    assert groups.classic("", new_member_id="old-client").generation == 4
    for fields in (
        {"protocols": (("sticky", subscription("flights")),)},
        {"protocol_type": "connect"},
        {"protocols": ()},
    ):
        assert code_of(groups.classic("", **fields)) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert groups.group.members.keys() == {"m", "c", "named", "old-client"}


def test_a_classic_member_that_does_not_rejoin_is_removed(groups: Mixed) -> None:
    upgraded(groups)
    for _ in range(REBALANCE_MS // 5_000):
        assert groups.live("m", 1) is REBALANCE  # it lives, and keeps what it shall give up
        groups.beat("c", groups.group.current["c"].epoch)
        groups.tick(5_000)
        groups.commit()
    groups.tick(5_000)
    groups.commit()
    assert "m" not in groups.group.members
    assert numbers(groups.beat("c", 2, owned=frozenset()).assignment) == [0, 1, 2, 3]


def test_a_classic_member_that_joins_and_never_syncs_is_removed(groups: Mixed) -> None:
    upgraded(groups)
    assert groups.classic(owns=()).generation == 2
    for _ in range(REBALANCE_MS // 5_000 + 1):
        groups.live("m", 2)
        groups.beat("c", 2, owned=frozenset())
        groups.tick(5_000)
        groups.commit()
    assert groups.group.members.keys() == {"c"}


def test_the_session_of_a_classic_member_is_its_own(groups: Mixed) -> None:
    settled(groups)
    groups.tick(CLASSIC_SESSION_MS - 1)
    groups.beat("c", 2)
    assert "m" in groups.group.members
    groups.tick(1)
    groups.commit()
    assert groups.group.members.keys() == {"c"}
    assert CLASSIC_SESSION_MS < SESSION_MS


def test_an_instance_of_the_consumer_protocol_replaces_its_classic_member(groups: Mixed) -> None:
    groups.stable_classic(group_instance_id="i")
    joined = groups.join("c", instance_id="i")
    assert (joined.member_epoch, numbers(joined.assignment)) == (1, [0, 1, 2, 3]), "and nothing moves"
    assert groups.live("m", 1, "i") is ErrorCode.FENCED_INSTANCE_ID
    back = groups.classic("", new_member_id="m2", group_instance_id="i")
    assert (back.member_id, back.generation, back.leader) == ("m2", 1, "")
    assert groups.kind() == "classic Stable", (
        "the last member of the new protocol has left, and no other member has to move"
    )
    assert parts(groups.sync("m2", 1, "i")) == [0, 1, 2, 3]
    assert groups.live("m2", 1, "i") is NONE


# --- down ---------------------------------------------------------------------------------------------------


def rejoins(groups: Mixed, generation: int) -> None:
    """ "m" hears that it has to join again, leads, and has all partitions."""
    assert groups.live("m", generation) is REBALANCE
    joined = groups.classic()
    assert joined.generation > generation
    assert joined.leader == "m"
    assert parts(groups.sync("m", joined.generation, m=share(0, 1, 2, 3))) == [0, 1, 2, 3]
    assert groups.kind() == "classic Stable"
    assert groups.shard.groups.silences.notes == {}


@pytest.mark.parametrize("way", ["leaves", "dies"])
def test_when_the_last_consumer_member_leaves_the_group_is_classic_again(groups: Mixed, way: str) -> None:
    settled(groups)
    if way == "leaves":
        groups.beat("c", -1)
    else:
        for _ in range(SESSION_MS // 5_000 + 1):
            groups.live("m", 2)
            groups.tick(5_000)
            groups.commit()
    assert groups.kind() == "classic PreparingRebalance"
    assert G not in groups.shard.groups.consumers.groups
    rejoins(groups, 2)
    assert code_of(groups.beat("c", 2)) is ErrorCode.GROUP_ID_NOT_FOUND


def test_the_next_coordinator_finds_that_the_others_must_join_again(groups: Mixed) -> None:
    """The partitions of the departed member have no owner; the log has a generation that looks complete."""
    settled(groups)
    groups.beat("c", -1)
    after = groups.again()
    after.commit()
    assert after.kind() == "classic PreparingRebalance"
    rejoins(after, 2)


def test_ablation_without_the_note_the_last_members_partitions_lose_owners(
    groups: Mixed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Silences, "left", lambda *_: [])
    settled(groups)
    groups.beat("c", -1)
    after = groups.again()
    assert after.kind() == "classic Stable"
    assert after.live("m", 2) is NONE


def test_a_downgrade_whose_append_fails_is_repeated(groups: Mixed) -> None:
    settled(groups)
    groups.log.refuse = KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS, "no")
    assert code_of(groups.beat("c", -1)) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    groups.log.refuse = None
    assert groups.kind() == "consumer Stable"
    assert groups.live("m", 2) is NONE
    groups.beat("c", -1)
    assert groups.kind() == "classic PreparingRebalance"


@pytest.mark.parametrize("leaves", [True, False])
@pytest.mark.parametrize("estimated", [True, False])
def test_a_group_too_large_for_a_downgrade_stays_a_consumer_group(
    leaves: bool, estimated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not estimated:
        monkeypatch.setattr(migration, "downgrade_bytes_min", lambda _group: 0)
    log = LimitedLog()
    log.epochs[0] = 0
    groups = Mixed(log=log, catalog=Catalog(flights=20))
    groups.join("c")
    names = [f"m{number}" for number in range(19)]
    protocols = (("range", subscription("flights", user_data=b"x" * 60_000)),)
    answer: dict[str, Any] = {"protocols": protocols, "session_timeout_ms": 3 * SESSION_MS}
    for name in names:
        groups.classic("", new_member_id=name, **answer)

    def rejoin() -> None:
        for _ in range(3):
            for name in names:
                assert groups.classic(name, **answer).generation == groups.group.current[name].epoch
                groups.sync(name, groups.group.current[name].epoch)
            if "c" in groups.group.members:
                groups.beat("c", groups.group.current["c"].epoch, owned=groups.group.current["c"].assigned)

    rejoin()
    assert len(groups.assigned("c") or ()) == 1
    if leaves:
        assert groups.beat("c", -1).member_epoch == -1
    else:
        for _ in range(3):
            groups.tick(SESSION_MS // 2)
            groups.commit()
            for name in names:
                groups.live(name, groups.group.current[name].epoch)
    assert set(groups.group.members) == set(names)
    assert groups.kind().startswith("consumer")
    assert groups.live("m0", groups.group.current["m0"].epoch) is REBALANCE
    rejoin()
    held = {name: groups.assigned(name) or [] for name in names}
    assert sorted(number for numbers in held.values() for number in numbers) == list(range(20))
    groups = groups.again()
    assert groups.leave(*names[4:]) == [NONE] * 15
    assert groups.kind() == "classic PreparingRebalance", "now it fits"


def test_a_group_too_large_to_be_a_consumer_group_stays_a_classic_one(groups: Mixed) -> None:
    groups.stable_classic()
    waiting = groups.classic("", new_member_id="second")
    groups.batch_bytes_max = 200  # what the log takes, for it is set smaller, or larger, at any time
    refused = groups.join("c")
    assert code_of(refused) is ErrorCode.GROUP_ID_NOT_FOUND
    assert "too large" in refused.message
    assert waiting not in groups.replies
    assert groups.kind() == "classic PreparingRebalance"
    groups.batch_bytes_max = BATCH_BYTES_MAX
    assert groups.join("c").member_epoch == 2


def test_a_group_that_all_classic_members_leave_stays_a_consumer_group(groups: Mixed) -> None:
    upgraded(groups)
    assert groups.leave("m", "c", "x") == [NONE, UNKNOWN, UNKNOWN], (
        "a consumer member leaves by its heartbeat"
    )
    assert groups.kind() == "consumer Assigning"
    groups.beat("c", -1)
    assert groups.kind() == "consumer Empty"
    assert groups.classic("", new_member_id="m").generation == 1
    assert groups.kind() == "classic CompletingRebalance"


# --- the log ------------------------------------------------------------------------------------------------


def test_the_next_coordinator_goes_on_with_classic_members(groups: Mixed) -> None:
    upgraded(groups)
    after = groups.again()
    assert vars(after.group) == vars(groups.group)
    assert after.live("m", 1) is REBALANCE
    assert after.classic(owns=()).generation == 2
    assert parts(after.sync("m", 2)) == [0, 1]
    assert numbers(after.beat("c", 2).assignment) == [2, 3]


def test_a_classic_members_record_has_kafkas_bytes() -> None:
    """As Kafka 4.1.1 wrote it for such a member; a coordinator that does not know the tag skips it."""
    data = (
        b"\x00\x00\x00\x00\x06probe\x0b/127.0.0.1\x02\x02t\x01\x00\x00\xea`\x00\x01\x00 "
        b"\x01\x00\x00u0\x02\x06range\x12"
        b"\x00\x01\x00\x00\x00\x01\x00\x01t\xff\xff\xff\xff\x00\x00\x00\x00\x00\x00"
    )
    classic = ClassicMember(30_000, (("range", subscription("t")),))
    member = MemberMetadata(None, None, "probe", "/127.0.0.1", ("t",), "", 60_000, None, classic)
    assert decode_value(RecordKind.MEMBER, data) == member
    assert encode_value(RecordKind.MEMBER, member, RESOURCES_LEVEL) == data


@pytest.mark.parametrize("cut", range(1, 30, 3))
def test_a_truncated_subscription_is_rejected(cut: int) -> None:
    whole = subscription("flights", owns=(1, 2))
    assert read_subscription(whole).owned == {("flights", 1), ("flights", 2)}
    groups = Mixed()
    groups.join("c")
    code = code_of(groups.classic("m", protocols=(("range", whole[:-cut]),)))
    assert code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


# --- any order ----------------------------------------------------------------------------------------------


class AnyOrder:
    """Members of both protocols (k: classic, c: consumer) come, go and send requests, and coordinators move;
    each member follows the answers.  `reading`: the partitions that each member believes to own."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.groups = Mixed(catalog=Catalog(flights=6))
        self.reading: dict[str, frozenset[int]] = {}
        self.generation: dict[str, int] = {}
        self.waiting: dict[str, int] = {}
        self.living: set[str] = set()

    def classic_round(self, name: str) -> None:
        if name in self.generation:
            code = self.groups.live(name, self.generation[name])
            if code is NONE:
                return
            if code is not REBALANCE:
                self.reading[name] = frozenset()
                del self.generation[name]
        owns = tuple(sorted(self.reading.get(name, ())))
        answer = self.groups.classic(name, owns=owns, require_known_member_id=False)
        if isinstance(answer, KafkaError) and answer.code is UNKNOWN:
            self.reading[name] = frozenset()
            answer = self.groups.classic("", new_member_id=name)
        self.await_or_finish(name, answer)

    def await_or_finish(self, name: str, answer: Any) -> None:
        if isinstance(answer, int):
            self.waiting[name] = answer
        elif isinstance(answer, SyncReply):
            self.reading[name] = frozenset(parts(answer))
        elif not isinstance(answer, KafkaError):
            self.sync(name, answer)

    def sync(self, name: str, joined: Any) -> None:
        self.generation[name] = joined.generation
        shares: dict[str, list[int]] = {each.member_id: [] for each in joined.members}
        if joined.leader == name:
            owners = sorted(shares)
            for number in range(6):
                shares[owners[number % len(owners)]].append(number)
        if joined.leader:
            self.reading[name] = frozenset()  # an eager assignor: everything was given up before the join
        assignments: dict[str, Any] = (
            {each: share(*mine) for each, mine in shares.items()} if joined.leader == name else {}
        )
        self.await_or_finish(name, self.groups.sync(name, joined.generation, **assignments))

    def consumer_round(self, name: str) -> None:
        epoch = self.generation.get(name, 0)
        mine = owned(*self.reading.get(name, ()))
        answer = self.groups.join(name) if epoch == 0 else self.groups.beat(name, epoch, owned=mine)
        if isinstance(answer, KafkaError):
            self.reading[name] = frozenset()
            self.generation.pop(name, None)
            return
        self.generation[name] = answer.member_epoch
        if answer.assignment is not None:
            self.reading[name] = frozenset(number for _, number in answer.assignment)

    def take_answers(self) -> None:
        for each, label in list(self.waiting.items()):
            if label in self.groups.replies:
                del self.waiting[each]
                if each in self.living:
                    self.await_or_finish(each, self.groups.replies[label])

    def leave(self, name: str) -> None:
        self.living.discard(name)
        self.groups.leave(name) if name.startswith("k") else self.groups.beat(name, -1)
        self.reading.pop(name, None)
        self.generation.pop(name, None)

    def step(self, *, calm: bool) -> None:
        name = self.chance.choice(["k1", "k2", "k3", "c1", "c2"])
        if calm and name not in self.living:
            return
        self.take_answers()
        if name in self.waiting:
            self.pass_time(500)
            return
        if not calm and name in self.living and self.chance.random() < 0.15:
            self.leave(name)
            return
        if not calm and self.chance.random() < 0.05:
            self.waiting.clear()
            self.groups = self.groups.again()
        self.living.add(name)
        (self.classic_round if name.startswith("k") else self.consumer_round)(name)
        if self.groups.kind().startswith("consumer"):
            held = [number for each in self.reading.values() for number in each]
            assert len(held) == len(set(held)), self.reading
        self.pass_time(300)

    def pass_time(self, ms: int) -> None:
        self.groups.tick(ms)
        self.groups.commit()


@pytest.mark.parametrize("seed", range(25))
def test_random_migrations_never_give_a_partition_two_owners(seed: int) -> None:
    world = AnyOrder(seed)
    for step in range(200):
        world.step(calm=step > 110)
    if world.living:
        held = sorted(number for each in world.living for number in world.reading.get(each, ()))
        assert held == list(range(6)), (world.groups.kind(), world.reading, world.generation)
