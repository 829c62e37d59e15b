"""A rolling restart in which every node comes back with another address, while names lead to the old one for
30 s.

That is what pods and a cached DNS answer do.  The next node is stopped when the last one is ready, as a
StatefulSet does.
"""

from __future__ import annotations

from typing import Final

from ..load.processes import Plan
from ..run.harness import Run
from .named import BETWEEN_S, NamedScenario

LAG_S: Final = 30.0
DELIVERY_S_MAX: Final = 3.0
AFTERWARDS_S: Final = 12.0
"""Preferred leaders are looked for every 5 s here."""
LIGHT: Final = Plan(
    writers=0, plain_writers=3, transforms=0, readers=0, librdkafka=False, pause_max_s=0.1,
    request_timeout_s=20.0,
    delivery_timeout_s=60.0, max_block_s=60.0,
)  # fmt: skip


async def restart_elsewhere(run: Run) -> None:
    """Every node in turn."""
    begin = run.now()
    for node in run.cluster.nodes:
        await run.load(BETWEEN_S)
        await node.terminate()
        run.lab.move(node.id)
        if run.cluster.is_secured:
            run.cluster.renew_certificates()  # the harness asks the node at its new address
        run.say(f"node {node.id} is now at {run.lab.address(node.id)}")
        ready_s = await run.restart(node)
        await run.wait_in_sync()
        run.say(f"node {node.id} was ready {ready_s:.1f} s after its restart")
    await run.load(AFTERWARDS_S)
    judge(run, begin, run.now())


def judge(run: Run, begin: float, end: float) -> None:
    """Judged by the slowest acknowledged delivery of that time, and by the deliveries that were not
    acknowledged."""
    seen = [each for each in run.workload.progress.acknowledgements if begin <= each.acknowledged <= end]
    slowest = max(seen, key=lambda each: each.acknowledged - each.invoked, default=None)
    took_s = end - begin if slowest is None else slowest.acknowledged - slowest.invoked
    longest_s = max(took_s, run.workload.progress.longest_client_pause_s(begin, end))
    at = "" if slowest is None else f", {slowest.invoked - begin:.1f} s after the beginning"
    run.outcome.require(
        f"no delivery takes more than {DELIVERY_S_MAX:g} s",
        longest_s <= DELIVERY_S_MAX,
        f"{longest_s:.2f} s{at}",
    )


RESTART_ELSEWHERE: Final = NamedScenario(
    "restart-elsewhere",
    f"a rolling restart in which addresses change, and names lead to the old ones for {LAG_S:g} s",
    restart_elsewhere, {"leader.imbalance.check.interval.seconds": 5}, cuts_network=True, names_lag_s=LAG_S,
    plan=LIGHT,
)  # fmt: skip
