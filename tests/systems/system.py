"""A foreign system at work on three nodes, and what a test of one needs: its process, its input, kills, and
what it wrote.

`make foreign-systems` runs these tests; they take minutes, and are not among those of `make test`.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Final

import pytest
from tidegate.client.administration.admin import Admin
from tidegate.client.administration.descriptions import NewTopic
from tidegate.client.consuming.consumer import Consumer
from tidegate.client.producing.producer import Producer
from tidegate.processes.local_cluster import LocalCluster
from tidegate.tests.foreign_clients import SYSTEMS, Broken, Missing, command_for

PATIENCE_S: Final = 180.0
_LOOK_AGAIN_S: Final = 0.1
END_TIMEOUT_S: Final = 60.0


class System:
    """One process of a Java program, `main arguments...`, of a system that foreign_clients.py has fetched."""

    def __init__(
        self, name: str, arguments: Sequence[str], log: Path, main: str = "Main", heap: str = "512m"
    ) -> None:
        try:
            command, _ = command_for(name)
        except Missing as reason:
            pytest.fail(str(reason).replace("foreign-clients", "foreign-systems"))
        except Broken as error:
            pytest.fail(str(error))
        assert name in SYSTEMS
        assert command[-1] == "Main"
        packages = ("java.lang", "java.util", "java.time", "java.net")
        opens = [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in packages]
        options = [option for option in command[:-1] if not option.startswith("-Xmx")]
        self.log = log
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [*options, f"-Xmx{heap}", *opens, main, *arguments],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def has_said(self, word: str) -> bool:
        return word in self.log.read_text(errors="replace")

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    def kill(self) -> None:
        """SIGKILL: a process that dies without a word."""
        self._process.kill()
        self._process.wait()

    def close(self, number: int | None = None) -> int:
        """Ends the program, by the end of its input or by a signal; its exit code.  AssertionError when it
        goes on."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        if number is not None and not self.ended:
            os.kill(self._process.pid, number)
        try:
            return self._process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(
                f"the program did not end within {END_TIMEOUT_S:g} s:\n{self.last_words()}"
            ) from None

    def last_words(self) -> str:
        return self.log.read_text(errors="replace")[-4000:]

    def __enter__(self) -> System:
        return self

    def __exit__(self, *_error: object) -> None:
        if not self.ended:
            self.kill()


async def until(
    what: str,
    condition: Callable[[], Awaitable[bool]],
    system: System | None = None,
    patience_s: float = PATIENCE_S,
) -> None:
    """Waits until the condition holds.  AssertionError when it does not for long, or when the system has
    ended instead."""
    deadline = time.monotonic() + patience_s
    while not await condition():
        words = "" if system is None else f"; its log ends:\n{system.last_words()}"
        assert system is None or not system.ended, f"the system ended before: {what}{words}"
        assert time.monotonic() < deadline, f"not within {patience_s:g} s: {what}{words}"
        await asyncio.sleep(_LOOK_AGAIN_S)


async def make_topics(cluster: LocalCluster, *names: str, partitions: int = 4) -> None:
    async with Admin(cluster.bootstrap) as admin:
        await admin.create_topics(
            [NewTopic(name, partitions, 3, {"min.insync.replicas": "2"}) for name in names]
        )


async def fill(cluster: LocalCluster, topic: str, records: Sequence[tuple[str, str]]) -> None:
    """Writes (key, value) records; all are acknowledged when it returns."""
    async with Producer(cluster.bootstrap, delivery_timeout_s=PATIENCE_S) as producer:
        acknowledged = [await producer.send(topic, value, key) for key, value in records]
        await producer.flush()
        await asyncio.gather(*acknowledged)


async def written(cluster: LocalCluster, topic: str) -> int:
    """How far the partitions' committed ends have come, markers included; less while leaders are away."""
    try:
        async with Admin(cluster.bootstrap) as admin:
            (description,) = await admin.describe_topics([topic], config=False)
            ends = await admin.end_offsets(
                [(topic, partition.partition) for partition in description.partitions]
            )
        return sum(ends.values())
    except Exception:  # what is asked for again soon
        return -1


async def read_committed(cluster: LocalCluster, topic: str) -> dict[int, list[tuple[str, str]]]:
    """Every committed (key, value) of a topic by partition, in the order of the log."""
    async with Admin(cluster.bootstrap) as admin:
        (description,) = await admin.describe_topics([topic], config=False)
        partitions = [(topic, each.partition) for each in description.partitions]
        ends = await admin.end_offsets(partitions)
    found: dict[int, list[tuple[str, str]]] = {number: [] for _, number in partitions}
    async with Consumer(
        cluster.bootstrap, auto_offset_reset="earliest", isolation="read_committed"
    ) as consumer:
        consumer.assign(partitions)
        deadline = time.monotonic() + PATIENCE_S
        while any([await consumer.position(partition) < ends[partition] for partition in partitions]):
            assert time.monotonic() < deadline, f"{topic} was not read to its end"
            for record in await consumer.poll(timeout_s=1.0):
                found[record.partition].append(((record.key or b"").decode(), (record.value or b"").decode()))
    return found


async def kill_and_restart(
    cluster: LocalCluster, node_id: int, meanwhile: Callable[[], Awaitable[None]]
) -> None:
    """SIGKILL to one node; it is started again when what is done meanwhile has gone through without it."""
    node = cluster.node(node_id)
    node.kill()
    await node.wait_exit()
    await meanwhile()
    await node.start()
    await node.wait_ready()


async def nothing() -> None:
    """For a node that is started again at once."""


SIGTERM: Final = int(signal.SIGTERM)
