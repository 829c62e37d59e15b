"""The files that belong to the project: tracked ones, and new ones that nothing ignores."""

from __future__ import annotations

import functools
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
NOT_PRODUCT = frozenset({"tests", "bench", "docs", "deploy", ".ci", ".github"})


@functools.cache
def project_files() -> tuple[Path, ...]:
    """Relative paths, sorted.  Without git they cannot be distinguished from files of a build or an
    editor."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.fail("this is no git checkout: which files belong to the project is not known")
    listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(listing, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    return tuple(sorted({Path(name) for name in done.stdout.split("\0") if name and (ROOT / name).is_file()}))


def product_files() -> list[Path]:
    """What goes into the wheel: everything in a folder, apart from the folders that are about the product."""
    return [path for path in project_files() if len(path.parts) > 1 and path.parts[0] not in NOT_PRODUCT]


def product_modules() -> list[Path]:
    return [path for path in product_files() if path.suffix == ".py"]


@functools.cache
def pyproject() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())
