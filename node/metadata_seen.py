"""How far the cluster's metadata has come, as this broker's data folders remember it.

    metadata-seen           an index of the metadata log, and 1 once another metadata was met

A quorum whose disks were all lost is formed anew under the same `cluster.id`, and knows of no topic.  A broker that followed it
would remove every log it has as one of a deleted topic: perhaps the last copies there are.  But an epoch that a broker gets when
it registers is the index of that very entry, so in one and the same metadata it is above whatever the broker has applied before.

Every folder has the note: the disk that was lost may be this node's, too.  It may be older than the truth, never newer.  That
another metadata was met is kept: each further start, too, adds entries there, until their number proves nothing any more.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ..runtime import logs
from ..storage.checkpoint import CheckpointInvalid, decode_checkpoint, encode_checkpoint

if TYPE_CHECKING:
    from ..runtime.disk import Disk

METADATA_SEEN: Final = "metadata-seen"
log = logs.get(__name__)


class MetadataSeen:
    """The notes of one node; not to be used by two threads at a time."""

    def __init__(self, disk: Disk, folders: Sequence[Path]) -> None:
        self._disk = disk
        found = [self._read(folder / METADATA_SEEN) for folder in folders]
        self.index = max((index for index, _ in found), default=0)
        """The highest that any folder remembers; 0: none does."""
        self._met_another = any(another for _, another in found)

    def _read(self, path: Path) -> tuple[int, bool]:
        try:
            if self._disk.exists(path):
                ((index, another),) = decode_checkpoint(self._disk.read(path), 2)
                return int(index), another != "0"
        except (OSError, CheckpointInvalid, ValueError) as error:
            log.warning("metadata_seen_not_read", path=path, reason=error)
        return 0, False

    def note(self, index: int, folders: Sequence[Path]) -> None:
        """Durable when it returns, wherever there is room."""
        if index > self.index:
            self.index = index
            self._write(folders)

    def _write(self, folders: Sequence[Path]) -> None:
        for folder in folders:
            try:
                self._disk.write_atomic(folder / METADATA_SEEN, encode_checkpoint([(self.index, int(self._met_another))]))
            except OSError as error:
                log.warning("metadata_seen_not_noted", path=folder, reason=error)

    def refusal(self, broker_epoch: int, folders: Sequence[Path]) -> str | None:
        """Why this node must not follow the metadata that has given it this epoch; None when it may."""
        if broker_epoch > self.index and not self._met_another:
            return None
        self._met_another = True
        self._write(folders)
        return (
            f"the cluster's metadata was begun anew (entry {broker_epoch}; what is kept here is of entry {self.index})"
            " and would have every log here removed: see 'The metadata was begun anew' in operations.md"
        )
