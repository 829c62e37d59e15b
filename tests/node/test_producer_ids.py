"""Producer ids are unique: no block is used twice, no id given twice, also when many ask at once or the
controller fails."""

from __future__ import annotations

import asyncio

import pytest
from tidegate.node.coordinators.producer_ids import ProducerIds
from tidegate.wire.errors import ErrorCode, KafkaError


class Controller:
    """Hands out blocks of three."""

    def __init__(self) -> None:
        self.blocks = 0
        self.fails = False
        self.size = 3

    async def allocate(self) -> tuple[int, int]:
        await asyncio.sleep(0)
        if self.fails:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "no controller")
        self.blocks += 1
        return self.blocks * 1000, self.size


async def test_ids_come_in_order_from_a_block_until_it_is_used_up() -> None:
    controller = Controller()
    ids = ProducerIds(controller.allocate)
    assert [await ids.next() for _ in range(4)] == [1000, 1001, 1002, 2000]
    assert controller.blocks == 2


async def test_no_id_is_given_twice_when_many_ask_at_once() -> None:
    controller = Controller()
    ids = ProducerIds(controller.allocate)
    found = await asyncio.gather(*(ids.next() for _ in range(100)))
    assert len(set(found)) == 100
    assert controller.blocks == 34


async def test_a_failed_allocation_is_reported_and_the_next_one_is_tried() -> None:
    controller = Controller()
    ids = ProducerIds(controller.allocate)
    controller.fails = True
    with pytest.raises(KafkaError, match="no controller"):
        await ids.next()
    controller.fails = False
    assert await ids.next() == 1000


async def test_an_empty_block_is_not_taken_for_ids() -> None:
    controller = Controller()
    controller.size = 0
    with pytest.raises(ValueError, match="a block of 0 producer ids"):
        await ProducerIds(controller.allocate).next()
