"""What pinned cuts keep of each partition, however many cuts and topics there are."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from uuid import UUID

import pytest
from tidegate.controller.state.pinned_cuts import PinnedCut, PinnedCuts, PinnedPartition, PinnedTopic
from tidegate.node.cuts.pins import PinIndex
from tidegate.storage.log.pins import Pin

TOPICS = [UUID(int=each) for each in range(4)]
Named = dict[UUID, dict[int, PinnedPartition]]


def pinned(name: str, named: Named, is_confirmed: bool = False) -> PinnedCut:
    topics = tuple(PinnedTopic(topic_id, "t", partitions) for topic_id, partitions in named.items())
    return PinnedCut(name, f"id of {name}", "c", 0, 0, 0, is_confirmed, topics)


def expected(cuts: PinnedCuts, topic_id: UUID, partition: int) -> set[Pin]:
    return {
        Pin(cut.name, kept.start, kept.end, kept.settled_end, cut.is_confirmed)
        for cut in cuts.values()
        for topic in cut.topics
        for number, kept in topic.partitions.items()
        if (topic.topic_id, number) == (topic_id, partition) and kept.start < kept.end
    }


def drawn(random: Random, name: str) -> PinnedCut:
    named: Named = {}
    for topic_id in random.sample(TOPICS, random.randint(1, len(TOPICS))):
        for number in random.sample(range(3), random.randint(1, 3)):
            start, end = sorted((random.randrange(9), random.randrange(9)))
            undecided = ((7, start),) if start < end and random.random() < 0.5 else ()
            named.setdefault(topic_id, {})[number] = PinnedPartition(start, end, undecided)
    return pinned(name, named)


@pytest.mark.parametrize("seed", range(30))
def test_each_partition_has_the_pins_of_the_cuts_that_stand(seed: int) -> None:
    """Cuts are pinned, confirmed and unpinned, several at once, and pinned again under the same name."""
    random, index = Random(seed), PinIndex()
    cuts: dict[str, PinnedCut] = {}
    for _ in range(30):
        cuts = dict(cuts)
        for _ in range(random.randrange(3)):
            name = random.choice("abc")
            match random.randrange(3):
                case 0:
                    cuts[name] = drawn(random, name)
                case 1 if name in cuts:
                    cuts[name] = replace(cuts[name], is_confirmed=True)
                case _:
                    cuts.pop(name, None)
        index.follow(cuts)
        for topic_id in TOPICS:
            for number in range(3):
                found = index.pins_of(topic_id, number)
                assert len(found) == len(set(found))
                assert set(found) == expected(cuts, topic_id, number)
    index.follow({})
    assert index._pins == {}, "nothing is left of cuts that are gone"


def took_s(index: PinIndex, cuts: PinnedCuts, topics: Sequence[UUID]) -> float:
    """CPU of one change of the cuts, after which each partition is asked for."""
    began_s = time.process_time()
    index.follow(cuts)
    for topic_id in topics:
        for number in range(5):
            index.pins_of(topic_id, number)
    return time.process_time() - began_s


def test_pins_of_many_topics_are_found_in_a_moment() -> None:
    """10 cuts of 1,000 topics with 5 partitions each take 30 ms of CPU in all; a search of each cut's topics
    for each partition took 8 s."""
    topics, index = [UUID(int=each) for each in range(1000)], PinIndex()
    cuts: dict[str, PinnedCut] = {}
    took: list[float] = []
    for name in map(str, range(10)):
        made: Named = {topic_id: {n: PinnedPartition(0, 5) for n in range(5)} for topic_id in topics}
        cuts = {**cuts, name: pinned(name, made)}
        took.append(took_s(index, cuts, topics))
    assert len(index.pins_of(topics[-1], 4)) == 10
    assert min(took[5:]) < 0.1, took
