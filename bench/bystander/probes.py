"""Probes while other clients occupy the metrics port."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from tidegate.bench.cluster.fixture import running
from tidegate.bench.storage.fixture import percentile
from tidegate.processes.local_cluster import LocalNode

PROBES = 20
PROBE_S_MAX = 2.0


async def bench_probes(root: Path, nodes: int, rounds: int) -> None:
    print(f"\nprobes, {nodes} node{'s' if nodes > 1 else ''}: /livez and /readyz, milliseconds")
    print(f"{'others':>32} {'answered':>12} {'p50':>8} {'p99':>8} {'most':>8}")
    async with running(root / "cluster", nodes) as cluster:
        node = cluster.nodes[0]
        await _row(node, "none", 0, b"", rounds)
        await _row(node, "70 say nothing", 70, b"", rounds)
        await _row(node, "500 say nothing", 500, b"", rounds)
        await _row(node, "200 begin a request", 200, b"GET /metrics HTTP/1.1\r\n", rounds)
        await _row(node, "200 ask for /metrics, do not read", 200, b"GET /metrics HTTP/1.1\r\n\r\n", rounds)


async def _row(node: LocalNode, title: str, others: int, said: bytes, rounds: int) -> None:
    host, _, port = node.metrics_address.rpartition(":")
    took: list[float] = []
    asked = 0
    for _ in range(rounds):
        standing = await asyncio.gather(*(asyncio.open_connection(host, int(port)) for _ in range(others)))
        for _reader, writer in standing:
            writer.write(said)
        for number in range(PROBES):
            asked += 1
            begun = time.perf_counter()
            if await _probe(host, int(port), ("/livez", "/readyz")[number % 2]):
                took.append((time.perf_counter() - begun) * 1e3)
        for _reader, writer in standing:
            writer.transport.abort()
    figures = f"{percentile(took, 0.5):8.1f} {percentile(took, 0.99):8.1f} {max(took):8.1f}" if took else ""
    print(f"{title:>32} {len(took):5} of {asked:3} {figures}", flush=True)


async def _probe(host: str, port: int, path: str) -> bool:
    try:
        async with asyncio.timeout(PROBE_S_MAX):
            reader, writer = await asyncio.open_connection(host, port)
            try:
                writer.write(f"GET {path} HTTP/1.1\r\nHost: bench\r\n\r\n".encode())
                return (await reader.read()).startswith(b"HTTP/1.1 200")
            finally:
                writer.transport.abort()
    except (TimeoutError, OSError):
        return False
