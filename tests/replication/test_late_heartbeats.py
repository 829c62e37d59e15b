"""Nodes that get so little time that every heartbeat is answered 1.2 to 3 s late keep their sessions of 6 s.

`tidegate chaos run starved` shows it on real processes, where it depends on luck whether a broker that gives
heartbeats up after their interval loses its session.  Here it depends on nothing: virtual time, and each
answer as late as it is said to be.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from tidegate.chaos.sim.replication.history import History
from tidegate.chaos.sim.replication.network import Weather
from tidegate.chaos.sim.replication.node import NodeTimings
from tidegate.chaos.sim.replication.options import Options, draw_first
from tidegate.chaos.sim.runs import Broken

SEEDS = 5
#: As a real node has them, unless they are configured otherwise.
TIMINGS = NodeTimings(session_timeout_s=6.0, heartbeat_s=1.0, lag_max_s=10.0, fetch_wait_s=0.5)


def starved(seed: int, *, single_heartbeats: bool = False, weather: Weather | None = None) -> Options:
    return replace(
        draw_first(Random(seed)), replicas=3, partitions=1, min_insync_replicas=2, flushed=True,
        timings=TIMINGS,
        weather=weather or Weather(), faults=(), duration_s=35.0, producers=((-1, False),),
        produce_pause_s=0.4,
        heartbeats_late_s=(1.2, 3.0), single_heartbeats=single_heartbeats,
    )  # fmt: skip


@pytest.mark.parametrize("weather", [Weather(), Weather(duplication=0.1, late=0.1, late_s_max=0.5)])
def test_no_session_is_lost_when_every_heartbeat_is_answered_late(weather: Weather) -> None:
    for seed in range(SEEDS):
        history = History(seed, starved(seed, weather=weather))
        history.run()
        assert history.seen["session lost"] == 0, (seed, history.seen)
        assert history.seen["elections"] <= 2, (seed, history.seen)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_ablation_single_heartbeats_lose_every_session(seed: int) -> None:
    history = History(seed, starved(seed, single_heartbeats=True))
    # it does not come right: every answer is late for good
    with pytest.raises(Broken, match="no new record"):
        history.run()
    assert history.seen["session lost"] >= len(history.nodes), history.seen
