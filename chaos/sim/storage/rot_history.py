"""Random histories of one log that end with a flipped bit, anywhere in the data folder: the log finds the
rot, or it does no harm.

* In the batches: every batch that a restart knows to be flushed exists, byte for byte, or the damage shows:
  the log is refused, a read fails, or the batch fails its checksum, which every client verifies.  A refused
  log is not truncated.
* In the derived files and notes (indexes, snapshots, checkpoints, the epoch history): the log answers as
  before.

Fields that Kafka's format leaves outside of the checksum, the base offset and the leader epoch of a batch,
are checked where a read begins, by recovery, and by followers; a flipped one may be read in between, which
`tidegate log verify` finds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from random import Random

from ....storage.checkpoint import CheckpointInvalid
from ....storage.directory.creation import PARTITION_METADATA
from ....storage.directory.folder_notes import PARTITION_CHECKPOINT, decode_partition_checkpoint
from ....storage.directory.log_directory import META_PROPERTIES, DirectoryRefused, LogDirectory
from ....storage.log.log_start import LOG_START
from ....wire.errors import KafkaError
from ....wire.records import iterate_headers, validate_batch
from ..disk import Lie
from ..runs import Step
from .checks import check_log, check_survivors
from .log_history import PARTITION, ROOT, TOPIC, Shape, StorageHistory
from .steps import NOW_MS

_UNPROTECTED_BYTES = 16
"""Base offset, length and leader epoch of a batch: its checksum does not cover them."""


class RotHistory(StorageHistory):
    """See the module's text.  A list of steps ends with its first `rot`."""

    def __init__(
        self, seed: int = 0, *, lies: Lie = Lie.NONE, steps: Sequence[Step] | None = None, length: int = 14,
        shape: Shape | None = None,
    ) -> None:  # fmt: skip
        super().__init__(seed, lies=lies, steps=steps, length=length, shape=shape)
        if steps is None:
            random = Random(seed ^ 0x5EED)
            self.steps.append(("rot", random.randrange(1 << 20), random.randrange(1 << 20)))
        self.rotten: Path | None = None
        self.outcomes: Counter[str] = Counter()

    def crash(self, a: int, b: int) -> None:
        if self.rotten is None:
            super().crash(a, b)

    def rot(self, a: int, b: int) -> None:
        """The node stops, a bit flips, the node starts; or the bit flips while it runs."""
        if self.rotten is not None:
            return
        manner = ("kill", "power", "close", "running")[(b >> 3) % 4]
        self.ticket = None
        if manner == "power":
            self.disk.crash(Random(a))
        elif manner == "close":
            self.directory.close(clean=True, broker_epoch=5)
            self.flushed = self._end_of_batches(self.model.end)
        if manner in ("kill", "close"):
            self.disk.kill()
        known = self.flushed if manner == "running" else min(self.flushed, self._known_to_be_flushed())
        before = self._flip(a, b)
        assert self.rotten is not None
        if manner != "running" and not self._opens(before):
            return
        if self.rotten.suffix == ".log":
            self._check_batches(known, before)
        elif manner != "running":  # else memory has the content of the files
            self._check_all(a ^ b)

    def _flip(self, a: int, b: int) -> bytes:
        """Flips one bit of one file with content; returns the content before."""
        files = [path for path in self.disk.files() if self.disk.size(path)]
        logs = [path for path in files if path.suffix == ".log"]
        chosen = logs if logs and b & 1 else files
        self.rotten = chosen[a % len(chosen)]
        before = self.disk.read(self.rotten)
        self.position = (a >> 6) % len(before)
        self.disk.flip_bit(self.rotten, self.position, (b >> 5) % 8)
        return before

    def _known_to_be_flushed(self) -> int:
        """The flushed end by the notes on the disk: a checkpoint's recovery point, or a snapshot above it."""
        known, path = 0, ROOT / PARTITION_CHECKPOINT
        if self.disk.exists(path):
            try:
                noted = decode_partition_checkpoint(self.disk.read(path)).values()
                known = max((row.recovery_point for row in noted), default=0)
            except CheckpointInvalid:
                return 0
        folder = self.directory.path_of((TOPIC, PARTITION))
        names = self.disk.list_names(folder) if self.disk.exists(folder) else []
        snapshots = [int(name[:-9]) for name in names if name.endswith(".snapshot")]
        return max(known, *snapshots) if known and snapshots else known

    def _opens(self, before: bytes) -> bool:
        """Whether the log is online after a start; if not, the check demands a good reason and all its
        bytes."""
        assert self.rotten is not None
        self.directory = LogDirectory(self.disk, ROOT, "cluster", 1)
        try:
            report = self.directory.open_all(lambda _topic: self.config, now_ms=NOW_MS)
        except DirectoryRefused:
            assert self.rotten.name == META_PROPERTIES, (
                f"a bit of {self.rotten} makes the folder another node's"
            )
            self.outcomes["folder refused"] += 1
            return False
        if report.failed:
            self.outcomes["log refused"] += 1
            right = (
                self.rotten.suffix in (".log", ".swap", ".txnindex") or self.rotten.name == PARTITION_METADATA
            )
            right = right or (self.rotten.suffix == ".snapshot" and self._has_lost_its_beginning())
            assert right, f"a bit of {self.rotten} takes the log out of use: {report.failed}"
            after = bytearray(self.disk.read(self.rotten))
            after[self.position] = before[self.position]
            assert after == before, "a log that is refused was changed"
            return False
        self.log = self.directory.logs[(TOPIC, PARTITION)]
        self.log.validate(whole=True)
        return True

    def _has_lost_its_beginning(self) -> bool:
        """Whether batches were removed at the front: then only snapshots know their producers."""
        folder = self.directory.path_of((TOPIC, PARTITION))
        return min(int(name[:-4]) for name in self.disk.list_names(folder) if name.endswith(".log")) > 0

    def _check_batches(self, known: int, before: bytes) -> None:
        """Every batch known to be flushed reads as before, or its damage shows."""
        wanted = {b.header.base_offset: b.data for b in self.model.visible() if b.header.next_offset <= known}
        offset, end = self.log.log_start_offset, self.log.log_end_offset
        for base in [base for base in wanted if base + 1 <= offset]:
            del wanted[base]
        while offset < end:
            try:
                result = self.log.read(offset, 300, upper_offset=end)
            except KafkaError:
                assert self.log.is_offline
                self.outcomes["read refused"] += 1
                return
            if not result.data:
                break
            try:
                batches = [
                    bytes(result.data[at : at + h.size_bytes]) for at, h in iterate_headers(result.data)
                ]
                headers = [validate_batch(memoryview(data)) for data in batches]
            except KafkaError:
                self.outcomes["checksum wrong"] += 1
                return
            for header, data in zip(headers, batches, strict=True):
                expected = wanted.pop(header.base_offset, None)
                if (expected is not None and expected != data) or self._is_strange(header.base_offset):
                    assert self._in_unprotected(before), f"the batch at {header.base_offset} is another one"
                    self.outcomes["outside of the checksum"] += 1
                    return
            offset = result.next_offset
        if wanted and self._in_unprotected(before):
            self.outcomes["outside of the checksum"] += 1
            return
        assert not wanted, f"the batches at {sorted(wanted)} were flushed and are gone, and nothing says so"
        self.outcomes["no harm"] += 1

    def _is_strange(self, base: int) -> bool:
        """Whether no batch with this base offset was ever appended."""
        return not any(b.header.base_offset == base for b in self.model.batches)

    def _in_unprotected(self, before: bytes) -> bool:
        try:
            for at, _header in iterate_headers(before):
                if at <= self.position < at + _UNPROTECTED_BYTES:
                    return True
        except KafkaError:  # a power cut may have left any bytes from here on
            pass
        return False

    def _check_all(self, seed: int) -> None:
        """Whichever other file is damaged, the log answers as before."""
        assert self.rotten is not None
        # The log start is in two files, and for some seconds after a deletion only in one of them.
        noted = 0 if self.rotten.name in (PARTITION_CHECKPOINT, LOG_START) else self.start_noted
        check_survivors(self.log, self.model, self.flushed, noted, self.start_most)
        if self.limit:
            self._adopt_cleaned()
        try:
            self.log.aborted_transactions(self.log.log_start_offset, self.log.log_end_offset)
        except KafkaError:
            assert self.rotten.suffix == ".txnindex"
            assert self.log.is_offline
            self.outcomes["look-up refused"] += 1
            return
        check_log(
            self.log, self.model, self.config, Random(seed), times=50, indexes=self.rotten.suffix != ".index"
        )
        self.outcomes[f"no harm: {self.rotten.suffix or self.rotten.name}"] += 1
