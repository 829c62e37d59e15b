"""What the listing commands count."""

from __future__ import annotations

from tidegate.client.administration.operations import PartitionMove
from tidegate.client.command_line.listing import joining_replicas, under_replicated
from tidegate.client.connecting.metadata import PartitionMetadata, TopicView


def topic(*parts: tuple[tuple[int, ...], tuple[int, ...]]) -> TopicView:
    return TopicView(
        "t", False, {n: PartitionMetadata(n, 1, 0, replicas, isr) for n, (replicas, isr) in enumerate(parts)}
    )


def test_replicas_that_a_move_adds_are_not_missed_and_others_are() -> None:
    view = topic(((1, 2, 3), (1, 2)), ((1, 2, 3), (1, 2)), ((1, 2, 3), (1, 3)), ((1, 2), (2, 1)))
    moves = [
        PartitionMove(name, number, (1, 2, 3), (3,), ()) for name, number in (("t", 1), ("t", 2), ("u", 0))
    ]
    assert under_replicated(view, joining_replicas([])) == 3
    assert under_replicated(view, joining_replicas(moves)) == 2
