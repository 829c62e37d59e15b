"""Renames the folder of a log durably to `<n>-delete` or `<n>-damaged`, and removes the content of a deleted
one afterwards.

The new name is short, because the topic's name may already be as long as the file system allows.  The thread
of the file deleter removes the content, when there is one; the next start removes what a crash leaves.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path
from uuid import UUID

from ...runtime import logs
from ...runtime.disk import Disk
from ..durability.flush_notes import identity_of
from ..log.log import Log
from ..log.removal import Removal
from .async_delete import AsyncFileDeleter
from .folder_notes import FolderNotes, PartitionKey

DELETE_SUFFIX = "-delete"
FUTURE_SUFFIX = "-future"
log = logs.get(__name__)


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
        target = self._folder / next(
            name for n in range(len(taken) + 1) if (name := f"{n}{suffix}") not in taken
        )
        self._disk.rename(self._folder / f"{key[0]}-{key[1]}", target)
        self._disk.sync_directory(self._folder)
        # Only now: a crash before it would leave a log without its recovery point, and damage would look like
        # a torn tail.
        self._notes.forget_if_room(key, identity_of(topic_id, key[1]) if topic_id is not None else None)
        return target

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

        if self._file_deleter is None or not self._file_deleter.submit(
            lambda: self._disk.remove_tree(path), done
        ):
            self._disk.remove_tree(path)

    def remove_in_background(self, owner: Log, removal: Removal) -> bool:
        """Removes segments at the front of a log in use (`removal`)."""

        def work() -> None:
            removal.run()
            removal.erase()

        return self._file_deleter is not None and self._file_deleter.submit(
            work, lambda error: owner.local.removals.finish(removal, error)
        )
