"""How the commit of a job grows with its tasks and its partitions: milliseconds until the decision is
answered, and until a reader of committed records sees everything.  Three nodes, replication 3; no Spark: what
its tasks and its driver call.

    python -m bench.spark_commits [--tasks 1,10,50,100,200] [--partitions 1,10,25,50] [--svg FILE]

Each task attempt writes one record to each partition.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
from tidegate.client import LocalCluster, NewTopic
from tidegate.client.blocking import Admin
from tidegate.client.requests.transaction_requests import Identity
from tidegate.proto import jobs_pb2 as pb
from tidegate.spark.connecting.channels import Channels
from tidegate.spark.writing.attempt_producer import AttemptProducer
from tidegate.spark.writing.jobs_client import JobsClient
from tidegate.spark.writing.options import WriteOptions
from tidegate.spark.writing.results import Attempt
from tidegate.spark.writing.rows import Layout, rows_of

NODES = 3
TIMEOUT_MS = 300_000
AT_A_TIME = 4
PAUSE_S = 0.005
TITLE = "The commit of a job: seconds until all of it is visible"
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00")
WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT = 720, 380, 60, 45, 30, 130


class Point(NamedTuple):
    """One job."""

    tasks: int
    partitions: int
    decided_s: float
    visible_s: float


def one_row_each(partitions: int) -> pa.RecordBatch:
    numbers = list(range(partitions))
    columns = [pa.array(numbers, pa.int32()), pa.array([b"%d" % number for number in numbers])]
    return pa.RecordBatch.from_arrays(columns, ["partition", "value"])


def measure(bootstrap: str, tasks: int, partitions: int) -> Point:
    topic = f"t-{tasks}-{partitions}"
    places = [(topic, number) for number in range(partitions)]
    with Admin(bootstrap) as admin:
        admin.create_topics([NewTopic(topic, partitions, NODES)])
        options, channels = WriteOptions((bootstrap.partition(",")[0],)), Channels()
        jobs = JobsClient(
            pb.Job(sink=topic, batch="job"), options.bootstrap, options.job_bootstrap, channels, 60_000
        )

        def write(number: int) -> Attempt:
            opened = jobs.open_attempt(f"a{number}", TIMEOUT_MS)
            identity = Identity(opened.producer_id, opened.producer_epoch)
            producer = AttemptProducer(options, None, opened.transactional_id, identity)
            try:
                producer.start()
                for rows in rows_of(one_row_each(partitions), Layout(("partition", "value"), topic), 0):
                    producer.send(rows)
                producer.finish()
            finally:
                producer.close()
            attempt = Attempt(f"a{number}", opened.producer_id, opened.producer_epoch)
            assert jobs.prepare_attempt(attempt, TIMEOUT_MS).has_written
            return attempt

        try:
            with ThreadPoolExecutor(AT_A_TIME) as pool:
                winners = list(pool.map(write, range(tasks)))
            began_s = time.perf_counter()
            assert jobs.commit(winners, tasks * partitions).outcome == pb.COMMITTED
            decided_s = time.perf_counter() - began_s
            while admin.end_offsets(places) != admin.end_offsets(places, read_committed=True):
                time.sleep(PAUSE_S)
            return Point(tasks, partitions, decided_s, time.perf_counter() - began_s)
        finally:
            jobs.close()


def svg(points: Sequence[Point]) -> str:
    """Seconds until everything is visible over tasks, a line for each number of partitions."""
    most_tasks = max(point.tasks for point in points)
    most_s = max(point.visible_s for point in points) * 1.05

    def x(tasks: float) -> float:
        return LEFT + tasks / most_tasks * (WIDTH - LEFT - RIGHT)

    def y(seconds: float) -> float:
        return HEIGHT - BOTTOM - seconds / most_s * (HEIGHT - BOTTOM - TOP)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        'font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
        f'<text x="{LEFT}" y="18" font-weight="600">{TITLE}</text>',
        f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 8}" text-anchor="middle">tasks</text>',
    ]
    for step in range(6):
        seconds = most_s * step / 5
        parts.append(
            f'<path d="M{LEFT} {y(seconds):.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>'
            f'<text x="{LEFT - 6}" y="{y(seconds) + 4:.1f}" text-anchor="end">{seconds:.2f}</text>'
        )
    parts += [
        f'<text x="{x(tasks):.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{tasks}</text>'
        for tasks in sorted({point.tasks for point in points})
    ]
    for colour, partitions in zip(COLOURS, sorted({point.partitions for point in points}), strict=False):
        line = sorted((point.tasks, point.visible_s) for point in points if point.partitions == partitions)
        places = " ".join(f"{x(tasks):.1f},{y(seconds):.1f}" for tasks, seconds in line)
        parts.append(f'<polyline points="{places}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [
            f'<circle cx="{x(tasks):.1f}" cy="{y(seconds):.1f}" r="3" fill="{colour}"/>'
            for tasks, seconds in line
        ]
        parts.append(
            f'<text x="{x(line[-1][0]) + 8:.1f}" y="{y(line[-1][1]) + 4:.1f}" fill="{colour}">'
            f"{partitions} partitions</text>"
        )
    return "\n".join([*parts, "</svg>", ""])


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=numbers, default=[1, 10, 50, 100, 200])
    parser.add_argument("--partitions", type=numbers, default=[1, 10, 25, 50])
    parser.add_argument("--svg", type=Path)
    given = parser.parse_args()
    points = []
    with tempfile.TemporaryDirectory() as folder:
        cluster = LocalCluster(Path(folder) / "cluster", NODES)
        asyncio.run(cluster.up())
        try:
            for partitions in given.partitions:
                for tasks in given.tasks:
                    point = measure(cluster.bootstrap, tasks, partitions)
                    points.append(point)
                    print(
                        f"{tasks:>4} tasks x {partitions:>3} partitions: decided after "
                        f"{1000 * point.decided_s:.0f} ms, visible after {1000 * point.visible_s:.0f} ms",
                        flush=True,
                    )
        finally:
            asyncio.run(cluster.down())
    if given.svg is not None:
        given.svg.write_text(svg(points))


if __name__ == "__main__":
    main()
