"""The tour says which of the tests that it names `make check` leaves out."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path
from typing import cast

import pytest

ROOT = Path(__file__).resolve().parents[2]
MENTION = re.compile(r"`(?:tests/[\w/]+/)?(test_\w+(?:\.py)?)`(?:\]\([^)]*\))?( \*\(long\)\*)?")
Files = dict[str, list[tuple[Path, list[str]]]]


def files_of_tests() -> Files:
    """Name of the file -> each file of that name, with its tests; of ablations no recipe says anything."""
    found: Files = defaultdict(list)
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        tests = re.findall(r"^ *(?:async )?def (test_\w+)", path.read_text(), re.MULTILINE)
        ordinary = [name for name in tests if not name.startswith("test_ablation_")]
        found[path.name].append((path.relative_to(ROOT), ordinary or tests))
    return found


def test_a_test_is_marked_where_make_check_leaves_it_out(request: pytest.FixtureRequest) -> None:
    plugins = request.config.pluginmanager.get_plugins()
    conftest = next(each for each in plugins if hasattr(each, "SEEDS_OF_A_CHECK"))
    long, sampled = cast(re.Pattern[str], conftest.LONG), cast(re.Pattern[str], conftest.MANY_CASES)
    files = files_of_tests()

    def left_out(path: Path, name: str) -> bool:
        test = f"{path}::{name}"
        whole = path.is_relative_to("tests/cluster") or path.is_relative_to("tests/spark")
        return whole or bool(long.search(test) or sampled.search(test))

    def marks(mention: str) -> set[bool]:
        """Of all tests that it may mean."""
        if mention.endswith(".py"):
            return {left_out(path, name) for path, names in files[mention] for name in names}
        in_files = [path for each in files.values() for path, names in each if mention in names]
        return {left_out(path, mention) for path in in_files}

    wrong = []
    for mention, mark in MENTION.findall((ROOT / "docs" / "tour.md").read_text()):
        match marks(mention):
            case found if found == {bool(mark)}:
                continue
            case found if len(found) == 1:
                wrong.append(f"{mention}: *(long)* is {'not ' if mark else ''}to stand behind it")
            case found:
                wrong.append(f"{mention}: {'some of its tests are long: name one' if found else 'no test'}")
    assert not wrong, "\n".join(wrong)
