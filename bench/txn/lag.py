"""How long after the acknowledgement of its commit a read_committed consumer gets a transaction.

One producer commits one record at a time, ten times a second and then as fast as it can; one consumer reads
behind it.  Below zero: the reader got it before the producer got the acknowledgement.
"""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition
from tidegate.bench.cluster.fixture import make_topic, running
from tidegate.bench.storage.fixture import percentile
from tidegate.client.administration.descriptions import NewTopic

TIMEOUT_S = 60.0


async def bench_lag(root: Path, nodes: int, seconds: float) -> None:
    print(f"\nread_committed behind the commit, {nodes} nodes and replicas, librdkafka: milliseconds")
    print(f"{'commits/s':>10} {'commits':>8} {'p50':>7} {'p90':>7} {'p99':>7} {'most':>7}")
    async with running(root / "cluster", nodes) as cluster:
        await make_topic(cluster, NewTopic("bench", 1, nodes))
        for number, pause_s in enumerate((0.1, 0.0)):
            behind, rate = await asyncio.to_thread(
                _measure, cluster.bootstrap, f"lag-{number}", pause_s, seconds
            )
            print(
                f"{rate:10.0f} {len(behind):8} {percentile(behind, 0.5):7.1f} {percentile(behind, 0.9):7.1f} "
                f"{percentile(behind, 0.99):7.1f} {max(behind):7.1f}",
                flush=True,
            )


def _measure(bootstrap: str, name: str, pause_s: float, seconds: float) -> tuple[list[float], float]:
    seen: dict[bytes, float] = {}
    wanted, over = [0], threading.Event()
    common = {"bootstrap.servers": bootstrap, "log_level": 0}
    consumer = Consumer(
        {**common, "group.id": name, "isolation.level": "read_committed", "enable.auto.commit": False}
    )
    _low, high = consumer.get_watermark_offsets(TopicPartition("bench", 0), timeout=TIMEOUT_S)
    consumer.assign([TopicPartition("bench", 0, high)])

    def read() -> None:
        deadline = time.monotonic() + seconds + TIMEOUT_S
        while (not over.is_set() or len(seen) < wanted[0]) and time.monotonic() < deadline:
            record = consumer.poll(0.1)
            if record is not None and record.error() is None:
                seen[record.value() or b""] = time.perf_counter()

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    producer = Producer({**common, "transactional.id": name, "linger.ms": 0})
    producer.init_transactions(TIMEOUT_S)
    committed: dict[bytes, float] = {}
    begun = time.perf_counter()
    while time.perf_counter() - begun < seconds:
        value = b"%s-%d" % (name.encode(), len(committed))
        producer.begin_transaction()
        producer.produce("bench", value, partition=0)
        producer.commit_transaction(TIMEOUT_S)
        committed[value] = time.perf_counter()
        time.sleep(pause_s)
    rate = len(committed) / (time.perf_counter() - begun)
    wanted[0] = len(committed)
    over.set()
    reader.join()
    consumer.close()
    if set(seen) != set(committed):
        raise SystemExit(f"{len(seen)} records were read, and {len(committed)} committed")
    return [(seen[value] - at) * 1e3 for value, at in committed.items()], rate
