"""Names and addresses: every life of a node has an address of its own, and each asker learns the new address
of a name later.

An asker that has an old address reaches nothing there.  An asker that has no address yet, or was started
anew, gets the present one. Clients and controllers are not part of this: clients look everywhere, controllers
stay where they are.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from random import Random

from ....controller.planning.brokers.reachability import Life
from .virtual_loop import VirtualLoop


class Names:
    """`lag_s_max` 0: addresses never change."""

    def __init__(self, loop: VirtualLoop, random: Random, seen: Counter[str], lag_s_max: float) -> None:
        self.lag_s_max = lag_s_max
        self._loop = loop
        self._random = random
        self._seen = seen
        self._addresses: dict[int, int] = {}
        self._known: dict[tuple[int, int], int] = {}  # by (asker, node): the address in the asker's cache
        self._found: dict[Life, set[int]] = {}

    def node_started(self, node_id: int, life: int) -> None:
        """At another address, and with nothing in its cache."""
        if not self.lag_s_max:
            return
        self._addresses[node_id] = life
        self._known = {pair: address for pair, address in self._known.items() if pair[0] != node_id}
        for pair in [pair for pair in self._known if pair[1] == node_id]:
            self._loop.world_later(
                self.lag_s_max * self._random.random(), partial(self._known.pop, pair, None)
            )

    def require(self, asker: int, node_id: int) -> None:
        """Raises ConnectionRefusedError where the asker would look in the wrong place."""
        now = self._addresses.get(node_id)
        if now is not None and self._known.setdefault((asker, node_id), now) != now:
            self._seen["old address"] += 1
            raise ConnectionRefusedError(f"{asker} looks for {node_id} where it was before")

    def note_found(self, life: Life, asker: int) -> None:
        self._found.setdefault(life, set()).add(asker)

    def found(self, life: Life) -> frozenset[int]:
        """The nodes that have reached this life of a node."""
        return frozenset(self._found.get(life, ()))

    def heal(self) -> None:
        """Every asker gets the present address from now on."""
        self._known.clear()
        self.lag_s_max = 0.0
        self._addresses.clear()
