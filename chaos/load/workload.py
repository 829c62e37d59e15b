"""The workload of a chaos run: it loads the cluster during the faults, and reads all records in the end.

workload = Workload(cluster.bootstrap, history, plan, clock, seed=7)
await workload.prepare()            # topics
workload.start()
...                                 # inject faults and end them; workload.progress shows the commits
await workload.stop()
open_transactions = await workload.quiesce()
found = await workload.final_read()
report = check(history.ops(), found.logs, found.offsets)
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Final

from ...client.administration.admin import Admin
from ...client.administration.descriptions import NewTopic
from ...client.consuming.consumer import Consumer
from ...runtime import logs
from ...runtime.clock import Clock
from ...security.client_security import ClientSecurity
from ...wire.errors import KafkaError
from ..checks.evidence import FinalLogs
from ..checks.history import History, Partition, Value
from .bank import Teller
from .librdkafka import LibrdkafkaPlainWriter, LibrdkafkaReader, LibrdkafkaWriter
from .processes import (
    Life,
    PlainWriter,
    Plan,
    Reader,
    Transform,
    WorkloadContext,
    Writer,
    by_partition,
    run_lives,
)
from .progress import Progress
from .user import NAME as USER
from .user import make_user

log = logs.get(__name__)

STOP_TIMEOUT_S: Final = 60.0
RECHECK_INTERVAL_S: Final = 0.1
UNDECIDED: Final = ("Ongoing", "Prepared", "PrepareCommit", "PrepareAbort", "PrepareEpochFence")


@dataclass(frozen=True, slots=True)
class OpenTransactions:
    """The transactions that are open although no client works any more; both lists are empty if none
    hangs."""

    undecided: list[str]
    """Transactional ids whose coordinator has not finished, with their state."""
    open_at_partitions: list[str]
    """Partitions with an open transaction, with its producer id."""

    @property
    def hanging(self) -> list[str]:
        return self.undecided + self.open_at_partitions


@dataclass(frozen=True, slots=True)
class FinalRead:
    """All records that a read_committed reader gets from the beginning to the end, and the groups'
    positions."""

    logs: dict[Partition, list[tuple[int, Value]]]
    offsets: dict[str, dict[Partition, int]]
    incomplete: list[Partition] = field(default_factory=list)
    """Partitions that could not be read to their end; they are not in `logs`."""


class Workload:
    """See the module's text.  All methods on one event loop; `start` once."""

    def __init__(
        self,
        bootstrap: str,
        history: History,
        plan: Plan,
        clock: Clock,
        seed: int,
        administrator: ClientSecurity | None = None,
    ) -> None:
        """`administrator`: how it logs in, in a cluster whose clients have to."""
        self.plan = plan
        self.progress = Progress()
        self._clock = clock
        self._administrator = administrator
        self._context = WorkloadContext(bootstrap, plan, history, self.progress, clock)
        self._processes: dict[str, Life] = {}
        writer = Teller if plan.is_bank else Writer
        for number, transactional_id in enumerate(self.writer_ids):
            self._processes[f"writer-{number}"] = writer(
                self._context, transactional_id, f"{seed}/writer-{number}"
            )
        for number in range(plan.plain_writers):
            self._processes[f"plain-{number}"] = PlainWriter(self._context, f"{seed}/plain-{number}")
        for number, transactional_id in enumerate(self.transform_ids):
            self._processes[f"transform-{number}"] = Transform(
                self._context, transactional_id, f"{seed}/transform-{number}"
            )
        for number in range(plan.readers):
            self._processes[f"reader-{number}"] = Reader(self._context)
        if plan.librdkafka:
            name = self.librdkafka_ids[0]
            self._processes["librdkafka-writer"] = LibrdkafkaWriter(
                self._context, name, f"{seed}/librdkafka-writer"
            )
            self._processes["librdkafka-plain"] = LibrdkafkaPlainWriter(
                self._context, f"{seed}/librdkafka-plain"
            )
            self._processes["librdkafka-reader"] = LibrdkafkaReader(self._context)
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def context(self) -> WorkloadContext:
        """For a scenario with clients of its own."""
        return self._context

    @property
    def writer_ids(self) -> list[str]:
        """The transactional ids of the writers."""
        return [f"chaos-writer-{number}" for number in range(self.plan.writers)]

    @property
    def librdkafka_ids(self) -> list[str]:
        """The transactional ids of librdkafka's writers."""
        return ["chaos-librdkafka"] if self.plan.librdkafka else []

    @property
    def transform_ids(self) -> list[str]:
        """The transactional ids of the consume-transform-produce processes."""
        return [f"chaos-transform-{number}" for number in range(self.plan.transforms)]

    async def prepare(self) -> None:
        """Makes the topics; where clients have to log in, first the user as whom they do."""
        if self._administrator is not None:
            password = await make_user(self._context.bootstrap, self._administrator, self._clock)
            self._context.security = replace(self._administrator, username=USER, password=password)
        config = {"min.insync.replicas": str(self.plan.min_in_sync)}
        async with self._admin() as admin:
            await admin.create_topics(
                [
                    NewTopic(self.plan.topic, self.plan.partitions, self.plan.replicas, config),
                    NewTopic(
                        self.plan.derived_topic, self.plan.derived_partitions, self.plan.replicas, config
                    ),
                ]
            )

    def start(self) -> None:
        self._tasks = [
            asyncio.create_task(run_lives(self._context, name, life), name=f"chaos-{name}")
            for name, life in self._processes.items()
        ]

    async def stop(self) -> None:
        """Waits until every process has finished its operation.  A process that does not within
        `STOP_TIMEOUT_S` is a defect."""
        self._context.stopping.set()
        if not self._tasks:
            return
        _, late = await asyncio.wait(self._tasks, timeout=STOP_TIMEOUT_S)
        for task in late:
            self.progress.defect(f"{task.get_name()} did not stop within {STOP_TIMEOUT_S:g} s")
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []

    async def kill(self) -> None:
        """Ends the processes at once, for a run that has failed already."""
        self._context.stopping.set()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []

    # ---- afterwards ----------------------------------------------------------------------------------------

    async def quiesce(self, timeout_s: float = 45.0) -> OpenTransactions:
        """Waits until no transaction is open at any coordinator or partition; a transaction that is still
        open after `timeout_s` hangs."""
        deadline = self._clock.monotonic() + timeout_s
        rest = OpenTransactions(["not asked yet"], [])
        async with self._admin() as admin:
            while True:
                try:
                    rest = await self._look(admin)
                except KafkaError as error:
                    rest = OpenTransactions([f"the cluster could not say: {error}"], [])
                if not rest.hanging or self._clock.monotonic() >= deadline:
                    return rest
                await self._clock.sleep(RECHECK_INTERVAL_S)

    async def _look(self, admin: Admin) -> OpenTransactions:
        listings = await admin.list_transactions(UNDECIDED)
        partitions = [
            (view.name, number)
            for view in await admin.list_topics(internal=True)
            for number in view.partitions
        ]
        producers = await admin.describe_producers(partitions)
        return OpenTransactions(
            [f"{found.transactional_id}: {found.state} at node {found.coordinator}" for found in listings],
            [
                f"{found.topic}-{found.partition}: producer {found.producer_id} since offset "
                f"{found.open_since_offset}"
                for found in producers
                if found.open_since_offset >= 0
            ],
        )

    async def final_read(self, timeout_s: float = 60.0) -> FinalRead:
        """Reads all partitions from their beginning to their last stable offset, and asks what the group has
        committed."""
        records, behind = await self._read(timeout_s)
        async with self._admin() as admin:
            committed = await admin.group_offsets(self.plan.group)
        return FinalRead(
            {partition: read for partition, read in records.items() if partition not in behind},
            {self.plan.group: {partition: found.offset for partition, found in committed.items()}},
            sorted(behind),
        )

    async def write_one(self, partition: Partition, timeout_s: float, size: int = 0) -> str:
        """Writes one record of at least `size` bytes; returns why it was not acknowledged, or an empty
        string."""
        with self._context.history.begin(f"probe/{len(self._context.history.ops())}") as op:
            value = f"{op.process}.{op.index}".ljust(size, ".")
            number = op.send(partition, value)
            try:
                async with self._context.producer(op.process, None, timeout_s) as producer:
                    metadata = await producer.send_and_wait(partition[0], value, partition=partition[1])
            except KafkaError as error:
                return repr(error)  # the operation stays open: its outcome is unknown
            op.acknowledged(number, metadata.offset)
            op.ok()
        return ""

    async def unreadable(self, timeout_s: float = 30.0) -> list[Partition]:
        """Reads all partitions; those whose end was not reached."""
        _, behind = await self._read(timeout_s)
        return sorted(behind)

    async def read_near(self, racks: Collection[str], found: FinalRead, timeout_s: float = 60.0) -> list[str]:
        """Reads everything from the replicas of each rack (KIP-392) and says where they give anything else
        than `found`."""
        differences: list[str] = []
        for rack in racks:
            records, _ = await self._read(timeout_s, rack)
            differences += unequal_reads(rack, found.logs, records)
        return differences

    async def _read(
        self, timeout_s: float, rack: str = ""
    ) -> tuple[dict[Partition, list[tuple[int, Value]]], set[Partition]]:
        """The records, and the partitions whose end was not reached."""
        partitions = self.plan.all_partitions
        records: dict[Partition, list[tuple[int, Value]]] = {partition: [] for partition in partitions}
        deadline = self._clock.monotonic() + timeout_s
        async with Consumer(
            self._context.bootstrap,
            client_id="chaos-final-read",
            rack=rack,
            auto_offset_reset="none",
            max_poll_records=5000,
            fetch_max_wait_ms=100,
            clock=self._clock,
            security=self._context.security,
        ) as consumer:
            ends = await consumer.end_offsets(partitions)
            consumer.assign(partitions)
            await consumer.seek_to_beginning(*partitions)
            behind = set(partitions)
            while behind and self._clock.monotonic() < deadline:
                for partition, read in by_partition(await consumer.poll(timeout_s=0.2)).items():
                    records[partition] += read
                behind = {
                    partition for partition in behind if await consumer.position(partition) < ends[partition]
                }
        return records, behind

    def _admin(self) -> Admin:
        return Admin(
            self._context.bootstrap,
            client_id="chaos-admin",
            clock=self._clock,
            security=self._administrator,
        )


def unequal_reads(rack: str, expected: FinalLogs, found: FinalLogs) -> list[str]:
    """Where a reader of this rack got other records than all others: in words, one sentence a partition."""
    return [
        f"{topic}-{number}: a reader near {rack} got {len(found.get((topic, number), []))} records, "
        f"others {len(records)}"
        for (topic, number), records in expected.items()
        if list(found.get((topic, number), [])) != list(records)
    ]
