"""The cost of gRPC connections that say nothing, and of those that greet and then say nothing; the last row
is a node with few file descriptors."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Sequence
from pathlib import Path

import grpc
from tidegate.bench.cluster.fixture import READY_S, make_topic
from tidegate.client.administration.descriptions import NewTopic
from tidegate.client.producing.producer import Producer
from tidegate.processes.local_cluster import LocalCluster, LocalNode
from tidegate.processes.local_ports import Loopback

CONNECTIONS = 2_000
AT_ONCE = 100
DESCRIPTORS = 600
HANDSHAKE_S = 5.0
GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])


class FewDescriptors(Loopback):
    def command(self, node_id: int) -> Sequence[str]:
        return ("prlimit", f"--nofile={DESCRIPTORS}")


async def bench_silence(root: Path) -> None:
    print(f"\n{CONNECTIONS} gRPC connections")
    print(
        f"{'they':>32} {'open':>6} {'KiB each':>9} {'/livez ms':>10} {'write ms':>9} {'gRPC':>6} {'later':>6}"
    )
    await _row(root / "silent", "say nothing", b"", Loopback())
    await _row(root / "greeting", "greet, and say nothing", GREETING, Loopback())
    few = f"the same, {DESCRIPTORS} descriptors"
    await _row(root / "few", few, GREETING, FewDescriptors())


async def _row(root: Path, title: str, said: bytes, hosts: Loopback) -> None:
    cluster = LocalCluster(root, 1, hosts=hosts)
    await cluster.up(READY_S)
    try:
        node = cluster.node(1)
        await make_topic(cluster, NewTopic("t", 1, 1))
        async with Producer(cluster.bootstrap) as producer:
            await _write_ms(producer)
            before, before_kib = _descriptors(node), _memory_kib(node)
            standing = [
                writer for _ in range(CONNECTIONS // AT_ONCE) for writer in await _connect(node, said)
            ]
            await asyncio.sleep(1)
            opened = _descriptors(node) - before
            each_kib = (_memory_kib(node) - before_kib) / max(1, opened)
            livez_ms, write_ms = await _livez_ms(node), await _write_ms(producer)
            answers = await _grpc_answers(node)
            await asyncio.sleep(HANDSHAKE_S + 1)
            later = _descriptors(node) - before
            figures = f"{opened:6} {each_kib:9.1f} {livez_ms:10.1f} {write_ms:9.1f} {answers:>6} {later:6}"
            print(f"{title:>32} {figures}", flush=True)
            for writer in standing:
                writer.transport.abort()
    finally:
        await cluster.down()


async def _connect(node: LocalNode, said: bytes) -> list[asyncio.StreamWriter]:
    opened = await asyncio.gather(
        *(asyncio.open_connection(node.host, node.ports.grpc) for _ in range(AT_ONCE)), return_exceptions=True
    )
    writers = [each[1] for each in opened if not isinstance(each, BaseException)]
    for writer in writers:
        writer.write(said)
    return writers


async def _livez_ms(node: LocalNode) -> float:
    begun = time.perf_counter()
    if await node.page("/livez") is None:
        raise SystemExit("/livez does not answer")
    return (time.perf_counter() - begun) * 1e3


async def _write_ms(producer: Producer) -> float:
    begun = time.perf_counter()
    await producer.send_and_wait("t", b"x")
    return (time.perf_counter() - begun) * 1e3


async def _grpc_answers(node: LocalNode) -> str:
    try:
        await node.status()
    except grpc.aio.AioRpcError:
        return "no"
    return "yes"


def _descriptors(node: LocalNode) -> int:
    return len(list(Path(f"/proc/{node.pid}/fd").iterdir()))


def _memory_kib(node: LocalNode) -> int:
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{node.pid}/status").read_text())
    return int(found[1]) if found else 0
