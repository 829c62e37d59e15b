"""Building again, while a log is in use, what lies beside its batches and has rotted since it was opened."""

from __future__ import annotations

from pathlib import Path

from ...runtime import logs
from ...runtime.disk import OUT_OF_SPACE, Disk
from ..segment.batch_scan import InvalidBatch
from ..segment.segment_list import Segments
from ..topic_config import LogConfig
from .recovery import aborted_again

log = logs.get(__name__)


def rebuild_transaction_index(
    disk: Disk, directory: Path, config: LogConfig, segments: Segments, error: InvalidBatch
) -> None:
    """Builds the transaction index again that a read of it has found damaged; raises `error` when it was something else."""
    if error.path is None or error.path.suffix != ".txnindex":
        raise error
    at = segments.index_of(error.offset)
    log.warning("transaction_index_built_again", path=error.path, reason=error.reason)
    try:
        segments[at].replace_transactions(aborted_again(disk, directory, config, segments, at))
    except OSError as failure:
        if failure.errno not in OUT_OF_SPACE:  # or else memory has it, and the next start finds the same
            raise
