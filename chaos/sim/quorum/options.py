"""What a seed draws before anything happens: every run is of another kind, so that rare combinations are
somewhere common."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

from ....controller.raft.contract import RaftTimings

VOTERS = (3, 3, 5, 1)
SECONDS = 6.0

WEIGHTS = {
    "kill": 4.0, "cut_power": 5.0, "cut_all_power": 1.0, "kill_all": 1.0, "cut_while_writing": 5.0,
    "kill_while_writing": 5.0,
    "cut_all_at_acknowledgement": 2.0, "cut_followers_at_acknowledgement": 2.0, "cut": 6.0,
    "cut_one_way": 6.0, "mend": 8.0,
    "reset": 5.0, "pause": 5.0, "slow_disk": 2.0, "full_disk": 2.0, "sync_fails": 3.0, "lose_disk": 3.0,
    "kill_while_writing_then_cut_power": 4.0, "isolate_leader": 6.0, "lose_disk_at_the_worst_time": 4.0,
    "depose_in_turn": 4.0,
}  # fmt: skip
"""How often each fault is drawn, in a run that has it."""


@dataclass(slots=True, frozen=True)
class QuorumOptions:
    """One run."""

    seed: int
    voters: int
    seconds: float
    timings: RaftTimings
    delay_s: float
    datagrams: bool  # frames are lost, doubled and reordered; else a stream that breaks as a whole
    late_replies: bool  # acknowledgements may take seconds, and come although their connection was replaced
    lag_s: float  # between the Raft thread and the event loop
    operation_every_s: float
    fault_every_s: float  # 0: none
    faults: tuple[tuple[str, float], ...]

    @property
    def ids(self) -> range:
        """Of the voters."""
        return range(1, self.voters + 1)

    @classmethod
    def draw(cls, seed: int, voters: int = 0, seconds: float = SECONDS) -> QuorumOptions:
        """`voters` 0: drawn as well."""
        random = Random(f"options of {seed}")
        drawn = random.choice(VOTERS)
        datagrams = random.random() < 0.25
        timings = RaftTimings(
            election_s_min=0.3,
            election_s_max=0.6,
            heartbeat_s=0.05,
            hurry_s=0.05,
            leader_fallback_s=0.6,
            batch_bytes=random.choice((30, 30, 300, 5000)),
            compact_after_entries=random.choice((12, 40, 40, 400)),
            trailing_entries=random.choice((0, 3, 10)),
            snapshot_chunk_bytes=random.choice((1000, 4000) if datagrams else (100, 400, 4000)),
            snapshot_resend_s=0.2,
        )
        present = [name for name in WEIGHTS if random.random() < 0.6] or ["cut_power"]
        if random.random() < 0.15:
            present = ["isolate_leader", "depose_in_turn", "mend", "kill"]
        return cls(
            seed=seed,
            voters=voters or drawn,
            seconds=seconds,
            timings=timings,
            delay_s=random.choice((0.01, 0.03) if datagrams else (0.002, 0.02, 0.06)),
            datagrams=datagrams,
            late_replies=datagrams and random.random() < 0.4,
            lag_s=random.choice((0.0, 0.002, 0.05)),
            operation_every_s=random.choice((0.01, 0.02, 0.04)),
            fault_every_s=random.choice((0.15, 0.3, 0.6)),
            faults=tuple((name, WEIGHTS[name]) for name in present),
        )

    def only(self, *faults: str, every_s: float | None = None) -> QuorumOptions:
        """The same run with these faults and no others; none at all: a healthy run."""
        pace = 0.0 if not faults else every_s or self.fault_every_s
        return replace(self, faults=tuple((name, WEIGHTS[name]) for name in faults), fault_every_s=pace)
