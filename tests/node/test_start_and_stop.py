"""Parts start by stages in the order of one list, and stop in the reverse order; the list has all of them."""

from __future__ import annotations

import asyncio
from typing import Any, cast, get_type_hints
from unittest.mock import MagicMock

from tidegate.node.assembly import Parts
from tidegate.node.node import Node
from tidegate.node.serving.broker import Broker
from tidegate.node.start_and_stop import Part, Stage, start, stop

from .test_configuration import loaded

ENDS = {"stop", "close", "shutdown"}
OWN = {"pages", "controller_grpc", "controller_node", "listener", "housekeeping"}
"""Of the node itself."""


def in_order() -> tuple[Part, ...]:
    node = cast(Any, Node(loaded()))
    node._broker = node._parts = node._directory = MagicMock()
    return cast(Node, node).parts_in_order()


def test_every_part_that_starts_or_stops_is_in_the_list_once() -> None:
    made = {**get_type_hints(Broker), **get_type_hints(Parts)}
    wanted = {name for name, part in made.items() if ENDS & set(dir(part))}
    names = [part.name for part in in_order()]
    assert sorted(names) == sorted(wanted | OWN)
    starting = {name for name in wanted if hasattr(made[name], "start")}
    assert starting == {part.name for part in in_order() if part.stage is not Stage.MADE} - OWN


def test_what_a_part_needs_stops_after_it() -> None:
    """(a part, what it uses until its end)"""
    at = {part.name: number for number, part in enumerate(in_order())}
    for part, needed in (
        ("listener", "transactions"),
        ("listener", "lifecycle"),
        ("transactions", "metadata"),
        ("groups", "replicas"),
        ("lifecycle", "application"),
        ("metadata", "controller"),
        ("application", "replicas"),
        ("replicas", "group_commit"),
        ("group_commit", "directory"),
        ("upkeep", "directory"),
        ("moves", "directory"),
        ("housekeeping", "replicas"),
        ("controller_node", "grpc"),
        ("controller_node", "controller_grpc"),
    ):
        assert at[needed] < at[part], f"{part} uses {needed}"


async def test_stages_start_in_the_order_of_the_list_and_all_stop_in_reverse() -> None:
    said: list[str] = []

    def part(name: str, stage: Stage) -> Part:
        async def begin() -> None:
            await asyncio.sleep(0)
            said.append(f"start {name}")

        return Part(name, lambda: said.append(f"stop {name}"), stage, begin)

    parts = [part("a", Stage.SERVING), part("b", Stage.BOUND), part("c", Stage.SERVING)]
    await start(parts, Stage.BOUND)
    await start(parts, Stage.SERVING)
    await stop(parts)
    assert said == ["start b", "start a", "start c", "stop c", "stop b", "stop a"]
