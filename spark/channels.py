"""Open gRPC channels by endpoint.

A Spark worker keeps one `Channels` from task to task: a new connection for every task would cost more than a
small task itself, and two hundred tasks would be two hundred connections.  Above the limit, it closes the
least recently used channel.
"""

from __future__ import annotations

import os
import threading
from typing import Final

import grpc

from ..runtime.network import grpc_channel_blocking

# How long one attempt to connect may take (gRPC's name is misleading).  The brokers' 100 ms among themselves
# are too short here: Spark starts its workers all at once, and a node that shares the machine with them
# answers later than that.
CONNECT_TIMEOUT_MS = 5_000
CHANNELS_MAX: Final = 64


class Channels:
    """Channels to nodes, each opened when it is first needed; for any thread."""

    def __init__(self, channels_max: int = CHANNELS_MAX) -> None:
        self._channels_max = channels_max
        self._lock = threading.Lock()
        self._open: dict[str, grpc.Channel] = {}
        self._process = os.getpid()
        self.opened = 0

    def to(self, endpoint: str) -> grpc.Channel:
        """A channel to this endpoint; it waits for a busy node, and fails at once for a node that has
        ended."""
        with self._lock:
            if self._process != os.getpid():  # a channel does not survive a fork
                self._open, self._process = {}, os.getpid()
            channel = self._open.pop(endpoint, None)
            if channel is None:
                channel = grpc_channel_blocking(
                    endpoint, [("grpc.min_reconnect_backoff_ms", CONNECT_TIMEOUT_MS)]
                )
                self.opened += 1
            self._open[endpoint] = channel
            oldest = next(iter(self._open))
            surplus = self._open.pop(oldest) if len(self._open) > self._channels_max else None
        if surplus is not None:
            surplus.close()
        return channel

    def drop(self, endpoint: str) -> None:
        """Closes the channel to this endpoint; the next use opens another."""
        with self._lock:
            channel = self._open.pop(endpoint, None)
        if channel is not None:
            channel.close()

    def close(self) -> None:
        """Closes all; calls in progress end."""
        with self._lock:
            channels, self._open = list(self._open.values()), {}
        for channel in channels:
            channel.close()
