"""The leader of a partition and its address, for the answer to a client that sent its request to another node
(KIP-951)."""

from __future__ import annotations

from collections.abc import Iterable

from ....wire.endpoints import NodeEndpoint
from ...serving.broker import Broker


def current_leader(broker: Broker, topic: str, partition: int) -> tuple[int, int] | None:
    """(leader, leader epoch) by the metadata; None when there is none, or when it is this node, which has
    just refused: it may not know its successor yet."""
    found = broker.state.partition(topic, partition)
    if found is None or found.leader in (-1, broker.node_id):
        return None
    return found.leader, found.leader_epoch


def endpoints(broker: Broker, leaders: Iterable[int], listener_name: str) -> list[NodeEndpoint]:
    """Where the clients of this listener reach the live ones of these brokers."""
    known = (broker.state.brokers.get(node_id) for node_id in sorted(leaders))
    return [
        (each.node_id, at.host, at.port, each.rack or None)
        for each in known
        if each and not each.fenced and (at := each.endpoint(listener_name)) is not None
    ]
