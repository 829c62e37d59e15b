"""What a reader on a node's own machine reads itself: the node says where the records stand in its file.

The reader has no more rights by this: it opens the file as its own user, and one that may not gets the
records over the connection.  Only a file with the device and inode that the node has open is read, and the
node says afterwards whether what was read counts.

A disk may answer nothing for long, and no call to it can be ended.  So each chunk is read in a thread, which
is left to itself when the reader gives up.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Final

from ...proto import data_pb2
from ...proto.range_chunks import RecordsChunk
from ...runtime.disk import FileIdentity, RealDisk

PIECE_BYTES: Final = 8 << 20
"""Of a slow disk each is a sign of life."""
LEFT: Final = "the reader waits no longer for the disk"
Allocate = Callable[[int], memoryview]


class LocalFiles:
    """For one thread, but for `give_up`."""

    def __init__(self, allocate: Allocate) -> None:
        self._allocate = allocate
        self._disk = RealDisk()
        self._read: SimpleQueue[memoryview | Exception] = SimpleQueue()
        self._is_left = False

    def read(self, told: data_pb2.FileChunk, bytes_max: int, heard: Callable[[], None]) -> RecordsChunk:
        """The chunk with its records.  `heard` is called after each piece, in another thread.  Raises
        OSError, also for bytes that the file does not have, or for more than `bytes_max`; ValueError for a
        name that no file can have."""
        if not 0 < told.length <= bytes_max or told.position < 0:
            raise OSError(f"{told.length} bytes at {told.position} of a file are no chunk")
        if self._is_left:
            raise OSError(LEFT)
        room = self._allocate(told.length)  # here: what a thread frees at its end is given back to the system
        arguments = (told, room, heard)
        threading.Thread(target=self._attempt, args=arguments, name="local-file", daemon=True).start()
        found = self._read.get()
        if isinstance(found, Exception):
            raise found
        return RecordsChunk(told.chunk, found)

    def give_up(self) -> None:
        """From any thread: a read in progress ends with OSError, and so does each later one."""
        self._is_left = True  # first: a read that begins now sees this, or what is put
        self._read.put(OSError(LEFT))

    def _attempt(self, told: data_pb2.FileChunk, room: memoryview, heard: Callable[[], None]) -> None:
        try:
            self._fill(room, told, heard)
            self._read.put(room)
        except Exception as problem:
            self._read.put(problem)

    def _fill(self, room: memoryview, told: data_pb2.FileChunk, heard: Callable[[], None]) -> None:
        identity = FileIdentity(told.device, told.inode)
        file = self._disk.open_same(Path(os.fsdecode(told.path)), identity)
        try:  # it stays open for this chunk alone: the room of a deleted file is free when all have closed it
            done = 0
            while done < told.length:
                came = file.read_into(told.position + done, room[done : done + PIECE_BYTES])
                if not came:
                    missing = told.length - done
                    raise OSError(f"{file.path} ends at {told.position + done}, {missing} bytes too early")
                done += came
                heard()
        finally:
            file.close()
