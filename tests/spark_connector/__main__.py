"""Runs each option of Spark's Kafka connector through the connector and through this source, on one cluster
and in one Spark session, and compares rows, micro-batches and errors (`command.py` has the options).

    python -m tests.spark_connector [--only WORD] [--write] [--jars DIR]
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tidegate.processes.local_cluster import LocalCluster

from .cases import CASES, Case, Read
from .command import Comparing
from .compare import Comparison, Verdict
from .table import PAGE, page
from .topics import Topics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETTINGS = {
    "log.cleaner.backoff.ms": 100,
    "log.retention.check.interval.ms": 100,
    "transaction.state.log.num.partitions": 2,
    "offsets.topic.num.partitions": 2,
}


def name_of(case: Case) -> str:
    options = ", ".join(f"{name}={value}" for name, value in case.options.items())
    return f"{case.kind}: {case.title} {options}"


@contextmanager
def judging(
    spark: SparkSession, cluster: LocalCluster, folder: Path, cases: Sequence[Case]
) -> Iterator[Callable[[Case], Verdict]]:
    topics = Topics(cluster.bootstrap, cluster.node(1).grpc_address)
    try:
        if any(isinstance(case, Read) for case in cases):
            topics.fill()
        addresses = {"tidegate": cluster.node(1).grpc_address, "kafka": cluster.bootstrap}
        yield Comparison(spark, topics, addresses, folder).judge
    finally:
        topics.close()


COMPARING = Comparing(
    "tests.spark_connector", (__doc__ or "").partition("\n\n")[0],
    CASES, name_of, SETTINGS, judging, PAGE, page,
)  # fmt: skip

if __name__ == "__main__":
    raise SystemExit(COMPARING.main())
