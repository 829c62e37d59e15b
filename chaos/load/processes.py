"""The clients of the workload.  Each runs one life after the other until the run stops; a life is one client
object and one process name.

    writer      transactions of a few records over several partitions; one in ten aborted on purpose; now and
                then it leaves a zombie behind: a second producer takes the transactional id over while the
                first still wants to commit
    plain       records without transactions, idempotent, acks=all
    transform   consume-transform-produce in a group, its offsets inside its transactions
    reader      reads everything at read_committed, over and over the same partitions, while it is being
                written

Clients retry by themselves.  When a client gives up, the history gets the outcome (outcomes.py), and
`Progress` a disturbance.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Collection, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from ...client.connecting.errors import FatalError
from ...client.consuming.consumer import Consumer, ConsumerRecord, RebalanceListener
from ...client.producing.producer import Producer
from ...runtime import logs
from ...runtime.clock import Clock
from ...security.client_security import ClientSecurity
from ...wire.errors import KafkaError
from ..checks.history import History, OpenOp, Partition, Send
from . import outcomes
from .outcomes import Ending, Sent, TransactionOutcome
from .progress import Commit, Progress

log = logs.get(__name__)

PAUSE_AFTER_FAILURE_S: Final = 0.05
POLL_S: Final = 0.5


class Life(Protocol):
    """The unit that `run_lives` repeats."""

    async def live(self, process: str) -> None:
        """Returns when the run stops or the client cannot continue."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The parameters of the workload.  The defaults load three nodes on two cores without overloading
    them."""

    topic: str = "chaos-records"
    partitions: int = 6
    derived_topic: str = "chaos-derived"
    derived_partitions: int = 3
    group: str = "chaos-transform"
    writers: int = 3
    plain_writers: int = 1
    transforms: int = 2
    readers: int = 1
    librdkafka: bool = True
    """Besides Tidegate's own clients, one of librdkafka of each kind: a transactional writer, a plain one, a
    reader."""
    replicas: int = 3
    min_in_sync: int = 2
    records_per_transaction_max: int = 8
    abort_probability: float = 0.1
    zombie_probability: float = 0.02
    pause_max_s: float = 0.04
    """A writer rests for up to so long between transactions."""
    is_bank: bool = False
    """The writers move money (bank.py)."""
    transaction_timeout_ms: int = 30_000
    request_timeout_s: float = 5.0
    max_block_s: float = 15.0
    delivery_timeout_s: float = 20.0
    session_timeout_ms: int = 6_000

    @property
    def input_partitions(self) -> list[Partition]:
        return [(self.topic, number) for number in range(self.partitions)]

    @property
    def all_partitions(self) -> list[Partition]:
        return self.input_partitions + [
            (self.derived_topic, number) for number in range(self.derived_partitions)
        ]


@dataclass(slots=True)
class WorkloadContext:
    """The shared state of all processes of a run."""

    bootstrap: str
    plan: Plan
    history: History
    progress: Progress
    clock: Clock
    security: ClientSecurity | None = None
    """How they log in; None in a cluster without users."""
    stopping: asyncio.Event = field(default_factory=asyncio.Event)

    async def pause(self, seconds: float) -> None:
        """Sleeps, at most until the run stops."""
        if seconds > 0:
            try:
                await asyncio.wait_for(self.stopping.wait(), seconds)
            except TimeoutError:
                return

    def producer(
        self, process: str, transactional_id: str | None, delivery_timeout_s: float | None = None
    ) -> Producer:
        plan = self.plan
        return Producer(
            self.bootstrap,
            transactional_id=transactional_id,
            client_id=process,
            linger_ms=2,
            transaction_timeout_ms=plan.transaction_timeout_ms,
            delivery_timeout_s=delivery_timeout_s or plan.delivery_timeout_s,
            request_timeout_s=plan.request_timeout_s,
            max_block_s=plan.max_block_s,
            clock=self.clock,
            security=self.security,
        )

    async def initialised(self, process: str, transactional_id: str) -> Producer | None:
        """A started transactional producer; None when the start failed."""
        producer = self.producer(process, transactional_id)
        with self.history.begin(process, transactional_id=transactional_id) as op:
            try:
                await producer.start()
            except KafkaError as error:
                op.info(str(error))
                self.progress.disturbance(f"{process} could not start: {error}")
                return None
            op.initialised(producer.identity.producer_id, producer.identity.producer_epoch)
            op.ok()
        return producer

    def note_commit(self, op: OpenOp, partitions: Collection[Partition]) -> None:
        assert op.transactional_id is not None
        now = self.clock.monotonic()
        self.progress.committed(
            Commit(op.process, op.transactional_id, frozenset(partitions), op.invoked, now)
        )


async def run_lives(context: WorkloadContext, name: str, life: Life) -> None:
    """One life after the other until the run stops.  A client's error ends a life; any other error is a
    defect."""
    number = 0
    while not context.stopping.is_set():
        number += 1
        try:
            await life.live(f"{name}/{number}")
        except KafkaError as error:
            context.progress.disturbance(f"{name}/{number} ended: {error}")
        except Exception as error:
            log.exception("process_failed", process=f"{name}/{number}")
            context.progress.defect(f"{name}/{number}: {error!r}")
            return
        await context.pause(PAUSE_AFTER_FAILURE_S)


class Writer:
    """One transactional id; values are `<process>.<count>`, so that none is ever written twice."""

    def __init__(self, context: WorkloadContext, transactional_id: str, seed: str) -> None:
        self._context = context
        self._transactional_id = transactional_id
        self._chance = random.Random(seed)
        self._count = 0

    async def live(self, process: str) -> None:
        context = self._context
        producer = await context.initialised(process, self._transactional_id)
        if producer is None:
            return
        try:
            while not context.stopping.is_set():
                if self._chance.random() < context.plan.zombie_probability:
                    await self._leave_a_zombie(process, producer)
                    return
                ending = await self._transaction(process, producer)
                if ending is Ending.OVER:
                    return
                await context.pause(PAUSE_AFTER_FAILURE_S if ending is Ending.FAILED else self._rest_s())
        finally:
            await producer.close()

    def _rest_s(self) -> float:
        return self._chance.random() * self._context.plan.pause_max_s

    async def _transaction(self, process: str, producer: Producer) -> Ending:
        context = self._context
        with context.history.begin(process, transactional_id=self._transactional_id) as op:
            sent, partitions, error = await self._begin_and_send(op, process, producer)
            if error is not None:
                settled = await self._give_up(op, producer, error)
            elif self._chance.random() < context.plan.abort_probability:
                if self._chance.random() < 0.5:
                    await producer.flush()  # so that the partitions have records to abort
                    outcomes.note_acknowledged(op, sent)
                return (await outcomes.abort(op, producer, "aborted on purpose")).ending
            else:
                settled = await outcomes.commit(op, producer, sent)
        if settled.ending is Ending.COMMITTED:
            context.note_commit(op, partitions)
        else:
            context.progress.disturbance(f"transaction {op.index} of {process}: {settled.why}")
        return settled.ending

    async def _begin_and_send(
        self, op: OpenOp, process: str, producer: Producer
    ) -> tuple[Sent, set[Partition], KafkaError | None]:
        sent: Sent = []
        partitions: set[Partition] = set()
        try:
            await producer.begin()
            async for partition, value in self._records(process):
                partitions.add(partition)
                number = op.send(partition, value)
                future = await producer.send(
                    partition[0], value, key=f"k{self._count % 7}", partition=partition[1]
                )
                outcomes.mark_retrieved(future)
                sent.append((number, future))
        except KafkaError as error:
            return sent, partitions, error
        return sent, partitions, None

    async def _records(self, process: str) -> AsyncIterator[tuple[Partition, str]]:
        """Of one transaction."""
        for _ in range(self._chance.randint(1, self._context.plan.records_per_transaction_max)):
            value = self._value(process)
            yield self._chance.choice(self._context.plan.input_partitions), value

    def _value(self, process: str) -> str:
        self._count += 1
        return f"{process}.{self._count}"

    async def _give_up(self, op: OpenOp, producer: Producer, error: KafkaError) -> TransactionOutcome:
        if isinstance(error, FatalError):
            return outcomes.fail(op, str(error))  # its commit was never sent
        if not op.steps:
            op.fail(str(error))  # it has not even begun
            return TransactionOutcome(Ending.FAILED, str(error))
        return await outcomes.abort(op, producer, str(error))

    async def _leave_a_zombie(self, process: str, producer: Producer) -> None:
        """The old producer has a transaction open; a new one takes over; then the old one's commit must be
        rejected."""
        context = self._context
        with context.history.begin(process, transactional_id=self._transactional_id) as op:
            sent, _, error = await self._begin_and_send(op, process, producer)
            if error is not None:
                await self._give_up(op, producer, error)
                return
            await producer.flush()
            heir = await context.initialised(f"{process}+heir", self._transactional_id)
            try:
                if heir is not None:
                    context.progress.zombies += 1
                await outcomes.commit(op, producer, sent)
            finally:
                if heir is not None:
                    await heir.close()


class PlainWriter:
    """Idempotent, without transactions: every record stands for itself."""

    def __init__(self, context: WorkloadContext, seed: str) -> None:
        self._context = context
        self._chance = random.Random(seed)
        self._count = 0

    async def live(self, process: str) -> None:
        context = self._context
        async with context.producer(process, None) as producer:
            while not context.stopping.is_set():
                with context.history.begin(process) as op:
                    await self._write(op, process, producer)
                await context.pause(self._chance.random() * context.plan.pause_max_s)

    async def _write(self, op: OpenOp, process: str, producer: Producer) -> None:
        sent: Sent = []
        for _ in range(self._chance.randint(1, 4)):
            self._count += 1
            topic, number = partition = self._chance.choice(self._context.plan.input_partitions)
            step = op.send(partition, f"{process}.{self._count}")
            future = await producer.send(topic, f"{process}.{self._count}", partition=number)
            outcomes.mark_retrieved(future)
            sent.append((step, future))
        await producer.flush()
        outcomes.note_acknowledged(op, sent)
        failures = [error for _, future in sent if (error := future.exception()) is not None]
        if failures:
            op.info(str(failures[0]))  # not acknowledged: it may still be in the log
            self._context.progress.disturbance(f"operation {op.index} of {process}: {failures[0]}")
        else:
            op.ok()
            self._context.progress.acknowledged(process, op.invoked, self._context.clock.monotonic())


class Transform:
    """Reads `topic` in the group, writes one derived record for each into `derived_topic`, offsets in the
    transaction."""

    def __init__(self, context: WorkloadContext, transactional_id: str, seed: str) -> None:
        self._context = context
        self._transactional_id = transactional_id
        self._chance = random.Random(seed)
        self._count = 0
        self._moved: set[Partition] = set()

    async def live(self, process: str) -> None:
        context, plan = self._context, self._context.plan
        producer = await context.initialised(process, self._transactional_id)
        if producer is None:
            return
        try:
            async with Consumer(
                context.bootstrap,
                group_id=plan.group,
                client_id=process,
                auto_offset_reset="earliest",
                auto_commit=False,
                session_timeout_ms=plan.session_timeout_ms,
                heartbeat_interval_ms=500,
                max_poll_records=40,
                request_timeout_s=plan.request_timeout_s,
                max_block_s=plan.max_block_s,
                clock=context.clock,
                security=context.security,
            ) as consumer:
                consumer.subscribe(
                    [plan.topic], RebalanceListener(self._note_moved, self._note_moved, self._note_moved)
                )
                with context.history.begin(process) as op:
                    op.subscribed([plan.topic])
                    op.ok()
                while not context.stopping.is_set():
                    if not await self._step(process, consumer, producer):
                        return
        finally:
            await producer.close()

    async def _note_moved(self, partitions: Collection[Partition]) -> None:
        self._moved.update(tuple(partition) for partition in partitions)  # type: ignore[misc]

    async def _step(self, process: str, consumer: Consumer, producer: Producer) -> bool:
        """One poll and, if it brought something, one transaction.  False when the clients must be made
        anew."""
        context = self._context
        with context.history.begin(process, transactional_id=self._transactional_id) as op:
            self._moved.clear()
            try:
                records = await consumer.poll(timeout_s=POLL_S)
            except KafkaError as error:
                op.fail(str(error))
                context.progress.disturbance(f"poll {op.index} of {process}: {error}")
                await context.pause(PAUSE_AFTER_FAILURE_S)
                return not isinstance(error, FatalError)
            finally:
                op.rebalanced.update(self._moved)
            if not records:
                op.ok()
                return True
            op.polled(by_partition(records))
            settled = await self._transform(op, process, records, consumer, producer)
        if settled.ending is Ending.COMMITTED:
            context.note_commit(op, {step.partition for step in op.steps if isinstance(step, Send)})
            return True
        context.progress.disturbance(f"transaction {op.index} of {process}: {settled.why}")
        if settled.ending is Ending.OVER:
            return False
        await context.pause(PAUSE_AFTER_FAILURE_S)
        await self._go_back(consumer)
        return True

    async def _transform(
        self,
        op: OpenOp,
        process: str,
        records: Sequence[ConsumerRecord],
        consumer: Consumer,
        producer: Producer,
    ) -> TransactionOutcome:
        plan = self._context.plan
        sent: Sent = []
        try:
            await producer.begin()
            for record in records:
                self._count += 1
                value = f"{process}.{self._count}<{(record.value or b'').decode()}"
                partition = (plan.derived_topic, self._chance.randrange(plan.derived_partitions))
                number = op.send(partition, value)
                future = await producer.send(partition[0], value, partition=partition[1])
                outcomes.mark_retrieved(future)
                sent.append((number, future))
            positions = consumer.positions()
            taken = {key: positions[key] for key in by_partition(records) if key in positions}
            op.offsets(plan.group, taken)
            await producer.send_offsets_to_transaction(taken, consumer.group_metadata())
        except FatalError as error:
            return outcomes.fail(op, str(error))
        except KafkaError as error:
            return await outcomes.abort(op, producer, str(error))
        return await outcomes.commit(op, producer, sent)

    async def _go_back(self, consumer: Consumer) -> None:
        """Seeks to the group's committed offsets; to the beginning where there is none."""
        assigned = consumer.assignment()
        committed = await consumer.committed(assigned)
        fresh = [partition for partition in assigned if partition not in committed]
        if fresh:
            await consumer.seek_to_beginning(*fresh)
        for partition, found in committed.items():
            consumer.seek(partition, found.offset)


class Reader:
    """Reads all partitions from their beginning at read_committed, alone."""

    def __init__(self, context: WorkloadContext) -> None:
        self._context = context

    async def live(self, process: str) -> None:
        context, plan = self._context, self._context.plan
        async with Consumer(
            context.bootstrap,
            client_id=process,
            auto_offset_reset="earliest",
            max_poll_records=200,
            request_timeout_s=plan.request_timeout_s,
            max_block_s=plan.max_block_s,
            clock=context.clock,
            security=context.security,
        ) as consumer:
            consumer.assign(plan.all_partitions)
            with context.history.begin(process) as op:
                op.assigned(plan.all_partitions)
                op.ok()
            while not context.stopping.is_set():
                with context.history.begin(process) as op:
                    try:
                        records = await consumer.poll(timeout_s=POLL_S)
                    except KafkaError as error:
                        op.fail(str(error))  # no record was delivered: the position has not moved
                        context.progress.disturbance(f"poll {op.index} of {process}: {error}")
                        if isinstance(error, FatalError):
                            return
                        await context.pause(PAUSE_AFTER_FAILURE_S)
                        continue
                    op.polled(by_partition(records))
                    op.ok()


def by_partition(records: Sequence[ConsumerRecord]) -> dict[Partition, list[tuple[int, str]]]:
    """Offset and value of each record, per partition, in the order in which they came."""
    read: dict[Partition, list[tuple[int, str]]] = {}
    for record in records:
        read.setdefault((record.topic, record.partition), []).append(
            (record.offset, (record.value or b"").decode())
        )
    return read
