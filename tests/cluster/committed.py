"""What a reader of committed records finds in the end."""

from __future__ import annotations

import asyncio

from tidegate.client.administration.admin import Admin
from tidegate.client.consuming.consumer import Consumer
from tidegate.processes.local_cluster import LocalCluster
from tidegate.runtime.clock import SystemClock


async def committed(served: LocalCluster, topic: str, partitions: int) -> list[bytes]:
    """Everything committed, once nothing is open any more."""
    places = [(topic, index) for index in range(partitions)]
    async with (
        Admin(served.bootstrap) as admin,
        Consumer(served.bootstrap, auto_offset_reset="earliest") as consumer,
        asyncio.timeout(60),
    ):
        while await admin.end_offsets(places) != (
            ends := await admin.end_offsets(places, read_committed=True)
        ):
            await SystemClock().sleep(0.02)
        consumer.assign(places)
        found: list[bytes] = []
        while any(consumer.positions().get(place, 0) < end for place, end in ends.items()):
            found += [record.value or b"" for record in await consumer.poll(timeout_s=0.2)]
    return sorted(found)
