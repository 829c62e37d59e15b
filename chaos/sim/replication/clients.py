"""Producers with acks=1 and acks=all, idempotent or not, consumers that track leader epochs (KIP-320), and a
client that deletes records.

They believe old metadata for a while, ask deposed leaders, give up waiting and try again, as clients do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random
from uuid import UUID

from ....wire.errors import ErrorCode, KafkaError
from ....wire.fetch import FetchPartition, FetchRequest
from ....wire.records import NewRecord, encode_batch, iterate_headers
from .contents import GONE, Record
from .network import Network
from .node import Fetched, Produced, SimulatedNode
from .truth import Truth

CLIENTS = 900
"""The clients' place in the network."""
ANSWER_S = 1.5
TRIES_MAX = 12


@dataclass(slots=True)
class Clients:
    """What all clients share."""

    random: Random
    network: Network
    nodes: Mapping[int, SimulatedNode]
    truth: Truth
    topic: str
    batch_id: int = 0
    idempotent: set[int] = field(default_factory=set)  # batches that may be in a log once at most
    quiet: bool = False

    def leader(self, partition: int) -> tuple[int, int, UUID] | None:
        """(leader, leader epoch, topic id) as some node that is up knows them, rightly or not."""
        up = [
            node
            for node in self.nodes.values()
            if node.serving and node.process is not None and not node.process.paused
        ]
        if not up:
            return None
        broker = self.random.choice(up).broker
        assert broker is not None
        topic = broker.cluster.state.topics.get(self.topic)
        found = None if topic is None else topic.partitions.get(partition)
        if topic is None or found is None or found.leader < 0:
            return None
        return found.leader, found.leader_epoch, topic.topic_id


class Producer:
    """Sends one batch at a time to one partition."""

    def __init__(
        self, clients: Clients, number: int, partition: int, acks: int, idempotent: bool, pause_s: float
    ) -> None:
        self._clients = clients
        self._partition = partition
        self._acks = acks
        self._idempotent = idempotent
        self._pause_s = pause_s
        self._producer_id = 1000 * (number + 1)
        self._sequence = 0
        self._leader: tuple[int, int, UUID] | None = None
        self.last: Produced | None = None

    async def run(self) -> None:
        random = self._clients.random
        while True:
            await asyncio.sleep(self._pause_s * 2 * random.random())
            if not self._clients.quiet:
                await self.send(random.choice((1, 1, 1, 2, 5)))

    async def send(self, records: int, tries_max: int = TRIES_MAX, *, when_quiet: bool = False) -> bool:
        """True when it is acknowledged.  Unless `when_quiet`, it is given up when the clients are to be
        quiet."""
        clients = self._clients
        clients.batch_id += 1
        batch_id = clients.batch_id
        made = [NewRecord(None, b"v", (), batch_id) for _ in range(records)]
        if self._idempotent:
            clients.idempotent.add(batch_id)
            batch = encode_batch(
                made, producer_id=self._producer_id, producer_epoch=0, base_sequence=self._sequence
            )
        else:
            batch = encode_batch(made)
        for _ in range(tries_max if self._idempotent else 1):
            if clients.quiet and not when_quiet:
                break
            answer = self.last = await self._ask(batch, batch_id)
            if answer is not None and answer.error is ErrorCode.NONE:
                self._sequence += records
                return True
            self._leader = None
            await asyncio.sleep(0.05 + 0.2 * clients.random.random())
        if self._idempotent:  # the batch's outcome is unknown: only another producer id can go on
            self._producer_id, self._sequence = self._producer_id + 1, 0
        return False

    async def _ask(self, batch: bytes, batch_id: int) -> Produced | None:
        clients = self._clients
        if self._leader is None or clients.random.random() < 0.1:
            self._leader = clients.leader(self._partition)
        if self._leader is None:
            return None
        target = clients.nodes[self._leader[0]]
        work = clients.network.call(
            CLIENTS,
            target.node_id,
            lambda _process: (
                target.produce(clients.topic, self._partition, batch, batch_id, self._acks, ANSWER_S)
                if target.serving
                else None
            ),
        )
        try:
            async with asyncio.timeout(ANSWER_S):
                answer: Produced = await work
                return answer
        except (TimeoutError, OSError, KafkaError):
            return None


class Consumer:
    """Reads one partition from its beginning and keeps all records that it received."""

    def __init__(self, clients: Clients, partition: int, pause_s: float) -> None:
        self._clients = clients
        self._partition = partition
        self._pause_s = pause_s
        self.topic_id: UUID | None = None
        self.records: list[Record] = []
        self._epochs: list[int] = []  # of each record

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self._pause_s * 2 * self._clients.random.random())
            await self.poll()

    async def poll(self) -> None:
        clients = self._clients
        known = clients.leader(self._partition)
        if known is None:
            return
        leader, epoch, topic_id = known
        position, last_epoch = len(self.records), self._epochs[-1] if self._epochs else -1
        part = FetchPartition(
            self._partition, position, clients.random.choice((1, 500, 1 << 20)), epoch, last_epoch, 0
        )
        deleted_below = clients.truth.deleted_below((topic_id, self._partition))
        request = FetchRequest(max_wait_ms=clients.random.choice((0, 200)), topics=[(clients.topic, [part])])
        target = clients.nodes[leader]
        work = clients.network.call(
            CLIENTS,
            leader,
            lambda _process: (
                target.consume(clients.topic, self._partition, request) if target.serving else None
            ),
        )
        try:
            async with asyncio.timeout(ANSWER_S):
                answer: Fetched | None = await work
        except (TimeoutError, OSError, KafkaError):
            return
        if answer is not None and len(self.records) == position:
            self._take(answer, topic_id, position, deleted_below)

    def _take(self, answer: Fetched, asked: UUID, position: int, deleted_below: int) -> None:
        if answer.topic_id != asked or self.topic_id != asked:
            self.topic_id = asked  # another topic of the same name: from the beginning
            self._cut(0)
            return
        part = answer.response.topics[0][1][0]
        if part.error is ErrorCode.OFFSET_OUT_OF_RANGE:
            self._cut(0)
            self.records.extend([GONE] * part.log_start_offset)
            self._epochs.extend([-1] * part.log_start_offset)
        elif part.diverging_epoch is not None:
            self._cut(min(part.diverging_epoch[1], self._end_of(part.diverging_epoch[0])))
        elif part.error is ErrorCode.NONE and part.records:
            truth, key = self._clients.truth, (asked, self._partition)
            found = truth.consumed(key, answer.leader_epoch, position, part.records, deleted_below)
            if found is not None:
                self.records.extend(found)
                epochs = batch_epochs(part.records)
                self._epochs.extend(epochs[batch] for batch, _place in found)

    def _end_of(self, epoch: int) -> int:
        return sum(1 for each in self._epochs if each <= epoch)

    def _cut(self, length: int) -> None:
        del self.records[length:]
        del self._epochs[length:]


class Deleter:
    """Deletes records of one partition now and then."""

    def __init__(self, clients: Clients, partition: int, pause_s: float) -> None:
        self._clients = clients
        self._partition = partition
        self._pause_s = pause_s

    async def run(self) -> None:
        random = self._clients.random
        while True:
            await asyncio.sleep(self._pause_s * 2 * random.random())
            if not self._clients.quiet:
                await self.delete(random.choice((-1, random.randrange(20), random.randrange(100))))

    async def delete(self, before_offset: int) -> bool:
        """Once; true when it is answered.  -1: all that is committed."""
        clients = self._clients
        known = clients.leader(self._partition)
        if known is None:
            return False
        target = clients.nodes[known[0]]
        work = clients.network.call(
            CLIENTS,
            target.node_id,
            lambda _process: (
                target.delete_records(clients.topic, self._partition, before_offset, ANSWER_S)
                if target.serving
                else None
            ),
        )
        try:
            async with asyncio.timeout(ANSWER_S):
                await work
                return True
        except (TimeoutError, OSError, KafkaError):
            return False

    async def delete_until_answered(self, before_offset: int, seconds: float) -> None:
        """Raises TimeoutError."""
        async with asyncio.timeout(seconds):
            while not await self.delete(before_offset):  # noqa: ASYNC110 between two attempts of a client
                await asyncio.sleep(0.2)


def batch_epochs(records: bytes | memoryview) -> dict[int, int]:
    """The leader epoch of each batch."""
    return {header.base_timestamp: header.partition_leader_epoch for _, header in iterate_headers(records)}
