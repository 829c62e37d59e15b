"""Random histories of a node whose logs move between its data folders (KIP-113), each folder on its own disk.

What must hold, besides the rules of `folders_history`: a log is in one folder, with all acknowledged records,
at every step of a move and after any crash; its holders keep the same `Log` object; a move resumes after a
restart and reaches its target; a truncation, a deletion, another order or a failed disk during the move
leaves no part of the copy that blocks a later operation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ....storage.directory.log_directory import LogDirectory
from ....storage.log.log import Log
from ....storage.log.replacement import Replacement
from ....storage.moving.future_replica import FutureReplica
from ....storage.segment.segment import Segment
from ....wire.errors import KafkaError
from .folders_history import CUTTABLE, WEIGHTS, FoldersHistory, Life

TURNS_MAX = 400


class MovesHistory(FoldersHistory):
    """See the module's text."""

    CUT = (
        *CUTTABLE[:-1],
        *["carry_on", "carry_out"] * 6,
        "move",
        "stay",
        "truncate",
        "rewrite",
        "rewrite",
        "close",
    )
    WEIGHTS = WEIGHTS | {
        "move": 9, "carry_on": 24, "carry_out": 4, "stay": 2, "truncate": 3, "rewrite": 6, "cut": 12,
        "delete": 2, "recreate": 1,
    }  # fmt: skip
    FOLDERS_MIN = 2

    def run(self) -> None:
        self.swaps = self.rewritten = 0
        super().run()

    def crash(self, a: int, b: int) -> None:
        super().crash(a, b)
        if (a, b) == (self.seed, 0):  # the last step of a history: every remaining move completes
            wanted = {key: future.target.path for key, future in self.folders.futures.items()}
            for future in list(self.folders.futures.values()):
                self._drive(future, TURNS_MAX)
            assert not self.folders.futures, "a move does not end"
            for key, path in wanted.items():
                assert self.lives[key].place == path
            self.check(a, b)
            super().crash(a + 1, b + 1)

    def move(self, a: int, b: int) -> None:
        """Moves the log to another folder, at times during another move."""
        life = self._life(a)
        path = self.paths[b % len(self.paths)]
        if life is None or path in self.folders.offline_folders:
            return
        life.may_be.add(path)
        try:
            self.folders.move_to(*life.key, path)
        finally:
            self._settle_place(life)

    def stay(self, a: int, _b: int) -> None:
        """Cancels the move."""
        life = self._life(a)
        if life is not None and life.place is not None:
            self.folders.move_to(*life.key, life.place)
            self._settle_place(life)

    def carry_on(self, a: int, b: int) -> None:
        futures = list(self.folders.futures.values())
        if futures:
            self._drive(futures[a % len(futures)], 1 + b % 3)

    def carry_out(self, a: int, _b: int) -> None:
        futures = list(self.folders.futures.values())
        if futures:
            self._drive(futures[a % len(futures)], TURNS_MAX)

    def _drive(self, future: FutureReplica, turns: int) -> None:
        """Runs the move as the node does."""
        life = self.lives[future.key]
        life.may_be.add(future.target.path)
        future.swap_bytes_max = 150
        for _ in range(turns):
            try:
                work = future.turn(300)
                if work is not None:
                    work()
            except (KafkaError, OSError) as error:
                self._settle_place(life)
                future.refused(error)
                raise
            if future.is_over:
                break
        self._settle_place(life)

    def rewrite(self, a: int, b: int) -> None:
        """While the cleaner works on a log, a move continues at any point of it; the copy equals the log
        again."""
        life = self._life(a)
        if life is None:
            return
        log, disk = life.log, self.disk
        if len(log.segments) < 2:
            life.roll(a, b)
        log.flush_now()
        if len(log.segments) < 2:
            return
        old = list(log.segments[: 1 + b % (len(log.segments) - 1)])
        if old[-1].next_offset > log.recovery_point or not any(each.size_bytes for each in old):
            return
        try:
            new = self._written_again(log, old)
        except OSError:  # it is not cleaned then
            return
        steps: list[Callable[[Replacement], object]] = [
            Replacement.decide, lambda it: log.local.replacements.switch(it), Replacement.carry_out,
            lambda it: log.local.replacements.finish(it),
        ]  # fmt: skip
        try:
            replacement = log.local.replacements.begin(old, new)
        except ValueError:
            new.remove()
            return
        refused: KafkaError | OSError | None = None
        future = self.folders.futures.get(life.key)
        for at, step in enumerate(steps):
            if future is not None and (a >> 8) % (len(steps) + 1) == at and not future.is_over:
                try:
                    self._drive(future, 1 + (b >> 8) % 40)
                except (KafkaError, OSError) as error:
                    refused = error
            try:
                step(replacement)
            except ValueError:  # withdrawn: the log was cut, or is in another folder
                new.remove()
                break
            except OSError as error:
                log.local.replacements.failed(replacement, error)
        self.rewritten += replacement.is_over
        for path in replacement.doomed:
            if disk.exists(path):
                disk.remove(path)
        if refused is not None:
            raise refused

    @staticmethod
    def _written_again(log: Log, old: Sequence[Segment]) -> Segment:
        """Raises OSError."""
        new = log.segments.create_cleaned(old[0].base_offset, 200)
        try:
            for each in old:
                if each.size_bytes:
                    new.append_batches(each.file.read_at(0, each.size_bytes))
            if entries := [entry for each in old for entry in each.aborted.entries]:
                new.aborted.append(entries)
            new.sync_cleaned(old[-1].next_offset)
        except OSError:
            new.remove()
            raise
        return new

    def _settle_place(self, life: Life) -> None:
        """The folder that the node reports, and those where a crash may leave the log."""
        folder = self.folders.folder_of(*life.key)
        assert folder is not None, "another log took its place"
        assert folder.logs.get(life.key) is life.log or life.log.is_offline, "another log took its place"
        future = self.folders.futures.get(life.key)
        if not self.folders.offline_folders:
            self.swaps += life.place != folder.path
            life.may_be = set() if future is None else {future.target.path}
        life.place = folder.path

    def truncate(self, a: int, b: int) -> None:
        """Truncates like a follower of a new leader."""
        life = self._life(a)
        if life is None:
            return
        watermark = life.log.high_watermark
        places = [
            each.header.base_offset for each in life.model.batches if each.header.base_offset >= watermark
        ]
        target = [*places, life.log.log_end_offset][b % (len(places) + 1)]
        life.flushed = min(life.flushed, life.end_of_batches(target))
        life.start_noted = min(life.start_noted, target)
        life.log.truncate_to(target)
        life.model.truncate(target)
        life.epoch(a, b)
        life.learn()

    def _restarted(self, a: int, b: int) -> None:
        for life in self.lives.values():
            future = self.folders.futures.get(life.key)
            if future is not None:
                life.may_be.add(future.target.path)
        super()._restarted(a, b)
        for life in self.lives.values():
            future = self.folders.futures.get(life.key)
            life.may_be = set() if future is None else {future.target.path}

    def _check_names(self, folder: LogDirectory) -> None:
        mine = {f"{topic}-{partition}" for topic, partition in folder.logs}
        mine |= {future.name for future in self.folders.futures.values() if future.target is folder}
        names = set(self.disk.list_names(folder.path))
        strange = [
            name
            for name in names - mine
            if name.rpartition("-")[2].isdigit() or name.endswith(("-delete", "-future"))
        ]
        assert not strange, f"{folder.path} has {strange}"
