"""Nodes with 20 ms of CPU per second each, under a light load: no broker may lose its session, no client may
wait long.

The times are the product's own, not those of the other scenarios: the question is whether a starved node
keeps its session with the default timeout.  Measured while the quota is on: the sessions that a broker or the
controller calls over (none may be), the longest time between two acknowledgements that any client got (at
most 2 s), the heartbeats that failed, and the controllers that were elected.  How late a starved controller
answers depends on the machine: the run shows that the product keeps its sessions, but not that a product
which gave heartbeats up after a second would lose them. `tests/replication/test_late_heartbeats.py` shows
that, in virtual time.
"""

from __future__ import annotations

from typing import Final

from ..load.processes import Plan
from ..machine.cpu_quota import CpuQuota
from ..run.harness import Run
from .named import BETWEEN_S, NamedScenario

CPU_MS_PER_SECOND: Final = 20
STARVED_S: Final = 35.0
GAP_S_MAX: Final = 2.0
LOST: Final = ("leadership_suspended", "broker_session_expired")
"""The log lines of a broker and of the controller when a session expires."""

LIGHT: Final = Plan(
    partitions=3, derived_partitions=1, writers=0, plain_writers=2, transforms=0, readers=0, librdkafka=False,
    pause_max_s=0.5,
    request_timeout_s=20.0, delivery_timeout_s=60.0, max_block_s=60.0,
)  # fmt: skip


async def starved(run: Run) -> None:
    """All nodes at once; afterwards they have the machine to themselves again."""
    await run.load(BETWEEN_S)
    said_before = {node.id: node.log_path.stat().st_size for node in run.cluster.nodes}
    begin = run.now()
    with CpuQuota([node.pid for node in run.cluster.nodes if node.pid is not None], CPU_MS_PER_SECOND):
        await run.load(STARVED_S)
        end = run.now()
    said = b"".join(node.log_path.read_bytes()[said_before[node.id] :] for node in run.cluster.nodes).decode(
        errors="replace"
    )
    judge(run, said, begin, end)
    await run.load(BETWEEN_S)


def judge(run: Run, said: str, begin: float, end: float) -> None:
    """Judges by the nodes' logs and the clients' acknowledgements during the quota."""
    lost = [line for line in said.splitlines() if any(event in line for event in LOST)]
    detail = f"{len(lost)} were, the first: {lost[0]}" if lost else f"in {STARVED_S:g} s"
    run.outcome.require(f"no session is lost with {CPU_MS_PER_SECOND} ms of CPU a second", not lost, detail)
    gap_s = run.workload.progress.longest_pause_s(begin, end)
    run.outcome.require(
        f"no gap of more than {GAP_S_MAX:g} s between two acknowledgements",
        gap_s <= GAP_S_MAX,
        f"{gap_s:.2f} s",
    )
    run.outcome.figures["heartbeats_failed"] = said.count("heartbeat_failed")
    run.outcome.figures["controllers_elected"] = said.count("quorum_leader_elected")


STARVED: Final = NamedScenario(
    "starved", f"all nodes get {CPU_MS_PER_SECOND} ms of CPU a second for {STARVED_S:g} s", starved,
    {"broker.session.timeout.ms": 6000, "broker.heartbeat.interval.ms": 1000,
        "controller.quorum.election.timeout.ms": 1000,
        "replica.lag.time.max.ms": 10_000},
    plan=LIGHT,
)  # fmt: skip
