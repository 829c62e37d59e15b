"""What one log asks of the data folder that has it in use, and reports to it.

`LogDirectory.adopt` attaches the hooks to the log's files, `LogDirectory.release` detaches them.  A log that
no folder has in use is `DETACHED`: while it is opened, as a future replica, in a tool.  No hook has a
default, so a new one is a type error until both have it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..recovery.recovery import CorruptLog
from ..topic_config import LogConfig

Work = Callable[[], None]
Done = Callable[[Exception | None], None]


@dataclass(slots=True, frozen=True)
class LogHooks:
    """See the module's text.  On the loop's thread, except `make_room`."""

    went_offline: Callable[[OSError | CorruptLog], None]
    """Once."""
    config_changed: Callable[[LogConfig], LogConfig]
    """Stores the configuration; returns the one that applies until that succeeds."""
    flushed: Callable[[int], None]
    """The flushed end moved: the offset where its last batch ends."""
    before_truncation: Callable[[int], None]
    """Batches at or above this offset are about to be removed: what other files note above it must be lowered
    durably first.  Raises OSError."""
    make_room: Callable[[], None]
    """Before a write for a client that may want to free room on a full disk.  Any thread; raises OSError."""
    in_background: Callable[[Work, Done], bool]
    """See `AsyncFileDeleter.submit`."""


DETACHED = LogHooks(
    went_offline=lambda _error: None,
    config_changed=lambda config: config,
    flushed=lambda _end_offset: None,
    before_truncation=lambda _offset: None,
    make_room=lambda: None,
    in_background=lambda _work, _done: False,
)
