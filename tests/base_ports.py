"""Ports for what wants them at fixed distances from a first one."""

from __future__ import annotations

from random import SystemRandom

from tidegate.processes.local_ports import PORT_STEP, SECURED_PORTS, Reservations
from tidegate.runtime.clock import SystemClock
from tidegate.runtime.network import port_is_free


def free_base_port(uses: int = SECURED_PORTS, nodes: int = 1, *, last_digit: int | None = None) -> int:
    """The base of so many nodes, each with so many ports, that no other cluster has now, up or down; another
    one at each call, because tests run side by side."""
    bases = SystemRandom().sample(range(13_000, 29_000), 2000)
    return next(
        base
        for base in bases
        if last_digit in (None, base % 10)
        and all(_is_free(base + PORT_STEP * use + node) for use in range(uses) for node in range(nodes))
    )


def _is_free(port: int) -> bool:
    reservations = Reservations(SystemClock())
    try:
        return reservations.hold(port) and port_is_free(port)
    finally:
        reservations.release()
