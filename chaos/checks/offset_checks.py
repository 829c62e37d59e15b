"""Checks on offsets that were committed with, and only with, the records of a transaction (docs/semantics.md
V6).

The promise of consume-transform-produce: the input position of a group and the outputs of its transactions
move together.  So for every group and partition

* the position at the end is one that a transaction committed, and none that committed lies above it;
* no two committed transactions consumed the same input, and some committed transaction consumed each input
  below the final position.

The checks assume that the group began at the start of its input; the first two checks need the final
positions of the groups.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from .anomaly import Anomaly, AnomalyKind, about
from .evidence import Evidence
from .history import CommitOffsets, Op, Partition

Input = tuple[str, Partition]
"""A group and a partition that it reads."""


def torn_offset_commits(evidence: Evidence) -> Iterator[Anomaly]:
    if evidence.final_offsets is None:
        return
    for (group, partition), commits in _commits(evidence).items():
        final = evidence.final_offsets.get(group, {}).get(partition)
        for op, offset in commits:
            if evidence.must_have_committed(op) and (final is None or offset > final):
                message = (
                    f"{op} committed, but group {group} stands at {final} and not at its offset {offset}"
                )
                yield about(AnomalyKind.TORN_OFFSET_COMMIT, message, op, partition=partition)
        possible = [
            op for op, offset in commits if offset == final and not evidence.cannot_have_committed(op)
        ]
        if final is not None and not possible:
            aborted = [op for op, offset in commits if offset == final]
            message = (
                f"group {group} stands at {final}, which no operation that can have committed has written"
            )
            yield about(AnomalyKind.TORN_OFFSET_COMMIT, message, *aborted, partition=partition)


def _commits(evidence: Evidence) -> dict[Input, list[tuple[Op, int]]]:
    commits: dict[Input, list[tuple[Op, int]]] = defaultdict(list)
    for op in evidence.history:
        for commit in op.commits:
            for partition, offset in commit.offsets.items():
                commits[commit.group, partition].append((op, offset))
    return commits


def consumed_twice(evidence: Evidence) -> Iterator[Anomaly]:
    takers: dict[tuple[Input, int], Op] = {}
    for op in evidence.history:
        if op.transactional_id is None or not evidence.must_have_committed(op):
            continue
        for taken, offset in set(_inputs(op)):
            other = takers.setdefault((taken, offset), op)
            if other is not op:
                message = f"offset {offset} was consumed by {other} and by {op} of group {taken[0]}"
                yield about(AnomalyKind.CONSUMED_TWICE, message, other, op, partition=taken[1])


def consumed_never(evidence: Evidence) -> Iterator[Anomaly]:
    """Inputs below the group's final position that no transaction took which can have committed."""
    if evidence.final_offsets is None:
        return
    taken: dict[Input, set[int]] = defaultdict(set)
    for op in evidence.history:
        if op.transactional_id is not None and not evidence.cannot_have_committed(op):
            for where, offset in _inputs(op):
                taken[where].add(offset)
    groups = {group for group, _ in taken}
    for group in groups & evidence.final_offsets.keys():
        for partition, final in evidence.final_offsets[group].items():
            for offset, value in evidence.final_logs.get(partition, ()):
                if offset < final and offset not in taken.get((group, partition), ()):
                    message = (
                        f"group {group} stands at {final}, but no transaction took {value!r} at offset "
                        f"{offset}"
                    )
                    yield about(AnomalyKind.CONSUMED_NEVER, message, partition=partition, value=value)


def _inputs(op: Op) -> Iterator[tuple[Input, int]]:
    """What a transaction consumed: the records it polled from partitions whose offsets it committed, below
    those offsets."""
    commits: list[CommitOffsets] = list(op.commits)
    for poll in op.polls:
        for partition, records in poll.records.items():
            for commit in commits:
                if partition in commit.offsets:
                    for offset, _ in records:
                        if offset < commit.offsets[partition]:
                            yield (commit.group, partition), offset
