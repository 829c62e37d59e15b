"""Which brokers have reached which other since it came back, as each broker reports of itself in its
heartbeats.

Where names are cached, a broker that comes back with another address is in sync long before the others find
it: it fetches from them.  A leader that its followers cannot find loses them.  So an election that has a
choice waits until the other replicas have reached the broker, and among several candidates prefers a reached
one.  Where there is no choice the only candidate leads, reached or not.

Each broker asks every other broker for its identity, once per broker epoch
(`node/lifecycle/probing.py`); the asked broker reports the asker in its heartbeats.  A broker of a
version without this is not waited for, and does not wait.  Not replicated: a new controller gets the reports
anew.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

Reached = Callable[[int, Iterable[int]], bool]
"""Reached(node id, others): whether all of the others that ask have reached the broker."""

Life = tuple[int, int]
"""(node id, broker epoch)"""


class Reachability:
    """The reports of brokers in one controller's term."""

    __slots__ = ("_said",)

    def __init__(self) -> None:
        # By node id: its broker epoch, and the brokers that reached it; None: it asks no other.
        self._said: dict[int, tuple[int, frozenset[Life] | None]] = {}

    def report(self, node_id: int, broker_epoch: int, reached_by: Collection[Life] | None) -> None:
        self._said[node_id] = broker_epoch, None if reached_by is None else frozenset(reached_by)

    def forget(self, node_id: int) -> None:
        """The broker registers anew, or is unregistered."""
        self._said.pop(node_id, None)

    def missing(self, node_id: int, others: Iterable[int]) -> list[int]:
        """The brokers of `others` that ask and have not reached this epoch of the broker.  A broker without a
        report counts as reached by none; and whether a broker asks is unknown before its first report to this
        controller."""
        mine = self._said.get(node_id)
        reached_by = frozenset[Life]() if mine is None else mine[1]
        if reached_by is None:
            return []
        return [other for other in others if other != node_id and not self._counts(other, reached_by)]

    def _counts(self, other: int, reached_by: Collection[Life]) -> bool:
        epoch, said = self._said.get(other, (-1, frozenset[Life]()))
        return said is None or (other, epoch) in reached_by

    def is_reached(self, node_id: int, others: Iterable[int]) -> bool:
        return not self.missing(node_id, others)
