"""Every field of the metadata log and of its snapshot has a level, and none is written below it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from functools import wraps
from pathlib import Path
from random import Random

import pytest
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message
from tidegate.chaos.sim.quorum import commands
from tidegate.chaos.sim.quorum.commands import Commands
from tidegate.controller import planning
from tidegate.controller.planning import planner
from tidegate.controller.planning.brokers import registration
from tidegate.controller.planning.planner import ControllerPlanner
from tidegate.controller.state.cluster_state import ClusterState
from tidegate.controller.state.model import (
    FIELD_LEVELS,
    LISTENERS_LEVEL,
    METADATA_VERSION,
    MOVES_LEVEL,
    NODE_SETTINGS_LEVEL,
    OPERATION_LEVELS,
    PINNED_CUTS_LEVEL,
    RESOURCES_LEVEL,
    SECURITY_LEVEL,
    SESSIONS_LEVEL,
    SUPPORTED_FEATURES,
    metadata_level,
    name_of_metadata_level,
)
from tidegate.proto import controller_pb2 as rpc
from tidegate.proto import metadata_pb2 as pb

from .test_cluster_state import Applier, change

FIRST_FIELDS: dict[str, int] = {
    "Command": 4, "Operation": 14, "Feature": 2, "Bootstrap": 3, "BecomeController": 1, "Endpoint": 2,
    "RegisterBroker": 9, "PartitionsOfTopic": 2, "SetOfflineReplicas": 3, "FenceBroker": 2,
    "UnfenceBroker": 2,
    "BeginControlledShutdown": 2, "ConfigEntry": 2, "NewPartition": 2, "CreateTopic": 4, "DeleteTopic": 1,
    "CreatePartitions": 3, "ChangeTopicConfig": 3, "PartitionChange": 8, "TopicPartitionChanges": 2,
    "ChangePartitions": 1, "AllocateProducerIds": 3, "SetFeatureLevel": 3, "ClusterSnapshot": 11,
    "BrokerRecord": 11, "TopicRecord": 4, "PartitionRecord": 7, "ProposerRecord": 3, "SeenCommand": 7,
}  # fmt: skip
"""Message -> its highest field number at level 1: numbers are never used again."""
LATER_MESSAGES: dict[str, tuple[int, int]] = {
    "UnregisterBroker": (MOVES_LEVEL, 2),
    "ChangeNodeConfig": (NODE_SETTINGS_LEVEL, 3),
    "NodeConfigRecord": (NODE_SETTINGS_LEVEL, 2),
    "ChangeResourceConfig": (RESOURCES_LEVEL, 4),
    "ResourceConfigRecord": (RESOURCES_LEVEL, 3),
    "SetSessionTimeout": (SESSIONS_LEVEL, 1),
    "NamedEndpoint": (LISTENERS_LEVEL, 4),
    "AclRecord": (SECURITY_LEVEL, 7),
    "ChangeAcls": (SECURITY_LEVEL, 2),
    "ScramRecord": (SECURITY_LEVEL, 6),
    "ChangeScramCredentials": (SECURITY_LEVEL, 2),
    "TokenRecord": (SECURITY_LEVEL, 7),
    "ChangeDelegationTokens": (SECURITY_LEVEL, 2),
    "QuotaEntityPart": (SECURITY_LEVEL, 3),
    "QuotaRecord": (SECURITY_LEVEL, 3),
    "ChangeClientQuotas": (SECURITY_LEVEL, 2),
    "SecurityRecord": (SECURITY_LEVEL, 4),
    "PinnedCutRecord": (PINNED_CUTS_LEVEL, 8),
    "PinnedTopicRecord": (PINNED_CUTS_LEVEL, 3),
    "PinnedPartitionRecord": (PINNED_CUTS_LEVEL, 4),
    "UndecidedRecord": (PINNED_CUTS_LEVEL, 2),
    "PinConfirmation": (PINNED_CUTS_LEVEL, 2),
    "ChangePinnedCuts": (PINNED_CUTS_LEVEL, 3),
}
"""Message -> the level that brought it, its highest field number there."""


def level_of(message: str, field: str, number: int) -> int | None:
    first, at_first = LATER_MESSAGES.get(message, (1, FIRST_FIELDS.get(message, 0)))
    if number <= at_first:
        return first
    return OPERATION_LEVELS.get(field) if message == "Operation" else FIELD_LEVELS.get(f"{message}.{field}")


def later_field_levels() -> dict[str, int | None]:
    """The level of each `Message.field` that has a row, by itself or with its message."""
    return {
        f"{message.name}.{field.name}": level_of(message.name, field.name, field.number)
        for message in pb.DESCRIPTOR.message_types_by_name.values()
        for field in message.fields
        if field.number > FIRST_FIELDS.get(message.name, 0) and message.name != "Operation"
    }


def test_every_field_has_the_level_that_it_came_with() -> None:
    """A new one belongs into `FIELD_LEVELS`, a new message into `LATER_MESSAGES`, under the level after
    `RELEASED_LEVEL`: nodes that do not know it take part below that."""
    fields = {
        f"{message.name}.{field.name}": level_of(message.name, field.name, field.number)
        for message in pb.DESCRIPTOR.message_types_by_name.values()
        for field in message.fields
    }
    assert [name for name, level in fields.items() if level is None] == []
    assert FIELD_LEVELS.keys() <= fields.keys()
    assert FIRST_FIELDS.keys() | LATER_MESSAGES.keys() == set(pb.DESCRIPTOR.message_types_by_name)


def later_fields(message: Message, level: int) -> Iterator[str]:
    """What a message holds, at any depth, that the level does not have."""
    for field, value in message.ListFields():
        found = level_of(message.DESCRIPTOR.name, field.name, field.number)
        if found is None or found > level:
            yield f"{message.DESCRIPTOR.name}.{field.name}"
        if field.message_type is not None:
            for each in value if field.is_repeated else (value,):
                yield from later_fields(each, level)


def fields_of(descriptor: Descriptor) -> Iterator[str]:
    """`Message.field` of a message, and of those that it holds."""
    for field in descriptor.fields:
        yield f"{descriptor.name}.{field.name}"
        if field.message_type is not None:
            yield from fields_of(field.message_type)


def filled(message: Message) -> Iterator[str]:
    for field, value in message.ListFields():
        yield f"{message.DESCRIPTOR.name}.{field.name}"
        if field.message_type is not None:
            for each in value if field.is_repeated else (value,):
                yield from filled(each)


def plans() -> set[str]:
    """Every function of `controller/planning/` that plans."""
    return {
        name
        for path in Path(planning.__path__[0]).rglob("*.py")
        for name in re.findall(r"^def (plan_\w+)", path.read_text(), re.MULTILINE)
    }


NOT_DRAWN = dict.fromkeys(("plan_delegation_token", "plan_ended_tokens"), "change_delegation_tokens")
"""The plans that the simulator does not make, with the one operation that they write: all of it came with the
level of the operation."""


def test_no_plan_and_no_snapshot_has_a_field_before_its_level(monkeypatch: pytest.MonkeyPatch) -> None:
    """The simulator makes every plan, and its requests fill each field: it would hold nothing of what they
    leave out."""
    said, made = set[str](), set[str]()
    requests = rpc.RegisterBrokerRequest, rpc.HeartbeatRequest

    def noting(plan: Callable[..., object]) -> Callable[..., object]:
        @wraps(plan)
        def noted(*args: object, **options: object) -> object:
            made.add(plan.__name__)
            said.update(name for each in args if isinstance(each, requests) for name in filled(each))
            return plan(*args, **options)

        return noted

    for place in (commands, planner, ControllerPlanner):
        for name in [name for name in vars(place) if name.startswith("plan_")]:
            monkeypatch.setattr(place, name, noting(getattr(place, name)))
    seen = planned_fields_hold()
    for message in requests:
        assert [each for each in fields_of(message.DESCRIPTOR) if each not in said] == []
    assert plans() - made - NOT_DRAWN.keys() == set(), "`Commands._planned` of the simulator is to make them"
    assert OPERATION_LEVELS.keys() >= set(NOT_DRAWN.values())
    assert min(seen[level] for level in range(1, SUPPORTED_FEATURES[METADATA_VERSION] + 1)) > 50, seen


def test_ablation_a_field_that_does_not_wait_for_its_level_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(registration, "LISTENERS_LEVEL", 1)
    with pytest.raises(AssertionError, match="listeners"):
        planned_fields_hold()


def planned_fields_hold() -> Counter[int]:
    """Plays what the controller plans at each level, one operation after the other; how many at which."""
    seen = Counter[int]()
    for seed in range(40):
        random = Random(seed)
        state, drawn = ClusterState(), Commands(random)
        at = random.randint(1, SUPPORTED_FEATURES[METADATA_VERSION])
        begin = pb.Bootstrap(
            cluster_id="c", features=[pb.Feature(name=name_of_metadata_level(at), level=at)], metadata_id="m"
        )
        operations = [pb.Operation(bootstrap=begin)]
        for _ in range(60):
            for operation in operations:
                level = metadata_level(state.features)
                if level:
                    assert list(later_fields(operation, level)) == [], f"{seed}: level {level}: {operation}"
                    seen[level] += 1
                state.apply(state.index + 1, 1, pb.Command(operations=[operation]).SerializeToString())
            level = metadata_level(state.features)
            assert list(later_fields(pb.ClusterSnapshot.FromString(state.encode()), level)) == []
            operations = drawn._planned(state)
    return seen


def test_a_field_that_comes_too_early_is_found() -> None:
    change = pb.PartitionChange(replicas=[1], isr=[1])
    topic = pb.TopicPartitionChanges(partitions=[change])
    operation = pb.Operation(change_partitions=pb.ChangePartitions(topics=[topic]))
    assert list(later_fields(operation, 1)) == ["PartitionChange.replicas"]
    assert list(later_fields(operation, MOVES_LEVEL)) == []
    assert list(later_fields(pb.Operation(unregister_broker=pb.UnregisterBroker(node_id=1)), 1)) == [
        "Operation.unregister_broker",
        "UnregisterBroker.node_id",
    ]


EARLY: dict[str, pb.Operation] = {
    "RegisterBroker.listeners": pb.Operation(
        register_broker=pb.RegisterBroker(
            node_id=9,
            incarnation="first",
            expected_broker_epoch=-1,
            listeners=[pb.NamedEndpoint(name="EXTERNAL", host="h", port=1)],
        )
    ),
    "PartitionChange.replicas": change(replicas=(2, 1, 3)),
    "PartitionChange.adding": change(replicas=(1, 2, 3, 4), adding=(4,), target=(1, 2, 3, 4)),
    "PartitionChange.target": change(replicas=(1, 2, 3), target=(1, 2)),
}
"""Operations with a later field, each of which shows what the field changes from its level on."""


@pytest.mark.parametrize(
    "name", sorted(EARLY.keys() | FIELD_LEVELS.keys() & set(fields_of(pb.Operation.DESCRIPTOR)))
)
def test_a_field_has_no_effect_below_its_level(name: str) -> None:
    """A node that does not know the field makes the same of the entry."""
    assert name in EARLY, f"EARLY needs an operation with {name}"
    level = FIELD_LEVELS[name]
    assert outcome_of(EARLY[name], level) != outcome_of(without(EARLY[name], name), level), "shows nothing"
    nothing = outcome_of(pb.Operation(), level - 1)
    assert outcome_of(EARLY[name], level - 1) in (
        nothing,
        outcome_of(without(EARLY[name], name), level - 1),
    ), f"{name} is to be read from `metadata_level(features)` {level} on, and never before"


def outcome_of(operation: pb.Operation, level: int) -> list[object]:
    """The brokers and topics that it leads to, where four brokers have one topic."""
    applier = Applier()
    applier.state._features = {name_of_metadata_level(level): level}
    for node_id in (1, 2, 3, 4):
        applier.broker(node_id)
    assert applier.topic().ok
    applier(operation)
    return [dict(applier.state.brokers), dict(applier.state.topics)]


def without(operation: pb.Operation, name: str) -> pb.Operation:
    def clear(message: Message) -> None:
        for field, value in message.ListFields():
            if f"{message.DESCRIPTOR.name}.{field.name}" == name:
                message.ClearField(field.name)
            elif field.message_type is not None:
                for each in value if field.is_repeated else (value,):
                    clear(each)

    clear(copy := pb.Operation.FromString(operation.SerializeToString()))
    return copy
