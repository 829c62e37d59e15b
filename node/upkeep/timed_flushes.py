"""Which logs are to be flushed by time: under flush.policy=os a record stays unflushed no longer than the
topic's `flush.ms`.

Nothing waits for these flushes.  A log is looked at every `LOOK_INTERVAL_S`, so one may come that much late.
(Kafka looks when `log.flush.scheduler.interval.ms` says so, which by default is never.)  Pure: the caller
supplies the time.
"""

from __future__ import annotations

from ...replication.replica.replica import Replica
from ...storage.log.log import Log

LOOK_INTERVAL_S = 1.0


class TimedFlushes:
    """Used on the loop's thread."""

    def __init__(self) -> None:
        # the flushed end, and since when there is more behind it
        self._unflushed: dict[Log, tuple[int, float]] = {}

    def is_due(self, replica: Replica, now_s: float) -> bool:
        """To be asked of every replica every `LOOK_INTERVAL_S`."""
        log = replica.log
        flush_s = log.config.flush_ms / 1000
        if replica.flushes_always or flush_s >= 2**32 or log.is_offline or not log.has_unflushed_records:
            self._unflushed.pop(log, None)
            return False
        flushed_end, since_s = self._unflushed.get(log, (-1, now_s))
        if flushed_end != log.flushed_end_offset:
            flushed_end, since_s = log.flushed_end_offset, now_s
        self._unflushed[log] = (flushed_end, since_s)
        return now_s - since_s >= flush_s

    def keep(self, logs: set[Log]) -> None:
        """The others are gone."""
        for log in self._unflushed.keys() - logs:
            del self._unflushed[log]
