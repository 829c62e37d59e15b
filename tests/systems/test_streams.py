"""Kafka Streams with exactly_once_v2, while nodes and the application itself are killed: every update once,
in order."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path

import pytest
from tidegate.processes.local_cluster import LocalCluster

from .system import System, fill, kill_and_restart, make_topics, read_committed, until, written

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

KEYS = 50
ROUND = 2000
ROUNDS = 6


async def test_every_record_is_counted_and_passed_once(cluster: LocalCluster, tmp_path: Path) -> None:
    await make_topics(cluster, "input", "counts", "passed")
    sent: list[tuple[str, str]] = []

    async def feed() -> None:
        records = [
            (f"key-{number % KEYS}", f"value-{number}") for number in range(len(sent), len(sent) + ROUND)
        ]
        await fill(cluster, "input", records)
        sent.extend(records)

    def start() -> System:
        arguments = [cluster.bootstrap, "counting", "input", "counts", "passed", str(tmp_path / "state")]
        return System("streams", arguments, tmp_path / "streams.log")

    async def goes_on(application: System, more: int) -> None:
        begin = await written(cluster, "passed")

        async def has_written() -> bool:
            return await written(cluster, "passed") >= begin + more

        await until("the application writes", has_written, application)

    await feed()
    application = start()
    try:
        await goes_on(application, ROUND // 2)
        for number in range(1, ROUNDS):
            await kill_and_restart(cluster, 1 + number % 3, feed)
            if number == ROUNDS // 2:
                application.kill()
                application = start()

        async def all_is_passed() -> bool:
            return sum(map(len, (await read_committed(cluster, "passed")).values())) >= len(sent)

        await until("all is passed", all_is_passed, application)
        application.close()
    finally:
        if not application.ended:
            application.kill()

    passed = [record for records in (await read_committed(cluster, "passed")).values() for record in records]
    assert Counter(passed) == Counter(sent)
    updates = defaultdict(list)
    for records in (await read_committed(cluster, "counts")).values():
        for key, count in records:
            updates[key].append(int(count))
    expected = Counter(key for key, _ in sent)
    assert {key: list(range(1, count + 1)) for key, count in expected.items()} == updates
