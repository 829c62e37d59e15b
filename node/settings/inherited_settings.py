"""What topics inherit has changed (KIP-226): every partition of the node takes its settings up, in slices of
the loop's time.

A node may hold thousands of partitions; between two slices the loop does all else that is due.  Whatever the
metadata say of a partition meanwhile is applied at once, with the newest settings.  What the controller
counts on (`CONTROLLERS_DEFAULTS`, such as min.insync.replicas) is part of every topic's own state, and never
comes here: an acknowledgement must not rest on an older one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Final

Key = tuple[str, int]
SLICE_S: Final = 0.002


class InheritedSettings:
    """`begin_again` starts over with all partitions, also when a former round has not ended."""

    def __init__(
        self,
        apply: Callable[[Key], None],
        now: Callable[[], float],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        """`apply(key)`: the partition's newest metadata, which may have ended it meanwhile."""
        self._apply = apply
        self._now = now
        self._on_failure = on_failure
        self._left: Iterator[Key] = iter(())
        self._next: asyncio.Handle | None = None

    def begin_again(self, keys: Iterator[Key]) -> None:
        """Begins with the first slice; `keys` are asked for one by one, and may take time to find as well."""
        self.stop()
        self._left = keys
        self._slice()

    def stop(self) -> None:
        if self._next is not None:
            self._next.cancel()
            self._next = None

    def _slice(self) -> None:
        self._next = None
        until = self._now() + SLICE_S
        try:
            for key in self._left:
                self._apply(key)
                if self._now() >= until:
                    self._next = asyncio.get_running_loop().call_soon(self._slice)
                    return
        except Exception as error:  # the broker no longer does what the metadata say
            self._on_failure(error)
