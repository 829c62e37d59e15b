"""Which node leads each partition, as far as the client has heard."""

from __future__ import annotations

from .answers import LeaderView
from .errors import TOPIC_UNKNOWN, Problem


class Leaders:
    """Kept from request to request: the view with the highest leader epoch, until a call to it fails."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, int], LeaderView] = {}

    def known(self, topic: str, partition: int) -> LeaderView | None:
        return self._known.get((topic, partition))

    def begin_with(self, topic: str, partition: int, leader: LeaderView) -> None:
        """A task takes what the driver knew; if another node leads by then, the first call gets the new
        leader."""
        self._known[topic, partition] = leader

    def note(self, topic: str, partition: int, leader: LeaderView | None) -> None:
        """Keeps the view with the higher epoch: a node with old metadata must not restore a former leader."""
        known = self._known.get((topic, partition))
        if leader is not None and (known is None or leader.leader_epoch >= known.leader_epoch):
            self._known[topic, partition] = leader

    def forget(self, topic: str, partition: int, problem: Problem) -> None:
        """After a call that failed by `problem`; the leader that a refusal names takes the place."""
        known = self._known.pop((topic, partition), None)
        # A node that does not know the topic cannot know its leader either: the metadata of all decide
        # whether it was deleted.
        hint = problem.leader if problem.code not in TOPIC_UNKNOWN else None
        if hint is not None and (known is None or hint.leader_epoch >= known.leader_epoch):
            self._known[topic, partition] = hint
