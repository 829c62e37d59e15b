"""Where the replicas of a broker move when it is drained: a pure plan over the metadata.

The new replica takes the place of the old one in the list, so the successor of a preferred leader is the
preferred leader.  The successor is a live broker without a replica of the partition; of those, one whose rack
holds the fewest of the other replicas, then the one with the fewest leaderships (for a preferred leader) or
replicas, counting those that the plan already gave it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

Partition = tuple[str, int]


@dataclass(slots=True)
class Drain:
    """`targets`: the new replicas of each partition that leaves the broker; `stuck`: partitions that no live
    broker can take; `leaving`: how many partitions already move away from it."""

    targets: dict[Partition, list[int]] = field(default_factory=dict)
    stuck: list[Partition] = field(default_factory=list)
    leaving: int = 0


def plan_drain(
    broker: int, live: Mapping[int, str | None], replicas: Mapping[Partition, Sequence[int]]
) -> Drain:
    """`live`: the rack of each broker that can take replicas; `replicas`: those of every partition after the
    moves that run now."""
    racks = {node: rack for node, rack in live.items() if node != broker}
    held: Counter[int] = Counter(node for nodes in replicas.values() for node in nodes)
    preferred: Counter[int] = Counter(nodes[0] for nodes in replicas.values() if nodes)
    plan = Drain()
    for partition, nodes in sorted(replicas.items()):
        if broker not in nodes:
            continue
        place = nodes.index(broker)
        others = [node for node in nodes if node != broker]
        in_rack = Counter(live[node] for node in others if node in live)

        def burden(
            node: int, first: bool = place == 0, in_rack: Counter[str | None] = in_rack
        ) -> tuple[int, int, int, int]:
            return (
                in_rack[racks[node]] if racks[node] is not None else 0,
                preferred[node] * first,
                held[node],
                node,
            )

        successor = min(_without(racks, others), key=burden, default=None)
        if successor is None:
            plan.stuck.append(partition)
            continue
        plan.targets[partition] = [*nodes[:place], successor, *nodes[place + 1 :]]
        held[successor] += 1
        preferred[successor] += place == 0
    return plan


def _without(nodes: Iterable[int], taken: Sequence[int]) -> list[int]:
    return [node for node in nodes if node not in taken]
