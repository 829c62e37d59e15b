"""Shares the time of one event loop fairly among accounts (connections).

The unit is a *turn*: one round of the event loop.  The work of all accounts of a `LoopTurns` may take
`TURN_S` of a turn; work that comes later waits for a later turn, and between two turns the loop does
everything else that is due: it reads sockets, runs timers and answers flushes.  While the time suffices no
work waits, and nothing is queued.  However long the loop was busy with other things, or the process was
paused, at least one waiting piece of work begins in each turn.

Waiting work begins in the order of Start-time Fair Queueing (Goyal, Vin, Cheng, SIGCOMM 1996).  Every
`Account` pays for the CPU time of its work; work that awaits something (`metered`) pays for each of its steps
on the loop.  The virtual time is the start tag of the work that began last; a start tag is the virtual time
at arrival, or the end of what the account has used when that is later; the least tag goes first, and the
earliest arrival among equal tags.  So each of n accounts gets an n-th of the time or more, and small work
does not wait behind another account's large work.  An account that uses less than its share may be up to
`CREDIT_S` behind the virtual time, and goes before all others meanwhile; a new account has no such credit, or
many new connections would together go before all others.

`FairQueue` is the order, without clock and loop; `LoopTurns` is the shell.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Generator
from heapq import heappop, heappush
from itertools import count
from types import coroutine
from typing import Any, Final, TypeVar

TURN_S: Final = 0.004
"""The time for work in a turn.  A single piece of work may take longer: then it is the only one of its
turn."""
WOKEN_MAX: Final = 64
CREDIT_S: Final = 0.02
_MEAN_WEIGHT: Final = 0.1

Callback = Callable[[], None]
T = TypeVar("T")


class Account:
    """One sharer of the time, with the virtual end of the time that it has used."""

    __slots__ = ("_used_s", "paid_until")

    def __init__(self, paid_until: float) -> None:
        self.paid_until = paid_until
        self._used_s = 0.0

    def use(self, seconds: float) -> None:
        self._used_s += seconds

    def take_used_s(self) -> float:
        """CPU seconds that the account has used since it was asked last."""
        used_s, self._used_s = self._used_s, 0.0
        return used_s


class Turn:
    """One piece of work, which begins when it is the account's turn: `async with`, within `metered` work."""

    __slots__ = ("_account", "_turns")

    def __init__(self, turns: LoopTurns, account: Account) -> None:
        self._turns = turns
        self._account = account

    async def __aenter__(self) -> None:
        if not self._turns.admits():
            await self._turns.wait(self._account)

    async def __aexit__(self, *_raised: object) -> None:
        pass


class FairQueue:
    """See the module's docstring.  `tag` once for each wait, then `push`; work that did not begin is pushed
    with the same tag."""

    __slots__ = ("_arrivals", "_heap", "virtual_time")

    def __init__(self) -> None:
        self.virtual_time = 0.0
        self._heap: list[tuple[tuple[float, int], Callback]] = []
        self._arrivals = count()

    def __len__(self) -> int:
        return len(self._heap)

    def account(self) -> Account:
        return Account(self.virtual_time)

    def tag(self, account: Account) -> tuple[float, int]:
        return max(self.virtual_time - CREDIT_S, account.paid_until), next(self._arrivals)

    def push(self, tag: tuple[float, int], callback: Callback) -> None:
        heappush(self._heap, (tag, callback))  # no two tags are equal

    def pop(self) -> Callback:
        (start, _), callback = heappop(self._heap)
        self.virtual_time = max(self.virtual_time, start)
        return callback

    def charge(self, account: Account, seconds: float) -> None:
        account.paid_until = max(self.virtual_time - CREDIT_S, account.paid_until) + seconds
        account.use(seconds)
        if not self._heap:
            self.virtual_time = max(self.virtual_time, account.paid_until)


class LoopTurns:
    """For one loop, on its thread.

        if not turns.admits():
            await turns.wait(account)
        begun = turns.begin()
        ...  # one piece of work, which awaits nothing
        turns.end(account, begun)

    or `await turns.metered(account, work)`, where the work may wait.
    """

    __slots__ = ("_began", "_cpu", "_is_free", "_is_open", "_mean_s", "_now", "_queue", "_turn_s", "number")

    def __init__(
        self, now: Callable[[], float], turn_s: float = TURN_S, *, cpu: Callable[[], float] = time.thread_time
    ) -> None:
        """`now` limits a turn, because everything else on the loop waits for its end; accounts pay by `cpu`:
        the kernel may pause the process in the middle of a request, which is not the client's fault."""
        self._now = now
        self._cpu = cpu
        self._turn_s = turn_s
        self._queue = FairQueue()
        self._began = 0.0
        self._is_open = False
        # no admitted work has begun in this turn: the first may begin, however late it is
        self._is_free = False
        self._mean_s = turn_s
        self.number = 0

    def account(self) -> Account:
        return self._queue.account()

    @property
    def waiting_count(self) -> int:
        return len(self._queue)

    def admits(self) -> bool:
        """Whether a piece of work may begin now, in this turn: there is time, and no other work waits."""
        if not self._is_open:
            self._open()
            return True
        return not self._queue and self.has_time()

    def has_time(self) -> bool:
        """Whether work that began in this turn may continue in it."""
        return self._now() - self._began < self._turn_s

    def when_admitted(self, account: Account, callback: Callback) -> None:
        """Calls `callback` at the beginning of a later turn, when it is the account's."""
        self._push(self._queue.tag(account), callback)

    async def wait(self, account: Account) -> None:
        """Returns when it is the account's turn."""
        loop, tag = asyncio.get_running_loop(), self._queue.tag(account)
        while True:
            admitted: asyncio.Future[None] = loop.create_future()
            self._push(tag, lambda admitted=admitted: None if admitted.done() else admitted.set_result(None))  # type: ignore[misc]
            await admitted
            if self._is_free or self.has_time():
                self._is_free = False
                return  # otherwise the turn has ended already: the work keeps its place in the queue

    def begin(self) -> float:
        return self._cpu()

    def end(self, account: Account, begun: float) -> None:
        """Charges the account for a piece of work."""
        took_s = self._cpu() - begun
        self._mean_s += (took_s - self._mean_s) * _MEAN_WEIGHT
        self._queue.charge(account, took_s)

    @coroutine
    def metered(self, account: Account, work: Coroutine[Any, Any, T]) -> Generator[Any, Any, T]:
        """Awaits the work, and charges the account for every step of it on the loop.  Not for work within
        metered work: that would pay twice."""
        resume: Callable[[Any], Any] = work.send
        sent: Any = None
        while True:
            begun = self._cpu()
            try:
                awaited = resume(sent)
            except StopIteration as returned:
                result: T = returned.value
                return result
            finally:
                self.end(account, begun)
            try:
                sent = yield awaited
                resume = work.send
            except GeneratorExit:
                work.close()
                raise
            except BaseException as error:
                sent, resume = error, work.throw

    def _push(self, tag: tuple[float, int], callback: Callback) -> None:
        self._queue.push(tag, callback)
        if not self._is_open:
            self._open()

    def _open(self) -> None:
        self._is_open = True
        self._began = self._now()
        asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        """Ends a turn and begins the next one, with as many pieces of waiting work as will probably fit."""
        self.number += 1
        if not self._queue:
            self._is_open = False
            return
        self._open()
        self._is_free = True
        fitting = min(len(self._queue), WOKEN_MAX, max(1, int(self._turn_s / max(self._mean_s, 1e-6))))
        while fitting and self._queue and self.has_time():
            fitting -= 1
            self._queue.pop()()
