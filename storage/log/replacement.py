"""One replacement of segments by a cleaned one, split so that the event loop never waits for the disk.

    replacement = log.local.replacements.begin(old, new)
                                               on the loop: checks that no other runs, and that `old` is in
                                               the log
    replacement.decide()                       any thread: the decision becomes durable (`segment.swap`, step
                                               2)
    log.local.replacements.switch(replacement) on the loop: readers find the new segment from here on
    replacement.carry_out()                    any thread: the files get their names (steps 3 and 4)
    log.local.replacements.finish(replacement) on the loop: the new segment is like any other

The steps on the disk have the same order as in a replacement that runs at once, so a crash leaves the same
files. In memory the new segment takes its place between two of them, while its files still end in `.cleaned`:
it is served from open files and from indexes in memory, which renames do not touch, and which it holds until
it is finished.

Between any two steps the loop runs on.  Other operations on the log meanwhile:

    appends, rolls, flushes, reads      touch other segments, or only read
    truncation, removal at the front    first settles the replacement: withdraws it before the switch,
                                        completes it after
    close (deletion, stop)              abandons it: opening the log again finishes a decided one
    the log goes offline                nothing more is switched; the thread renames only after the decision
    another replacement                 is refused until this one is over

Settling and abandoning wait for the current step of a thread; the thread reads `stage` afterwards.
"""

from __future__ import annotations

import enum
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from ...runtime.disk import Disk
from ..durability.flush import Durability
from ..segment.segment import Segment
from ..segment.segment_list import Segments
from ..segment.swap import decide_swap, finish_swap, swap_path
from .health import Health


class Stage(enum.Enum):
    """How far a replacement has come."""

    PREPARED = "prepared"
    DECIDED = "decided"
    SWITCHED = "switched"
    DONE = "done"
    """All files have their final names."""
    WITHDRAWN = "withdrawn"
    """No file of the log changed: the new segment is not part of it."""
    UNKNOWN = "unknown"
    """Abandoned, or failed in the middle: opening the log again finds out.  No file of the new segment may be
    removed."""


class Replacement:
    """See the module's text.  Made by `Replacements.begin` only."""

    def __init__(self, disk: Disk, directory: Path, old: Sequence[Segment], new: Segment) -> None:
        self.old = list(old)
        self.new = new
        self.stage = Stage.PREPARED
        self.doomed: list[Path] = []
        """Obsolete files, once the replacement is done: to be unlinked in any thread."""
        self._disk = disk
        self.directory = directory
        self._lock = threading.Lock()

    @property
    def is_over(self) -> bool:
        return self.stage in (Stage.DONE, Stage.WITHDRAWN, Stage.UNKNOWN)

    # ---- in a thread ---------------------------------------------------------------------------------------

    def decide(self) -> None:
        """Any thread.  Raises OSError: then the replacement is withdrawn, or `stage` is UNKNOWN and the log
        must go offline."""
        with self._lock:
            if self.stage is not Stage.PREPARED:
                return
            try:
                decide_swap(
                    self._disk, self.directory, [each.base_offset for each in self.old], self.new.base_offset
                )
            except OSError:
                self._withdraw()  # a decision whose write failed may be on the disk even so
                raise
            self.stage = Stage.DECIDED

    def carry_out(self) -> None:
        """Any thread.  Raises OSError: then the log must go offline."""
        with self._lock:
            self._carry_out()

    def _carry_out(self) -> None:
        if self.stage is not Stage.SWITCHED:
            return
        self.stage = Stage.UNKNOWN
        self.doomed = finish_swap(self._disk, self.directory, swap_path(self.directory, self.new.base_offset))
        self.stage = Stage.DONE

    def _withdraw(self) -> None:
        """The decision must be gone before anything else happens."""
        path = swap_path(self.directory, self.new.base_offset)
        self.stage = Stage.UNKNOWN
        if self._disk.exists(path):
            self._disk.remove(path)
        self._disk.sync_directory(self.directory)
        self.stage = Stage.WITHDRAWN

    # ---- on the loop ---------------------------------------------------------------------------------------

    def switched(self) -> None:
        assert self.stage is Stage.DECIDED
        self.stage = Stage.SWITCHED

    def settle(self) -> None:
        """Called before another change of the log.  Waits for the disk.  Raises OSError: then the log must go
        offline."""
        with self._lock:
            if self.stage is Stage.PREPARED:
                self.stage = Stage.WITHDRAWN
            elif self.stage is Stage.DECIDED:
                self._withdraw()
            else:
                self._carry_out()

    def abandon(self) -> None:
        """The log is closed.  Waits for the current step of a thread."""
        with self._lock:
            if not self.is_over:
                self.stage = Stage.UNKNOWN


class Replacements:
    """The replacements of one log, one at a time.  Used on the loop's thread only."""

    def __init__(
        self, disk: Disk, directory: Path, segments: Segments, durability: Durability, health: Health
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._segments = segments
        self._durability = durability
        self._health = health
        self._current: Replacement | None = None

    def begin(self, old: Sequence[Segment], new: Segment) -> Replacement:
        """Begins to replace durable old segments by a cleaned one; offsets do not change.

        Raises ValueError when they are gone, active or not yet durable, or another replacement runs, and
        KAFKA_STORAGE_ERROR when the log is closed or offline; then nothing changed.
        """
        self._health.require()
        if self._current is not None:
            raise ValueError("another replacement of segments is in progress")
        self._segments.require_replaceable(old, new)
        durable = self._durability.recovery_point
        if old[-1].next_offset > durable:
            raise ValueError(f"offsets up to {old[-1].next_offset} are to be replaced, durable is {durable}")
        if not self._durability.withdraw_counts(old):
            raise ValueError("a late count index of theirs is on its way to the disk")
        self._current = Replacement(self._disk, self._directory, old, new)
        return self._current

    def switch(self, replacement: Replacement) -> None:
        """The replacement is decided.  Raises ValueError when it was withdrawn meanwhile,
        KAFKA_STORAGE_ERROR."""
        self._health.require()
        if replacement is not self._current or replacement.stage is not Stage.DECIDED:
            raise ValueError("the replacement was withdrawn")
        before = self._segments.size_bytes
        with self._health.disk_at_work("a replacement of segments"):
            if not self._durability.withdraw_counts(replacement.old):
                self.settle()  # a flush may write a count index that was built since `begin`
                raise ValueError("a late count index of theirs is on its way to the disk")
            self._segments.switch(replacement.old, replacement.new)
        replacement.switched()
        self._durability.flushed_size = max(
            0, self._durability.flushed_size + self._segments.size_bytes - before
        )
        self._durability.drop_waiting_snapshots(replacement.old[-1].next_offset)

    def finish(self, replacement: Replacement) -> None:
        """`carry_out` is over.  Changes nothing when the replacement was settled or abandoned meanwhile."""
        if replacement is self._current:
            self._current = None
            if replacement.stage is Stage.DONE:
                replacement.new.adopt()

    def failed(self, replacement: Replacement, error: OSError) -> NoReturn:
        """`decide` or `carry_out` raised.  Raises KAFKA_STORAGE_ERROR: nothing has changed, or the log is
        offline now."""
        if replacement is self._current:
            self._current = None
        # the log has moved to another disk meanwhile, which has not failed
        if replacement.directory != self._directory:
            raise self._health.storage_error("a replacement of segments", error) from error
        if replacement.stage is Stage.WITHDRAWN:
            self._health.refuse("a replacement of segments", error)
        self._health.fail("a replacement of segments", error)

    def replace_now(self, old: Sequence[Segment], new: Segment) -> list[Path]:
        """A whole replacement that waits on the loop's thread: for tools and tests.  Returns the files to
        unlink."""
        replacement = self.begin(old, new)
        try:
            replacement.decide()
            self.switch(replacement)
            replacement.carry_out()
        except OSError as error:
            self.failed(replacement, error)
        self.finish(replacement)
        return replacement.doomed

    @property
    def is_over(self) -> bool:
        return self._current is None

    def settle(self) -> None:
        """Before the log's segments change in another way.  Waits for the disk.  Raises OSError: the log must
        go offline."""
        replacement, self._current = self._current, None
        if replacement is not None:
            replacement.settle()
            if replacement.stage is Stage.DONE:
                replacement.new.adopt()

    def abandon(self) -> None:
        """The log is closed."""
        replacement, self._current = self._current, None
        if replacement is not None:
            replacement.abandon()
