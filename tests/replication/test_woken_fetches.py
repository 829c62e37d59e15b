"""One append wakes the fetches of many clients: they are answered a few in each round of the loop."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from tidegate.replication.fetching.client_fetches import ClientFetches
from tidegate.runtime.turns import LoopTurns, Turn
from tidegate.storage.log.log import AppendOrigin
from tidegate.tests.eventually import eventually
from tidegate.wire.fetch import FetchPartition, FetchRequest

from .cluster import TOPIC_ID, Cluster, batch_of

FETCHES = 100
IN_A_TURN = 4  # of a millisecond each


@pytest.mark.parametrize("turns_taken", [True, False])
async def test_fetches_that_one_append_wakes_share_the_turns(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, turns_taken: bool
) -> None:
    """Without turns (an ablation) all are looked at before anything else has its turn."""
    cluster.create(replicas=(1,), min_isr=1)
    manager, now = cluster.managers[1], 0.0
    turns = LoopTurns(lambda: now, cpu=lambda: now)
    rounds = 0
    seen: Counter[int] = Counter()
    evaluate = ClientFetches._evaluate

    def counted(self: ClientFetches, *asked: Any, arrival: bool) -> Any:
        nonlocal now
        if not arrival:
            now += 0.001
            seen[rounds] += 1
        return evaluate(self, *asked, arrival=arrival)

    monkeypatch.setattr(ClientFetches, "_evaluate", counted)

    async def one() -> Any:
        account = turns.account()
        request = FetchRequest(
            max_wait_ms=60_000, topics=[("t", [FetchPartition(0, 0, 1000, -1, topic_id=TOPIC_ID)])]
        )
        how: dict[str, Any] = {"turn": lambda: Turn(turns, account)} if turns_taken else {}
        return await turns.metered(account, manager.fetch(request, **how))

    async def count_rounds() -> None:
        nonlocal rounds
        while True:
            rounds += 1
            await asyncio.sleep(0)

    fetches = [asyncio.create_task(one()) for _ in range(FETCHES)]
    await eventually(lambda: manager._client_fetches.waiting == FETCHES, "all wait")
    counting = asyncio.create_task(count_rounds())
    manager.append_now("t", 0, batch_of("v"), origin=AppendOrigin.CLIENT)
    answers = await asyncio.wait_for(asyncio.gather(*fetches), 30)
    counting.cancel()
    assert all(len(answer.topics[0][1][0].records) > 0 for answer in answers)
    assert sum(seen.values()) == FETCHES
    if turns_taken:
        assert max(seen.values()) <= 2 * IN_A_TURN
    else:
        assert max(seen.values()) == FETCHES
