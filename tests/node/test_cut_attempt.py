"""One attempt to take a cut gives up where an answer is missing or does not fit (docs/semantics.md K2, K6):
each case is one step away from an attempt that succeeds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from uuid import UUID

import pytest
from tidegate.node.cuts.attempt import CutAttempt, GivenUp, Leadership, Reason, TopicView, View
from tidegate.proto import cuts_pb2 as pb
from tidegate.wire.errors import ErrorCode


def topic(number: int, partitions: int = 2, leader: int = 1, leader_epoch: int = 5) -> TopicView:
    led = {index: Leadership(leader, leader_epoch) for index in range(partitions)}
    return TopicView(UUID(int=number), led)


def view(t: TopicView | None = None, state: TopicView | None = None) -> View:
    return View(topic(2) if state is None else state, {"t": topic(1) if t is None else t})


@dataclass
class Answers:
    """All that an attempt asks, answered well; a case changes one of them."""

    before: View = field(default_factory=view)
    held: dict[int, pb.HeldShard] = field(
        default_factory=lambda: {
            number: pb.HeldShard(partition=number, leader_epoch=5, until_ms=9) for number in (0, 1)
        }
    )
    bounds: list[pb.PartitionBounds] = field(
        default_factory=lambda: [pb.PartitionBounds(leader_epoch=5, high_watermark=3) for _ in (0, 1)]
    )
    released: dict[int, bool] = field(default_factory=lambda: {0: True, 1: True})
    now: View = field(default_factory=view)

    def take(self) -> pb.Cut:
        attempt = CutAttempt("hold", 100, self.before)
        attempt.holds()
        attempt.held(pb.HoldDecisionsReply(shards=self.held.values()))
        for request in attempt.bounds(50).values():
            attempt.bounded(request, pb.BoundsReply(partitions=self.bounds))
        attempt.releases()
        shards = [pb.ReleasedShard(partition=n, has_held=held) for n, held in self.released.items()]
        attempt.released(pb.ReleaseDecisionsReply(shards=shards))
        return attempt.finish("c", 7, self.now)


def test_an_attempt_whose_answers_fit_is_a_cut() -> None:
    (found,) = Answers().take().topics
    assert (found.name, found.topic_id) == ("t", UUID(int=1).bytes)
    assert [(each.partition, each.end) for each in found.partitions] == [(0, 3), (1, 3)]


def test_a_cluster_without_transactions_has_no_shard_to_hold() -> None:
    none = View(None, {"t": topic(1)})
    assert len(Answers(before=none, held={}, released={}, now=none).take().topics) == 1


def a_topic_without_a_leader(answers: Answers) -> None:
    answers.before = view(topic(1, leader=-1))


def a_coordinator_without_a_leader(answers: Answers) -> None:
    answers.before = view(state=topic(2, leader=-1))


def a_coordinator_that_refuses(answers: Answers) -> None:
    answers.held[1].error_code = ErrorCode.CONCURRENT_TRANSACTIONS


def a_coordinator_that_does_not_answer(answers: Answers) -> None:
    del answers.held[1]


def a_leader_that_refuses(answers: Answers) -> None:
    answers.bounds[1].error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER


def a_leader_that_does_not_answer(answers: Answers) -> None:
    del answers.bounds[1]


def a_hold_that_ended_early(answers: Answers) -> None:
    answers.released[1] = False


def coordinators_that_are_created(answers: Answers) -> None:
    answers.before, answers.held, answers.released = View(None, {"t": topic(1)}), {}, {}


def coordinators_that_are_gone(answers: Answers) -> None:
    answers.now = View(None, {"t": topic(1)})


def coordinators_of_another_topic(answers: Answers) -> None:
    answers.now = view(state=topic(3))


def more_coordinators(answers: Answers) -> None:
    answers.now = view(state=topic(2, partitions=3))


def coordinators_that_moved(answers: Answers) -> None:
    answers.now = view(state=topic(2, leader_epoch=6))


def a_coordinator_that_answered_in_another_epoch(answers: Answers) -> None:
    answers.held[1].leader_epoch = 6


def a_topic_that_is_gone(answers: Answers) -> None:
    answers.now = replace(answers.now, topics={})


def a_topic_that_was_made_again(answers: Answers) -> None:
    answers.now = view(topic(9))


def more_partitions(answers: Answers) -> None:
    answers.now = view(topic(1, partitions=3))


def a_leader_that_moved(answers: Answers) -> None:
    answers.now = view(topic(1, leader_epoch=6))


def a_leader_that_answered_in_another_epoch(answers: Answers) -> None:
    answers.bounds[1].leader_epoch = 6


CASES: dict[Callable[[Answers], None], tuple[Reason, str]] = {
    a_topic_without_a_leader: (Reason.LEADER, "t-0 has no leader"),
    a_coordinator_without_a_leader: (Reason.SHARD, "partition 0 of __transaction_state has no leader"),
    a_coordinator_that_refuses: (Reason.SHARD, "partition 1 of __transaction_state: "),
    a_coordinator_that_does_not_answer: (Reason.SHARD, r"partitions \[1\] .* did not answer"),
    a_leader_that_refuses: (Reason.LEADER, "t-1: "),
    a_leader_that_does_not_answer: (Reason.LEADER, "the leader of t-1 did not answer"),
    a_hold_that_ended_early: (Reason.HOLD, r"partitions \[1\] .* were not held to the end"),
    coordinators_that_are_created: (Reason.METADATA, "was created meanwhile"),
    coordinators_that_are_gone: (Reason.METADATA, "__transaction_state was created meanwhile"),
    coordinators_of_another_topic: (Reason.METADATA, "__transaction_state has changed meanwhile"),
    more_coordinators: (Reason.METADATA, "__transaction_state has changed meanwhile"),
    coordinators_that_moved: (Reason.METADATA, "partition 0 of __transaction_state has another leader"),
    a_coordinator_that_answered_in_another_epoch: (Reason.METADATA, "partition 1 .* has another leader"),
    a_topic_that_is_gone: (Reason.METADATA, "topic t was deleted meanwhile"),
    a_topic_that_was_made_again: (Reason.METADATA, "topic t was deleted meanwhile"),
    more_partitions: (Reason.METADATA, "topic t has got more partitions meanwhile"),
    a_leader_that_moved: (Reason.METADATA, "t-0 has another leader now"),
    a_leader_that_answered_in_another_epoch: (Reason.METADATA, "t-1 has another leader now"),
}


@pytest.mark.parametrize("change", CASES)
def test_an_answer_that_is_missing_or_does_not_fit_ends_the_attempt(
    change: Callable[[Answers], None],
) -> None:
    answers = Answers()
    change(answers)
    reason, message = CASES[change]
    with pytest.raises(GivenUp, match=message) as given_up:
        answers.take()
    assert given_up.value.reason is reason
