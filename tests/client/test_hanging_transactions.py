"""Hanging transactions (KIP-664): found, distinguished from running ones, and aborted."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest
from tidegate.client import Admin, Consumer, LocalCluster, NewTopic, Producer
from tidegate.client.administration.descriptions import ProducerDescription, TopicDescription
from tidegate.client.administration.hanging_transactions import HangingTransaction, find_hanging
from tidegate.client.command_line import build
from tidegate.client.connecting.errors import RetriableError
from tidegate.client.connecting.metadata import PartitionMetadata
from tidegate.runtime.disk import RealDisk
from tidegate.storage.log.log import AppendOrigin, Log, LogConfig
from tidegate.wire.records import NewRecord, encode_batch
from typer.testing import CliRunner

pytestmark = pytest.mark.cluster
HANGING = 987654


def leave_hanging(folder: Path) -> None:
    """Puts an open transaction into a log whose node is stopped, as if the log came from a broker that
    verifies nothing."""
    log = Log.open(
        RealDisk(), folder, topic="flights", partition=0, config=LogConfig(), clean=False, recovery_point=0
    )
    batch = encode_batch(
        [NewRecord(b"k", b"never", (), int(time.time() * 1000))], producer_id=HANGING, producer_epoch=3,
        base_sequence=0,
        transactional=True,
    )  # fmt: skip
    log.append_leader(
        bytearray(batch), leader_epoch=log.latest_epoch, origin=AppendOrigin.COORDINATOR, now_ms=1
    )
    log.flush_now()
    log.close(clean=False)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[LocalCluster]:
    """One node, `flights` with an open transaction unknown to its coordinator, and one that runs."""
    cluster = LocalCluster(tmp_path / "cluster", nodes=1)
    await cluster.up()
    try:
        async with Admin(cluster.bootstrap) as admin:
            await admin.create_topics([NewTopic("flights", 2, 1)])
        async with Producer(cluster.bootstrap) as producer:
            await producer.send("flights", b"before", partition=0)
        (node,) = cluster.nodes
        await node.terminate()
        (folder,) = node.data_path.glob("flights-0*")
        leave_hanging(folder)
        await node.start()
        await node.wait_ready(30)
        yield cluster
    finally:
        await cluster.down()


async def call(cluster: LocalCluster, *arguments: str, code: int = 0) -> str:
    """Runs a command, in a thread: it has an event loop of its own."""
    done = await asyncio.to_thread(
        CliRunner().invoke, build(arguments), [*arguments, "--bootstrap", cluster.bootstrap]
    )
    assert done.exit_code == code, done.output
    return done.output


async def test_a_hanging_transaction_is_aborted_and_a_live_one_is_not(cluster: LocalCluster) -> None:
    places = [("flights", 0), ("flights", 1)]
    async with (
        Admin(cluster.bootstrap) as admin,
        Producer(cluster.bootstrap, transactional_id="alive") as producer,
        Consumer(cluster.bootstrap, auto_offset_reset="earliest") as consumer,
    ):
        consumer.assign(places)
        await producer.begin()
        for partition in (0, 1):
            await (await producer.send("flights", b"alive", partition=partition))
        assert await admin.hanging_transactions(places) == [], "too young to judge"
        (hanging,) = await admin.hanging_transactions(places, idle_ms=0)
        assert (hanging.topic, hanging.partition, hanging.producer_id, hanging.open_since_offset) == (
            "flights",
            0,
            HANGING,
            1,
        )
        assert hanging.transactional_id is None
        assert "no coordinator" in hanging.why
        shown = json.loads(await call(cluster, "txns", "hanging", "--idle", "0", "--json"))
        assert [each["producer_id"] for each in shown] == [HANGING]
        assert (await admin.end_offsets(places, read_committed=True))["flights", 0] == 1

        (alive,) = [p for p in await admin.describe_producers([("flights", 1)]) if p.open_since_offset >= 0]
        refused = await call(
            cluster, "txns", "abort-hanging", "flights", "1", str(alive.producer_id), "--idle", "0", code=1
        )
        assert "has no hanging transaction of producer id" in refused
        assert "aborted: flights-0 from offset 1" in await call(
            cluster, "txns", "abort-hanging", "flights", "0", str(HANGING), "--idle", "0"
        )
        assert await admin.hanging_transactions(places, idle_ms=0) == []
        await producer.commit()
        found: set[bytes | None] = set()
        async with asyncio.timeout(20):
            while len(found) < 2:
                found |= {record.value for record in await consumer.poll()}
        assert found == {b"before", b"alive"}


async def test_a_partition_missing_at_the_coordinator_hangs_with_any_producer_id(
    cluster: LocalCluster,
) -> None:
    """The producer id is known, and its transaction is elsewhere: ablation of the look at the partitions."""
    async with (
        Admin(cluster.bootstrap) as admin,
        Producer(cluster.bootstrap, transactional_id="owner") as producer,
    ):
        async with producer.transaction():
            await producer.send("flights", b"v", partition=1)
        (owner,) = await admin.list_transactions()
        (hanging,) = await admin.hanging_transactions([("flights", 0)], idle_ms=0)

        async def owned(*_: object) -> list[object]:
            return [type(owner)(owner.transactional_id, HANGING, owner.state, owner.coordinator)]

        admin.list_transactions = owned  # type: ignore[assignment]
        (again,) = await admin.hanging_transactions([("flights", 0)], idle_ms=0)
        assert again.transactional_id == "owner"
        assert "has not got this partition" in again.why
        assert isinstance(hanging, HangingTransaction)


class MovingCoordinators:
    """An admin client whose cluster has one state partition, with these leaders and epochs one question after
    the other."""

    def __init__(self, *led: tuple[int, int]) -> None:
        self.led = list(led)

    async def describe_producers(self, places: object) -> list[ProducerDescription]:
        return [ProducerDescription("flights", 0, HANGING, 3, 0, 0, 0, 5)]

    async def list_transactions(self) -> list[Any]:
        return []

    async def describe_topics(self, names: list[str], *, config: bool) -> list[TopicDescription]:
        leader, epoch = self.led.pop(0)
        return [TopicDescription(names[0], True, [PartitionMetadata(0, leader, epoch, (1, 2), (1, 2))])]


@pytest.mark.parametrize(
    ("led", "said"),
    [
        (((1, 4), (1, 4)), ""),
        (((-1, 4),), "no coordinator has the transactions of __transaction_state 0 now"),
        (((1, 4), (2, 5)), "a coordinator moved"),
        (((1, 4), (1, 6)), "a coordinator moved"),
    ],
    ids=["stays", "is away", "moves", "is away and back"],
)
async def test_nothing_is_called_hanging_while_its_coordinator_is_unreachable(
    led: tuple[tuple[int, int], ...], said: str
) -> None:
    """No list shows it then; aborted by an operator, it could still be committed by its coordinator."""
    admin = cast(Admin, MovingCoordinators(*led))
    if said:
        with pytest.raises(RetriableError, match=said):
            await find_hanging(admin, [("flights", 0)], 10_000_000)
    else:
        (found,) = await find_hanging(admin, [("flights", 0)], 10_000_000)
        assert found.why == "no coordinator knows its producer id"
