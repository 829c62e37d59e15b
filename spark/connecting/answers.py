"""What nodes answer about topics and partitions, as values."""

from __future__ import annotations

from dataclasses import dataclass

from ...proto import data_pb2


@dataclass(frozen=True, slots=True)
class LeaderView:
    """The client's view of a partition's leader."""

    node_id: int
    leader_epoch: int
    endpoint: str


@dataclass(frozen=True, slots=True)
class TopicView:
    """A topic, as one node described it."""

    name: str
    topic_id: bytes
    internal: bool
    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class OffsetAnswer:
    """One leader's answer about one partition; `offset` is -1 when no record matched a timestamp."""

    offset: int
    log_start_offset: int
    last_stable_offset: int
    high_watermark: int


@dataclass(frozen=True, slots=True)
class SplitRange:
    """Part of a partition; its inner boundaries are batch boundaries."""

    start: int
    end: int
    bytes_estimated: int
    decompressed_estimated: int = 0  # 0: not known


def leader_view(leader: data_pb2.Leader) -> LeaderView | None:
    """None where the node knows no leader, or not where it listens."""
    return (
        LeaderView(leader.node_id, leader.leader_epoch, leader.endpoint)
        if leader.node_id >= 0 and leader.endpoint
        else None
    )
