"""The product's modules as syntax trees, for the tests that hold the architecture."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = (
    "chaos", "client", "controller", "coordinator", "deploy", "node", "processes", "proto", "replication",
    "runtime", "security", "spark",
    "storage", "wire",
)  # fmt: skip


@cache
def product_sources() -> Mapping[str, str]:
    """Path (from the root, with slashes) -> source of every module of the product; generated modules are left
    out."""
    paths = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
    return {
        path.relative_to(ROOT).as_posix(): path.read_text()
        for path in [*sorted(ROOT.glob("*.py")), *paths]
        if "_pb2" not in path.name and path.name != "setup.py"
    }


@cache
def imports(path: str, tree: ast.AST) -> tuple[tuple[int, str], ...]:
    """(line, dotted name) of everything imported anywhere in a module, relative imports resolved below
    `tidegate`.

    `from a import b` gives `a.b`.  Imports inside functions, under TYPE_CHECKING and by
    `importlib.import_module` count too.
    """
    return tuple(_imports(path, tree))


def _imports(path: str, tree: ast.AST) -> Iterator[tuple[int, str]]:
    package = ["tidegate", *path.split("/")[:-1]]
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                for alias in names:
                    yield node.lineno, alias.name
            case ast.ImportFrom(module=module, names=names, level=level):
                base = package[: len(package) - level + 1] if level else []
                prefix = ".".join([*base, *([module] if module else [])])
                for alias in names:
                    yield node.lineno, f"{prefix}.{alias.name}"
            case ast.Call(
                func=ast.Attribute(attr=called) | ast.Name(id=called),
                args=[ast.Constant(value=str(name)), *_],
            ) if called in ("import_module", "resolve_name", "__import__"):
                yield node.lineno, name


def parse(sources: Mapping[str, str]) -> Iterator[tuple[str, ast.Module]]:
    for path, source in sources.items():
        yield path, tree_of(source)


@cache
def tree_of(source: str) -> ast.Module:
    """Parsed once for all tests of the process; no test changes it."""
    return ast.parse(source)
