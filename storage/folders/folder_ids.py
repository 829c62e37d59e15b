"""The ids of a node's data folders, stored in each of them (`data-folders`), and the node's identity that
follows from them.

The identity that the node reports to the cluster is that of its first folder, until one of its folders is
missing: then it is a new one, which counts as a replaced disk.  A folder that fails is not missing, because
it may come back with its data.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from ...runtime import logs
from ...runtime.disk import OUT_OF_SPACE, Disk
from ..checkpoint import CheckpointInvalid, RowShapes, decode_checkpoint, encode_checkpoint
from ..directory.folder_owner import DirectoryRefused

DATA_FOLDERS = "data-folders"
DATA_FOLDERS_SHAPES = RowShapes({1: 2}, writes=1)
_NODE, _MEMBER = "node", "member"
log = logs.get(__name__)


class FolderIds:
    """See the module's text."""

    def __init__(self, disk: Disk, fresh_id: Callable[[], str]) -> None:
        self.directory_id = ""
        """The node's identity, from `settle` on."""
        self._disk = disk
        self._fresh_id = fresh_id
        self._content = b""
        self._unwritten: set[Path] = set()

    def settle(self, opened: Mapping[Path, str], *, failed_count: int) -> None:
        """Sets the node's identity by the ids of the folders that are open; unless some have failed, every
        folder stores the ids of all.  Raises DirectoryRefused, OSError."""
        present = list(opened.values())
        if len(set(present)) != len(present):
            raise DirectoryRefused(
                f"two of the data folders have the same id ({', '.join(present)}): is one a copy of "
                "the other?"
            )
        known: set[str] = set()
        nodes: list[str] = []
        for path in opened:
            node, members = self._read(path / DATA_FOLDERS)
            known |= members
            nodes += [node] if node else []
        missing = known - set(present)
        if len(missing) > failed_count:
            log.error(
                "data_folder_is_missing",
                directory_ids=sorted(missing),
                consequence="counts as a replaced disk",
            )
            self.directory_id = self._fresh_id()
        else:
            self.directory_id = nodes[0] if nodes else present[0]
        if not failed_count and self.directory_id and all(present):
            rows = [(_NODE, self.directory_id), *((_MEMBER, each) for each in sorted(present))]
            self._content = encode_checkpoint(rows, DATA_FOLDERS_SHAPES.writes)
            self._unwritten = {path / DATA_FOLDERS for path in opened}
            self.write()

    def _read(self, path: Path) -> tuple[str, set[str]]:
        if not self._disk.exists(path):
            return "", set()
        try:
            rows = decode_checkpoint(self._disk.read(path), DATA_FOLDERS_SHAPES)
        except CheckpointInvalid as error:
            raise DirectoryRefused(
                f"{path} is damaged ({error}): whether all folders are here cannot be known"
            ) from error
        node = next((value for kind, value in rows if kind == _NODE), "")
        return node, {value for kind, value in rows if kind == _MEMBER}

    def write(self) -> None:
        """Writes the ids into each folder that does not have them; on a full disk, a later call tries again.
        Raises OSError."""
        for path in sorted(self._unwritten):
            try:
                if not self._disk.exists(path) or self._disk.read(path) != self._content:
                    self._disk.write_atomic(path, self._content)
                self._unwritten.discard(path)
            except OSError as error:
                if error.errno not in OUT_OF_SPACE:
                    raise
                log.warning("data_folders_not_noted", path=path, reason=error)
