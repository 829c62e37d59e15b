"""The parts of Raft are pure, and PySyncObj stands behind one file (docs/raft.md)."""

from __future__ import annotations

import pytest
from tidegate.tests.architecture.source import imports, parse, product_sources

pytestmark = pytest.mark.xdist_group("source")  # they share what is parsed

SEAM = "controller/raft/library.py"
PURE = ("log", "state", "election", "follower", "replication", "membership", "voter")
IMPURE = (
    "asyncio", "os", "pathlib", "random", "select", "socket", "threading", "time",
    "tidegate.controller.raft.core", "tidegate.controller.raft.journal", "tidegate.controller.raft.thread",
    "tidegate.controller.raft.transport", "tidegate.runtime.clock", "tidegate.runtime.disk",
    "tidegate.runtime.network",
)  # fmt: skip


def test_only_the_seam_knows_pysyncobj_and_its_private_names() -> None:
    sources = product_sources()
    importing = {
        path
        for path, tree in parse(sources)
        if any(name.split(".")[0] == "pysyncobj" for _, name in imports(path, tree))
    }
    assert importing == {SEAM}
    assert {path for path, source in sources.items() if "_SyncObj__" in source} == {SEAM}


@pytest.mark.parametrize("name", PURE)
def test_a_part_of_raft_has_no_clock_disk_or_socket(name: str) -> None:
    path = f"controller/raft/{name}.py"
    found = [
        imported
        for _, tree in parse({path: product_sources()[path]})
        for _, imported in imports(path, tree)
        if any(imported == impure or imported.startswith(f"{impure}.") for impure in IMPURE)
    ]
    assert found == []
