"""Rebuilds a derived file that was damaged after its log was opened, while the log is in use."""

from __future__ import annotations

from pathlib import Path

from ...runtime import logs
from ...runtime.disk import OUT_OF_SPACE, Disk
from ..segment.batch_scan import InvalidBatch
from ..segment.segment_list import Segments
from ..topic_config import LogConfig
from .recovery import rebuild_aborted

log = logs.get(__name__)


def rebuild_transaction_index(
    disk: Disk, directory: Path, config: LogConfig, segments: Segments, error: InvalidBatch
) -> None:
    """Rebuilds a transaction index that a read found damaged; raises `error` when the cause is another
    one."""
    if error.path is None or error.path.suffix != ".txnindex":
        raise error
    at = segments.index_of(error.offset)
    log.warning("transaction_index_built_again", path=error.path, reason=error.reason)
    try:
        segments[at].aborted.replace(rebuild_aborted(disk, directory, config, segments, at))
    except OSError as failure:
        # on a full disk the index stays in memory, and the next start rebuilds it
        if failure.errno not in OUT_OF_SPACE:
            raise
