"""Data folders on small file systems of their own, so that they can be filled to the last byte.

    with SmallDisks([folder], size_bytes=32 << 20):
        fill(folder)      # from now on every write that needs room fails with ENOSPC
        empty(folder)     # there is room again

Each is a tmpfs; a helper process (undo.py) mounts it, and unmounts it when this process calls `undo` or ends.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from ...runtime.disk import RealDisk
from .undo import MissingRight, UndoProcess

BALLAST: Final = "ballast"
PIECES: Final = (1 << 20, 1 << 12)
"""The ballast grows by these sizes until not even the last fits."""
MOUNT: Final = (
    'mount -t tmpfs -o "size=$2,mode=700" tidegate-chaos "$1" || exit 1; echo ready; cat >/dev/null; '
    'umount --lazy "$1"'
)
_DISK: Final = RealDisk()


class SmallDisks:
    """See the module's text."""

    def __init__(self, folders: Sequence[Path], size_bytes: int) -> None:
        self._folders = list(folders)
        self._size_bytes = size_bytes
        self._mounts: dict[Path, UndoProcess] = {}

    def __enter__(self) -> Self:
        """Mounts them, empty.  Raises MissingRight where that is not permitted."""
        try:
            for folder in self._folders:
                _DISK.make_directory(folder)
                self._mounts[folder] = UndoProcess(MOUNT, [str(folder), str(self._size_bytes)])
        except BaseException as error:
            self.__exit__(None, None, None)
            if isinstance(error, MissingRight):
                raise MissingRight(
                    f"NO SMALL DISK CAN BE MOUNTED HERE, so nothing was tried: {error}; run as root"
                ) from error
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for mount in self._mounts.values():
            mount.undo()
        self._mounts.clear()


def fill(folder: Path) -> None:
    """Uses all free bytes; a second call uses the bytes that were freed since."""
    file = _DISK.open(folder / BALLAST, create=True)
    try:
        end = file.size()
        for piece in PIECES:
            try:
                while True:
                    file.write_at(end, bytes(piece))
                    end += piece
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
                end = file.size()
    finally:
        file.close()


def empty(folder: Path) -> None:
    """Frees the bytes that `fill` used; does nothing for a folder that is not filled."""
    if _DISK.exists(folder / BALLAST):
        _DISK.remove(folder / BALLAST)
