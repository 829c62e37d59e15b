"""Ports for controllers in the test's own process: no other test process takes them, and no outgoing
connection does.

A port that was merely free a moment ago may be taken when it is bound, on a busy machine before long: the
kernel gives such ports to outgoing connections, too.
"""

from __future__ import annotations

import weakref

from tidegate.processes.local_ports import NodePorts, Reservations
from tidegate.runtime.clock import SystemClock


def reserve_ports(owner: object, count: int) -> dict[int, NodePorts]:
    """Of nodes 1 to `count`, reserved as long as `owner` lives."""
    reservations = Reservations(SystemClock())
    weakref.finalize(owner, reservations.release)
    return {node_id: reservations.choose(node_id) for node_id in range(1, count + 1)}
