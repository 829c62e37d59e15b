"""The node's start, until its logs are open: threads open them, and the event loop serves the pages that show
the progress.

`/readyz` says `recovering: 1200 of 3000 logs are open`, the log has a line every few seconds, and two metrics
count.  After a stop signal the node finishes the logs that it is opening, and stops.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily

from ...runtime import logs
from ...runtime.clock import Clock
from ...runtime.http import Page
from ...storage.directory.log_directory import OpenReport
from ...storage.folders.data_folders import DataFolders

log = logs.get(__name__)

TOLD_EVERY_S: Final = 5.0
RECOVERING: Final = "recovering"


class RecoveryCollector:
    """Two gauges with the progress; they stay when all logs are open."""

    def __init__(self, directory: DataFolders) -> None:
        self._progress = directory.progress

    def collect(self) -> Iterable[GaugeMetricFamily]:
        found, opened = self._progress.found, self._progress.opened
        yield GaugeMetricFamily(
            "tidegate_recovery_logs", "Logs that were in the data folders at the start.", found
        )
        yield GaugeMetricFamily(
            "tidegate_recovery_logs_opened", "Those of them that were opened so far.", opened
        )


async def open_logs(directory: DataFolders, clock: Clock, stop_wanted: Awaitable[object]) -> OpenReport:
    """Raises what `open_all` raises, OpeningStopped among it."""
    progress, began_s = directory.progress, clock.monotonic()
    opening = asyncio.create_task(
        asyncio.to_thread(directory.open_all, now_ms=clock.wall_ms()), name="log-recovery"
    )
    stop = asyncio.ensure_future(stop_wanted)
    try:
        while not opening.done():
            await asyncio.wait({opening, stop}, timeout=TOLD_EVERY_S, return_when=asyncio.FIRST_COMPLETED)
            if opening.done():
                break
            if stop.done():
                progress.stop()
                await asyncio.wait({opening})
            else:
                seconds = round(clock.monotonic() - began_s)
                log.info("logs_recovering", opened=progress.opened, of=progress.found, seconds=seconds)
    finally:
        stop.cancel()
    return opening.result()


def page_while_opening(directory: DataFolders, path: str) -> Page:
    """The HTTP pages before the node's parts exist."""
    if path == "/livez":
        return Page(200, "text/plain", b"ok\n")
    if path == "/readyz":
        progress = directory.progress
        return Page(
            503, "text/plain", f"{RECOVERING}: {progress.opened} of {progress.found} logs are open\n".encode()
        )
    if path == "/metrics":
        registry = CollectorRegistry()
        registry.register(RecoveryCollector(directory))
        return Page(200, "text/plain; version=0.0.4; charset=utf-8", generate_latest(registry))
    return Page(404, "text/plain", b"there are /metrics, /livez and /readyz\n")
