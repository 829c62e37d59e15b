"""One voter: a process, and the host that it runs on.

The process is killed, paused and started (`process`).  The host's power goes, its disk is slow, full, fails
to sync, or is lost. A member stops by itself only when its disk fails (fail-stop): for any other reason it is
a broken promise.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from random import Random

from ....controller.raft.core import RaftCore
from ....controller.raft.journal import DurableJournal
from ....controller.raft.messages import Message
from ....controller.raft.snapshot_store import SnapshotStore
from ....controller.raft.thread import Event
from ....controller.raft.voter import Voter
from ..disk import Lie, LyingDisk, PowerCut
from .ledger import Ledger
from .machine import Machine
from .network import Network
from .options import QuorumOptions
from .process import Process
from .promises import Promises
from .schedule import Schedule

DATA = Path("/data")  # a mounted disk: it exists from the start
METADATA = DATA / "metadata"
FOLDER = METADATA / "raft"


@dataclass(slots=True, frozen=True)
class Parts:
    """What every member is made of: the product's own classes; an ablation replaces one."""

    voter_class: type[Voter] = Voter
    journal_class: type[DurableJournal] = DurableJournal
    snapshots_class: type[SnapshotStore] = SnapshotStore
    machine_class: type[Machine] = Machine
    lies: Lie = Lie.NONE


class Outbox:
    """Where a core's messages leave."""

    def __init__(self, node_id: int, journal: DurableJournal, promises: Promises, network: Network) -> None:
        self._node_id, self._journal, self._promises, self._network = node_id, journal, promises, network

    def send(self, node_id: int, message: Message) -> None:
        self._promises.sent(self._journal, message)
        self._network.send(self._node_id, node_id, message)


class Member:
    """See the module's text."""

    def __init__(
        self,
        process: Process,
        network: Network,
        schedule: Schedule,
        ledger: Ledger,
        options: QuorumOptions,
        parts: Parts,
    ) -> None:
        self.process, self.node_id = process, process.node_id
        self._network, self._schedule, self._ledger = network, schedule, ledger
        self._options, self._parts = options, parts
        self.disk = self._new_disk()
        self.disk_was_lost = False
        """And `Cluster.without_vote` has not found the member voting again since."""
        self.machine: Machine | None = None
        self.stays_down = False
        self.cut_is_of_power = True
        self.power_follows = False
        self._fate = Random(f"disk {self.node_id} of {options.seed}")

    def _new_disk(self) -> LyingDisk:
        disk = LyingDisk(self._parts.lies)
        disk.make_directory(DATA)
        disk.failed_sync_keeps_cache = self._schedule.random.random() < 0.7
        return disk

    @property
    def core(self) -> RaftCore | None:
        return self.process.core

    @property
    def is_up(self) -> bool:
        return self.process.is_up

    # ---- the process ---------------------------------------------------------------------------------------

    def start(self) -> None:
        if self.is_up or self.stays_down:
            return
        self.process.start(self._open, self._disk_fails)
        if not self.is_up:
            self.disk.kill()
            self._schedule.after(0.2 + self._schedule.random.random(), self.start)

    def _open(self) -> RaftCore:
        parts, options, random = self._parts, self._options, self._schedule.random
        self.disk.make_directory(METADATA)
        new_id = random.getrandbits(64) | 1
        journal = parts.journal_class(self.disk, FOLDER, node_id=self.node_id, new_id=new_id)
        snapshots: SnapshotStore = parts.snapshots_class(self.disk, FOLDER)
        machine = parts.machine_class(self.process, snapshots, self._ledger, self._schedule, options)
        core = RaftCore(
            self.node_id,
            options.ids,
            journal,
            snapshots,
            machine,
            Outbox(self.node_id, journal, self._ledger.promises[self.node_id], self._network),
            timings=options.timings,
            random=random.random,
            now=lambda: self._schedule.now,
            voter_class=parts.voter_class,
        )
        self.machine = machine
        return core

    def _end(self, *, silently: bool) -> None:
        self.machine = None
        self.process.end()
        self._network.lose(self.node_id, silently=silently)
        self._schedule.after(0.05 + self._schedule.random.random() ** 2 * 1.2, self.start)

    def kill(self) -> None:
        """SIGKILL: all written bytes stay in the page cache."""
        if self.is_up:
            self.disk.kill()
            self._end(silently=False)

    def post(self, event: Event) -> None:
        self.process.post(event)

    # ---- the host ------------------------------------------------------------------------------------------

    def cut_power(self) -> None:
        """Unsynced writes are lost, torn or reordered; also those that an earlier, killed process left in the
        page cache."""
        self.disk.crash(self._fate)
        if self.is_up:
            self._end(silently=True)

    def _cut_power_soon_after_start(self) -> None:
        self.power_follows = False
        self._schedule.after(0.0, self.start)
        self._schedule.after(self._schedule.random.random() ** 2 * 0.5, self.cut_power)

    def lose_disk(self) -> None:
        """An empty disk replaces the lost one."""
        self.kill()
        self.disk, self.disk_was_lost = self._new_disk(), True
        self._network.forget(self.node_id)
        self._ledger.disk_lost(self.node_id)

    def _disk_fails(self, failure: PowerCut | OSError) -> None:
        if isinstance(failure, OSError):
            self._ledger.counts["disk failures"] += 1
            self.kill()
        elif self.cut_is_of_power:
            self.cut_power()
        else:
            self.kill()
            if self.power_follows:
                self._cut_power_soon_after_start()
