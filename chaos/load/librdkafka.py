"""The workload's clients with librdkafka (confluent-kafka), which most users have.

Three kinds, as in processes.py: transactions, idempotent records without transactions, a read_committed
reader.  librdkafka blocks; each call runs in a thread, and the event loop records its result.

confluent-kafka is not among Tidegate's own requirements: `available()` says whether it is installed.
"""

from __future__ import annotations

import asyncio
import importlib.util
import random
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from ...runtime import logs
from ...security.client_security import ClientSecurity
from ..checks.history import OpenOp, Partition
from .outcomes import Ending, TransactionOutcome
from .processes import PAUSE_AFTER_FAILURE_S, POLL_S, WorkloadContext

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message, Producer

log = logs.get(__name__)

ATTEMPTS: Final = 3
"""How often a call that may be repeated is made before its outcome counts as unknown."""
FETCH_MAX: Final = 200

Sent = list[tuple[int, "Message | None", "KafkaError | None"]]
"""Number of the send in its operation, and what the delivery report said."""


def available() -> bool:
    """Whether confluent-kafka is installed."""
    return importlib.util.find_spec("confluent_kafka") is not None


def security_settings(security: ClientSecurity) -> dict[str, str]:
    """How a user logs in by SCRAM over TLS, in librdkafka's names."""
    return {
        "security.protocol": security.protocol,
        "ssl.ca.location": security.authorities,
        "sasl.mechanism": security.mechanism,
        "sasl.username": security.username,
        "sasl.password": security.password,
    }


def _settings(context: WorkloadContext, process: str, **settings: object) -> dict[str, Any]:
    return {
        "bootstrap.servers": context.bootstrap,
        "client.id": process,
        "socket.timeout.ms": int(context.plan.request_timeout_s * 1000),
        "reconnect.backoff.max.ms": 1000,
        "log_level": 0,
        **(security_settings(context.security) if context.security is not None else {}),
        **{key.replace("_", "."): value for key, value in settings.items()},
    }


class LibrdkafkaProducer:
    """The common part of both producers: sends records and takes their delivery reports."""

    def __init__(self, context: WorkloadContext, process: str, **settings: object) -> None:
        from confluent_kafka import Producer

        self._context = context
        timeout_ms = int(context.plan.delivery_timeout_s * 1000)
        self.producer: Producer = Producer(
            _settings(
                context,
                process,
                acks="all",
                enable_idempotence=True,
                linger_ms=2,
                message_timeout_ms=timeout_ms,
                **settings,
            )
        )
        self._reports: Sent = []

    def send(self, op: OpenOp, partition: Partition, value: str) -> None:
        """Raises KafkaException or BufferError."""
        number = op.send(partition, value)
        self.producer.produce(
            partition[0], value.encode(), partition=partition[1], on_delivery=partial(self._report, number)
        )

    def _report(self, number: int, error: KafkaError | None, message: Message | None) -> None:
        self._reports.append((number, message, error))  # in the thread that flushes

    async def flush(self, op: OpenOp) -> list[str]:
        """Waits for all delivery reports and records the offsets; returns the failures, as sentences."""
        left = await asyncio.to_thread(self.producer.flush, self._context.plan.delivery_timeout_s + 5)
        reports, self._reports = self._reports, []
        for number, message, error in reports:
            offset = message.offset() if error is None and message is not None else None
            if offset is not None and offset >= 0:  # an answer to a repetition may have no offset
                op.acknowledged(number, offset)
        failures = [str(error) for _, _, error in reports if error is not None]
        return failures + ([f"{left} records without a delivery report"] if left else [])

    async def close(self) -> None:
        """Drops the records that are not delivered."""
        from confluent_kafka import KafkaException

        try:
            self.producer.purge()
            await asyncio.to_thread(self.producer.flush, 1.0)
        except KafkaException as error:  # after a fatal error, every call raises it again
            log.info("librdkafka_closed", reason=error)


class LibrdkafkaWriter:
    """One transactional id; values are `<process>.<count>`."""

    def __init__(self, context: WorkloadContext, transactional_id: str, seed: str) -> None:
        self._context = context
        self._transactional_id = transactional_id
        self._chance = random.Random(seed)
        self._count = 0

    async def live(self, process: str) -> None:
        context = self._context
        timeout_ms = context.plan.transaction_timeout_ms
        client = LibrdkafkaProducer(
            context, process, transactional_id=self._transactional_id, transaction_timeout_ms=timeout_ms
        )
        try:
            with context.history.begin(process, transactional_id=self._transactional_id) as op:
                error = await self._call(client.producer.init_transactions)
                if error is not None:
                    op.info(error.why)
                    context.progress.disturbance(f"{process} could not start: {error.why}")
                    return
                op.ok()
            while not context.stopping.is_set():
                with context.history.begin(process, transactional_id=self._transactional_id) as op:
                    settled, partitions = await self._transaction(op, process, client)
                if settled.ending is Ending.COMMITTED:
                    context.note_commit(op, partitions)
                elif settled.why:
                    context.progress.disturbance(f"transaction {op.index} of {process}: {settled.why}")
                if settled.ending is Ending.OVER:
                    return
                await context.pause(self._chance.random() * context.plan.pause_max_s)
        finally:
            await client.close()

    async def _transaction(
        self, op: OpenOp, process: str, client: LibrdkafkaProducer
    ) -> tuple[TransactionOutcome, set[Partition]]:
        """The outcome has no reason and no commit when the transaction was aborted on purpose."""
        from confluent_kafka import KafkaException

        partitions: set[Partition] = set()
        try:
            client.producer.begin_transaction()
            for _ in range(self._chance.randint(1, self._context.plan.records_per_transaction_max)):
                self._count += 1
                partition = self._chance.choice(self._context.plan.input_partitions)
                partitions.add(partition)
                client.send(op, partition, f"{process}.{self._count}")
        except (KafkaException, BufferError) as error:
            return await self._abort(op, client, str(error)), partitions
        failures = await client.flush(op)
        if failures:
            return await self._abort(op, client, f"a record was not delivered: {failures[0]}"), partitions
        if self._chance.random() < self._context.plan.abort_probability:
            return await self._abort(op, client, ""), partitions
        op.ending()
        refused = await self._call(client.producer.commit_transaction)
        if refused is None:
            op.ok()
            return TransactionOutcome(Ending.COMMITTED), partitions
        if refused.abortable:
            return await self._abort(op, client, f"refused: {refused.why}", commit_left=True), partitions
        op.info(refused.why)
        return TransactionOutcome(Ending.OVER, refused.why), partitions

    async def _abort(
        self, op: OpenOp, client: LibrdkafkaProducer, why: str, *, commit_left: bool = False
    ) -> TransactionOutcome:
        """`commit_left`: the client sent a commit. Only a confirmed abort proves that it did not happen."""
        refused = await self._call(client.producer.abort_transaction)
        if refused is None:
            op.fail(why or "aborted on purpose")
            return TransactionOutcome(Ending.FAILED, why)
        message = f"{why or 'aborted on purpose'}; the abort: {refused.why}"
        op.info(message) if commit_left else op.fail(message)
        return TransactionOutcome(Ending.OVER, message)

    async def _call(self, call: Any) -> _Refusal | None:
        """Makes a call of the transactional interface; repeats it while librdkafka reports a retriable
        error."""
        from confluent_kafka import KafkaException

        refusal = _Refusal("never asked", False)
        for _ in range(ATTEMPTS):
            try:
                await asyncio.to_thread(call, self._context.plan.max_block_s)
                return None
            except KafkaException as raised:
                error = raised.args[0]
                refusal = _Refusal(str(error), error.txn_requires_abort())
                if not error.retriable():
                    break
        return refusal


class _Refusal:
    """Why a call did not succeed, and whether the transaction can still be aborted."""

    def __init__(self, why: str, abortable: bool) -> None:
        self.why = why
        self.abortable = abortable


class LibrdkafkaPlainWriter:
    """Idempotent, without transactions."""

    def __init__(self, context: WorkloadContext, seed: str) -> None:
        self._context = context
        self._chance = random.Random(seed)
        self._count = 0

    async def live(self, process: str) -> None:
        from confluent_kafka import KafkaException

        context = self._context
        client = LibrdkafkaProducer(context, process)
        try:
            while not context.stopping.is_set():
                with context.history.begin(process) as op:
                    try:
                        for _ in range(self._chance.randint(1, 4)):
                            self._count += 1
                            client.send(
                                op,
                                self._chance.choice(context.plan.input_partitions),
                                f"{process}.{self._count}",
                            )
                        failures = await client.flush(op)
                    except (KafkaException, BufferError) as error:
                        failures = [str(error)]
                    if failures:
                        op.info(failures[0])
                        context.progress.disturbance(f"operation {op.index} of {process}: {failures[0]}")
                        return  # after a fatal error it cannot write any more: a new producer begins
                    op.ok()
                    context.progress.acknowledged(process, op.invoked, context.clock.monotonic())
                await context.pause(self._chance.random() * context.plan.pause_max_s)
        finally:
            await client.close()


class LibrdkafkaReader:
    """Reads all partitions from their beginning at read_committed, alone."""

    def __init__(self, context: WorkloadContext) -> None:
        self._context = context

    async def live(self, process: str) -> None:
        from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

        context = self._context
        partitions = context.plan.all_partitions
        consumer = Consumer(
            _settings(
                context, process, group_id=f"none-{process}", enable_auto_commit=False,
                isolation_level="read_committed",
                auto_offset_reset="error",
            )
        )  # fmt: skip
        try:
            consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for topic, number in partitions])
            with context.history.begin(process) as op:
                op.assigned(partitions)
                op.ok()
            while not context.stopping.is_set():
                with context.history.begin(process) as op:
                    read: dict[Partition, list[tuple[int, str]]] = {}
                    for message in await asyncio.to_thread(consumer.consume, FETCH_MAX, POLL_S):
                        if (error := message.error()) is not None:
                            context.progress.disturbance(f"poll {op.index} of {process}: {error}")
                            continue
                        place = (message.topic() or "", message.partition() or 0)
                        read.setdefault(place, []).append(
                            (message.offset() or 0, (message.value() or b"").decode())
                        )
                    if read:
                        op.polled(read)
                    op.ok()
                if not read:
                    await context.pause(PAUSE_AFTER_FAILURE_S)
        finally:
            await asyncio.to_thread(consumer.close)
