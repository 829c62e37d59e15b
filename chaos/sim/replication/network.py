"""The simulated network between processes: delays, loss, duplicates, reordering, and cuts in one or both
directions.

Every message takes its own time, so later ones overtake earlier ones.  A lost request, or one into a cut,
gets no answer; a request to a process that does not run is refused.  A process that was started anew under
the same id never sees an answer to its predecessor.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from random import Random
from typing import Any

from ....wire.errors import KafkaError
from .virtual_loop import Process, VirtualLoop

Serve = Callable[[Process], Coroutine[Any, Any, Any] | None]


@dataclass(slots=True)
class Weather:
    """How bad the network is at the moment; the probabilities are of every single message."""

    loss: float = 0.0
    duplication: float = 0.0
    late: float = 0.0
    late_s_max: float = 0.0


class Network:
    """The processes by id, and the delays and cuts between them."""

    def __init__(self, loop: VirtualLoop, random: Random, seen: Counter[str]) -> None:
        self.weather = Weather()
        self.cuts: set[tuple[int, int]] = set()
        self.processes: dict[int, Process] = {}
        self._loop = loop
        self._random = random
        self._seen = seen

    def send(self, source: int, target: int, deliver: Callable[[], object]) -> None:
        """`deliver` runs in no process's name, unless the message is lost or the way is cut when it would
        arrive."""
        weather, random = self.weather, self._random
        if weather.loss and random.random() < weather.loss:
            self._seen["message lost"] += 1
            return
        times = 1
        if weather.duplication and random.random() < weather.duplication:
            self._seen["message duplicated"] += 1
            times = 2
        for _ in range(times):
            delay_s = 0.0005 + 0.004 * random.random()
            if weather.late and random.random() < weather.late:
                self._seen["message late"] += 1
                delay_s += weather.late_s_max * random.random()

            def arrive() -> None:
                if (source, target) in self.cuts:
                    self._seen["message cut off"] += 1
                else:
                    deliver()

            self._loop.world_later(delay_s, arrive)

    async def call(self, source: int, target: int, serve: Serve) -> Any:
        """The result of `serve(process)` at the target; without a coroutine it is refused.  Waits for ever
        without an answer.

        Raises KafkaError from there, and ConnectionError.
        """
        sender = self.processes[source]
        answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def settle(result: Any, error: Exception | None) -> None:
            if answered.done():
                return
            if error is None:
                answered.set_result(result)
            else:
                answered.set_exception(error)

        def answer(result: Any, error: Exception | None) -> None:
            self.send(target, source, lambda: sender.call_soon(settle, result, error))

        async def work(process: Process) -> None:
            coroutine = serve(process)
            if coroutine is None:
                answer(None, ConnectionRefusedError(f"{target} does not serve yet"))
                return
            try:
                result = await coroutine
            except (KafkaError, OSError) as error:
                answer(None, error)
            except Exception as error:  # a defect, which no answer would report
                self._loop.unhandled.append(error)
            else:
                answer(result, None)

        def arrive() -> None:
            process = self.processes.get(target)
            if process is None or not process.alive:
                answer(None, ConnectionRefusedError(f"no process {target}"))
            else:
                process.spawn(work(process))

        self.send(source, target, arrive)
        return await answered
