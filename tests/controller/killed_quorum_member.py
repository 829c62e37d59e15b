"""A quorum of one in a process of its own, killed at a fault point: `killed_quorum_member.py FOLDER POINT
SKIP`.

Proposes feature after feature and prints the name of each that was acknowledged, until the point kills it."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from tidegate.controller.raft.contract import RaftTimings
from tidegate.controller.service.metadata_log import MetadataLog
from tidegate.proto import metadata_pb2 as pb
from tidegate.runtime import faults
from tidegate.runtime.clock import SystemClock
from tidegate.runtime.disk import RealDisk
from tidegate.tests.eventually import eventually

TIMINGS = RaftTimings(compact_after_entries=25, trailing_entries=3)


def make(folder: Path) -> MetadataLog:
    return MetadataLog(
        node_id=1,
        voters={1: ("127.0.0.1", 1)},
        listen=("127.0.0.1", 0),
        directory=folder,
        disk=RealDisk(),
        clock=SystemClock(),
        timings=TIMINGS,
    )


async def main(folder: Path, point: str, skip: int) -> None:
    faults.arm(point, "kill", skip=skip)
    log = make(folder)
    await log.start()
    await eventually(lambda: log.is_active)
    for number in range(10_000):
        operation = pb.Operation(set_feature_level=pb.SetFeatureLevel(name=f"f{number}", level=0))
        result = await log.propose_and_wait(pb.Command(operations=[operation]).SerializeToString())
        assert result.ok
        print(f"f{number}", flush=True)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])))
