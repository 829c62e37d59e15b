"""Parts start by stages in the order of one list, and stop in the reverse order; the list has all of them."""

from __future__ import annotations

import asyncio
import functools
import threading
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast, get_type_hints
from unittest.mock import MagicMock

import pytest
from tidegate.node.assembly import Parts
from tidegate.node.cluster.cluster_view import ClusterView
from tidegate.node.node import Node
from tidegate.node.serving.broker import Broker
from tidegate.node.settings.definitions import RANGES_PORT
from tidegate.node.start_and_stop import Part, Stage, in_order, start, stop
from tidegate.tests.eventually import eventually

from .made_node import made_node, settings_of_one_node
from .test_configuration import loaded

ENDS = {"stop", "close", "shutdown"}
OWN = {"pages", "controller_grpc", "controller_node", "listener"}
"""Of the node itself."""
SHARED = ("asyncio_", "Thread-")
"""The threads of the loop, and those of gRPC."""


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


def held(thing: object) -> Iterator[object]:
    """What an object, a function or a collection holds."""
    match thing:
        case types.MethodType():
            yield thing.__self__
        case types.FunctionType():
            yield from (cell.cell_contents for cell in thing.__closure__ or ())
        case functools.partial():
            yield from (thing.func, *thing.args, *thing.keywords.values())
        case dict():
            yield from thing.values()
        case list() | tuple() | set() | frozenset():
            yield from thing
        case _:
            if type(thing).__module__.startswith("tidegate."):
                slots = [name for kind in type(thing).__mro__ for name in getattr(kind, "__slots__", ())]
                yield from (getattr(thing, name) for name in slots if hasattr(thing, name))
                yield from getattr(thing, "__dict__", {}).values()


def used_parts(roots: list[object], parts: dict[int, str]) -> set[str]:
    """The parts that the roots reach; `parts`: name by the object's id.  The search ends at each part, at the
    node, whose reports read everything, and at the view of the cluster, which stays what it is when the
    metadata come no more."""
    found, seen, left = set[str](), set[int](), roots
    while left:
        thing = left.pop()
        if id(thing) in parts:
            found.add(parts[id(thing)])
        elif id(thing) not in seen and not isinstance(thing, type | Node | Broker | Parts | ClusterView):
            seen.add(id(thing))
            left.extend(held(thing))
    return found


READ = "it reads what stays"
TOLD = "it passes on an event; a part that has stopped does nothing of it"
FAILS = "a call that comes so late, or is in progress, fails, and its client asks another node"
AFTER_ITS_STOP: dict[tuple[str, str], str] = {
    ("data_service", "replicas"): FAILS,
    ("data_service", "group_commit"): FAILS,
    ("data_service", "batch_threads"): FAILS,
    ("data_service", "audit"): "a refusal is counted, and not written any more",
    ("directory", "replicas"): TOLD,
    ("replicas", "lifecycle"): READ,
    ("replicas", "groups"): TOLD,
    ("replicas", "transactions"): TOLD,
    ("replicas", "application"): TOLD,
    ("application", "lifecycle"): READ,
    ("application", "groups"): TOLD,
    ("application", "probing"): TOLD,
    ("probing", "lifecycle"): READ,
}
"""A part, one that it uses and that stops before it, and why that does no harm."""


async def test_a_part_names_each_part_that_it_was_made_with(tmp_path: Path) -> None:
    """The parts are searched as `assemble` has made them.  What the node makes at its start (`OWN`), and what
    gRPC holds, is not seen."""
    node = await made_node(tmp_path)
    try:
        in_order = node.parts_in_order()
        made = {
            part.name: getattr(node._broker, part.name, None) or getattr(node._parts, part.name)
            for part in in_order
            if part.name not in OWN
        }
        names = {id(thing): name for name, thing in made.items()}
        roots = {name: list(held(thing)) for name, thing in made.items()}
        roots["listener"] = list(held(node._broker))
        places = {part.name: place for place, part in enumerate(in_order)}
        unnamed, too_late = list[str](), set[tuple[str, str]]()
        for part in in_order:
            for used in used_parts(roots.get(part.name, []), names) - {*part.needs, part.name}:
                if places[used] < places[part.name]:
                    unnamed.append(f"{part.name} needs {used}")
                else:
                    too_late.add((part.name, used))
        assert not unnamed, f"Node.parts_in_order does not say: {', '.join(unnamed)}"
        assert too_late == AFTER_ITS_STOP.keys(), (
            f"{too_late ^ AFTER_ITS_STOP.keys()}: the latter stops before the former, which uses it: "
            "move one in Node.parts_in_order, or say in AFTER_ITS_STOP why it may"
        )
    finally:
        await stop(node.parts_in_order())


async def test_a_node_that_has_stopped_leaves_no_task_and_no_thread(tmp_path: Path) -> None:
    """Whatever its parts started."""
    tasks, threads = asyncio.all_tasks(), set(threading.enumerate())
    node = cast(Any, Node(settings_of_one_node(tmp_path)))
    run = asyncio.create_task(node.run())
    await eventually(lambda: run.done() or node._state == "running", "the node is ready")
    node._stop_wanted.set()
    assert await run == 0
    left = [task.get_name() for task in asyncio.all_tasks() - tasks - {run}]
    assert not left, "a part does not end its tasks: see its `stop` in Node.parts_in_order"
    of_parts = {
        each.name for each in set(threading.enumerate()) - threads if not each.name.startswith(SHARED)
    }
    assert not of_parts, "a part does not end its threads: see its `stop` in Node.parts_in_order"


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


async def test_range_connections_are_opened_beside_plain_grpc_alone(tmp_path: Path) -> None:
    node = await made_node(tmp_path)
    ranges, identity = node._parts.range_connections, node._parts.identities["GRPC"]
    try:
        for port, tls, is_opened in ((0, None, True), (-1, None, False), (0, object(), False)):
            node._configuration.values[RANGES_PORT], identity.tls = port, tls
            await node._open_range_connections()
            assert (ranges.port > 0) is is_opened
            await ranges.close()
    finally:
        await stop(node.parts_in_order())
