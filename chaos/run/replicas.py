"""Compares the replicas of stopped nodes: every batch, byte by byte, up to the shortest log
(docs/semantics.md V6).

Clients read one replica at a time.  A replica that differs from the leader below the high watermark shows
only when it leads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path

from ...processes.local_cluster import LocalCluster, LocalNode
from ...wire.records import BatchHeader, iterate_headers
from ..checks.history import Partition

Batch = tuple[BatchHeader, bytes]


def compare_replicas(cluster: LocalCluster, partitions: Sequence[Partition]) -> tuple[list[str], int]:
    """The differences, in sentences, and the number of compared bytes.  The nodes must have stopped."""
    differences: list[str] = []
    compared = 0
    for topic, number in partitions:
        found = {node.data_path.parent.name: _folders(node, f"{topic}-{number}") for node in cluster.nodes}
        if any(len(folders) != 1 for folders in found.values()):
            wrong = [
                f"{name} has {len(folders) or 'no'} folder for it"
                for name, folders in found.items()
                if len(folders) != 1
            ]
            differences.append(f"{topic}-{number}: {', '.join(wrong)}")
            continue
        first, *others = (folder for (folder,) in found.values())
        for other in others:
            size, difference = _compare(first, other)
            compared += size
            if difference:
                differences.append(f"{topic}-{number}: {difference}")
    return differences, compared


def _folders(node: LocalNode, name: str) -> list[Path]:
    """The folders that a node has for a partition: one, in one of its data folders, if all is well."""
    return [
        folder
        for folder in sorted(node.data_path.parent.glob(f"{node.data_path.name}*/{name}"))
        if folder.is_dir()
    ]


def _compare(first: Path, other: Path) -> tuple[int, str]:
    size = 0
    names = f"{first.parent.parent.name} and {other.parent.parent.name}"
    for mine, theirs in zip_longest(batches(first), batches(other)):
        if mine is None or theirs is None:
            longer = mine or theirs
            assert longer is not None
            return size, f"{names} differ in length: only one has the batch at offset {longer[0].base_offset}"
        if mine[1] != theirs[1]:
            return size, f"{names} differ at offset {mine[0].base_offset} ({theirs[0].base_offset} there)"
        size += len(mine[1])
    return size, ""


def batches(folder: Path) -> Iterator[Batch]:
    """All whole batches of a partition's folder, in order."""
    for segment in sorted(folder.glob("*.log")):
        data = segment.read_bytes()
        for position, header in iterate_headers(memoryview(data)):
            yield header, data[position : position + header.size_bytes]
