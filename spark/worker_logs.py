"""What Spark's workers log."""

from __future__ import annotations

import logging

from ..runtime.logs import configure


def log_as_a_worker() -> None:
    """In one of Spark's worker processes: its standard error is Spark's."""
    if not logging.getLogger().handlers:
        configure(level="WARNING")
