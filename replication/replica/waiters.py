"""Requests that wait at one partition: acknowledgements for a high watermark, fetches for data.

`delayed_produce.py` has the acknowledgements of the whole node, with their deadlines and their number.

Promises

* Everything is keyed by partition and bounded; a waiter ends exactly once: by progress, by the end of the
  leadership it was made under, by the failure of the replica, or by its deadline (docs/semantics.md A5).
* An acknowledgement is decided by the leader state *at completion*, not by what was true when the waiter was
  made.
* Waking a fetch decides nothing: the fetch looks at the partitions again, through the code of immediate
  answers (KAFKA-5376).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from ...runtime.clock import Clock, Timer
from ...wire.errors import ErrorCode
from ..partition.leader import PartitionLeader

AckCallback = Callable[[ErrorCode], None]

#: How late an expired acknowledgement may be; one timer a node instead of one a request.
SWEEP_INTERVAL_S = 0.05

#: How long a follower's fetch waits on when its answer would have only a higher high watermark.  The follower
#: has the records that made it move, and under load the answer with the next records carries the new one:
#: answered at once, every commit would cost each follower a second fetch.
WATERMARK_NEWS_S = 0.005


@dataclass(slots=True, eq=False)
class _AckWaiter:
    next_offset: int
    deadline_s: float
    callback: AckCallback


class AckWaiters:
    """The acks=all acknowledgements that wait at one partition in one leader epoch, in the order of their
    offsets."""

    __slots__ = ("_waiters",)

    def __init__(self) -> None:
        # not a deque, which takes 0.7 KB when it is empty, for each partition
        self._waiters: list[_AckWaiter] = []

    def __len__(self) -> int:
        return len(self._waiters)

    def add(self, next_offset: int, deadline_s: float, callback: AckCallback) -> None:
        waiter = _AckWaiter(next_offset, deadline_s, callback)
        if self._waiters and self._waiters[-1].next_offset > next_offset:
            # A duplicate's acknowledgement waits for an older offset: keep the order that `complete` relies
            # on.
            later = []
            while self._waiters and self._waiters[-1].next_offset > next_offset:
                later.append(self._waiters.pop())
            self._waiters.append(waiter)
            self._waiters.extend(reversed(later))
        else:
            self._waiters.append(waiter)

    def complete(self, leader: PartitionLeader) -> int:
        """Answers all that the high watermark has passed; returns how many."""
        done: list[tuple[AckCallback, ErrorCode]] = []
        for waiter in self._waiters:
            code = leader.commit_state(waiter.next_offset)
            if code is None:
                break
            done.append((waiter.callback, code))
        del self._waiters[: len(done)]
        for callback, code in done:
            callback(code)
        return len(done)

    def fail(self, code: ErrorCode) -> int:
        """Answers all with `code`: the leadership or the replica is gone, and the outcome of the writes
        unknown."""
        failed, self._waiters = self._waiters, []
        for waiter in failed:
            waiter.callback(code)
        return len(failed)

    def expire(self, now_s: float, code: ErrorCode) -> int:
        """Answers those past their deadline with `code`."""
        expired = [waiter for waiter in self._waiters if waiter.deadline_s <= now_s]
        if expired:
            self._waiters = [waiter for waiter in self._waiters if waiter.deadline_s > now_s]
            for waiter in expired:
                waiter.callback(code)
        return len(expired)


class FetchWaiter:
    """One waiting fetch: `wake` and `end` resolve it once; `close` makes later ones harmless."""

    __slots__ = ("_clock", "_is_due", "_on_wake", "_timer", "_watched", "is_ended")

    def __init__(self, on_wake: Callable[[], None]) -> None:
        self._on_wake: Callable[[], None] | None = on_wake
        self._clock: Clock | None = None
        self._timer: Timer | None = None
        self._is_due = False
        self.is_ended = False
        """The fetch is answered with what it finds, and does not wait again."""
        self._watched: list[FetchWatchers] = []

    def start_timer(self, clock: Clock, delay_s: float) -> None:
        self._clock = clock
        self._timer = clock.call_later(delay_s, self.wake)

    def wake_within(self, delay_s: float) -> None:
        """Ends the wait after `delay_s`, if nothing does before.  Only the first such call counts."""
        if self._timer is not None and self._clock is not None and not self._is_due:
            self._is_due = True
            self._timer.cancel()
            self._timer = self._clock.call_later(delay_s, self.wake)

    def watch(self, watchers: FetchWatchers) -> None:
        """A client's fetch: woken when the partition's high watermark moves or its state changes."""
        watchers.clients.add(self)
        self._watched.append(watchers)

    def wake(self) -> None:
        callback, self._on_wake = self._on_wake, None
        self.close()
        if callback is not None:
            callback()

    def end(self) -> None:
        self.is_ended = True
        self.wake()

    def close(self) -> None:
        """Leaves every partition it watched; called on wake and when the fetch is cancelled."""
        self._on_wake = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for watchers in self._watched:
            watchers.clients.discard(self)
        self._watched.clear()


class Subscriber(Protocol):
    """A follower's fetch session, which learns of every change of a partition."""

    def changed(self, key: tuple[str, int]) -> None: ...
    def watermark_moved(self, key: tuple[str, int]) -> None: ...


class FetchWatchers:
    """The fetches that wait at one partition: those of followers for records and the high watermark, of
    clients for the latter."""

    __slots__ = ("_subscribers", "clients")

    def __init__(self) -> None:
        self.clients: set[FetchWaiter] = set()
        self._subscribers: dict[Subscriber, tuple[str, int]] = {}

    def subscribe(self, subscriber: Subscriber, key: tuple[str, int]) -> None:
        self._subscribers[subscriber] = key

    def unsubscribe(self, subscriber: Subscriber) -> None:
        self._subscribers.pop(subscriber, None)

    def records_appended(self) -> None:
        for subscriber, key in tuple(self._subscribers.items()):
            subscriber.changed(key)

    def high_watermark_moved(self) -> None:
        for subscriber, key in tuple(self._subscribers.items()):
            subscriber.watermark_moved(key)
        for waiter in tuple(self.clients):
            waiter.wake()

    def state_changed(self) -> None:
        """The leadership or the replica's state changed: every waiting fetch looks at the partition again."""
        self.records_appended()
        for waiter in tuple(self.clients):
            waiter.wake()
