"""How large the product's files, classes and constructors are: a report, not a limit.

    python -m tests.sizes            the largest of each kind, and the lines of each folder

A long file that is one thought is fine; what stands at the head of these lists is where to look for a seam
first.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from typing import Final

from tests.packaging.source_tree import ROOT, product_modules

SHOWN: Final = 12
Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions(tree: ast.AST) -> Iterator[tuple[str, int, int]]:
    """Name, lines without the docstring, and parameters of every function."""
    for node in ast.walk(tree):
        if isinstance(node, Function):
            first = node.body[0]
            docstring = (
                (first.end_lineno or first.lineno) - first.lineno + 1
                if ast.get_docstring(node) is not None
                else 0
            )
            given = node.args
            count = len(given.posonlyargs) + len(given.args) + len(given.kwonlyargs)
            yield node.name, (node.end_lineno or node.lineno) - node.lineno + 1 - docstring, count


def classes(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Name and number of methods of every class."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            yield node.name, sum(isinstance(each, Function) for each in node.body)


def show(title: str, found: list[tuple[int, str]]) -> None:
    print(f"\n{title}")
    for number, what in sorted(found, reverse=True)[:SHOWN]:
        print(f"{number:6d}  {what}")


def main() -> None:
    files, methods, lengths, parameters, folders = [], [], [], [], Counter[str]()
    for path in product_modules():
        source = (ROOT / path).read_text()
        tree, lines = ast.parse(source), len(source.splitlines())
        files.append((lines, str(path)))
        folders[path.parts[0]] += lines
        methods += [(count, f"{path}: {name}") for name, count in classes(tree)]
        for name, length, count in functions(tree):
            lengths.append((length, f"{path}: {name}"))
            parameters.append((count, f"{path}: {name}"))
    show("lines of a file", files)
    show("methods of a class", methods)
    show("lines of a function", lengths)
    show("parameters of a function", parameters)
    show("lines of a folder", [(lines, folder) for folder, lines in folders.items()])


if __name__ == "__main__":
    main()
