"""Random histories of a node's data folders, each on its own disk: partitions are created, deleted, and
created again with the name.

What must hold, besides what `log_history` asks of each log:

* a created partition exists after any crash, in its folder, and a deleted partition never comes back: a crash
  in the middle of either shows the partition as before or as after, complete, and never a mix;
* a failing disk takes only its own logs offline; all records that they had acknowledged exist after a
  restart;
* the same holds when several threads open the logs, in any order of their steps, also when the power fails
  meanwhile.

Everything follows from the steps.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from random import Random
from uuid import UUID

from ....storage.directory.folder_notes import PartitionKey
from ....storage.directory.log_directory import LogDirectory
from ....storage.directory.log_loader import FolderOptions
from ....storage.folders.data_folders import DataFolders
from ....storage.log.log import Log, LogConfig
from ....storage.topic_config import CleanupPolicy
from ....wire.errors import KafkaError
from ..disk import Lie, LyingDisk, PowerCut
from ..mounts import Mounts
from ..runs import Step
from ..turns import SeededThreads
from .appends import AppendSteps
from .checks import check_log, check_survivors
from .steps import NOW_MS, broken

KEYS: tuple[PartitionKey, ...] = (("t", 0), ("t", 1), ("t-1", 0), ("u", 0))
WEIGHTS = {
    "produce": 14, "flush": 6, "settle": 3, "cut_front": 2, "checkpoint": 3, "create": 9, "delete": 4,
    "recreate": 3,
    "full": 2, "disk_fails": 2, "close": 1, "kill": 1, "crash": 2, "cut": 5, "cut_open": 2, "check": 1,
}  # fmt: skip
_PRODUCE = ("append", "idempotent", "transaction", "commit", "abort", "follow", "epoch", "roll")
CUTTABLE = (
    "produce",
    "flush",
    "cut_front",
    "checkpoint",
    "create",
    "delete",
    "recreate",
    "delete",
    "recreate",
    "close",
)


def random_steps(seed: int, length: int, weights: Mapping[str, int] = WEIGHTS) -> list[Step]:
    random = Random(seed)
    names = random.choices(list(weights), list(weights.values()), k=length)
    return [(name, random.randrange(1 << 20), random.randrange(1 << 20)) for name in names]


class Life(AppendSteps):
    """One partition under one topic id: from its creation to its deletion."""

    def __init__(self, key: PartitionKey, topic_id: UUID) -> None:
        super().__init__()
        self.key = key
        self.topic_id = topic_id
        self.place: Path | None = None
        """The data folder that has the partition; None while the history does not know it."""
        self.may_be: set[Path] = set()
        """Other folders where it may be after a restart."""
        self.flushed = 0
        self.start_noted = self.start_most = 0

    def learn(self) -> None:
        if not self.log.is_offline:
            self.flushed = max(self.flushed, self.end_of_batches(self.log.flushed_end_offset))

    def end_of_batches(self, offset: int) -> int:
        """The end of the last batch that ends at or below `offset`: a restart does not know an offset gap
        behind it."""
        ends = (batch.header.next_offset for batch in reversed(self.model.batches))
        return next((end for end in ends if end <= offset), 0)

    def came_back(self) -> None:
        """After a restart: the found state must be one of the possible ones."""
        self.raise_ghosts(self.flushed)
        check_survivors(self.log, self.model, self.flushed, self.start_noted, self.start_most)
        self.flushed = self.log.flushed_end_offset
        self.start_most = self.model.start
        self.start_noted = min(self.start_noted, self.model.start)
        self.leader_epoch = max(self.leader_epoch, self.log.latest_epoch)
        self.last_append = None


class FoldersHistory:
    """See the module's text.  Subclass and override steps to switch a safeguard off."""

    CUT: Sequence[str] = CUTTABLE
    WEIGHTS = WEIGHTS
    FOLDERS_MIN = 1

    def __init__(
        self, seed: int = 0, *, lies: Lie = Lie.NONE, steps: Sequence[Step] | None = None, length: int = 25
    ) -> None:
        self.seed = seed
        random = Random(~seed)
        self.steps = random_steps(seed, length, self.WEIGHTS) if steps is None else list(steps)
        self.paths = [Path(f"/disk-{name}") for name in "abc"[: random.randrange(self.FOLDERS_MIN, 4)]]
        self.disk = Mounts({path: LyingDisk() for path in self.paths})
        for each in self.disk.disks.values():
            each.failed_sync_keeps_cache = random.random() < 0.5
        self.config = LogConfig(
            segment_bytes=random.choice((500, 1000)), index_interval_bytes=200,
            cleanup_policy=frozenset(
                {CleanupPolicy.COMPACT if random.random() < 0.2 else CleanupPolicy.DELETE}
            ),
        )  # fmt: skip
        self.threads = random.choice((1, 2, 3))
        self.crashes = 0
        self.handed_on = 0
        self.lives: dict[PartitionKey, Life] = {}
        """The partitions in use."""
        self.perhaps: dict[PartitionKey, list[Life | None]] = {}
        """Partitions whose creation or deletion was interrupted: the states that a restart may show; None is
        no partition."""
        self._ids = count(1)
        self._names = count()
        self._open(Random(seed))
        for each in self.disk.disks.values():
            each.lies = lies

    def run(self) -> None:
        """All steps, then a power cut; checks after each restart.  Raises Broken."""
        done: list[Step] = []
        try:
            for step in self.steps:
                done.append(step)
                self._step(*step)
            done.append(("crash", self.seed, 0))
            self.crash(self.seed, 0)
        except (PowerCut, Exception) as error:
            broken(self.seed, done, error)

    def _step(self, name: str, a: int, b: int) -> None:
        operation: Callable[[int, int], None] = getattr(self, name)
        operation(a, b)
        for life in self.lives.values():
            life.log.validate(whole=True)
            life.learn()

    def _life(self, a: int) -> Life | None:
        """A partition that can be used."""
        usable = [life for life in self.lives.values() if not life.log.is_offline]
        return usable[a % len(usable)] if usable else None

    # ---- of one log ----------------------------------------------------------------------------------------

    def produce(self, a: int, b: int) -> None:
        life = self._life(a)
        if life is not None:
            operation: Callable[[int, int], None] = getattr(life, _PRODUCE[(a >> 4) % len(_PRODUCE)])
            operation(a >> 8, b)

    def flush(self, a: int, _b: int) -> None:
        life = self._life(a)
        if life is not None:
            life.log.flush_now()

    def settle(self, a: int, _b: int) -> None:
        life = self._life(a)
        if life is not None:
            life.log.set_high_watermark(life.log.flushed_end_offset)
            life.model.watermark_most = max(life.model.watermark_most, life.log.high_watermark)

    def cut_front(self, a: int, b: int) -> None:
        life = self._life(a)
        if life is not None:
            low, high = life.log.log_start_offset, life.log.high_watermark
            target = low + b % (high - low + 1)
            life.start_most = max(life.start_most, target)
            life.model.start_most = max(life.model.start_most, target)
            life.log.advance_log_start(target)
            life.model.start = max(life.model.start, target)

    def checkpoint(self, _a: int, _b: int) -> None:
        self.folders.write_checkpoints()
        for life in self.lives.values():
            if not life.log.is_offline:
                life.start_noted = life.log.log_start_offset

    def check(self, a: int, b: int) -> None:
        for life in self.lives.values():
            if not life.log.is_offline:
                check_log(life.log, life.model, self.config, Random(a ^ b))

    # ---- partitions come and go ----------------------------------------------------------------------------

    def create(self, a: int, _b: int) -> None:
        """Creates a partition; or requests an existing one again."""
        key = KEYS[a % len(KEYS)]
        if key in self.perhaps:
            return
        old = self.lives.get(key)
        if old is not None:
            if not old.log.is_offline:
                assert self._make(old) is old.log, "an existing log was made again"
            return
        life = Life(key, UUID(int=next(self._ids)))
        self.perhaps[key] = [None, life]
        self._begin(life)

    def delete(self, a: int, _b: int) -> None:
        life = self._life(a)
        if life is None:
            return
        self._doom(life, None)
        self.folders.delete(*life.key)
        assert life.key not in self.folders.logs
        del self.perhaps[life.key]

    def recreate(self, a: int, _b: int) -> None:
        """The topic was deleted and created again while this node was down."""
        old = self._life(a)
        if old is None:
            return
        life = Life(old.key, UUID(int=next(self._ids)))
        self._doom(old, life)
        self._begin(life)

    def _doom(self, life: Life, successor: Life | None) -> None:
        del self.lives[life.key]
        self.perhaps[life.key] = [life, None] if successor is None else [life, None, successor]

    def _begin(self, life: Life) -> None:
        life.log = self._make(life)
        assert life.log.log_end_offset == life.log.log_start_offset == 0, "a new log has old records"
        self.lives[life.key] = life
        self._place(life)
        del self.perhaps[life.key]

    def _make(self, life: Life) -> Log:
        return self.folders.create(life.key[0], life.topic_id, life.key[1], self.config, now_ms=NOW_MS)

    def _place(self, life: Life) -> None:
        folder = self.folders.folder_of(*life.key)
        assert folder is not None
        assert life.place in (None, folder.path) or folder.path in life.may_be, (
            f"{life.key}: {life.place}, now {folder.path}"
        )
        life.place = folder.path

    # ---- faults --------------------------------------------------------------------------------------------

    def full(self, a: int, b: int) -> None:
        """A disk without room refuses writes and stays in use; deletions work, because they are what frees
        room."""
        name = self.CUT[a % (len(self.CUT) - 1)]
        disk = list(self.disk.disks.values())[b % len(self.paths)]
        disk.full_after = (b >> 4) % 8
        lives = dict(self.lives)
        try:
            self._step(name, b, a)
        except (KafkaError, OSError):
            assert name != "delete", "nothing can be deleted on a full disk"
            assert not self.folders.offline_folders, f"{name} on a full disk took a folder offline"
        finally:
            disk.full_after = None
        for key, life in lives.items():
            if key in self.lives and self.lives[key] is life and name == "cut_front":
                life.start_most = max(life.start_most, life.log.log_start_offset)
        # a restart completes or undoes half-done changes, and changes without a note
        if self.perhaps or name == "cut_front":
            self.close(a, b)

    def disk_fails(self, a: int, b: int) -> None:
        """A sync fails on one disk: its logs are offline, the others go on; after a restart all acknowledged
        records exist."""
        place = self.paths[b % len(self.paths)]
        disk = self.disk.disks[place]
        disk.fail_sync_after = (b >> 4) % 4
        name = self.CUT[a % (len(self.CUT) - 1)]
        failed = False
        try:
            self._step(name, b, a)
        except (KafkaError, OSError):
            failed = True
        fired = disk.fail_sync_after is None
        disk.fail_sync_after = None
        if failed and fired:
            assert self.folders.offline_folders == [place], (
                f"a sync failed in {place}, offline is {self.folders.offline_folders}"
            )
        for life in self.lives.values():
            if life.place == place and fired and failed:
                assert life.log.is_offline, f"{life.key} is in use on a failed disk"
                self._must_refuse(life)
            elif life.place != place:
                assert not life.log.is_offline, f"{life.key} is on another disk, and offline"
                life.append(a, b)
                life.log.flush_now()
                life.learn()
        if failed or self.folders.offline_folders:
            (self.crash if a & 64 else self.kill)(a, b)

    @staticmethod
    def _must_refuse(life: Life) -> None:
        before = life.log.flushed_end_offset
        orders: tuple[Callable[[], None], ...] = (partial(life.append, 1, 1), life.log.flush_now)
        for order in orders:
            try:
                order()
            except KafkaError:
                continue
            raise AssertionError(f"{life.key} on a failed disk still takes orders")
        assert life.log.flushed_end_offset == before

    # ---- ends and restarts ---------------------------------------------------------------------------------

    def close(self, a: int, b: int) -> None:
        try:
            self.folders.close(clean=True, broker_epoch=5)
        except (KafkaError, OSError):
            self.disk.kill()
        else:
            for life in self.lives.values():
                life.flushed = life.end_of_batches(life.log.log_end_offset)
                life.start_noted = life.log.log_start_offset
            self.disk.kill()
        self._restarted(a, b)

    def kill(self, a: int, b: int) -> None:
        self.disk.kill()
        self._restarted(a, b)

    def crash(self, a: int, b: int) -> None:
        self.crashes += 1
        self.disk.crash(Random(a))
        self._restarted(a, b)

    def cut(self, a: int, b: int) -> None:
        """The power fails in the middle of an operation, at a step of one disk."""
        for disk in self.disk.disks.values():
            disk.cut_after = 1 << 30
        list(self.disk.disks.values())[b % len(self.paths)].cut_after = (b >> 4) % 14
        with contextlib.suppress(PowerCut):
            self._step(self.CUT[a % len(self.CUT)], b, a)
        self.crash(a, b)

    def cut_open(self, a: int, b: int) -> None:
        """The power fails repeatedly while the logs are opened."""
        for turn in range(1 + a % 3):
            self.crashes += 1
            self.disk.crash(Random(a + turn))
            list(self.disk.disks.values())[(b + turn) % len(self.paths)].cut_after = (b >> 4 >> turn) % 25
            with contextlib.suppress(PowerCut):
                self._open(Random(b + turn))
        self.crash(a + 3, b)

    def _open(self, random: Random) -> None:
        turns = SeededThreads(self.threads, random)
        for disk in self.disk.disks.values():
            disk.on_call = turns.hand_on
        self.folders = DataFolders(
            self.disk, self.paths, "cluster", 1, lambda: f"id-{next(self._names)}",
            FolderOptions(recovery_threads=self.threads, recovery_pool=lambda _threads: turns),
        )  # fmt: skip
        report = self.folders.open_all(lambda _topic: self.config, now_ms=NOW_MS)
        self.handed_on += turns.handed_on
        assert not report.failed, f"a log cannot be opened: {report.failed}"

    def _restarted(self, a: int, b: int) -> None:
        """Every partition is as before, or, after an interrupted operation, in one of its possible states;
        there are no others."""
        self._open(Random(a ^ b))
        for key, may_be in self.perhaps.items():
            topic_id = self.folders.topic_ids.get(key)
            found = next((life for life in may_be if life is not None and life.topic_id == topic_id), None)
            assert found is not None or (topic_id is None and None in may_be), (
                f"{key} is {topic_id}, no log is known to have it"
            )
            if found is not None:
                self.lives[key] = found
        self.perhaps.clear()
        there = self.folders.logs
        assert there.keys() == self.lives.keys(), (
            f"partitions are {sorted(there)}, should be {sorted(self.lives)}"
        )
        for key, life in self.lives.items():
            assert self.folders.topic_ids[key] == life.topic_id, (
                f"{key} is {self.folders.topic_ids[key]}, not {life.topic_id}"
            )
            life.log = there[key]
            self._place(life)
            life.came_back()
        self._check_folders()
        self.check(a, b)

    def _check_folders(self) -> None:
        """No folder of an interrupted creation or deletion is left."""
        for folder in self.folders.folders:
            self._check_names(folder)

    def _check_names(self, folder: LogDirectory) -> None:
        mine = {f"{topic}-{partition}" for topic, partition in folder.logs}
        names = set(self.disk.list_names(folder.path))
        strange = [
            name for name in names - mine if name.rpartition("-")[2].isdigit() or name.endswith("-delete")
        ]
        assert not strange, f"{folder.path} has {strange}"
