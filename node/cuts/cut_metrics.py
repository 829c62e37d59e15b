"""How often this node has taken cuts, and what they cost those who commit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from prometheus_client.core import CounterMetricFamily

from .attempt import Reason


class CutMetrics:
    """Counters.  `held_s`: how long decisions were held, summed over the attempts."""

    def __init__(self) -> None:
        self.taken = 0
        self.given_up: Counter[Reason] = Counter()
        self.held_s = 0.0

    def collect(self) -> Iterable[CounterMetricFamily]:
        text = "Transaction-consistent cuts that this node has taken."
        yield CounterMetricFamily("tidegate_cuts_taken", text, value=self.taken)
        text = "Attempts to take a cut that were given up, by reason: shard, leader, hold, metadata."
        given_up = CounterMetricFamily("tidegate_cuts_given_up", text, labels=["reason"])
        for reason in Reason:
            given_up.add_metric([reason.value], self.given_up[reason])
        yield given_up
        text = "How long cuts of this node held the decisions of all transaction coordinators."
        yield CounterMetricFamily("tidegate_cuts_held_seconds", text, value=self.held_s)
