"""The pages for users say what is so: settings, files, metrics and ports that they name exist."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted((ROOT / "docs").glob("*.md"))


@pytest.mark.parametrize("maker", ["tables.py", "states.py"])
def test_what_is_made_from_the_products_own_tables_is_current(maker: str) -> None:
    command = [sys.executable, str(ROOT / "docs" / maker), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_file_that_a_page_names_exists(page: Path) -> None:
    named = re.findall(r"`([\w./-]+/[\w./-]*)`", page.read_text())
    paths = [name for name in named if not name.startswith("/") and ":" not in name]
    bases = (ROOT, ROOT / "deploy" / "kubernetes")
    assert [name for name in paths if not any((base / name).exists() for base in bases)] == []


def test_every_metric_that_a_page_names_is_exported() -> None:
    """The table of all metrics is made from what a node exports."""
    table = (ROOT / "docs" / "operations.md").read_text()
    exported = set(re.findall(r"^\| `(tidegate_\w+)` \|", table, re.MULTILINE))
    named = {name for page in PAGES for name in re.findall(r"\btidegate_\w+", page.read_text())}
    assert exported
    assert {name for name in named if name not in exported and f"{name}_total" not in exported} == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_tables_have_as_many_cells_in_every_row(page: Path) -> None:
    width = 0
    for number, line in enumerate(page.read_text().splitlines(), 1):
        cells = len(re.findall(r"(?<!\\)\|", line)) if line.startswith("|") else 0
        assert not (cells and width and cells != width), f"{page.name}:{number}"
        width = cells
