"""Kafka's TransactionalMessageCopier, several of them in one group, with random aborts, while nodes and
copiers are killed."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from tidegate.client.administration.admin import Admin
from tidegate.processes.local_cluster import LocalCluster

from .system import SIGTERM, System, fill, kill_and_restart, make_topics, nothing, read_committed, until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

RECORDS = 20_000
COPIERS = 2
KILLS = 5


async def test_every_record_is_copied_once(cluster: LocalCluster, tmp_path: Path) -> None:
    await make_topics(cluster, "input", "output")
    sent = [f"{number}" for number in range(RECORDS)]
    await fill(cluster, "input", [(value, value) for value in sent])
    lives = [0] * COPIERS

    def start(number: int) -> System:
        lives[number] += 1
        arguments = (
            f"--broker-list {cluster.bootstrap} --input-topic input --input-partition -1 --output-topic "
            "output"
        )
        arguments += f" --max-messages {RECORDS} --consumer-group copiers --transaction-size 100"
        arguments += f" --transactional-id copier-{number}"
        arguments += " --enable-random-aborts --group-mode --use-group-metadata --transaction-timeout 10000"
        log = tmp_path / f"copier-{number}-{lives[number]}.log"
        return System(
            "kafka-tools", arguments.split(), log, main="org.apache.kafka.tools.TransactionalMessageCopier"
        )

    copiers = [start(number) for number in range(COPIERS)]

    async def copied() -> int:
        try:
            async with Admin(cluster.bootstrap) as admin:
                return sum(each.offset for each in (await admin.group_offsets("copiers")).values())
        except Exception:  # what is asked for again soon
            return -1

    def revive() -> None:
        """A copier ends when its producer is fenced or fails for good: the next life of it goes on."""
        for number, copier in enumerate(copiers):
            if copier.ended:
                copiers[number] = start(number)

    try:
        for number in range(KILLS):
            share = RECORDS * (number + 1) // (KILLS + 2)

            async def has_copied(least: int = share) -> bool:
                revive()
                return await copied() >= least

            await until(f"{share} records are copied", has_copied)
            await kill_and_restart(cluster, 1 + number % 3, nothing)
            if number % 2:
                copiers[0].kill()

        async def is_done() -> bool:
            revive()
            return await copied() >= RECORDS

        await until("all is copied", is_done)
        for copier in copiers:
            if not copier.ended:
                copier.close(SIGTERM)
    finally:
        for copier in copiers:
            if not copier.ended:
                copier.kill()
    output = [value for records in (await read_committed(cluster, "output")).values() for _, value in records]
    assert Counter(output) == Counter(sent)
    said = [json.loads(line) for line in copiers[1].log.read_text().splitlines() if line.startswith("{")]
    assert said, "a copier tells of its progress"
