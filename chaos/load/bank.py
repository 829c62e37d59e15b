"""Writers that move money: the amounts of a transaction sum to 0, so those of every cut do, too.

A value is `<process>.<count>;<amount>`.  Some transactions stay open for seconds with half of their records.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from ...wire.errors import ErrorCode, KafkaError
from ..checks.cut_checks import VALUE_END
from ..checks.history import Partition
from . import outcomes
from .outcomes import Ending, Sent
from .processes import WorkloadContext, Writer

AMOUNT_MAX: Final = 100
LEFT_OPEN_PROBABILITY: Final = 0.02
LEFT_OPEN_MAX_S: Final = 4.0
HOLDER: Final = "chaos-holder"
"""The transactional id of the transaction that `held_open` holds open."""


class Teller(Writer):
    """Moves money between some of the partitions."""

    async def _records(self, process: str) -> AsyncIterator[tuple[Partition, str]]:
        plan, chance = self._context.plan, self._chance
        places = chance.sample(plan.input_partitions, chance.randint(2, plan.records_per_transaction_max))
        left_open_s = LEFT_OPEN_MAX_S * chance.random() if chance.random() < LEFT_OPEN_PROBABILITY else 0.0
        balance = 0
        for partition in places[:-1]:
            amount = chance.randint(-AMOUNT_MAX, AMOUNT_MAX)
            balance += amount
            yield partition, f"{self._value(process)}{VALUE_END}{amount}"
        await self._context.pause(left_open_s)
        yield places[-1], f"{self._value(process)}{VALUE_END}{-balance}"


@asynccontextmanager
async def held_open(context: WorkloadContext, number: int) -> AsyncIterator[None]:
    """A transaction with a record in each partition, open during the block; then it is committed.  Raises
    KafkaError when it is not."""
    process = f"holder/{number}"
    producer = context.producer(process, HOLDER)
    await producer.start()
    try:
        with context.history.begin(process, transactional_id=HOLDER) as op:
            op.initialised(producer.identity.producer_id, producer.identity.producer_epoch)
            sent: Sent = []

            async def send(partition: Partition, count: int, amount: int) -> None:
                value = f"{process}.{count}{VALUE_END}{amount}"
                step = op.send(partition, value)
                sent.append((step, await producer.send(partition[0], value, partition=partition[1])))

            await producer.begin()
            places = context.plan.input_partitions
            for count, partition in enumerate(places):
                await send(partition, count, 1)
            await producer.flush()
            yield
            await send(places[0], len(places), -len(places))
            settled = await outcomes.commit(op, producer, sent)
            if settled.ending is not Ending.COMMITTED:
                raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"{HOLDER} was not committed: {settled.why}")
    finally:
        await producer.close()
