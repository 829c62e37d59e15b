"""Folders of logs that have lost their names: renamed durably to `<n>-delete` or `<n>-damaged`, and what goes of them afterwards.

The short name: the topic's may already be as long as the file system allows.  The content goes in the file_deleter's thread,
if there is one; what a crash leaves of it goes at the next start.
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


class Nameless:
    """Of one data folder; see the module's text.  Used on the loop's thread."""

    def __init__(
        self, disk: Disk, folder: Path, notes: FolderNotes, file_deleter: AsyncFileDeleter | None, make_room: Callable[[], None]
    ) -> None:
        self._disk = disk
        self._folder = folder
        self._notes = notes
        self._file_deleter = file_deleter
        self._make_room = make_room
        self._staged = count()

    def take_name_away(self, key: PartitionKey, topic_id: UUID | None, suffix: str) -> Path:
        """Durably; what was noted of the log goes too.  Returns the folder as it is called now.  Raises OSError."""
        self._make_room()
        taken = set(self._disk.list_names(self._folder))
        target = self._folder / next(name for n in range(len(taken) + 1) if (name := f"{n}{suffix}") not in taken)
        self._disk.rename(self._folder / f"{key[0]}-{key[1]}", target)
        self._disk.sync_directory(self._folder)
        # Only now: a crash in between would leave a log without its recovery point, whose damage then passes for a torn tail.
        self._notes.forget_if_room(key, identity_of(topic_id, key[1]) if topic_id is not None else None)
        return target

    def delete(self, key: PartitionKey, topic_id: UUID | None) -> None:
        """First the name, durably, then the content.  Raises OSError."""
        self.remove_tree(self.take_name_away(key, topic_id, DELETE_SUFFIX))

    def fresh_path(self) -> Path:
        """For a folder that has no name yet; another one each time."""
        return self._folder / f"{next(self._staged)}{FUTURE_SUFFIX}"

    def remove_tree(self, path: Path) -> None:
        """A folder that has lost its name.  Raises OSError when there is no file_deleter."""

        def done(error: Exception | None) -> None:
            if error is not None:
                log.warning("deleted_log_not_removed", path=path, reason=error, consequence="it goes at the next start")

        if self._file_deleter is None or not self._file_deleter.submit(lambda: self._disk.remove_tree(path), done):
            self._disk.remove_tree(path)

    def remove_in_background(self, owner: Log, removal: Removal) -> bool:
        """Segments at the front of a log in use (`removal`)."""

        def work() -> None:
            removal.run()
            removal.erase()

        return self._file_deleter is not None and self._file_deleter.submit(
            work, lambda error: owner.removals.finish(removal, error)
        )
