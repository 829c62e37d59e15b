"""Parts start by stages in the order of one list, and stop in the reverse order; the list has all of them."""

from __future__ import annotations

import asyncio
from typing import Any, cast, get_type_hints
from unittest.mock import MagicMock

import pytest
from tidegate.node.assembly import Parts
from tidegate.node.node import Node
from tidegate.node.serving.broker import Broker
from tidegate.node.start_and_stop import Part, Stage, in_order, start, stop

from .test_configuration import loaded

ENDS = {"stop", "close", "shutdown"}
OWN = {"pages", "controller_grpc", "controller_node", "listener"}
"""Of the node itself."""


def parts_of_a_node() -> tuple[Part, ...]:
    node = cast(Any, Node(loaded()))
    node._broker = node._parts = node._directory = MagicMock()
    return cast(Node, node).parts_in_order()


def test_every_part_that_starts_or_stops_is_in_the_list_once() -> None:
    made = {**get_type_hints(Broker), **get_type_hints(Parts)}
    wanted = {name for name, part in made.items() if (ENDS | {"start"}) & set(dir(part))}
    names = [part.name for part in parts_of_a_node()]
    assert sorted(names) == sorted(wanted | OWN)
    starting = {name for name in wanted if hasattr(made[name], "start")}
    assert starting == {part.name for part in parts_of_a_node() if part.stage is not Stage.MADE} - OWN


def test_a_part_stands_after_what_it_needs() -> None:
    """The order of the node is checked where it is made: every pair of neighbours that need each other can
    stand in one order only."""
    parts = list(parts_of_a_node())
    for number, part in enumerate(parts):
        for needed in part.needs:
            at = next(each for each, other in enumerate(parts) if other.name == needed)
            swapped = [*parts]
            swapped[at], swapped[number] = part, parts[at]
            with pytest.raises(ValueError, match="must stand before it"):
                in_order(*swapped)


def test_a_need_that_comes_later_or_never_is_refused() -> None:
    with pytest.raises(ValueError, match="a needs b"):
        in_order(Part("a", ("b",), lambda: None), Part("b", (), lambda: None))


async def test_stages_start_in_the_order_of_the_list_and_all_stop_in_reverse() -> None:
    said: list[str] = []

    def part(name: str, stage: Stage) -> Part:
        async def begin() -> None:
            await asyncio.sleep(0)
            said.append(f"start {name}")

        return Part(name, (), lambda: said.append(f"stop {name}"), stage, begin)

    parts = [part("a", Stage.SERVING), part("b", Stage.BOUND), part("c", Stage.SERVING)]
    await start(parts, Stage.BOUND)
    await start(parts, Stage.SERVING)
    await stop(parts)
    assert said == ["start b", "start a", "start c", "stop c", "stop b", "stop a"]
