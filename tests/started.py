"""A cluster of node processes for the time of a fixture or a program; it ends also when that fails."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from tidegate.processes.local_cluster import LocalCluster


@contextmanager
def started(cluster: LocalCluster) -> Iterator[LocalCluster]:
    try:
        asyncio.run(cluster.up())
        yield cluster
    finally:
        asyncio.run(cluster.down())
