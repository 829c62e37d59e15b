"""One short run of each kind of fault on three real processes: a cut network, full disks, failing flushes.

The longer ones, on five nodes and with other seeds: `tidegate chaos run all --nodes 5`.  Kills, pauses,
restarts: tests/cluster.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tidegate.chaos.checks.archive import HISTORY
from tidegate.chaos.run.harness import run_scenario
from tidegate.chaos.run.outcome import RunOutcome
from tidegate.chaos.scenarios.table import SCENARIOS

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("chaos"), pytest.mark.timeout(180)]

SECONDS = 1.0
EVERYWHERE = {
    "every client commits after healing",
    "0 transactions hang",
    "every partition can be read to its end",
    "readers near every replica read the same",
    "0 records lost",
    "0 records duplicated",
    "all replicas hold the same bytes",
}


async def run(name: str, directory: Path) -> set[str]:
    """Runs a scenario; the names of what was checked."""
    outcome: RunOutcome = await run_scenario(SCENARIOS[name], directory / name, SECONDS, seed=1)
    assert outcome.passed, outcome.table() + "\n".join(outcome.disturbances[:20])
    checked = {verdict.name for verdict in outcome.verdicts}
    assert checked >= EVERYWHERE
    clients = {
        json.loads(line)["process"].partition("/")[0]
        for line in (outcome.directory / HISTORY).read_text().splitlines()
    }
    assert clients >= {
        "writer-0",
        "plain-0",
        "reader-0",
        "librdkafka-writer",
        "librdkafka-plain",
        "librdkafka-reader",
    }
    return checked


async def test_an_isolated_leader_is_replaced_and_acknowledges_nothing_lost(tmp_path: Path) -> None:
    assert "commits go on after: leader alone" in await run("cut-leader", tmp_path)


async def test_full_disks_of_a_majority_stop_only_writes_and_only_while_full(tmp_path: Path) -> None:
    checked = await run("disk-full-majority", tmp_path)
    assert checked >= {
        "a node with a full disk says so and lives",
        "what was written can be read while disks are full",
        "nothing that needs room is acknowledged while the disks of a majority are full",
        "a node with room again is ready by itself",
    }


async def test_a_data_folder_whose_flushes_fail_goes_offline_and_leaders_move(tmp_path: Path) -> None:
    checked = await run("sync-fails", tmp_path)
    assert checked >= {
        "the node says that its folder is offline, and lives",
        "others lead what was in the folder",
    }


async def test_a_voter_whose_journal_cannot_be_flushed_stops_at_once(tmp_path: Path) -> None:
    assert "a voter whose journal cannot be flushed stops by itself" in await run("journal-fails", tmp_path)
