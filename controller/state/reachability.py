"""Which brokers others have reached since they came back, as each broker says of itself in its heartbeats.

A broker that comes back with another address is in sync long before the others find it, where names are cached: it fetches from
them, they do not have to find it.  A leader that its followers cannot find loses them.  So leadership that is given by choice
waits until the other replicas have reached the broker, and among several candidates one that was reached goes first.  Where
there is no choice the only candidate leads, reached or not.

Each broker asks every other one who it is, once in the life of each (`node/lifecycle/reachability.py`); the one that was asked
tells.  A
broker of a version that does neither is not waited for, and does not wait.  Not replicated: a new controller is told anew.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

Reached = Callable[[int, Iterable[int]], bool]
"""Whether a broker was reached by those of the others that ask."""

Life = tuple[int, int]
"""(node id, broker epoch)"""


class Reachability:
    """What the brokers of one controller's term have said."""

    __slots__ = ("_said",)

    def __init__(self) -> None:
        # By node id: its broker epoch, and who reached it; None: it asks no other.
        self._said: dict[int, tuple[int, frozenset[Life] | None]] = {}

    def told(self, node_id: int, broker_epoch: int, reached_by: Collection[Life] | None) -> None:
        self._said[node_id] = broker_epoch, None if reached_by is None else frozenset(reached_by)

    def forget(self, node_id: int) -> None:
        """Another life of it begins, or it is gone."""
        self._said.pop(node_id, None)

    def missing(self, node_id: int, others: Iterable[int]) -> list[int]:
        """Those of `others` that ask, and have not reached this life of the broker.  One that said nothing yet was reached by
        none of them; and of one that said nothing yet to a new controller it is not known whether it asks."""
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
