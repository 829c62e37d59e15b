"""A few histories of whole clusters for every change, in two seconds; `test_simulation.py` has the others.

Together they have every fault that is not rare, and each notices rules that are left out of the product (of
those that any history may notice: the two leases, both truncations, the maximal ISR, the minimum, the flush
before a fetch, the leader's flushed end, the end of an epoch history, the fencing before a registration).
"""

from __future__ import annotations

from collections import Counter

from tidegate.chaos.sim.replication.history import History
from tidegate.chaos.sim.replication.options import FAULTS, LATER_FAULTS

from .test_simulation import RARE

SEEDS = (5, 7, 8, 10, 14, 19, 28, 29, 30, 31, 34, 42, 43, 45, 52, 54)


def test_a_few_histories_with_every_fault_lose_nothing_and_heal() -> None:
    seen: Counter[str] = Counter()
    for seed in SEEDS:
        history = History(seed)
        history.run()
        seen.update(history.seen)
    wanted = {f"fault {name}" for name in (*FAULTS, *LATER_FAULTS) if name not in RARE}
    wanted |= {"elections", "elections by choice", "acknowledged", "deleted", "replicas moved"}
    missing = sorted(wanted - seen.keys())
    assert not missing, f"choose a further seed, of at most a quarter of a second, that has {missing}"
