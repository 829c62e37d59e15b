"""A few runs of `make exactly-once`: a worker, an answer and a driver's commit are lost, and each row is read
once."""

from __future__ import annotations

from pathlib import Path

import pytest
from tidegate.client import LocalCluster
from tidegate.tests.exactly_once.harness import SETTINGS, Harness
from tidegate.tests.exactly_once.steps import STEPS

# A test cut off in the middle of a call to the JVM leaves the session unusable for the others.
pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark"), pytest.mark.timeout(400)]

PLAYED = (
    ("worker killed after it has prepared", "batch"),
    ("answer to PrepareAttempt lost", "batch"),
    ("driver fails after commit_job", "stream"),
)


async def test_each_row_is_read_once_whatever_fails(tmp_path: Path) -> None:
    async with (
        LocalCluster(tmp_path / "cluster", 1, SETTINGS) as cluster,
        Harness(tmp_path, cluster, "", is_distributed=False).opened() as harness,
    ):
        for number, (name, workload) in enumerate(PLAYED, 1):
            (step,) = (each for each in STEPS if (each.name, each.workload) == (name, workload))
            verdict = await harness.run(step, number)
            assert verdict.wrong == []
            assert verdict.jobs_in_cuts > 0
        assert await harness.losers() > 0
