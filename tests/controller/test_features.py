"""Feature levels (KIP-584): which nodes are refused, which levels may be raised, and the end of a node that
meets an unknown level."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from uuid import uuid4

import pytest
from tidegate.controller.planning.feature_updates import plan_update
from tidegate.controller.planning.planner import ControllerConfig
from tidegate.controller.planning.settings import node_settings
from tidegate.controller.planning.topics import plan_configuration, plan_creation
from tidegate.controller.remote.client import VOTER_TIMEOUT_S
from tidegate.controller.service import metadata_log
from tidegate.controller.service.metadata_log import MetadataLogUnusable
from tidegate.controller.state import features
from tidegate.controller.state.broker_settings import BROKER_SETTINGS
from tidegate.controller.state.eligibility import Ineligible
from tidegate.controller.state.features import SUPPORTED, Ranges, UnknownLevel, check_known, level_problem
from tidegate.controller.state.model import (
    FORMER_METADATA_VERSION,
    METADATA_VERSION,
    OPERATION_LEVELS,
    RELEASED_LEVEL,
    metadata_level,
    name_of_metadata_level,
)
from tidegate.coordinator.group.classic import state as classic_state
from tidegate.coordinator.group.classic.records import VERSIONS_STORED_FROM
from tidegate.coordinator.group.consumer import records as consumer_records
from tidegate.coordinator.group.consumer import state as consumer_state
from tidegate.coordinator.transaction.records import FIELDS_STORED_FROM
from tidegate.coordinator.transaction.state import PROPERTIES
from tidegate.proto import controller_pb2 as rpc
from tidegate.proto import metadata_pb2 as pb
from tidegate.storage.topic_config import TOPIC_CONFIGS
from tidegate.tests.eventually import eventually
from tidegate.wire.errors import ErrorCode, KafkaError

from .controller_cluster import ControllerCluster, registration
from .planning.test_planner import PlannerCluster
from .test_field_levels import later_field_levels

TRANSACTIONS = "transaction.version"
FIRST_LEVEL = {
    "bootstrap", "become_controller", "register_broker", "fence_broker", "unfence_broker",
    "begin_controlled_shutdown",
    "set_offline_replicas", "create_topic", "delete_topic", "create_partitions", "change_topic_config",
    "change_partitions",
    "allocate_producer_ids", "set_feature_level",
}  # fmt: skip
OLD: Ranges = {FORMER_METADATA_VERSION: (1, 1), TRANSACTIONS: (0, 2)}
RELEASED: Ranges = {FORMER_METADATA_VERSION: (1, 3), TRANSACTIONS: (0, 2)}


@pytest.fixture
def controller() -> PlannerCluster:
    controller = PlannerCluster()
    controller.state._features = {FORMER_METADATA_VERSION: 1, TRANSACTIONS: 2}
    controller.join(1, 2)
    return controller


def update(
    controller: PlannerCluster,
    name: str,
    level: int,
    *,
    voters: dict[int, Ranges | None] | None = None,
    **fields: bool,
) -> None:
    wanted = rpc.FeatureUpdate(name=name, level=level, downgrade=fields.get("downgrade", False))
    request = rpc.UpdateFeaturesRequest(updates=[wanted], validate_only=fields.get("validate_only", False))
    controller.carry_out(plan_update(controller.state, request, {1: SUPPORTED} if voters is None else voters))


PROBLEMS = [
    (
        {METADATA_VERSION: 6},
        SUPPORTED,
        "the cluster runs tidegate.metadata.version=6, broker 7 knows at most 5: upgrade it",
    ),
    (
        {METADATA_VERSION: 4},
        RELEASED,
        "the cluster runs tidegate.metadata.version=4, broker 7 does not know it: upgrade it",
    ),
    ({FORMER_METADATA_VERSION: 3}, SUPPORTED, None),
    ({"new.thing": 1}, SUPPORTED, "the cluster runs new.thing=1, broker 7 does not know it: upgrade it"),
    (
        {METADATA_VERSION: 1},
        {METADATA_VERSION: (2, 3)},
        "broker 7 needs at least 2: first run `tidegate features upgrade`",
    ),
    ({METADATA_VERSION: 2, "gone": 0}, SUPPORTED, None),
]


@pytest.mark.parametrize(("finalised", "known", "says"), PROBLEMS)
def test_a_problem_names_the_feature_the_level_and_what_is_known(
    finalised: dict[str, int], known: Ranges, says: str | None
) -> None:
    problem = level_problem("broker 7", known, finalised)
    assert problem == says if says is None else says in str(problem)


@pytest.mark.parametrize(("low", "high", "says"), [(0, 0, "does not know it"), (2, 5, "needs at least 2")])
def test_a_broker_that_cannot_follow_a_finalised_level_is_refused(
    controller: PlannerCluster, low: int, high: int, says: str
) -> None:
    request = registration(3)
    former = next(each for each in request.supported_features if each.name == FORMER_METADATA_VERSION)
    former.CopyFrom(rpc.FeatureRange(name=FORMER_METADATA_VERSION, min_level=low, max_level=high))
    with pytest.raises(KafkaError) as refused:
        controller.plan_registration(request)
    assert refused.value.code == ErrorCode.UNSUPPORTED_VERSION
    assert "the cluster runs metadata.version=1, broker 3" in refused.value.message
    assert says in refused.value.message


def test_a_level_is_raised_when_every_node_knows_it_and_only_once(controller: PlannerCluster) -> None:
    update(controller, METADATA_VERSION, 2, validate_only=True)
    assert metadata_level(controller.state.features) == 1
    update(controller, METADATA_VERSION, 2)
    assert metadata_level(controller.state.features) == 2
    index = controller.state.index
    update(controller, METADATA_VERSION, 2)
    assert controller.state.index == index


def test_from_level_4_on_the_level_stands_under_its_own_name_alone(controller: PlannerCluster) -> None:
    """A node of the version before knows the former name only: it stops at the entry, and never starts on
    what follows."""
    update(controller, METADATA_VERSION, 3)
    assert dict(controller.state.features) == {FORMER_METADATA_VERSION: 3, TRANSACTIONS: 2}
    assert level_problem("it", RELEASED, controller.state.features) is None
    met = controller.state.index
    update(controller, METADATA_VERSION, 4)
    assert controller.state.index == met + 1, "one entry"
    assert dict(controller.state.features) == {METADATA_VERSION: 4, TRANSACTIONS: 2}
    assert features.shown(controller.state.features) == dict(controller.state.features)
    assert level_problem("it", RELEASED, controller.state.features)


@pytest.mark.parametrize("level", [1, 2, 3, 4])
def test_clients_see_one_name_at_every_level(level: int) -> None:
    assert features.shown({name_of_metadata_level(level): level, TRANSACTIONS: 2}) == {
        METADATA_VERSION: level,
        TRANSACTIONS: 2,
    }
    assert FORMER_METADATA_VERSION not in features.shown_ranges()


def old_broker(controller: PlannerCluster, node_id: int) -> None:
    request = registration(node_id)
    del request.supported_features[:]
    request.supported_features.extend(features.as_messages(OLD))
    controller.carry_out(controller.plan_registration(request))


REFUSED = [
    ("nothing.such", 1, {}, ErrorCode.INVALID_UPDATE_VERSION, "unknown feature"),
    (METADATA_VERSION, 9, {}, ErrorCode.INVALID_UPDATE_VERSION, "the controller knows 1 to 5"),
    (FORMER_METADATA_VERSION, 2, {}, ErrorCode.INVALID_UPDATE_VERSION, "unknown feature"),
    (
        METADATA_VERSION,
        4,
        {"voters": {1: SUPPORTED, 2: RELEASED}},
        ErrorCode.INVALID_UPDATE_VERSION,
        "controller 2 (3)",
    ),
    (
        METADATA_VERSION,
        2,
        {"voters": {1: SUPPORTED, 2: OLD}},
        ErrorCode.INVALID_UPDATE_VERSION,
        "controller 2 (1)",
    ),
    (
        METADATA_VERSION,
        2,
        {"voters": {1: SUPPORTED, 2: {}}},
        ErrorCode.INVALID_UPDATE_VERSION,
        "controller 2 (0)",
    ),
    (
        METADATA_VERSION,
        2,
        {"voters": {1: SUPPORTED, 3: None}},
        ErrorCode.FEATURE_UPDATE_FAILED,
        "controllers 3 did not say",
    ),
    (TRANSACTIONS, 1, {}, ErrorCode.INVALID_UPDATE_VERSION, "would be a downgrade"),
    (METADATA_VERSION, 0, {"downgrade": True}, ErrorCode.INVALID_UPDATE_VERSION, "never lowered"),
]


@pytest.mark.parametrize(("name", "level", "fields", "code", "says"), REFUSED)
def test_a_level_that_some_node_does_not_know_is_rejected(
    controller: PlannerCluster, name: str, level: int, fields: dict[str, object], code: ErrorCode, says: str
) -> None:
    before = dict(controller.state.features)
    with pytest.raises(KafkaError) as refused:
        update(controller, name, level, **fields)  # type: ignore[arg-type]
    assert refused.value.code == code
    assert says in refused.value.message
    assert controller.state.features == before


def test_a_registered_broker_without_the_level_blocks_it_when_away(
    controller: PlannerCluster,
) -> None:
    old_broker(controller, 3)
    with pytest.raises(KafkaError) as refused:
        update(controller, METADATA_VERSION, 2)
    assert "broker 3 (1): upgrade or unregister them first" in refused.value.message


def test_transactions_may_go_back_to_the_older_protocol(controller: PlannerCluster) -> None:
    update(controller, TRANSACTIONS, 1, downgrade=True)
    assert controller.state.features[TRANSACTIONS] == 1
    update(controller, TRANSACTIONS, 0, downgrade=True)
    assert controller.state.features[TRANSACTIONS] == 0


def test_one_of_several_that_is_refused_holds_up_all(controller: PlannerCluster) -> None:
    request = rpc.UpdateFeaturesRequest()
    request.updates.add(name=METADATA_VERSION, level=2)
    request.updates.add(name=TRANSACTIONS, level=9)
    with pytest.raises(KafkaError):
        plan_update(controller.state, request, {1: SUPPORTED})
    request.updates[1].CopyFrom(rpc.FeatureUpdate(name=METADATA_VERSION, level=2))
    with pytest.raises(KafkaError) as refused:
        plan_update(controller.state, request, {1: SUPPORTED})
    assert "more than once" in refused.value.message


# ---- real controllers --------------------------------------------------------------------------------------


async def test_every_voter_must_support_a_level_also_one_that_is_away(tmp_path: Path) -> None:
    cluster = ControllerCluster(tmp_path, 3)
    await cluster.start()
    client = cluster.client()

    def asked_within(timeout_s: float) -> None:
        for node in cluster.nodes.values():
            node.service._ask_voter = partial(client.describe_quorum, timeout_s=timeout_s)

    asked_within(VOTER_TIMEOUT_S)
    request = rpc.UpdateFeaturesRequest(
        updates=[rpc.FeatureUpdate(name=TRANSACTIONS, level=1, downgrade=True)]
    )
    try:
        active = await cluster.active()
        await client.update_features(request)
        assert active.metadata.state.features[TRANSACTIONS] == 1
        other = next(node_id for node_id in cluster.ids if node_id != active.metadata.node_id)
        await cluster.kill(other)
        asked_within(0.5)  # a voter that is away never answers
        request.updates[0].CopyFrom(rpc.FeatureUpdate(name=TRANSACTIONS, level=2))
        with pytest.raises(KafkaError) as refused:
            await client.update_features(request)
        assert refused.value.code == ErrorCode.FEATURE_UPDATE_FAILED
        assert str(other) in refused.value.message
        asked_within(VOTER_TIMEOUT_S)
        await cluster.start(other)  # the channel to it still backs off: it is asked when it can be
        await client.update_features(request)
        assert active.metadata.state.features[TRANSACTIONS] == 2
    finally:
        await client.close()
        await cluster.stop()


async def test_a_controller_that_meets_an_unknown_level_stops_for_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The level is written as a newer version would; it is met in the log first, and in the snapshot at the
    start."""
    cluster = ControllerCluster(tmp_path, 1)
    await cluster.start()
    log = (await cluster.active()).metadata
    raise_it = pb.SetFeatureLevel(name=METADATA_VERSION, level=9, expected_level=5)
    command = pb.Command(operations=[pb.Operation(set_feature_level=raise_it)])
    await log.propose_and_wait(command.SerializeToString())
    await eventually(lambda: cluster.deaths)
    assert cluster.deaths == [
        "the cluster runs tidegate.metadata.version=9, node 1 knows at most 5: upgrade it"
    ]
    await cluster.stop()

    # the newer version goes on, and makes a snapshot
    monkeypatch.setattr(metadata_log, "check_known", lambda *_: None)
    await cluster.start()
    log = (await cluster.active()).metadata
    await log._make_snapshot()
    await cluster.stop()
    monkeypatch.undo()
    with pytest.raises(MetadataLogUnusable) as refused:
        await cluster.start()
    assert "metadata.version=9" in str(refused.value)
    assert "knows at most 5" in str(refused.value)


def test_a_reader_of_the_metadata_that_meets_an_unknown_level_stops() -> None:
    with pytest.raises(UnknownLevel, match="node 4 knows at most 5"):
        check_known(4, {METADATA_VERSION: 6})
    check_known(4, {METADATA_VERSION: 5, TRANSACTIONS: 0})
    check_known(4, {FORMER_METADATA_VERSION: 3, TRANSACTIONS: 0})


def test_every_operation_of_the_log_has_the_level_that_it_came_with() -> None:
    """A new one belongs into `OPERATION_LEVELS`, under a level of its own: nodes that do not know it take
    part below that."""
    kinds = {field.name for field in pb.Operation.DESCRIPTOR.oneofs_by_name["kind"].fields}
    assert kinds == FIRST_LEVEL | OPERATION_LEVELS.keys()


# The settings and values that level 1 had: nodes that know no more stop when they meet another one.
FIRST_SETTINGS = {
    "cleanup.policy", "compression.type", "delete.retention.ms", "flush.policy", "index.interval.bytes",
    "max.compaction.lag.ms",
    "max.message.bytes", "message.timestamp.after.max.ms", "message.timestamp.before.max.ms",
    "message.timestamp.type",
    "min.cleanable.dirty.ratio", "min.compaction.lag.ms", "min.insync.replicas", "record.check",
    "retention.bytes",
    "retention.ms", "segment.bytes", "segment.index.bytes", "segment.jitter.ms", "segment.ms",
    "unclean.leader.election.enable",
}  # fmt: skip
FIRST_CHOICES = {
    "cleanup.policy": {"delete", "compact"},
    "compression.type": {"producer"},
    "flush.policy": {"always", "os"},
    "message.timestamp.type": {"CreateTime", "LogAppendTime"},
}


FIRST_NODE_SETTINGS = frozenset(
    [
        "compression.gzip.level",
        "compression.lz4.level",
        "compression.type",
        "compression.zstd.level",
        "follower.replication.throttled.rate",
        "leader.replication.throttled.rate",
        "log.cleaner.backoff.ms",
        "log.cleaner.dedupe.buffer.size",
        "log.cleaner.delete.retention.ms",
        "log.cleaner.io.max.bytes.per.second",
        "log.cleaner.max.compaction.lag.ms",
        "log.cleaner.min.cleanable.ratio",
        "log.cleaner.min.compaction.lag.ms",
        "log.cleanup.policy",
        "log.flush.interval.messages",
        "log.flush.interval.ms",
        "log.index.interval.bytes",
        "log.index.size.max.bytes",
        "log.local.retention.bytes",
        "log.local.retention.ms",
        "log.message.timestamp.after.max.ms",
        "log.message.timestamp.before.max.ms",
        "log.message.timestamp.type",
        "log.preallocate",
        "log.retention.bytes",
        "log.retention.ms",
        "log.roll.jitter.ms",
        "log.roll.ms",
        "log.segment.bytes",
        "log.segment.delete.delay.ms",
        "max.connections",
        "max.connections.per.ip",
        "max.connections.per.ip.overrides",
        "message.max.bytes",
        "min.insync.replicas",
        "producer.id.expiration.ms",
        "replica.alter.log.dirs.io.max.bytes.per.second",
        "replica.catch.up.max.bytes.per.second",
        "unclean.leader.election.enable",
    ]
)


BROUGHT = {
    1: {
        "ClusterSnapshot.metadata_id", "ineligible: unregistered", "ineligible: former_epoch",
        "ineligible: later_epoch", "ineligible: shutting_down", "ineligible: fenced",
        *(f"transaction is {name}" for name in (
            "EMPTY", "ONGOING", "PREPARE_COMMIT", "PREPARE_ABORT", "COMPLETE_COMMIT", "COMPLETE_ABORT",
        )),
        *(f"tag {tag} of a transaction" for tag in (0, 1, 2, 100, 101)),
        *(f"member is {name}" for name in ("STABLE", "UNREVOKED_PARTITIONS", "UNRELEASED_PARTITIONS")),
        "classic group is EMPTY", "classic group is STABLE", "OffsetCommitValue 1", "OffsetCommitValue 3",
        "GroupMetadataValue 3",
    },
    2: {
        "unregister_broker", "PartitionChange.adding", "PartitionChange.replicas", "PartitionChange.target",
        "PartitionRecord.adding", "PartitionRecord.target", "UnregisterBroker.broker_epoch",
        "UnregisterBroker.node_id",
    },
    3: {
        "change_node_config", "ChangeNodeConfig.node_id", "ChangeNodeConfig.remove", "ChangeNodeConfig.set",
        "ClusterSnapshot.node_configs", "NodeConfigRecord.config", "NodeConfigRecord.node_id",
    },
    4: {
        "change_resource_config", "cleanup.policy=", "compression.gzip.level", "compression.lz4.level",
        "compression.type=gzip", "compression.type=lz4", "compression.type=snappy",
        "compression.type=uncompressed", "compression.type=zstd", "compression.zstd.level",
        "file.delete.delay.ms", "flush.messages", "flush.ms", "follower.replication.throttled.replicas",
        "leader.replication.throttled.replicas", "local.retention.bytes", "local.retention.ms", "preallocate",
        "remote.log.copy.disable", "remote.log.delete.on.disable", "remote.storage.enable",
        "ChangeResourceConfig.name", "ChangeResourceConfig.remove", "ChangeResourceConfig.resource_type",
        "ChangeResourceConfig.set", "ClusterSnapshot.resource_configs", "ResourceConfigRecord.config",
        "ResourceConfigRecord.name", "ResourceConfigRecord.resource_type", "tag 0 of MEMBER",
    },
}  # fmt: skip
"""What each level that a release has brought: operations, settings, values, states and fields of a
coordinator's records, and the fields of messages, which the first level has mostly without a row
(`test_field_levels.py`)."""


def test_nothing_new_gets_a_level_that_a_release_has() -> None:
    """Nodes of the release know the level without it: they pass over a field, and lose it."""
    levels: dict[str, int | None] = {**OPERATION_LEVELS, **features.SETTING_LEVELS}
    levels |= node_settings.LATER_NODE_SETTINGS
    for name, of_values in features.VALUE_LEVELS.items():
        levels |= {f"{name}={value}": level for value, level in of_values.items()}
    levels |= later_field_levels()
    levels |= {f"ineligible: {reason.label}": reason.level for reason in Ineligible}
    levels |= {f"transaction is {state.name}": each.stored_from for state, each in PROPERTIES.items()}
    levels |= {f"tag {tag} of a transaction": level for tag, level in FIELDS_STORED_FROM.items()}
    levels |= {f"member is {state.name}": level for state, level in consumer_state.STORED_FROM.items()}
    levels |= {f"classic group is {state.name}": level for state, level in classic_state.STORED_FROM.items()}
    levels |= {
        f"tag {tag} of {kind.name}": level
        for (kind, tag), level in consumer_records.FIELDS_STORED_FROM.items()
    }
    levels |= {f"{what} {version}": level for (what, version), level in VERSIONS_STORED_FROM.items()}
    for level in range(1, RELEASED_LEVEL + 1):
        found = {name for name, its in levels.items() if its == level}
        advice = f"what is new gets the level after RELEASED_LEVEL, {RELEASED_LEVEL + 1}"
        assert found == BROUGHT.get(level, set()), f"level {level} is released: {advice}"
    assert RELEASED_LEVEL <= SUPPORTED[METADATA_VERSION][1] <= RELEASED_LEVEL + 1


def test_every_setting_and_value_has_the_level_that_it_came_with() -> None:
    """A new one belongs into `SETTING_LEVELS`, `VALUE_LEVELS` or `LATER_NODE_SETTINGS`: the released version
    stops when it meets one in the metadata."""
    assert TOPIC_CONFIGS.keys() - FIRST_SETTINGS == features.SETTING_LEVELS.keys()
    assert BROKER_SETTINGS.keys() - FIRST_NODE_SETTINGS == node_settings.LATER_NODE_SETTINGS.keys()
    levels = (*features.SETTING_LEVELS.values(), *node_settings.NODE_SETTING_LEVELS.values())
    assert all(1 < level <= SUPPORTED[METADATA_VERSION][1] for level in levels)
    for name, first in FIRST_CHOICES.items():
        levels_of_values = features.VALUE_LEVELS.get(name, {}).keys()
        assert set(TOPIC_CONFIGS[name].choices) - first == levels_of_values - {""}, name


def test_a_setting_or_value_above_the_level_is_refused_by_name(
    controller: PlannerCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    controller.topic("orders", (1,))
    monkeypatch.setattr(features, "SETTING_LEVELS", {"retention.ms": 4})
    monkeypatch.setattr(features, "VALUE_LEVELS", {"cleanup.policy": {"compact": 4}})

    def codes(settings: dict[str, str]) -> list[tuple[int, str]]:
        topic = rpc.NewTopic(name="new", partitions=1, replication_factor=1, config=settings)
        creation = rpc.CreateTopicsRequest(topics=[topic], validate_only=True)
        made = plan_creation(controller.state, ControllerConfig(), creation, uuid4).results
        change = rpc.ConfigChange(name="orders", set=settings)
        altered = plan_configuration(
            controller.state, rpc.AlterConfigsRequest(topics=[change], validate_only=True)
        ).results
        return [(result.error, result.message) for result in (*made, *altered)]

    refused = (
        ({"retention.ms": "1"}, "retention.ms"),
        ({"cleanup.policy": "delete,compact"}, "cleanup.policy=compact"),
    )
    for settings, named in refused:
        said = f"tidegate.metadata.version is 1, {named} needs 4: `tidegate features upgrade`"
        assert codes(settings) == [(ErrorCode.UNSUPPORTED_VERSION, said)] * 2
    controller.state._features = {METADATA_VERSION: 4}
    assert codes({"retention.ms": "1", "cleanup.policy": "compact"}) == [(ErrorCode.NONE, "")] * 2
