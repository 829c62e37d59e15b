"""A cluster of replica managers in one process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from .cluster import Cluster


@pytest_asyncio.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    """Three started nodes without partitions."""
    made = Cluster(tmp_path)
    for node in (1, 2, 3):
        made.start(node)
    yield made
    await made.stop_all()
