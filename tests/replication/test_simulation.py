"""Whole clusters in virtual time, under every kind of fault: what is acknowledged stays, and all comes right
again.

`tidegate chaos sim replication --seeds N --first S` runs as many histories as one likes, and repeats a
failing one by its seed. The invariants stand in `chaos/sim/replication/truth.py`, the proof that a missing
rule is noticed in `test_simulation_ablations.py`; `make check` runs the few of `test_seeds_of_a_check.py`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random

import pytest
from tidegate.chaos.sim.replication.disks import DelayedFlushes
from tidegate.chaos.sim.replication.history import History
from tidegate.chaos.sim.replication.options import FAULTS, LATER_FAULTS, draw, draw_first, draw_later
from tidegate.chaos.sim.replication.truth import PartitionTruth
from tidegate.chaos.sim.replication.virtual_loop import Process, VirtualLoop
from tidegate.chaos.sim.runs import Broken
from tidegate.replication.partition.leader import PartitionLeader

CHUNKS = 2
SEEDS_OF_A_CHUNK = 50
RARE = ("change_minimum", "cancel_move")
"""Not in every chunk."""

#: Histories that found a defect of the product: each fails again without what mended it
#: (`test_simulation_ablations.py`, or where the comment says).
PINNED = (
    # a paused leader woke, found a produce request in its socket, and accepted it before its session's timer
    # ran
    2,
    153,  # acks=all was acknowledged after the session's end, when another leader was elected already
    # a deposed controller answered to a broker that had registered since that it was superseded, and the
    # broker ended itself
    20,
    # a late fetch outside the session took a follower's position back, for good (`test_sessions.py`)
    706_700,
    # an epoch without records came back with a crash: cuts and fetches in a circle
    # (`storage/test_epoch_history.py`)
    710_883,
)

#: The same, drawn with more faults.
PINNED_LATER = (
    # a broker that a new controller had fenced had its session renewed, and led on by metadata from before
    9_700_174,
    9_711_576,  # a log that was to begin within a batch never took it from a leader whose own began before
)

#: Histories in which the simulator itself was wrong.
MISJUDGED = (
    # a producer wrote on after healing, and its record was on its way to the followers when they were
    # compared
    700_635,
    # the winner of an unclean election was expected to hold, durably, what it had fetched and not flushed yet
    702_807,
    707_555,  # as 700635
    715_981,  # as 700635
    # the only replica left lost its disk: it was not in the ISR at that moment, but on its way there
    716_488,
)


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_nothing_acknowledged_is_lost_and_the_cluster_heals(chunk: int) -> None:
    seen: Counter[str] = Counter()
    for seed in range(SEEDS_OF_A_CHUNK * chunk, SEEDS_OF_A_CHUNK * (chunk + 1)):
        history = History(seed)
        history.run()
        seen.update(history.seen)
    missing = [name for name in (*FAULTS, *LATER_FAULTS) if not seen[f"fault {name}"] and name not in RARE]
    assert not missing, f"no history had these faults: {missing}"
    least = {
        "elections": 120,
        "appended": 1000,
        "acknowledged": 400,
        "deleted": 80,
        "replicas moved": 1,
        "left in good order": 20,
        "power cut within a change": 5,
        "message lost": 200,
        "message late": 500,
        "message duplicated": 500,
        "message cut off": 200,
    }
    assert not {name: seen[name] for name, count in least.items() if seen[name] < count}


def test_min_insync_replicas_may_change_during_a_history() -> None:
    """A replica that left the ISR under the old `min.insync.replicas` and leads under the new has every
    committed record (KIP-966)."""
    faults = (
        ("change_minimum", 2.0),
        ("kill", 1.0),
        ("isolate", 1.0),
        ("move_leader", 1.0),
        ("cut_controllers", 1.0),
    )
    changes = 0
    for seed in range(12):
        history = History(
            seed,
            replace(draw(Random(seed)), replicas=3, flushed=True, unclean_elections=False, faults=faults),
        )
        history.run()
        changes += history.seen["fault change_minimum"]
    assert changes >= 20


def test_what_an_unclean_election_costs_is_cut_everywhere() -> None:
    """Records are lost by the topic's choice, once; replicas that have them, and consumers that had read
    them, learn it (KIP-320)."""
    faults = (("kill", 2.0), ("isolate", 2.0), ("cut_controllers", 1.0), ("move_leader", 1.0))
    seen: Counter[str] = Counter()
    for seed in range(12):
        drawn = draw(Random(seed))
        history = History(
            seed, replace(drawn, replicas=3, min_insync_replicas=1, unclean_elections=True, faults=faults)
        )
        history.run()
        seen.update(history.seen)
    assert seen["unclean elections"] >= 5, seen
    assert seen["records lost by choice"] >= 5, seen


def test_leaderships_return_by_choice_to_brokers_that_were_reached() -> None:
    """A restarted node has another address, which the others learn late: it leads only when one of them has
    found it, and then every leadership returns (`Truth.unsettled`).  Without the rule:
    `test_simulation_ablations.py`."""
    faults = (("kill", 2.0), ("leave", 3.0), ("cut_pair", 1.0), ("fail_over_controller", 1.0))
    seen: Counter[str] = Counter()
    for seed in range(8):
        drawn = replace(
            draw_first(Random(seed)), replicas=3, partitions=2, min_insync_replicas=2, flushed=True
        )
        history = History(
            seed, replace(drawn, faults=faults, fault_pause_s=1.5, duration_s=15.0, names_lag_s=4.0)
        )
        history.run()
        seen.update(history.seen)
    assert seen["elections by choice"] >= 8, seen
    assert seen["old address"] >= 100, seen


@pytest.mark.parametrize("seed", PINNED + MISJUDGED)
def test_a_history_that_once_failed_passes(seed: int) -> None:
    History(seed, drawn_by=draw_first).run()


@pytest.mark.parametrize("seed", PINNED_LATER)
def test_a_later_history_that_once_failed_passes(seed: int) -> None:
    History(seed, drawn_by=draw_later).run()


def test_a_record_is_committed_twice_only_where_the_first_was_deleted() -> None:
    truth = PartitionTruth("t-0")
    truth.commit([(1, 0), (1, 1), (2, 0)])
    truth.gone_below = 1
    truth.commit([(1, 0), (2, 0)])
    assert truth.repeated == {(2, 0)}
    del truth.committed[2:]  # an unclean election
    truth.repeated.clear()
    truth.commit([(2, 0)])
    assert not truth.repeated


def test_a_failure_is_repeated_by_its_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    def refresh(leader: PartitionLeader) -> None:
        leader._maximal_isr = leader._isr if leader._pending is None else leader._isr & leader._pending.nodes

    monkeypatch.setattr(PartitionLeader, "_refresh_maximal_isr", refresh)
    failures, steps = [], []
    for _ in range(2):
        history = History(0)
        with pytest.raises(Broken, match="seed 0, ") as broken:
            history.run()
        failures.append(str(broken.value))
        steps.append(history.loop.steps)
    assert failures[0] == failures[1]
    assert steps[0] == steps[1]


def test_a_flush_without_a_waiter_is_not_begun() -> None:
    """As in a pool of threads: a waiter that stops, because its node leaves, ends no running flush, and
    begins none."""
    loop = VirtualLoop()
    process = Process(loop, "node")
    for seed in range(8):
        ran: list[int] = []
        future = DelayedFlushes(loop, Random(seed), process, lambda: 0.0).submit(ran.append, seed)
        had_begun = bool(ran)
        assert future.cancel() is not had_begun
        loop.run_until(lambda: False, loop.time() + 1.0)
        assert bool(ran) is had_begun
        assert not loop.unhandled
