"""An older version of Tidegate out of the git history, in a folder of its own, for nodes of it beside nodes
of this tree."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path

import pytest
from tidegate.runtime.connections.listeners import parse_listener

ROOT = Path(__file__).resolve().parents[2]
BUILD_TIMEOUT_S = 300
FORMER_NAMES = {
    "broker.rack": "rack",
    "controller.quorum.election.timeout.ms": "quorum.election.timeout.ms",
    "controller.quorum.voters": "quorum.voters",
    "log.dirs": "data.dirs",
    "process.roles": "roles",
    "replica.fetch.response.max.bytes": "replica.fetch.max.bytes",
}
"""This version's names of settings: those that they had before."""
FORMER_LISTENERS = {"PLAINTEXT": "kafka", "GRPC": "grpc", "CONTROLLER": "quorum", "METRICS": "metrics"}


def installed(commit: str, folder: Path) -> Path:
    """A folder for PYTHONPATH whose `tidegate` is that commit's, with its own generated modules.  Fails, and
    says why, where the history is not at hand."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.fail("this tree has no git history: the older version cannot be had")
    archived = subprocess.run(
        ["git", "archive", commit], cwd=ROOT, capture_output=True, timeout=60, check=False
    )
    if archived.returncode != 0:
        pytest.fail(
            f"{commit} is not in the git history (a shallow clone?): {archived.stderr.decode().strip()}"
        )
    tree = folder / "tidegate"
    tree.mkdir(parents=True)
    with tarfile.open(fileobj=io.BytesIO(archived.stdout)) as archive:
        archive.extractall(tree, filter="data")
    # the generators stand beside the interpreter
    tools = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    built = subprocess.run(
        [sys.executable, "setup.py", "--quiet", "build_py"],
        cwd=tree, env=os.environ | {"PATH": tools}, capture_output=True, text=True, timeout=BUILD_TIMEOUT_S,
        check=False,
    )  # fmt: skip
    assert built.returncode == 0, built.stderr
    where = subprocess.run(
        [sys.executable, "-c", "import tidegate.proto.controller_pb2 as found; print(found.__file__)"],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert Path(where.stdout.strip()).is_relative_to(tree), "the nodes would run another version"
    return folder


def with_former_names(settings: Mapping[str, object]) -> dict[str, object]:
    """A node's settings as a version reads that has the former names, and one listener of each kind."""
    found: dict[str, object] = {}
    for name, value in settings.items():
        if name in ("listeners", "advertised.listeners"):
            assert isinstance(value, list)
            listeners = [parse_listener(each) for each in value]
            found |= {
                f"{name.removesuffix('.listeners')}.{FORMER_LISTENERS[each.name]}": each.address
                for each in listeners
            }
        else:
            found[FORMER_NAMES.get(name, name)] = value
    return found
