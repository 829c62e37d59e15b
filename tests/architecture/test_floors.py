"""A folder imports only from folders on lower floors (docs/architecture.md), and does not know what it must
not know."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from tidegate.tests.architecture.source import FOLDERS, imports, parse, product_sources

pytestmark = pytest.mark.xdist_group("source")  # they share what is parsed

FLOORS = {
    "deploy": 8, "chaos": 8, "spark": 7, "client": 6, "node": 5, "coordinator": 4, "replication": 3,
    "controller": 2, "security": 1,
    "storage": 1, "processes": 2, "wire": 0, "proto": 0, "runtime": 0,
}  # fmt: skip

OUTSIDE = ("pyspark_tidegate.py",)
"""Modules beside the package, found by others through their name: they may import from every floor."""

FORBIDDEN: Mapping[str, tuple[tuple[str, str], ...]] = {
    "client": tuple(
        (f"tidegate.{folder}", "clients know the protocol, not the brokers' insides")
        for folder in ("node", "coordinator", "replication", "controller", "storage")
    ),
    "spark": tuple(
        (f"tidegate.{folder}", "clients know the protocol, not the brokers' insides")
        for folder in ("node", "coordinator", "replication", "controller", "storage")
    ),
    "coordinator": (
        ("asyncio", "coordinators have no event loop"),
        ("grpc", "coordinators have no sockets"),
        ("tidegate.runtime.network", "coordinators have no sockets"),
        ("tidegate.runtime.disk", "coordinators have no files"),
    ),
    "replication": (
        ("grpc", "replication has no sockets: node supplies the transport"),
        ("tidegate.runtime.network", "replication has no sockets: node supplies the transport"),
        ("tidegate.controller.raft", "replication does not know Raft"),
        ("pysyncobj", "replication does not know Raft"),
    ),
    "storage": (("asyncio.open_connection", "storage has no sockets"),
        ("tidegate.runtime.network", "storage has no sockets")),
    "wire": (("asyncio", "wire does no I/O"), ("grpc", "wire does no I/O")),
}  # fmt: skip
"""Folder -> (module, why it must not be known there); a module stands for everything below it."""


def violations(sources: Mapping[str, str]) -> list[str]:
    """One line for every import that goes up, sideways, or to what a folder must not know."""
    found: list[str] = []
    for path, tree in parse(sources):
        if path in OUTSIDE:
            continue
        folder = path.split("/")[0] if "/" in path else path
        for line, name in imports(path, tree):
            parts = name.split(".")
            target = parts[1] if parts[0] == "tidegate" and len(parts) > 1 and parts[1] in FLOORS else None
            if target is not None and target != folder and not _is_below(folder, target):
                found.append(f"{path}:{line}: {folder} imports {name}: not below it")
            for module, why in FORBIDDEN.get(folder, ()):
                if name == module or name.startswith(f"{module}."):
                    found.append(f"{path}:{line}: {folder} imports {name}: {why}")
    return found


def _is_below(folder: str, target: str) -> bool:
    return folder in FLOORS and FLOORS[target] < FLOORS[folder]


def test_every_import_goes_down() -> None:
    assert violations(product_sources()) == []


def test_every_folder_of_the_product_has_a_floor() -> None:
    assert set(FLOORS) == set(FOLDERS)
    assert {path.split("/")[0] for path in product_sources() if "/" in path} <= set(FLOORS)


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("storage/any.py", "from ..replication.leader import PartitionLeader"),
        ("storage/any.py", "from .. import controller"),
        ("storage/any.py", "from tidegate.node import broker"),
        ("storage/any.py", "import tidegate.node.serving.broker"),
        ("storage/any.py", "def late():\n    from ..node import broker"),
        (
            "storage/any.py",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from ..node.broker import Broker",
        ),
        ("storage/any.py", "import importlib\nimportlib.import_module('tidegate.chaos.run.harness')"),
        ("wire/codec.py", "from ..runtime import logs"),
        ("runtime/network.py", "from ..wire.errors import ErrorCode"),
        ("client/any.py", "from ..spark import reader"),
        ("client/any.py", "from ..storage.log import Log"),
        ("chaos/demo.py", "from ..deploy import settings"),
        ("controller/raft/node.py", "from ...replication.leader import PartitionLeader"),
        ("__init__.py", "from .node import broker"),
        ("coordinator/transaction/shard.py", "import asyncio"),
        ("coordinator/runtime.py", "from asyncio import Event"),
        ("replication/any.py", "from ..runtime import network"),
    ],
)
def test_an_import_that_goes_up_or_sideways_is_found(path: str, source: str) -> None:
    assert len(violations({path: source})) >= 1


@pytest.mark.parametrize(
    ("path", "source"),
    [
        (
            "storage/any.py",
            "from ..wire.records import parse_header\nfrom ..runtime.disk import Disk\nfrom .index "
            "import Index",
        ),
        (
            "node/any.py",
            "from ..proto import admin_pb2\nfrom ..coordinator.runtime import CoordinatorRuntime",
        ),
        ("node/handlers/any.py", "from ...wire import api\nfrom ..broker import Broker"),
        ("controller/raft/node.py", "from ...runtime.clock import Clock\nfrom ..state import ClusterState"),
        ("client/any.py", "from .. import __version__"),
        ("chaos/demo.py", "from ..spark import reader\nimport json, pathlib"),
    ],
)
def test_an_import_that_goes_down_is_fine(path: str, source: str) -> None:
    assert violations({path: source}) == []
