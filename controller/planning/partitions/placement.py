"""Where new partitions go: spread evenly over brokers, and over racks when brokers name them.

Every choice takes the broker with the fewest replicas (for the first replica: the fewest leaderships) so far,
counting what the cluster has already, so small topics made one after the other fill the brokers as evenly as
one large topic.

Every registered broker counts, as in Kafka: a fenced broker, or one that shuts down, gets replicas where the
active brokers do not suffice, or where only it keeps racks apart.  It never leads, comes last among the
replicas and is not in the ISR (`planning/topics.py`); it joins the ISR when it is back and has a whole copy.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ....wire.errors import ErrorCode, KafkaError
from ...state.model import BrokerState, TopicState


@dataclass(slots=True)
class Load:
    """Replicas and leaderships of each broker; grows while a plan is made."""

    replicas: dict[int, int] = field(default_factory=dict)
    leaderships: dict[int, int] = field(default_factory=dict)

    @classmethod
    def of(cls, topics: Iterable[TopicState]) -> Load:
        load = cls()
        for topic in topics:
            for partition in topic.partitions.values():
                load.add(partition.future_replicas)
        return load

    def add(self, replicas: Sequence[int]) -> None:
        """Counts preferred leaders, because leaderships return to them; the present leaders are
        accidental."""
        self.leaderships[replicas[0]] = self.leaderships.get(replicas[0], 0) + 1
        for node_id in replicas:
            self.replicas[node_id] = self.replicas.get(node_id, 0) + 1


def place(
    partitions: int, replication_factor: int, brokers: Sequence[BrokerState], load: Load
) -> list[tuple[int, ...]]:
    """The replicas of each new partition, the preferred leader first and those that are away last; `brokers`:
    all that are registered.  Raises INVALID_REPLICATION_FACTOR."""
    if replication_factor < 1:
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"a replication factor of {replication_factor} is not at least 1",
        )
    if replication_factor > len(brokers):
        message = (
            f"Unable to replicate the partition {replication_factor} time(s): The target replication "
            "factor of "
            f"{replication_factor} cannot be reached because only {len(brokers)} broker(s) are registered."
        )
        raise KafkaError(ErrorCode.INVALID_REPLICATION_FACTOR, message)
    if not any(broker.active for broker in brokers):
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR, "all brokers are fenced or shutting down: none can lead"
        )
    placed = []
    for _ in range(partitions):
        replicas = _place_one(replication_factor, brokers, load)
        load.add(replicas)
        placed.append(replicas)
    return placed


def _place_one(replication_factor: int, brokers: Sequence[BrokerState], load: Load) -> tuple[int, ...]:
    def as_leader(broker: BrokerState) -> tuple[int, int, int]:
        node_id = broker.node_id
        return load.leaderships.get(node_id, 0), load.replicas.get(node_id, 0), node_id

    leader = min((broker for broker in brokers if broker.active), key=as_leader)
    chosen = [leader]
    # Equal loads: on in a circle, each time beginning one further from the leader, so that the leaderships of
    # a lost broker fall to all others and not to its neighbour.
    others = [broker for broker in brokers if broker is not leader]
    shift = load.leaderships.get(leader.node_id, 0) + bisect(
        others, leader.node_id, key=lambda broker: broker.node_id
    )
    circle = {broker.node_id: (position - shift) % len(others) for position, broker in enumerate(others)}
    for _ in range(replication_factor - 1):
        used_racks = {broker.rack for broker in chosen if broker.rack}
        left = [broker for broker in others if broker not in chosen]
        chosen.append(
            min(
                left,
                key=lambda broker: (
                    broker.rack in used_racks,
                    not broker.active,
                    load.replicas.get(broker.node_id, 0),
                    circle[broker.node_id],
                ),
            )
        )
    return tuple(broker.node_id for broker in sorted(chosen, key=lambda broker: not broker.active))


def check_assignments(
    assignments: Sequence[Sequence[int]], brokers: Mapping[int, BrokerState]
) -> list[tuple[int, ...]]:
    """A user's own assignment, or INVALID_REPLICA_ASSIGNMENT with what is wrong with it."""
    factor = len(assignments[0]) if assignments else 0
    for number, replicas in enumerate(assignments):
        if not replicas or len(set(replicas)) != len(replicas) or len(replicas) != factor:
            message = (
                f"assignment {number} is {list(replicas)}: every partition needs the same number of "
                "distinct replicas"
            )
            raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)
        unknown = [node_id for node_id in replicas if node_id not in brokers]
        if unknown:
            message = (
                f"The manual partition assignment includes broker {unknown[0]}, but no such broker is "
                "registered."
            )
            raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)
    return [tuple(replicas) for replicas in assignments]
