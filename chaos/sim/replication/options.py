"""What a seed decides about a history: the cluster, its topics, its clients, and how badly it is treated.

Faults stay within what the cluster promises to survive.  With `flush.policy=always` that is any number of
power cuts, also of all nodes at once.  What a replaced disk takes away, and with `flush.policy=os` what an
unclean stop takes away, must be held by others: of these at most `min.insync.replicas - 1` nodes are without
their data at a time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

from .network import Weather
from .node import NodeTimings


@dataclass(slots=True, frozen=True)
class Options:
    """One history."""

    replicas: int
    partitions: int
    min_insync_replicas: int
    flushed: bool
    unclean_elections: bool
    timings: NodeTimings
    weather: Weather
    faults: tuple[tuple[str, float], ...]  # with their weights
    fault_pause_s: float
    duration_s: float
    producers: tuple[tuple[int, bool], ...]  # acks, idempotent
    produce_pause_s: float
    delete_pause_s: float = 0.0  # between deletions of records, on average; 0: none
    spare: int = 0  # nodes without a replica, to which one may move
    names_lag_s: float | None = None
    """A node that is started anew has another address, which the others learn after this time at most; None:
    addresses stay, and no node checks that the others reach it, as in earlier versions."""
    heartbeats_late_s: tuple[float, float] = (0.0, 0.0)
    """Every answer to a heartbeat takes between these longer: the processes get little time."""
    controllers_sessions: tuple[float, float] = (1.0, 1.0)
    """The session timeouts of the two controllers, as parts of the brokers' own."""
    single_heartbeats: bool = False
    """The nodes beat as they did before heartbeats overlapped (`single_heartbeats.py`): an ablation."""

    @property
    def losable(self) -> int:
        """How many nodes may be without their data at a time."""
        return min(self.min_insync_replicas, self.replicas) - 1

    def topic_config(self) -> dict[str, str]:
        return {
            "min.insync.replicas": str(self.min_insync_replicas),
            "flush.policy": "always" if self.flushed else "os",
            "unclean.leader.election.enable": "true" if self.unclean_elections else "false",
        }


FAULTS = (
    "kill", "power_cut", "power_cut_within", "power_cut_all", "replace_disk", "pause", "cut_pair",
    "cut_controllers", "isolate",
    "slow_disk", "full_disk", "failing_sync", "fail_over_controller", "move_leader", "move_leaders_fast",
    "leave",
    "recreate_topic", "change_minimum",
)  # fmt: skip


LATER_FAULTS = ("move_replicas", "cancel_move", "out_of_room", "pause_controller", "cut_one_controller")


def draw(random: Random) -> Options:
    """The options of a history; each fault is missing, rare or frequent, so that histories differ in kind."""
    drawn, state = draw_third(random), random.getstate()
    sessions = random.choice(((1.0, 1.0), (1.0, 1.0), (1.0, 0.5), (0.5, 1.0)))
    random.setstate(state)  # half of the histories are those of a third time
    return replace(drawn, controllers_sessions=sessions)


def draw_third(random: Random) -> Options:
    """As seeds of a third time have it."""
    return replace(draw_later(random), names_lag_s=random.choice((None, 0.0, 1.0, 5.0)))


def draw_later(random: Random) -> Options:
    """As seeds of a second time have it."""
    first = draw_first(random)
    later = {name: random.choice((0.0, 0.0, 1.0, 3.0)) for name in LATER_FAULTS}
    return replace(
        first,
        faults=(*first.faults, *later.items()),
        delete_pause_s=random.choice((0.0, 0.0, 0.3, 1.5)),
        spare=random.choice((0, 1, 1, 2)) if first.replicas < 4 and later["move_replicas"] else 0,
    )


def draw_first(random: Random) -> Options:
    """Without what histories know since: seeds from before mean the same with it."""
    replicas = random.choice((1, 2, 3, 3, 3, 3, 4, 5))
    faults = {name: random.choice((0.0, 0.3, 1.0, 3.0)) for name in FAULTS}
    for rare in ("power_cut_all", "recreate_topic", "failing_sync", "change_minimum"):
        faults[rare] *= 0.3
    flushed = random.random() < 0.75
    session_s = random.choice((1.0, 2.0, 3.0))
    return Options(
        replicas=replicas,
        partitions=random.choice((1, 1, 1, 2)),
        min_insync_replicas=random.choice([each for each in (1, 2, 2, 2, 3) if each <= replicas]),
        flushed=flushed,
        unclean_elections=random.random() < 0.2,
        timings=NodeTimings(
            session_s, session_s / random.choice((3, 5)), random.choice((0.8, 2.0, 4.0)), 0.5
        ),
        weather=_weather(random),
        faults=tuple(faults.items()),
        fault_pause_s=random.choice((0.2, 0.6, 1.5)),
        duration_s=random.choice((6.0, 10.0, 15.0)),
        producers=tuple(
            (random.choice((-1, -1, 1)), random.random() < 0.5) for _ in range(random.choice((1, 2, 3)))
        ),
        produce_pause_s=random.choice((0.03, 0.15, 0.4)),
    )


def _weather(random: Random) -> Weather:
    kind = random.random()
    if kind < 0.3:
        return Weather()
    if kind < 0.6:
        return Weather(loss=0.02, duplication=0.03, late=0.05, late_s_max=0.5)
    return Weather(
        loss=random.choice((0.0, 0.05)), duplication=0.1, late=0.15, late_s_max=random.choice((0.3, 1.0, 4.0))
    )
