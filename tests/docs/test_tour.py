"""The recipes of the tour say which of their tests `make check` leaves out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LINK = re.compile(r"\(\.\./(tests/[\w/]+\.py)\)( \*\(long\)\*)?")


def test_a_test_of_a_recipe_is_marked_where_make_check_leaves_it_out(request: pytest.FixtureRequest) -> None:
    plugins = request.config.pluginmanager.get_plugins()
    long: re.Pattern[str] = next(each.LONG for each in plugins if hasattr(each, "SEEDS_OF_A_CHECK"))
    recipes = (ROOT / "docs" / "tour.md").read_text().split("\n## How to add\n")[1].split("\n## ")[0]
    wrong = [
        path
        for path, mark in LINK.findall(recipes)
        if bool(mark)
        != (path.startswith(("tests/cluster/", "tests/spark/")) or bool(long.search(f"{path}::")))
    ]
    assert wrong == [], "*(long)* is to stand behind these, or not to"
