"""A Flink job, KafkaSource to KafkaSink with EXACTLY_ONCE, while nodes are killed and a task fails: every
record once."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from tidegate.processes.local_cluster import LocalCluster

from .system import System, fill, kill_and_restart, make_topics, nothing, read_committed, until, written

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

RECORDS = 30_000
KILLS = 5


async def test_every_record_is_copied_once(cluster: LocalCluster, tmp_path: Path) -> None:
    await make_topics(cluster, "input", "output")
    sent = [f"value-{number}" for number in range(RECORDS)]
    await fill(cluster, "input", [(value, value) for value in sent])
    (tmp_path / "checkpoints").mkdir()
    arguments = [cluster.bootstrap, "copying", "input", "output", str(tmp_path / "checkpoints"), str(RECORDS)]
    with System("flink", arguments, tmp_path / "flink.log", heap="1g") as job:
        for number in range(KILLS):
            share = RECORDS * (number + 1) // (KILLS + 2)

            async def has_written(least: int = share) -> bool:
                return await written(cluster, "output") >= least

            await until(f"{share} records are written", has_written, job)
            await kill_and_restart(cluster, 1 + number % 3, nothing)

        async def is_done() -> bool:
            return job.has_said("DONE")

        await until("the job ends", is_done, patience_s=300)
        assert job.has_said("this task fails once, on purpose")
    output = [value for records in (await read_committed(cluster, "output")).values() for _, value in records]
    assert Counter(output) == Counter(sent)
