"""A loop that runs as a task is started by `runtime.tasks.spawn`, which wants to know what a defect in it
does; the tasks that asyncio starts by itself keep their errors until nothing refers to them."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

import pytest
from tidegate.tests.architecture.source import parse, product_sources

pytestmark = pytest.mark.xdist_group("source")  # they share what is parsed

ROOMS = ("node", "replication", "controller")
STARTS = ("create_task", "ensure_future")


def bare_loops(sources: Mapping[str, str]) -> Iterator[str]:
    """Where a module gives asyncio a function of its own that has a `while`.  One that returns something is
    exempt: the part awaits its result, and gets its error."""
    for path, tree in parse(sources):
        if path.split("/")[0] not in ROOMS:
            continue
        looping = {
            function.name
            for function in ast.walk(tree)
            if isinstance(function, ast.AsyncFunctionDef)
            and (function.returns is None or ast.unparse(function.returns) == "None")
            and any(isinstance(each, ast.While) for each in ast.walk(function))
        }
        for call in ast.walk(tree):
            match call:
                case ast.Call(
                    func=ast.Attribute(attr=started) | ast.Name(id=started),
                    args=[ast.Call(func=ast.Attribute(attr=work) | ast.Name(id=work)), *_],
                ) if started in STARTS and work in looping:
                    yield f"{path}:{call.lineno}: {work}"


def test_every_loop_says_what_its_defect_does() -> None:
    assert list(bare_loops(product_sources())) == []


@pytest.mark.parametrize("start", ["asyncio.create_task", "asyncio.get_running_loop().create_task"])
def test_a_bare_loop_is_found(start: str) -> None:
    source = f"async def run(self):\n    while True:\n        pass\ndef start(self):\n    {start}(self.run())"
    assert list(bare_loops({"node/part.py": source})) == ["node/part.py:5: run"]
    assert not list(bare_loops({"node/part.py": source.replace(start, "spawn")}))
