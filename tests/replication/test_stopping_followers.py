"""A follower that leaves in good order costs its leaders nothing, also when the active controller goes with
it.

It keeps up to the last moment.  A leader that proposes it once more for the ISR has its high watermark wait
for it until the controller refuses, and a controller that is gone refuses nothing.  Whole simulated clusters,
in virtual time.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from random import Random

import pytest
from tidegate.chaos.sim.replication.history import History
from tidegate.chaos.sim.replication.network import Weather
from tidegate.chaos.sim.replication.node import NodeTimings, SimulatedNode
from tidegate.chaos.sim.replication.options import Options, draw_first
from tidegate.controller.state.eligibility import Eligibility
from tidegate.node.cluster.cluster_view import ClusterView
from tidegate.replication.replica.replica import Replica

SEEDS = 8  # where an answer is in flight when the follower ends, the measured gap begins a little later
CONTROLLERS_AWAY_S = 4.0
QUICK_S = 0.5


class StoppingFollower(History):
    """One history: a follower leaves, and at a moment of its leaving all controllers are away for a while."""

    def __init__(self, seed: int) -> None:
        self.answered_s: list[float] = []
        super().__init__(seed, calm(seed))

    def _acknowledged(self, node: SimulatedNode, replica: Replica, next_offset: int, batch_id: int) -> None:
        self.answered_s.append(self.loop.time())
        super()._acknowledged(node, replica, next_offset, batch_id)

    def _live(self) -> None:
        self._pass(3.0)
        (topic,) = self.quorum.state.topics.values()
        leader = topic.partitions[0].leader
        follower = self.nodes[self._random.choice([node_id for node_id in self.nodes if node_id != leader])]
        self._leave(follower)
        begin_s = self.loop.time()
        self._pass(CONTROLLERS_AWAY_S)
        times = [begin_s, *(at_s for at_s in self.answered_s if at_s > begin_s), self.loop.time()]
        self.gap_s = max(later - earlier for earlier, later in itertools.pairwise(times))
        self.network.cuts.clear()

    def _leave(self, follower: SimulatedNode) -> None:
        """Up to the moment in which the leaders may have proposed it once more, or not."""
        follower.leaving = True
        self.loop.run_until(
            lambda: self.quorum.state.brokers[follower.node_id].shutting_down, self.loop.time() + 5.0
        )
        self._pass(0.5 * self._random.random())
        for controller in self.quorum.logs:
            for node_id in self.nodes:
                self.network.cuts |= {(controller, node_id), (node_id, controller)}
        self._pass(0.4)
        self.faults.stop_node(follower, power=False)

    def _pass(self, seconds: float) -> None:
        self.loop.run_until(lambda: False, self.loop.time() + seconds)


def calm(seed: int) -> Options:
    timings = NodeTimings(session_timeout_s=9.0, heartbeat_s=1.0, lag_max_s=10.0, fetch_wait_s=0.5)
    drawn = draw_first(Random(seed))
    return replace(
        drawn, replicas=3, partitions=1, min_insync_replicas=2, flushed=True, timings=timings,
        weather=Weather(), faults=(),
        producers=((-1, False),), produce_pause_s=0.01,
    )  # fmt: skip


def gaps() -> Iterator[float]:
    for seed in range(SEEDS):
        history = StoppingFollower(seed)
        history.run()
        yield history.gap_s


def test_commits_go_on_while_a_follower_and_the_controllers_go() -> None:
    assert max(gaps()) < QUICK_S


def test_without_what_the_metadata_says_of_the_follower_they_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ClusterView, "isr_eligibility", lambda *_arguments: Eligibility.YES)
    # no node answers, and all commits wait for a follower that has ended
    assert max(gaps()) >= CONTROLLERS_AWAY_S
