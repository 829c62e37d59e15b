"""Where something fails, what happens there, and how often: the runs of the harness."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

Workload = Literal["batch", "stream"]
Point = Literal[
    "none", "after rows", "before prepare", "after prepare", "before commit", "after commit",
]  # fmt: skip
Action = Literal[
    "none", "fail", "exit", "kill JVM", "kill coordinator", "kill brokers", "lose once", "lose all"
]
Method = Literal["", "OpenAttempt", "PrepareAttempt", "CommitJob"]

IN_TASK: Final = ("after rows", "before prepare", "after prepare")


@dataclass(frozen=True, slots=True)
class Step:
    """`action` happens at `point`, once in a run; or the answers to `method` are lost."""

    name: str
    workload: Workload
    point: Point
    action: Action
    runs: int
    method: Method = ""

    @property
    def is_the_harness_needed(self) -> bool:
        """It kills from outside, while the step waits."""
        return self.action.startswith("kill")


def _both(
    name: str, point: Point, action: Action, batch: int, stream: int, method: Method = ""
) -> list[Step]:
    return [
        Step(name, "batch", point, action, batch, method),
        Step(name, "stream", point, action, stream, method),
    ]


STEPS: Final = (
    *_both("no fault, a slow task run twice", "none", "none", 10, 2),
    *_both("task fails after its rows", "after rows", "fail", 6, 4),
    *_both("task fails before it prepares", "before prepare", "fail", 6, 4),
    *_both("worker killed before it prepares", "before prepare", "exit", 8, 4),
    *_both("task fails after it has prepared", "after prepare", "fail", 6, 4),
    *_both("worker killed after it has prepared", "after prepare", "exit", 8, 4),
    *_both("driver fails before commit_job", "before commit", "fail", 6, 4),
    *_both("driver's commit killed before commit_job", "before commit", "exit", 4, 3),
    *_both("driver fails after commit_job", "after commit", "fail", 6, 4),
    *_both("driver's commit killed after commit_job", "after commit", "exit", 4, 3),
    *_both("answer to OpenAttempt lost", "none", "lose once", 4, 3, "OpenAttempt"),
    *_both("answer to PrepareAttempt lost", "none", "lose once", 4, 3, "PrepareAttempt"),
    *_both("answer to commit_job lost", "none", "lose once", 5, 5, "CommitJob"),
    *_both("answers to commit_job lost until it is given up", "none", "lose all", 3, 3, "CommitJob"),
    *_both("JVM killed before a task prepares", "before prepare", "kill JVM", 2, 2),
    *_both("JVM killed after a task has prepared", "after prepare", "kill JVM", 2, 2),
    *_both("JVM killed before commit_job", "before commit", "kill JVM", 4, 4),
    *_both("JVM killed after commit_job", "after commit", "kill JVM", 4, 4),
    *_both("coordinator killed before a task prepares", "before prepare", "kill coordinator", 4, 3),
    *_both("coordinator killed before commit_job", "before commit", "kill coordinator", 4, 3),
    *_both("coordinator killed after commit_job", "after commit", "kill coordinator", 4, 3),
    *_both("all brokers killed before a task prepares", "before prepare", "kill brokers", 4, 3),
    *_both("all brokers killed before commit_job", "before commit", "kill brokers", 4, 3),
    *_both("all brokers killed after commit_job", "after commit", "kill brokers", 6, 5),
)

CONTROL: Final = (
    *_both("task fails after its rows", "after rows", "fail", 2, 2),
    *_both("worker killed after its rows", "after rows", "exit", 2, 2),
    *_both("JVM killed after a task's rows", "after rows", "kill JVM", 1, 1),
)
"""Of Spark's Kafka connector: what happens outside of its sink."""
