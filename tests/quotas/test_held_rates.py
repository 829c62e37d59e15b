"""For more than a minute a producer and a reader are held within 5 % of their quotas, and the latency of
another client stays."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

import pytest
from tidegate.processes.local_cluster import LocalCluster
from tidegate.security.quotas import QuotaKind

from .clients import beside, fill, latencies_of, make_topic, produce_for, read_for, set_quota

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

SECONDS = 65.0
RATE = 500_000.0
ALONE_S = 10.0


async def test_clients_are_held_to_their_rates(tmp_path: Path) -> None:
    async with LocalCluster(tmp_path / "cluster", 1) as cluster:
        bootstrap = cluster.bootstrap
        for topic in ("written", "read", "other"):
            await asyncio.to_thread(make_topic, bootstrap, topic)
        await asyncio.to_thread(fill, bootstrap, "read", 6000)
        ends_s = asyncio.get_running_loop().time() + ALONE_S
        now = asyncio.get_running_loop().time
        alone = await asyncio.to_thread(latencies_of, bootstrap, "other", "fast", lambda: now() >= ends_s)
        set_quota(bootstrap, QuotaKind.PRODUCE, RATE, client_id="slow")
        set_quota(bootstrap, QuotaKind.FETCH, RATE, client_id="slow")
        work = partial(produce_for, bootstrap, "written", "slow", SECONDS)
        written, during_writes = await beside(bootstrap, "other", "fast", work)
        work = partial(read_for, bootstrap, "read", "slow", SECONDS)
        read, during_reads = await beside(bootstrap, "other", "fast", work)
    print(f"written {written.bytes_per_s:.0f} B/s, read {read.bytes_per_s:.0f} B/s of {RATE:.0f} B/s")
    for name, other in (("nothing", alone), ("writes", during_writes), ("reads", during_reads)):
        half_ms, nearly_all_ms = 1000 * other.latency_s(0.5), 1000 * other.latency_s(0.99)
        print(
            f"another client beside {name}: half within {half_ms:.1f} ms, 99 % within {nearly_all_ms:.1f} ms"
        )
    assert written.bytes_per_s == pytest.approx(RATE, rel=0.05)
    assert read.bytes_per_s == pytest.approx(RATE, rel=0.05)
    for other in (during_writes, during_reads):
        assert other.latency_s(0.5) < 2 * alone.latency_s(0.5)
