"""Takes transaction-consistent cuts of the output while Spark writes, and reads at each: of a job all records
or none."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from typing import Final

from tidegate.client import Admin, Cut, KafkaError, read_cut

from .watcher import Seen, parsed

PAUSE_S: Final = 0.05
READ_MAX: Final = 25  # of a run: more are thinned out


class CutsTaken:
    """During one run.  `async with`, then `torn`."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._bootstrap, self._topic = bootstrap, topic
        self._task: asyncio.Task[None] | None = None
        self._begins: dict[int, int] = {}
        self._cuts: list[Cut] = []
        self.count = self.inside = 0

    async def __aenter__(self) -> CutsTaken:
        async with Admin(self._bootstrap) as admin:
            first = await admin.take_cut([self._topic])
        self._begins = {number: part.end for (_, number), part in first.partitions.items()}
        self._task = asyncio.create_task(self._take(), name="cuts")
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        async with Admin(self._bootstrap) as admin:
            self._cuts.append(await admin.take_cut([self._topic]))

    async def _take(self) -> None:
        while True:
            try:
                async with Admin(self._bootstrap) as admin:
                    while True:
                        self._cuts.append(await admin.take_cut([self._topic]))
                        await asyncio.sleep(PAUSE_S)
            except KafkaError:  # a node that takes part is away
                await asyncio.sleep(PAUSE_S)

    async def torn(self, run: int, seen: list[Seen]) -> list[str]:
        """What is wrong, given all committed records of the run, when everything is decided."""
        whole = Counter(record.batch for record in seen)
        wrong = []
        kept = list({str(cut.partitions): cut for cut in self._cuts}.values())
        kept.reverse()  # the last one has everything
        chosen = kept if len(kept) <= READ_MAX else [kept[n * len(kept) // READ_MAX] for n in range(READ_MAX)]
        for cut in chosen:
            found = Counter(batch for each, batch in await self._read(cut) if each == run)
            self.count += 1
            self.inside += len(found)
            wrong += [
                f"a cut has {count} of {whole[batch]} records of batch {batch!r}"
                for batch, count in found.items()
                if count != whole[batch]
            ]
        return wrong

    async def _read(self, cut: Cut) -> list[tuple[int, str]]:
        """Run and batch of each record from the beginning of this run on."""
        topic = cut.topics[self._topic]
        partitions = {
            number: replace(part, start=min(max(part.start, self._begins[number]), part.end))
            for number, part in topic.partitions.items()
        }
        part_of_run = replace(cut, topics={self._topic: replace(topic, partitions=partitions)})
        found = []
        async for record in read_cut(self._bootstrap, part_of_run):
            run, seen = parsed((record.partition, record.offset), 0, record.value or b"")
            found.append((run, seen.batch))
        return found
