"""Operations of every kind, right and wrong ones, as the simulator of the quorum draws them: a refused one
changed nothing, and the result of the others names every difference."""

from __future__ import annotations

from collections import Counter
from random import Random

from tidegate.chaos.sim.quorum.commands import KINDS, Commands
from tidegate.controller.state.cluster_state import ClusterState
from tidegate.proto import metadata_pb2 as pb
from tidegate.wire.errors import ErrorCode

from .test_cluster_state import require_changes_named

SEEDS = 30
COMMANDS = 120


def require_refused_unchanged(
    operation: pb.Operation, codes: tuple[ErrorCode, ...], before: ClusterState, after: ClusterState
) -> int:
    """Each partition is refused by itself; returns how many were."""
    changes = [
        (topic.topic_id, change.partition)
        for topic in operation.change_partitions.topics
        for change in topic.partitions
    ]
    found = dict(zip(changes, codes, strict=True))  # of one that is named twice, the last
    for (raw, number), code in found.items():
        topic, was = after.topic_by_raw_id(raw), before.topic_by_raw_id(raw)
        if (
            code is not ErrorCode.NONE
            and topic is not None
            and was is not None
            and changes.count((raw, number)) == 1
        ):
            assert topic.partitions.get(number) == was.partitions.get(number), operation
    return sum(code is not ErrorCode.NONE for code in codes)


def test_a_refused_operation_changes_nothing_and_a_result_names_every_change() -> None:
    applied, refused = Counter[str](), Counter[str]()
    for seed in range(SEEDS):
        state, commands = ClusterState(), Commands(Random(seed))
        for _ in range(COMMANDS):
            for operation in commands.draw(state, 1).operations:
                kind = str(operation.WhichOneof("kind"))
                before = state.copy()
                command = pb.Command(operations=[operation]).SerializeToString()
                result = state.apply(state.index + 1, 1, command)
                require_changes_named(result, before, state)
                (applied if result.ok else refused)[kind] += 1
                if kind == "change_partitions" and isinstance(result.value, tuple):
                    refused[kind] += require_refused_unchanged(operation, result.value, before, state)
                if not result.ok:
                    before.apply(before.index + 1, 1, pb.Command().SerializeToString())
                    assert before.encode() == state.encode(), f"{seed}: refused, and changed: {operation}"
    assert applied.keys() >= set(KINDS), set(KINDS) - applied.keys()
    assert refused.keys() >= set(KINDS), set(KINDS) - refused.keys()
