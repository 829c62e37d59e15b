"""ClusterState: total, deterministic, idempotent, and the same by replay and by snapshot."""

from __future__ import annotations

import dataclasses
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tidegate.controller.state import snapshot
from tidegate.controller.state.cluster_state import ClusterState
from tidegate.controller.state.model import (
    FLUSH_POLICY_CONFIG,
    INITIAL_FEATURES,
    MIN_IN_SYNC_REPLICAS_CONFIG,
    ApplyResult,
    BrokerState,
    PartitionState,
    TopicState,
)
from tidegate.controller.state.proposers import PROPOSERS_MAX, WINDOW
from tidegate.controller.state.snapshot import Contents
from tidegate.controller.state.validation import StateValidator, violations
from tidegate.proto import metadata_pb2 as pb
from tidegate.runtime.connections.listeners import Listener, SecurityProtocol
from tidegate.wire.errors import ErrorCode

from .test_security_commands import ACL

TOPIC_ID = UUID(int=7)
CUT = pb.PinnedCutRecord(
    name="cut",
    pin_id="pin",
    topics=[
        pb.PinnedTopicRecord(topic_id=TOPIC_ID.bytes, name="t", partitions=[pb.PinnedPartitionRecord(end=5)])
    ],
)


class Applier:
    """A state and the log that led to it."""

    def __init__(self) -> None:
        self.state = ClusterState()
        self.log: list[tuple[int, int, bytes]] = []
        self.term = 1

    def raw(self, command: bytes) -> ApplyResult:
        index = self.state.index + 1
        self.log.append((index, self.term, command))
        before = self.state.copy()
        result = self.state.apply(index, self.term, command)
        require_changes_named(result, before, self.state)
        return result

    def __call__(
        self, *operations: pb.Operation, proposer: str = "", sequence: int = 0, epoch: int = 0
    ) -> ApplyResult:
        command = pb.Command(
            proposer=proposer, sequence=sequence, controller_epoch=epoch, operations=operations
        )
        return self.raw(command.SerializeToString())

    def broker(self, node_id: int, incarnation: str = "first", unfence: bool = True) -> int:
        existing = self.state.brokers.get(node_id)
        epoch = existing.broker_epoch if existing else -1
        request = pb.RegisterBroker(node_id=node_id, incarnation=incarnation, expected_broker_epoch=epoch)
        result = self(pb.Operation(register_broker=request))
        assert result.ok, result
        assert isinstance(result.value, int), result
        if unfence:
            assert self(unfence_of(node_id, result.value)).ok
        return result.value

    def topic(
        self, name: str = "t", replicas: tuple[int, ...] = (1, 2, 3), partitions: int = 1, **config: str
    ) -> ApplyResult:
        return self(
            creation(name, replicas, partitions, UUID(int=TOPIC_ID.int + len(self.state.topics)), **config)
        )


def require_changes_named(result: ApplyResult, before: ClusterState, after: ClusterState) -> None:
    """Brokers act on what a result names, and on nothing else."""
    changed = {
        node_id
        for node_id in before.brokers.keys() | after.brokers.keys()
        if before.brokers.get(node_id) != after.brokers.get(node_id)
    }
    assert changed <= result.changed_brokers
    for name, topic in after.topics.items():
        old = before.topics.get(name)
        if old == topic or name in result.changed_topics:
            continue
        assert old is not None, f"{name} is new, and the result does not say so"
        assert dataclasses.replace(old, partitions=topic.partitions) == topic, f"{name} has other settings"
        for number, partition in topic.partitions.items():
            assert old.partitions.get(number) == partition or (name, number) in result.changed_partitions
    gone = {topic.topic_id for topic in before.topics.values()} - {
        topic.topic_id for topic in after.topics.values()
    }
    assert gone <= {topic.topic_id for topic in result.deleted_topics}


def unfence_of(node_id: int, epoch: int) -> pb.Operation:
    return pb.Operation(unfence_broker=pb.UnfenceBroker(node_id=node_id, broker_epoch=epoch))


def fence_of(node_id: int, epoch: int) -> pb.Operation:
    return pb.Operation(fence_broker=pb.FenceBroker(node_id=node_id, broker_epoch=epoch))


def creation(
    name: str = "t",
    replicas: tuple[int, ...] = (1, 2, 3),
    partitions: int = 1,
    topic_id: UUID = TOPIC_ID,
    **config: str,
) -> pb.Operation:
    entries = [pb.ConfigEntry(key=key, value=value) for key, value in sorted(config.items())]
    parts = [pb.NewPartition(replicas=replicas, isr=replicas) for _ in range(partitions)]
    return pb.Operation(
        create_topic=pb.CreateTopic(topic_id=topic_id.bytes, name=name, config=entries, partitions=parts)
    )


def change(partition: int = 0, topic_id: UUID = TOPIC_ID, **fields: object) -> pb.Operation:
    values: dict[str, object] = {
        "expected_partition_epoch": 0,
        "leader": 1,
        "isr": (1, 2, 3),
        "last_known_leader": 1,
    } | fields
    one = pb.PartitionChange(partition=partition, **values)  # type: ignore[arg-type]
    group = pb.TopicPartitionChanges(topic_id=topic_id.bytes, partitions=[one])
    return pb.Operation(change_partitions=pb.ChangePartitions(topics=[group]))


def config_change(topic_id: UUID = TOPIC_ID, **values: str) -> pb.Operation:
    entries = [pb.ConfigEntry(key=key.replace("_", "."), value=value) for key, value in values.items()]
    return pb.Operation(change_topic_config=pb.ChangeTopicConfig(topic_id=topic_id.bytes, set=entries))


@pytest.fixture
def applier() -> Applier:
    applier = Applier()
    for node_id in (1, 2, 3):
        applier.broker(node_id)
    return applier


# ---- totality and determinism ------------------------------------------------------------------------------

SMALL = st.integers(0, 4)
INT32 = st.one_of(SMALL, st.sampled_from([-(2**31), 2**31 - 1, -1]))
INT64 = st.one_of(SMALL, st.sampled_from([-(2**63), 2**63 - 1, -1]))
NODES = st.lists(INT32, max_size=4)
IDS = st.one_of(st.sampled_from([UUID(int=i).bytes for i in range(3)]), st.binary(max_size=17))
NAMES = st.sampled_from(["t", "u", "", "..", "bad name", "__consumer_offsets", "x" * 300])
CONFIG = st.lists(
    st.builds(
        pb.ConfigEntry,
        key=st.sampled_from(
            [MIN_IN_SYNC_REPLICAS_CONFIG, FLUSH_POLICY_CONFIG, "unclean.leader.election.enable", "?"]
        ),
        value=st.sampled_from(["1", "2", "true", "always", "os", "", "-9", "9" * 30, "²"]),
    ),
    max_size=3,
)
NEW_PARTITIONS = st.lists(st.builds(pb.NewPartition, replicas=NODES, isr=NODES), max_size=3)
CHANGES = st.builds(
    pb.PartitionChange,
    partition=INT32,
    expected_partition_epoch=INT32,
    leader=INT32,
    isr=NODES,
    isr_broker_epochs=st.lists(INT64, max_size=4),
    elr=NODES,
    last_known_leader=INT32,
    bump_leader_epoch=st.booleans(),
)
OPERATIONS = st.one_of(
    st.builds(pb.Operation, bootstrap=st.builds(pb.Bootstrap, cluster_id=st.text(max_size=3))),
    st.builds(pb.Operation, become_controller=st.builds(pb.BecomeController, node_id=INT32)),
    st.builds(
        pb.Operation,
        register_broker=st.builds(
            pb.RegisterBroker,
            node_id=INT32,
            incarnation=st.sampled_from(["", "a", "b"]),
            expected_broker_epoch=INT64,
        ),
    ),
    st.builds(pb.Operation, fence_broker=st.builds(pb.FenceBroker, node_id=INT32, broker_epoch=INT64)),
    st.builds(pb.Operation, unfence_broker=st.builds(pb.UnfenceBroker, node_id=INT32, broker_epoch=INT64)),
    st.builds(
        pb.Operation,
        begin_controlled_shutdown=st.builds(pb.BeginControlledShutdown, node_id=INT32, broker_epoch=INT64),
    ),
    st.builds(
        pb.Operation,
        create_topic=st.builds(
            pb.CreateTopic, topic_id=IDS, name=NAMES, config=CONFIG, partitions=NEW_PARTITIONS
        ),
    ),
    st.builds(pb.Operation, delete_topic=st.builds(pb.DeleteTopic, topic_id=IDS)),
    st.builds(
        pb.Operation,
        create_partitions=st.builds(
            pb.CreatePartitions, topic_id=IDS, expected_partitions=INT32, partitions=NEW_PARTITIONS
        ),
    ),
    st.builds(
        pb.Operation,
        change_topic_config=st.builds(
            pb.ChangeTopicConfig, topic_id=IDS, set=CONFIG, remove=st.lists(st.just("?"), max_size=1)
        ),
    ),
    st.builds(
        pb.Operation,
        change_partitions=st.builds(
            pb.ChangePartitions,
            topics=st.lists(
                st.builds(pb.TopicPartitionChanges, topic_id=IDS, partitions=st.lists(CHANGES, max_size=3)),
                max_size=2,
            ),
        ),
    ),
    st.builds(
        pb.Operation,
        allocate_producer_ids=st.builds(
            pb.AllocateProducerIds, node_id=INT32, broker_epoch=INT64, count=INT32
        ),
    ),
    st.builds(
        pb.Operation,
        set_feature_level=st.builds(pb.SetFeatureLevel, name=NAMES, level=INT32, expected_level=INT32),
    ),
    st.just(pb.Operation()),
)
COMMANDS = st.one_of(
    st.builds(
        pb.Command,
        proposer=st.sampled_from(["", "p", "q"]),
        sequence=INT64,
        controller_epoch=st.sampled_from([0, 1, 2]),
        operations=st.lists(OPERATIONS, max_size=4),
    ).map(lambda command: command.SerializeToString()),
    st.binary(max_size=60),
)


def warmed_up() -> Applier:
    """Something for random commands to hit: brokers with small epochs, two topics."""
    applier = Applier()
    for node_id in (1, 2, 3):
        applier.broker(node_id, unfence=False)
    for node_id, epoch in ((1, 2), (2, 3), (3, 4)):
        applier(unfence_of(node_id, epoch))
    applier(creation(topic_id=UUID(int=1), **{MIN_IN_SYNC_REPLICAS_CONFIG: "2"}))  # type: ignore[arg-type]
    applier(creation("u", (2, 1), 2, UUID(int=2)))
    return applier


@given(st.lists(COMMANDS, max_size=25), st.data())
@settings(max_examples=250, deadline=None)
def test_any_bytes_apply_without_raising_and_replay_and_snapshot_agree(
    commands: list[bytes], data: st.DataObject
) -> None:
    applier = warmed_up()
    cut = data.draw(st.integers(0, len(commands)))
    snapshot, position, validator = applier.state.encode(), len(applier.log), StateValidator()
    validator.check(applier.state)
    for number, command in enumerate(commands):
        if number == cut:
            snapshot, position = applier.state.encode(), len(applier.log)
        validator.check(applier.state, applier.raw(command))
        assert violations(applier.state) == []
    replayed, restored = ClusterState(), ClusterState()
    for entry in applier.log:
        replayed.apply(*entry)
    restored.restore(snapshot)
    for entry in applier.log[position:]:
        restored.apply(*entry)
    assert applier.state.state_hash() == replayed.state_hash() == restored.state_hash()


def test_a_refused_command_changes_nothing_but_the_index(applier: Applier) -> None:
    applier.topic()
    before = applier.state.encode()
    for operation in (
        creation(),
        creation("other", topic_id=UUID(int=99), replicas=(1, 9)),
        change(expected_partition_epoch=5),
        change(isr=(2, 3)),
        fence_of(1, 999),
        pb.Operation(),
    ):
        result = applier(operation)
        refused = result.error != ErrorCode.NONE or result.value not in (None, (ErrorCode.NONE,))
        assert refused, operation
    after = applier.state
    after.index, after.term = 8, 1
    state = ClusterState()
    state.restore(before)
    state.index = 8
    assert state.encode() == after.encode()


def test_a_command_has_the_same_outcome_on_a_state_from_a_snapshot(applier: Applier) -> None:
    """A snapshot fills the tables in the order of names, and remembers of an answer without an entry only
    that it has none."""
    epoch = applier.broker(4)
    for name in ("z", "a"):
        applier.topic(name, replicas=(4, 1))
    assert applier(fence_of(4, epoch)).ok
    nothing = pb.Operation(change_partitions=pb.ChangePartitions())
    assert applier(nothing, proposer="client", sequence=1).ok
    restored = Applier()
    restored.state.restore(applier.state.encode())
    again = pb.RegisterBroker(node_id=4, incarnation="second", expected_broker_epoch=epoch)
    for operation, name in ((pb.Operation(register_broker=again), ""), (nothing, "client")):
        results = [each(operation, proposer=name, sequence=1) for each in (applier, restored)]
        assert results[0] == results[1]
    assert "still in the ISR of a-0" in applier(pb.Operation(register_broker=again)).message


# ---- idempotence and fences --------------------------------------------------------------------------------


def test_a_duplicate_proposal_changes_nothing_and_is_answered_as_the_first(applier: Applier) -> None:
    applier.topic()
    first = applier(config_change(retention_ms="1"), proposer="client", sequence=1)
    applier(config_change(retention_ms="2"), proposer="client", sequence=2)
    again = applier(config_change(retention_ms="1"), proposer="client", sequence=1)
    assert again.duplicate
    assert (again.error, again.value) == (first.error, first.value)
    assert applier.state.topics["t"].config == {"retention.ms": "2"}
    outcome = applier.state.was_applied("client", 2)
    assert outcome is not None
    assert outcome.ok
    assert applier.state.was_applied("client", 3) is None


def test_without_the_proposers_memory_a_duplicate_would_be_applied_twice(applier: Applier) -> None:
    applier.topic()
    applier(config_change(retention_ms="1"))
    applier(config_change(retention_ms="2"))
    applier(config_change(retention_ms="1"))
    assert applier.state.topics["t"].config == {"retention.ms": "1"}


def test_the_memory_of_proposers_is_bounded_and_rejects_older_sequences(applier: Applier) -> None:
    applier.topic()
    for sequence in range(1, WINDOW + 3):
        applier(config_change(retention_ms=str(sequence)), proposer="client", sequence=sequence)
    assert (
        applier(config_change(retention_ms="0"), proposer="client", sequence=1).error
        == ErrorCode.INVALID_REQUEST
    )
    for number in range(PROPOSERS_MAX + 5):
        applier(config_change(retention_ms="7"), proposer=f"other {number}", sequence=1)
    assert applier.state.was_applied("client", WINDOW) is None
    assert len(applier.state._proposers.freeze()) == PROPOSERS_MAX


def test_a_plan_of_another_controller_epoch_is_refused_and_may_be_repeated(applier: Applier) -> None:
    applier.term = 4
    stale = applier(creation(), proposer="p", sequence=1, epoch=3)
    assert stale.error == ErrorCode.NOT_CONTROLLER
    assert "t" not in applier.state.topics
    assert applier(creation(), proposer="p", sequence=1, epoch=4).ok


def test_operations_stop_at_the_first_that_fails_and_those_before_it_stay(applier: Applier) -> None:
    result = applier(
        creation("a"), creation("a", topic_id=UUID(int=99)), creation("b", topic_id=UUID(int=98))
    )
    assert result.error == ErrorCode.TOPIC_ALREADY_EXISTS
    assert set(applier.state.topics) == {"a"}
    assert result.changed_topics == {"a"}


# ---- brokers -----------------------------------------------------------------------------------------------


def test_the_broker_epoch_is_the_index_of_the_registration(applier: Applier) -> None:
    epoch = applier.broker(7, unfence=False)
    assert epoch == applier.state.index
    retry = pb.RegisterBroker(node_id=7, incarnation="first", expected_broker_epoch=-1)
    assert applier(pb.Operation(register_broker=retry)).value == epoch
    assert applier.state.brokers[7].fenced


def test_a_new_incarnation_waits_until_the_old_one_is_fenced_and_in_no_isr(applier: Applier) -> None:
    applier.topic()
    epoch = applier.state.brokers[1].broker_epoch
    second = pb.Operation(
        register_broker=pb.RegisterBroker(node_id=1, incarnation="second", expected_broker_epoch=epoch)
    )
    assert applier(second).error == ErrorCode.DUPLICATE_BROKER_REGISTRATION
    applier(fence_of(1, epoch))
    assert applier(second).error == ErrorCode.INVALID_UPDATE_VERSION, "still in an ISR (docs/semantics.md M5)"
    applier(change(leader=2, isr=(2, 3), last_known_leader=2))
    result = applier(second)
    assert result.ok
    assert result.value == applier.state.index
    assert applier(unfence_of(1, epoch)).error == ErrorCode.STALE_BROKER_EPOCH


def test_a_broker_in_controlled_shutdown_cannot_be_unfenced_or_join_an_isr(applier: Applier) -> None:
    applier.topic()
    applier(change(isr=(1, 2)))
    epoch = applier.state.brokers[3].broker_epoch
    applier(pb.Operation(begin_controlled_shutdown=pb.BeginControlledShutdown(node_id=3, broker_epoch=epoch)))
    assert applier(change(expected_partition_epoch=1)).value == (ErrorCode.INELIGIBLE_REPLICA,)
    applier(fence_of(3, epoch))
    assert applier(unfence_of(3, epoch)).error == ErrorCode.INELIGIBLE_REPLICA


def test_producer_id_blocks_never_overlap(applier: Applier) -> None:
    epoch = applier.state.brokers[1].broker_epoch
    allocate = pb.Operation(
        allocate_producer_ids=pb.AllocateProducerIds(node_id=1, broker_epoch=epoch, count=1000)
    )
    assert [applier(allocate).value for _ in range(3)] == [0, 1000, 2000]
    stale = pb.Operation(
        allocate_producer_ids=pb.AllocateProducerIds(node_id=1, broker_epoch=epoch + 1, count=1000)
    )
    assert applier(stale).error == ErrorCode.STALE_BROKER_EPOCH


# ---- partitions --------------------------------------------------------------------------------------------


def test_a_new_leader_raises_both_epochs_a_new_isr_the_partition_epoch(applier: Applier) -> None:
    applier.topic()
    applier(change(isr=(1, 2)))
    shrunk = applier.state.topics["t"].partitions[0]
    assert (shrunk.leader_epoch, shrunk.partition_epoch) == (0, 1)
    applier(change(expected_partition_epoch=1, leader=2, isr=(1, 2), last_known_leader=2))
    moved = applier.state.topics["t"].partitions[0]
    assert (moved.leader, moved.leader_epoch, moved.partition_epoch) == (2, 1, 2)


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"expected_partition_epoch": 3}, ErrorCode.INVALID_UPDATE_VERSION),
        ({"partition": 9}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ({"topic_id": UUID(int=1234)}, ErrorCode.UNKNOWN_TOPIC_ID),
        ({"leader": 2, "isr": (1, 3)}, ErrorCode.INVALID_REQUEST),
        ({"leader": -1}, ErrorCode.INVALID_REQUEST),
        ({"isr": (1, 1)}, ErrorCode.INVALID_REQUEST),
        ({"isr": (1, 9)}, ErrorCode.INVALID_REQUEST),
        ({"isr": (1,), "elr": (1,)}, ErrorCode.INVALID_REQUEST),
        ({"isr_broker_epochs": (1, 1)}, ErrorCode.INVALID_REQUEST),
        ({"isr_broker_epochs": (-1, -1, 999)}, ErrorCode.INELIGIBLE_REPLICA),
    ],
)
def test_a_change_that_breaks_a_rule_is_refused_alone(
    applier: Applier, fields: dict[str, object], error: ErrorCode
) -> None:
    applier.topic(partitions=2)
    bad = change(**fields)  # type: ignore[arg-type]
    good = pb.PartitionChange(partition=1, leader=1, isr=(1, 2), last_known_leader=1)
    bad.change_partitions.topics.add(topic_id=TOPIC_ID.bytes, partitions=[good])
    assert applier(bad).value == (error, ErrorCode.NONE)
    assert applier.state.topics["t"].partitions[0].partition_epoch == 0
    assert applier.state.topics["t"].partitions[1].isr == (1, 2)


def test_a_broker_of_an_earlier_life_does_not_enter_the_isr(applier: Applier) -> None:
    applier.topic()
    old = applier.state.brokers[3].broker_epoch
    applier(change(isr=(1, 2)), fence_of(3, old))
    new = applier.broker(3, "second")
    epochs = [applier.state.brokers[1].broker_epoch, applier.state.brokers[2].broker_epoch]
    refused = applier(change(expected_partition_epoch=1, isr_broker_epochs=(*epochs, old)))
    assert refused.value == (ErrorCode.INELIGIBLE_REPLICA,)
    assert applier(change(expected_partition_epoch=1, isr_broker_epochs=(*epochs, new))).value == (
        ErrorCode.NONE,
    )


def test_a_fenced_broker_neither_enters_the_isr_nor_leads(applier: Applier) -> None:
    """Also where the change names no broker epochs: a plan may be older than the fencing (docs/semantics.md
    M4)."""
    applier.topic()
    applier(change(isr=(1, 2)), fence_of(3, applier.state.brokers[3].broker_epoch))
    for fields in ({"isr": (1, 2, 3)}, {"isr": (1, 3), "leader": 3}):
        refused = applier(change(expected_partition_epoch=1, **fields))
        assert refused.value == (ErrorCode.INELIGIBLE_REPLICA,)
    assert applier.state.topics["t"].partitions[0].isr == (1, 2)


def test_a_lower_min_insync_replicas_empties_the_elr_in_the_same_entry(applier: Applier) -> None:
    applier.topic(**{MIN_IN_SYNC_REPLICAS_CONFIG: "2"})  # type: ignore[arg-type]
    applier(change(isr=(1,), elr=(2, 3)))
    assert applier.state.topics["t"].partitions[0].elr == (2, 3)
    result = applier(config_change(min_insync_replicas="1"))
    assert applier.state.topics["t"].partitions[0].elr == ()
    assert result.changed_partitions == {("t", 0)}


def test_an_elr_next_to_a_large_enough_isr_is_not_kept(applier: Applier) -> None:
    applier.topic(**{MIN_IN_SYNC_REPLICAS_CONFIG: "2"})  # type: ignore[arg-type]
    applier(change(isr=(1, 2), elr=(3,)))
    assert applier.state.topics["t"].partitions[0].elr == ()


def test_a_restored_snapshot_reports_the_difference_to_the_old_state(applier: Applier) -> None:
    applier.topic("stays", partitions=2)
    applier.topic("goes")
    follower = ClusterState()
    follower.restore(applier.state.encode())
    gone = applier.state.topics["goes"].topic_id
    stays = applier.state.topics["stays"].topic_id
    applier(pb.Operation(delete_topic=pb.DeleteTopic(topic_id=gone.bytes)))
    applier(change(1, topic_id=stays, isr=(1, 2)))
    applier(creation("comes", topic_id=UUID(int=50)))
    result = follower.restore(applier.state.encode())
    assert result.from_snapshot
    assert result.index == applier.state.index
    assert result.changed_partitions == {("stays", 1), ("comes", 0)}
    assert [(topic.name, topic.topic_id) for topic in result.deleted_topics] == [("goes", gone)]
    assert result.changed_topics == {"stays", "comes"}
    assert result.changed_brokers == frozenset()


@pytest.mark.parametrize("damage", [b"", b"\xff\xff", b"\x08\x09"])
def test_a_snapshot_that_cannot_be_read_changes_nothing(applier: Applier, damage: bytes) -> None:
    before = applier.state.state_hash()
    with pytest.raises(ValueError, match="snapshot"):
        applier.state.restore(damage)
    assert applier.state.state_hash() == before


def test_a_copy_and_a_snapshot_hold_every_field(applier: Applier) -> None:
    """A field that is new in the state is filled here, too: plans are made on copies."""
    applier(
        pb.Operation(bootstrap=pb.Bootstrap(cluster_id="c", metadata_id="m", features=every_feature())),
        pb.Operation(become_controller=pb.BecomeController(node_id=1)),
        pb.Operation(set_session_timeout=pb.SetSessionTimeout(session_timeout_ms=6000)),
        pb.Operation(
            change_node_config=pb.ChangeNodeConfig(node_id=-1, set=[pb.ConfigEntry(key="k", value="v")])
        ),
        pb.Operation(
            change_resource_config=pb.ChangeResourceConfig(
                resource_type=32, name="g", set=[pb.ConfigEntry(key="k", value="v")]
            )
        ),
        pb.Operation(change_acls=pb.ChangeAcls(add=[ACL])),
        pb.Operation(change_pinned_cuts=pb.ChangePinnedCuts(pin=[CUT])),
        proposer="p",
        sequence=1,
    )
    epoch = applier.broker(1)
    applier.topic(replicas=(1,))
    ids = pb.AllocateProducerIds(node_id=1, broker_epoch=epoch, count=10)
    assert applier(pb.Operation(allocate_producer_ids=ids)).ok
    contents, empty = applier.state.contents(), ClusterState().contents()
    for field in dataclasses.fields(Contents):
        assert getattr(contents, field.name) != getattr(empty, field.name), f"{field.name} is empty here"
    held = {name.lstrip("_") for name in ClusterState.__slots__}
    assert held == {field.name for field in dataclasses.fields(Contents)}, (
        "a snapshot has another set of fields"
    )
    restored = ClusterState()
    restored.restore(applier.state.encode())
    for other in (applier.state.copy(), restored):
        assert other.contents() == contents
        assert other.encode() == applier.state.encode()


def test_a_snapshot_holds_every_field_of_brokers_topics_and_partitions() -> None:
    listener = Listener("EXTERNAL", "h", 1, SecurityProtocol.SSL)
    broker = BrokerState(
        1, "first", 2, True, "rack", "kafka", 3, "grpc", 4, "disk", True, (("f", 1),),
        frozenset({(TOPIC_ID.bytes, 0)}), (listener,),
    )  # fmt: skip
    partition = PartitionState((1, 2), (1,), (2,), 1, 3, 4, 2, (2,), (2,))
    topic = TopicState("t", TOPIC_ID, {"k": "v"}, {0: partition})
    follows = {(TopicState, "defaults")}  # from the settings of all nodes
    for value in (broker, partition, topic):
        for field in dataclasses.fields(value):
            default = field.default_factory() if callable(field.default_factory) else field.default
            is_filled = getattr(value, field.name) != default
            assert is_filled or (type(value), field.name) in follows, f"{field.name} has its default here"
    empty = ClusterState().contents()
    contents = dataclasses.replace(empty, brokers={1: broker}, topics={"t": topic})
    assert snapshot.decode(snapshot.encode(contents)) == contents


def every_feature() -> list[pb.Feature]:
    return [pb.Feature(name=name, level=level) for name, level in INITIAL_FEATURES.items()]
