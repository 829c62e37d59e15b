"""Ports for what wants them at fixed distances from a first one."""

from __future__ import annotations

from random import SystemRandom

from tidegate.processes.local_ports import PORT_STEP, SECURED_PORTS
from tidegate.runtime.network import port_is_free


def free_base_port(nodes: int = 1, first: int = 13_000, last: int = 29_000) -> int:
    """The base of so many nodes whose ports are all free now; another one at each call, because tests run
    side by side."""
    bases = SystemRandom().sample(range(first, last), 200)
    return next(
        base for base in bases if all(port_is_free(base + PORT_STEP * use) for use in range(SECURED_PORTS))
    )
