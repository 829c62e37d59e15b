"""What subscribed patterns match is learned between other work of the loop: counted in turns of the loop and
in names."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from tidegate.coordinator.group.consumer.patterns import PATTERNS_MAX, TopicPattern, UnsupportedPattern
from tidegate.node.coordinators import group_coordination
from tidegate.node.coordinators.group_coordination import LOOKS_IN_A_ROW, PATTERNS_S, ClusterTopics
from tidegate.wire.errors import ErrorCode, KafkaError

MATCH_S = 0.0015


class Counted:
    """A catalog of so many topics, by a clock that only matching moves on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, topics: int) -> None:
        self.topics: dict[str, Any] = {f"topic-{number}": None for number in range(topics)}
        self.matches_count, self.in_use = 0, set[str]()
        broker: Any = SimpleNamespace(state=SimpleNamespace(topics=self.topics))
        self.catalog = ClusterTopics(broker, lambda: self.in_use, lambda: self.matches_count * MATCH_S)
        matches = TopicPattern.matches

        def counted(pattern: TopicPattern, name: str) -> bool:
            self.matches_count += 1
            return matches(pattern, name)

        monkeypatch.setattr(TopicPattern, "matches", counted)

    async def turns_until(self, tasks: list[asyncio.Task[None]], at_most: int = 20_000) -> list[int]:
        """How many names were looked at in each turn of the loop."""
        counts = []
        while not all(task.done() for task in tasks):
            before = self.matches_count
            await asyncio.sleep(0)
            counts.append(self.matches_count - before)
            assert len(counts) < at_most, "it never ends"
        return counts


def learning(catalog: ClusterTopics, count: int) -> list[asyncio.Task[None]]:
    return [asyncio.create_task(catalog.learn(f"topic-.*{number}")) for number in range(count)]


@pytest.mark.parametrize("learners", [PATTERNS_MAX, PATTERNS_MAX + 1, 3 * PATTERNS_MAX])
async def test_each_of_many_patterns_is_learned_with_one_look_at_each_name(
    learners: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = Counted(monkeypatch, 60)
    tasks = learning(counted.catalog, learners)
    await counted.turns_until(tasks)
    await asyncio.gather(*tasks)
    assert counted.matches_count == learners * 60
    await counted.catalog.stop()


async def test_all_pattern_scans_share_a_bounded_part_of_each_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = Counted(monkeypatch, 50)
    counts = await counted.turns_until(learning(counted.catalog, 40))
    assert sum(counts) == 40 * 50
    assert max(counts) * MATCH_S < 2 * (PATTERNS_S + MATCH_S), (
        "the end of one turn's time and that of the next, as they meet"
    )
    await counted.catalog.stop()


async def test_a_pattern_in_the_queue_does_not_wait_for_those_before_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counted = Counted(monkeypatch, 500)
    tasks = learning(counted.catalog, 3)
    last, large = "topic-.*2", ["topic-.*0", "topic-.*1"]
    while not counted.catalog._matched.knows(last):
        await counted.turns_until([asyncio.create_task(asyncio.sleep(0))])
    assert counted.matches_count <= 3 * LOOKS_IN_A_ROW * 2
    assert not any(counted.catalog._matched.is_complete(each) for each in large)
    await counted.turns_until(tasks)
    await counted.catalog.stop()


async def test_the_patterns_of_present_groups_are_not_looked_at_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counted = Counted(monkeypatch, 60)
    counted.in_use = {f"topic-.*{number}" for number in range(2 * PATTERNS_MAX)}
    await counted.turns_until(learning(counted.catalog, 2 * PATTERNS_MAX))
    looked = counted.matches_count
    for _round in range(3):
        for pattern in sorted(counted.in_use):
            assert counted.catalog.matching(pattern) is not None
    await asyncio.sleep(0)
    assert counted.matches_count == looked
    counted.topics["topic-new-7"] = None
    counted.catalog.version += 1
    assert [pattern for pattern in counted.in_use if counted.catalog.matching(pattern) is not None] == []
    assert counted.catalog._work is not None
    await counted.turns_until([counted.catalog._work])
    assert counted.matches_count == looked + len(counted.in_use), "the new name, once for each"
    assert "topic-new-7" in set(counted.catalog.matching("topic-.*7") or ())
    await counted.catalog.stop()


async def test_too_many_waiters_for_a_pattern_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_coordination, "LEARNERS_MAX", 5)
    counted = Counted(monkeypatch, 60)
    tasks = learning(counted.catalog, 7)
    await counted.turns_until(tasks)
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(result) for result in results] == [type(None)] * 5 + [KafkaError] * 2
    assert isinstance(results[-1], KafkaError)
    assert results[-1].code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    await counted.catalog.learn("topic-.*99")
    with pytest.raises(UnsupportedPattern):
        await counted.catalog.learn("(")
    await counted.catalog.stop()


async def test_a_new_pattern_is_refused_when_the_groups_have_too_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(group_coordination, "PATTERNS_IN_USE_MAX", PATTERNS_MAX + 10)
    counted = Counted(monkeypatch, 2)
    counted.in_use = {f"topic-.*{number}" for number in range(PATTERNS_MAX + 10)}
    await asyncio.gather(*learning(counted.catalog, PATTERNS_MAX + 10))
    with pytest.raises(KafkaError) as refused:
        await counted.catalog.learn("another")
    assert refused.value.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    counted.in_use.add("another")
    await counted.catalog.learn("another")
    counted.in_use.clear()
    await counted.catalog.learn("a third")
    await counted.catalog.stop()


async def test_a_cancelled_waiter_keeps_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = Counted(monkeypatch, 60)
    tasks = learning(counted.catalog, 3)
    await asyncio.sleep(0)
    tasks[0].cancel()
    await counted.turns_until(tasks)
    assert tasks[0].cancelled()
    assert not counted.catalog._learners
    stopped = asyncio.create_task(counted.catalog.learn("topic-.*x"))
    await asyncio.sleep(0)
    await counted.catalog.stop()
    with pytest.raises(KafkaError):
        await stopped


async def test_a_pattern_that_fails_to_match_releases_its_waiters(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counted = Counted(monkeypatch, 60)
    matches = TopicPattern.matches

    def broken(pattern: TopicPattern, name: str) -> bool:
        if name == "topic-30" and not matches(pattern, "topic-1"):
            raise RuntimeError("out of memory")
        return matches(pattern, name)

    monkeypatch.setattr(TopicPattern, "matches", broken)
    tasks = [asyncio.create_task(counted.catalog.learn(pattern)) for pattern in ("topic-.*0", "topic-.*1")]
    failed, learned = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 10)
    assert isinstance(failed, KafkaError)
    assert failed.code is ErrorCode.UNKNOWN_SERVER_ERROR
    assert learned is None
    await counted.catalog.stop()
