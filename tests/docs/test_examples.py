"""The example programs of docs/transactions.md, as they stand, against three nodes (docs/semantics.md,
chapters T and O)."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from tidegate.client.administration.admin import Admin
from tidegate.client.administration.descriptions import NewTopic
from tidegate.client.consuming.consumer import Consumer
from tidegate.client.producing.producer import Producer
from tidegate.processes.local_cluster import LocalCluster

DOCS = Path(__file__).resolve().parents[2] / "docs"
EXAMPLES = sorted((DOCS / "examples").glob("*.py"))
TOPICS = ("debits", "credits", "numbers", "doubled-confluent", "doubled-tidegate")
NUMBERS = range(250)

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("examples"), pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    made = LocalCluster(
        tmp_path_factory.mktemp("examples"), nodes=3, settings={"group.initial.rebalance.delay.ms": 0}
    )
    asyncio.run(made.up())
    try:
        asyncio.run(_fill(made.bootstrap))
        yield made
    finally:
        asyncio.run(made.down())


async def _fill(bootstrap: str) -> None:
    async with Admin(bootstrap) as admin:
        await admin.create_topics([NewTopic(name, 3, 3, {"min.insync.replicas": "2"}) for name in TOPICS])
    async with Producer(bootstrap) as producer:
        for number in NUMBERS:
            await producer.send("numbers", str(number), key=str(number))


async def committed(bootstrap: str, topic: str, count: int = 0) -> list[tuple[str, str]]:
    """(key, value) of everything that is committed, sorted.  A commit is answered before its markers
    (docs/semantics.md T11): the last of `count` records may come a moment later."""
    deadline = time.monotonic() + 20
    async with Consumer(bootstrap, auto_offset_reset="earliest") as consumer:
        places = [(topic, partition) for partition in range(3)]
        consumer.assign(places)
        found: list[tuple[str, str]] = []
        while True:
            ends = await consumer.end_offsets(places)
            while any(consumer.positions().get(place, 0) < end for place, end in ends.items()):
                found += [
                    ((each.key or b"").decode(), (each.value or b"").decode())
                    for each in await consumer.poll()
                ]
            if len(found) >= count or time.monotonic() > deadline:
                return sorted(found)
            await asyncio.sleep(0.02)


def run(
    name: str, *arguments: str, timeout_s: float = 120, environment: Mapping[str, str] | None = None
) -> str:
    command = [sys.executable, str(DOCS / "examples" / name), *arguments]
    given = os.environ | dict(environment or {})
    done = subprocess.run(command, env=given, capture_output=True, text=True, timeout=timeout_s, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("client", ["confluent", "tidegate"])
def test_records_of_two_topics_are_there_together_or_not_at_all(cluster: LocalCluster, client: str) -> None:
    before = {topic: len(asyncio.run(committed(cluster.bootstrap, topic))) for topic in ("debits", "credits")}
    said = run(f"transaction_{client}.py", cluster.bootstrap)
    assert said == "transaction 1 was aborted: changed my mind\n"
    for topic, name in (("debits", "alice"), ("credits", "bob")):
        found = asyncio.run(committed(cluster.bootstrap, topic, before[topic] + 2))
        assert len(found) == before[topic] + 2
        assert {key for key, _value in found} == {
            f"{name}-0",
            f"{name}-2",
        }


@pytest.mark.parametrize("client", ["confluent", "tidegate"])
def test_every_record_is_transformed_exactly_once(cluster: LocalCluster, client: str) -> None:
    run(f"transform_{client}.py", cluster.bootstrap, str(len(NUMBERS)))
    found = asyncio.run(committed(cluster.bootstrap, f"doubled-{client}", len(NUMBERS)))
    assert found == sorted((str(number), str(2 * number)) for number in NUMBERS)


def test_the_page_names_every_program_and_no_other() -> None:
    named = re.findall(r"\(examples/([\w.]+)\)", (DOCS / "transactions.md").read_text())
    assert sorted(named) == [path.name for path in EXAMPLES if not path.name.startswith("spark_")]
