"""What a reader on a node's own machine reads itself: the node says where the records stand in its file.

The reader has no more rights by this: it opens the file as its own user, and one that may not gets the
records over the connection.  Only a file with the device and inode that the node has open is read, and the
node says afterwards whether what was read counts.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from ...proto import data_pb2
from ...proto.range_chunks import RecordsChunk
from ...runtime.disk import FileIdentity, RealDisk, RealFile

PIECE_BYTES: Final = 8 << 20
"""Of a slow disk each is a sign of life."""


class LocalFiles:
    """The file of one read after the other; one is open at a time."""

    def __init__(self) -> None:
        self._disk = RealDisk()
        self._identity: FileIdentity | None = None
        self._file: RealFile | None = None

    def read(self, told: data_pb2.FileChunk, bytes_max: int, heard: Callable[[], None]) -> RecordsChunk:
        """The chunk with its records.  `heard` is called after each piece.  Raises OSError, also for bytes
        that the file does not have, or for more than `bytes_max`."""
        if not 0 < told.length <= bytes_max or told.position < 0:
            raise OSError(f"{told.length} bytes at {told.position} of a file are no chunk")
        file = self._open(Path(os.fsdecode(told.path)), FileIdentity(told.device, told.inode))
        pieces = []
        position, end = told.position, told.position + told.length
        while position < end:
            piece = file.read_at(position, min(PIECE_BYTES, end - position))
            if not piece:
                raise OSError(f"{file.path} ends at {position}, {end - position} bytes too early")
            pieces.append(piece)
            position += len(piece)
            heard()
        return RecordsChunk(told.chunk, pieces[0] if len(pieces) == 1 else b"".join(pieces))

    def close(self) -> None:
        """The room of a file that was deleted meanwhile is free only then."""
        file, self._file, self._identity = self._file, None, None
        if file is not None:
            file.close()

    def _open(self, path: Path, identity: FileIdentity) -> RealFile:
        if self._file is None or identity != self._identity:
            self.close()
            self._file = self._disk.open_same(path, identity)
            self._identity = identity
        return self._file
