"""Renames the folder of a log durably to `<topic>-<partition>.<n>-delete` or `<n>-damaged`, and removes the
content of a deleted one afterwards.

The name of a deleted log is Kafka's: it says whose row of the checkpoint has to go.  A crash between the
renaming and the forgetting of the row leaves both, and the next start forgets the row before it removes the
folder.  The thread of the file deleter removes the content, when there is one; the next start removes what a
crash leaves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import count
from pathlib import Path
from uuid import UUID

from ...runtime import logs
from ...runtime.disk import Disk
from ..durability.flush_notes import identity_of
from ..log.hooks import Done, Work
from .async_delete import AsyncFileDeleter
from .folder_notes import FolderNotes, PartitionKey

DELETE_SUFFIX = "-delete"
FUTURE_SUFFIX = "-future"
TOPIC_CHARS_MAX = 200
"""Of a topic's name, in the name of a deleted log: a whole name may leave no room for what follows it."""
log = logs.get(__name__)


def deleted_keys(rows: Iterable[PartitionKey], names: Iterable[str]) -> list[PartitionKey]:
    """Of the partitions that a checkpoint has rows of, those whose log is deleted: of the names in the data
    folder, one is that of the renamed log, and none is that of the log."""
    there = set(names)
    deleted = {
        name.removesuffix(DELETE_SUFFIX).rpartition(".")[0] for name in there if name.endswith(DELETE_SUFFIX)
    }
    return [key for key in rows if _stem(key) in deleted and f"{key[0]}-{key[1]}" not in there]


def _stem(key: PartitionKey) -> str:
    return f"{key[0][:TOPIC_CHARS_MAX]}-{key[1]}"


class RenamedFolders:
    """The renamed folders of one data folder; see the module's text.  Used on the loop's thread."""

    def __init__(
        self,
        disk: Disk,
        folder: Path,
        notes: FolderNotes,
        file_deleter: AsyncFileDeleter | None,
        make_room: Callable[[], None],
    ) -> None:
        self._disk = disk
        self._folder = folder
        self._notes = notes
        self._file_deleter = file_deleter
        self._make_room = make_room
        self._staged = count()

    def take_name_away(self, key: PartitionKey, topic_id: UUID | None, suffix: str) -> Path:
        """Renames the folder of the log durably and removes the notes of the log.  Returns the new path.
        Raises OSError."""
        self._make_room()
        taken = set(self._disk.list_names(self._folder))
        prefix = f"{_stem(key)}." if suffix == DELETE_SUFFIX else ""
        target = self._folder / next(name for n in count() if (name := f"{prefix}{n}{suffix}") not in taken)
        self._disk.rename(self._folder / f"{key[0]}-{key[1]}", target)
        self._disk.sync_directory(self._folder)
        # Only now: a crash before it would leave a log without its recovery point, and damage would look like
        # a torn tail.
        self._notes.forget_if_room([key], identity_of(topic_id, key[1]) if topic_id is not None else None)
        return target

    def remove_leftovers(self, names: Sequence[str]) -> None:
        """At a start, before a log is opened: removes what deletions and moves that a crash cut short have
        left among `names`, first the rows of deleted logs.  Where a crash has kept the old name beside the
        new one, the folder under the old name is empty from here on.  The caller syncs the folder.  Raises
        OSError."""
        deleted = deleted_keys(self._notes.rows, names)
        if deleted:
            self._disk.sync_directory(self._folder)  # a killed process may not have done it
            self._notes.forget_if_room(deleted, None)
        for name in names:
            if name.endswith((DELETE_SUFFIX, FUTURE_SUFFIX)):
                self._disk.remove_tree(self._folder / name)

    def delete(self, key: PartitionKey, topic_id: UUID | None) -> None:
        """Renames the folder durably, then removes its content.  Raises OSError."""
        self.remove_tree(self.take_name_away(key, topic_id, DELETE_SUFFIX))

    def fresh_path(self) -> Path:
        """A path for a folder that has no name yet; a new one at each call."""
        return self._folder / f"{next(self._staged)}{FUTURE_SUFFIX}"

    def remove_tree(self, path: Path) -> None:
        """Removes a renamed folder.  Raises OSError when there is no file_deleter."""

        def done(error: Exception | None) -> None:
            if error is not None:
                log.warning(
                    "deleted_log_not_removed",
                    path=path,
                    reason=error,
                    consequence="it goes at the next start",
                )

        if not self.in_background(lambda: self._disk.remove_tree(path), done):
            self._disk.remove_tree(path)

    def in_background(self, work: Work, done: Done) -> bool:
        """See `AsyncFileDeleter.submit`; False when there is none."""
        return self._file_deleter is not None and self._file_deleter.submit(work, done)
