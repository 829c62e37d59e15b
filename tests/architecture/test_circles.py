"""No module of the product imports, over however many others, a module that imports it: each is read after
what it builds upon.

Imports under TYPE_CHECKING and inside functions count: such a circle loads, and is one nevertheless for a
reader.  That a package is loaded before its modules does not count: its `__init__` may name what they define.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from tidegate.tests.architecture.source import imports, parse, product_sources

pytestmark = pytest.mark.xdist_group("source")  # they share what is parsed


def circles(sources: Mapping[str, str]) -> list[str]:
    """One line for each group of modules that import each other: the shortest circle through the first of
    them."""
    files = {_dotted(path): path for path in sources}
    graph = {
        path: {file for _, name in imports(path, tree) if (file := _file_of(name, files)) not in (None, path)}
        for path, tree in parse(sources)
    }
    graph = _leading_to_circles(graph)
    ways = {path: _shortest_ways(graph, path) for path in graph}
    groups = {frozenset(other for other in ways[path] if path in ways[other]) for path in graph}
    return sorted(_describe(ways[min(group)][min(group)], len(group)) for group in groups if group)


def _dotted(path: str) -> str:
    return ".".join(["tidegate", *path.removesuffix(".py").split("/")]).removesuffix(".__init__")


def _file_of(name: str, files: Mapping[str, str]) -> str | None:
    """The module that an imported name is, or that defines it."""
    while name not in files:
        name, dot, _ = name.rpartition(".")
        if not dot:
            return None
    return files[name]


def _leading_to_circles(graph: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """What is left when every module that imports none of the others is taken away, again and again."""
    left = dict(graph)
    while ends := [path for path, targets in left.items() if targets.isdisjoint(left)]:
        for path in ends:
            del left[path]
    return {path: targets & left.keys() for path, targets in left.items()}


def _shortest_ways(graph: Mapping[str, set[str]], start: str) -> dict[str, list[str]]:
    """Every module that `start` imports, over however many others -> the modules on the way there, from
    `start` on."""
    found: dict[str, list[str]] = {}
    ends = [[start]]
    while ends:
        further = []
        for way in ends:
            for file in sorted(graph[way[-1]]):
                if file not in found:
                    found[file] = [*way, file]
                    further.append(found[file])
        ends = further
    return found


def _describe(circle: list[str], files: int) -> str:
    return " -> ".join(circle) + (f" (a circle of {files} files)" if files > len(set(circle)) else "")


def test_no_import_closes_a_circle() -> None:
    assert circles(product_sources()) == []


@pytest.mark.parametrize(
    "source",
    [
        "from .b import B",
        "from . import b",
        "import tidegate.x.b",
        "from tidegate.x.b import B",
        "from ..x import b",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .b import B",
        "def late():\n    from .b import B",
        "class A:\n    def late(self):\n        import tidegate.x.b as other",
        "import importlib\nimportlib.import_module('tidegate.x.b')",
    ],
)
@pytest.mark.parametrize(
    "back", ["from .a import A", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from . import a"]
)
def test_two_modules_that_import_each_other_are_found(source: str, back: str) -> None:
    assert circles({"x/a.py": source, "x/b.py": back}) == ["x/a.py -> x/b.py -> x/a.py"]


def test_a_circle_over_folders_is_found() -> None:
    outside = {"y/d.py": "from .b import B"}
    sources = outside | {
        "x/a.py": "from ..y.b import B",
        "y/b.py": "from .c import C",
        "y/c.py": "from ..x import a",
    }
    assert circles(sources) == ["x/a.py -> y/b.py -> y/c.py -> x/a.py"]


def test_a_circle_through_a_package_is_found() -> None:
    sources = {"x/__init__.py": "from .a import A", "x/a.py": "from . import NAME"}
    assert circles(sources) == ["x/__init__.py -> x/a.py -> x/__init__.py"]


def test_two_circles_apart_are_two_and_joined_are_one() -> None:
    pair, other = (
        {"a.py": "from . import b", "b.py": "from . import a"},
        {"c.py": "from . import d", "d.py": "from . import c"},
    )
    assert circles(pair | other) == ["a.py -> b.py -> a.py", "c.py -> d.py -> c.py"]
    joined = {"b.py": "from . import a, c", "d.py": "from . import c, a"}
    assert circles(pair | other | joined) == ["a.py -> b.py -> a.py (a circle of 4 files)"]


@pytest.mark.parametrize(
    "sources",
    [
        {
            "x/a.py": "from .b import B\nfrom .c import C",
            "x/b.py": "from .c import C",
            "x/c.py": "import asyncio",
        },
        {"x/__init__.py": "from .a import A", "x/a.py": "from .b import B", "x/b.py": ""},
        {"x/a.py": "from ..y import a", "y/a.py": "import a, b.c, json"},
        {"x/__init__.py": "from .a import x", "x/a.py": "from ..proto import x_pb2"},
    ],
)
def test_imports_in_one_direction_are_no_circle(sources: Mapping[str, str]) -> None:
    assert circles(sources) == []
