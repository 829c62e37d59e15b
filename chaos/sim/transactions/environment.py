"""What every part of a history has around it: the random numbers of its seed, its time, its faults, and the
network."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from .faults import Faults

Delivery = Callable[[], None]


class Environment:
    """Of one history."""

    def __init__(self, seed: int, faults: Faults) -> None:
        self.random = Random(seed)
        self.faults = faults
        self.now_ms = 1_000_000
        self.moment = 0
        """Rises with whatever is noted: which of two things was first."""
        self.healing = False
        """No fault happens any more."""
        self.violations: list[str] = []
        """What the parts have seen that must not be."""
        self.messages: list[Delivery] = []
        """On their way, in any order."""
        self.late: list[tuple[int, Delivery]] = []
        """(when it may arrive, message)."""

    def note(self) -> int:
        """This moment, later than every other one that was noted."""
        self.moment += 1
        return self.moment

    def inflicts(self, chance: float) -> bool:
        """A fault of this chance happens now."""
        return not self.healing and self.random.random() < chance

    def post(self, deliver: Delivery, on_lost: Delivery | None = None) -> None:
        """Delivers the message later; perhaps twice, perhaps never (then `on_lost`, if the sender can
        notice)."""
        if on_lost is not None and self.inflicts(self.faults.lose):
            self.messages.append(on_lost)
            if self.random.random() < 0.5:
                self.postpone(deliver)  # the sender gave up, and it arrives nevertheless
            return
        if self.inflicts(self.faults.late):
            self.postpone(deliver)
        else:
            self.messages.append(deliver)
        if self.inflicts(self.faults.duplicate):
            self.postpone(deliver)

    def postpone(self, deliver: Delivery) -> None:
        """Out of order by anything up to several transactions."""
        self.late.append((self.now_ms + int(10 ** self.random.uniform(0, 3.3)), deliver))

    def deliver(self) -> None:
        """Some messages arrive."""
        arrived = [deliver for due_ms, deliver in self.late if due_ms <= self.now_ms]
        self.late = [(due_ms, deliver) for due_ms, deliver in self.late if due_ms > self.now_ms]
        self.messages += arrived
        for _ in range(min(len(self.messages), self.random.randint(0, self.faults.deliveries))):
            self.messages.pop(self.random.randrange(len(self.messages)))()
