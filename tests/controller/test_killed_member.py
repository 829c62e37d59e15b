"""SIGKILL at every place where the quorum's files change: what was acknowledged is there afterwards."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from pathlib import Path

import pytest
import tidegate.controller.raft
from tidegate.tests.eventually import eventually

from .killed_quorum_member import make

POINTS = {
    "raft.vote.before_write": 0,
    "raft.voter_records.before_write": 0,
    "raft.journal.before_write": 20,
    "raft.journal.before_sync": 20,
    "raft.journal.after_sync": 20,
    "raft.snapshot.before_write": 1,
    "raft.snapshot.after_write": 1,
    "raft.before_trim": 1,
    "raft.journal.before_rewrite": 1,
    "raft.journal.after_rewrite": 1,
}
# test_quorum_simulation.py kills a member at every change of an installation
ONLY_WITH_A_LEADER = {"raft.snapshot.before_reset"}


def test_every_fault_point_of_the_quorum_is_tried() -> None:
    folder = Path(tidegate.controller.raft.__file__).parent
    source = "".join(path.read_text() for path in folder.glob("*.py"))
    assert set(re.findall(r'faults\.point\("([a-z_.]+)"', source)) == set(POINTS) | ONLY_WITH_A_LEADER


@pytest.mark.parametrize("point", sorted(POINTS))
async def test_a_kill_loses_nothing_that_was_acknowledged(point: str, tmp_path: Path) -> None:
    script = str(Path(__file__).parent / "killed_quorum_member.py")
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        script,
        str(tmp_path),
        point,
        str(POINTS[point]),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "TIDEGATE_FAULT_POINTS": "1"},
    )
    output, errors = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == -signal.SIGKILL, errors.decode()[-2000:]
    acknowledged = set(output.decode().split())
    assert acknowledged or point.startswith(("raft.vote", "raft.voter_records"))
    log = make(tmp_path)
    await log.start()
    await eventually(lambda: log.is_active)
    missing = acknowledged - set(log.state.features)
    await log.stop()
    assert not missing
