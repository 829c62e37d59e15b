"""The order in which a node's parts start and stop: one list (`Node.parts_in_order`), from which both follow.

The list stands from what all need to what needs all.  The parts of one stage start in that order; all parts
stop in the reverse order, also those that did not start, as after a start that failed.  So no part outlives
what it uses (`Part.needs`, which `in_order` compares with the list).
"""

from __future__ import annotations

import enum
import inspect
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass


class Stage(enum.Enum):
    """When a part starts."""

    MADE = "made"  # there is nothing to start
    NETWORK = "network"
    BOUND = "bound"  # before the registration: a port in use fails the start early
    METADATA = "metadata"
    SERVING = "serving"  # when the metadata are applied up to the registration


def _nothing() -> None:
    pass


@dataclass(slots=True, frozen=True)
class Part:
    """`name` is that of its field in `Broker`, `Parts` or `Node`; `needs`: the parts that it uses until its
    own end."""

    name: str
    needs: tuple[str, ...]
    stop: Callable[[], Awaitable[object] | None]
    stage: Stage = Stage.MADE
    start: Callable[[], Awaitable[object] | None] = _nothing


def in_order(*parts: Part) -> tuple[Part, ...]:
    """The list.  Raises ValueError for a part that stands before one that it needs."""
    before = set[str]()
    for part in parts:
        if missing := [name for name in part.needs if name not in before]:
            raise ValueError(f"{part.name} needs {', '.join(missing)}, which must stand before it")
        before.add(part.name)
    return parts


async def start(parts: Sequence[Part], stage: Stage) -> None:
    for part in parts:
        if part.stage is stage and inspect.isawaitable(started := part.start()):
            await started


async def stop(parts: Sequence[Part]) -> None:
    for part in reversed(parts):
        if inspect.isawaitable(stopped := part.stop()):
            await stopped
