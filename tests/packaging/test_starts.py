"""What the start of a process imports."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    "arguments",
    [("tidegate.processes.child_node", "--help"), ("tidegate.client.command_line", "topics", "list")],
    ids=["node", "command"],
)
def test_a_process_starts_without_what_only_tests_use(arguments: tuple[str, ...]) -> None:
    """kio imports hypothesis where it is installed, which costs a sixth of a node's start."""
    with subprocess.Popen(
        [sys.executable, "-X", "importtime", "-m", *arguments],
        stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        env=os.environ | {"TIDEGATE_BOOTSTRAP": "127.0.0.1:1"},
    ) as started:  # fmt: skip
        assert started.stderr is not None
        imported = {line.rpartition("|")[2].strip() for line in started.stderr}
    assert "kio.static.primitive" in imported
    assert "hypothesis.core" not in imported
