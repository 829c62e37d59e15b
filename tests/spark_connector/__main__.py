"""Runs each option of Spark's Kafka connector through the connector and through this source, on one cluster
and in one Spark session, and compares rows, micro-batches and errors.

    python -m tests.spark_connector [--only WORD] [--write] [--jars DIR]

Ends with 1 when anything differs for which no reason is written down, or when a reason is not needed any
more.  `--write` puts the table of all cases into docs/spark-connector.md.  Needs `mvn` on the path to fetch
the connector's jars, unless --jars names a folder that has them.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
import time
from pathlib import Path

from tidegate.processes.local_cluster import LocalCluster

from bench.spark_streams import CONNECTOR, jars

from .cases import CASES, Case, Read
from .compare import Comparison, Verdict
from .table import PAGE, page
from .topics import Topics

SETTINGS = {
    "log.cleaner.backoff.ms": 100,
    "log.retention.check.interval.ms": 100,
    "transaction.state.log.num.partitions": 2,
    "offsets.topic.num.partitions": 2,
}


def name_of(case: Case) -> str:
    options = ", ".join(f"{name}={value}" for name, value in case.options.items())
    return f"{case.kind}: {case.title} {options}"


def compare(cases: list[Case], cluster: LocalCluster, folder: Path) -> list[Verdict]:
    from tidegate.spark.session import local_session, stop_session

    topics = Topics(cluster.bootstrap, cluster.node(1).grpc_address)
    try:
        if any(isinstance(case, Read) for case in cases):
            topics.fill()
        spark = local_session("spark-connector")
        spark.conf.set("spark.sql.session.timeZone", "UTC")
        try:
            addresses = {"tidegate": cluster.node(1).grpc_address, "kafka": cluster.bootstrap}
            comparison = Comparison(spark, topics, addresses, folder)
            return [shown(comparison, case) for case in cases]
        finally:
            stop_session(spark)
    finally:
        topics.close()


def shown(comparison: Comparison, case: Case) -> Verdict:
    begin = time.perf_counter()
    verdict = comparison.judge(case)
    sign = "FAIL" if verdict.unexplained or verdict.stale else "ok  "
    print(f"{sign} {name_of(case)} ({time.perf_counter() - begin:.1f} s): {verdict.result}", flush=True)
    for line in verdict.lines:
        print(f"       {line[:700]}", flush=True)
    return verdict


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.spark_connector", description=(__doc__ or "").partition("\n\n")[0]
    )
    parser.add_argument("--only", default="", help="cases in whose name this stands")
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.name}")
    parser.add_argument("--jars", type=Path)
    given = parser.parse_args()
    found = ",".join(map(str, jars(given.jars)))
    os.environ["PYSPARK_SUBMIT_ARGS"] = f"--jars {found} pyspark-shell"
    cases = [case for case in CASES if given.only in name_of(case)]
    with tempfile.TemporaryDirectory(prefix="spark-connector-") as place:
        cluster = LocalCluster(Path(place) / "node", 1, SETTINGS)
        asyncio.run(cluster.up())
        try:
            verdicts = compare(cases, cluster, Path(place))
        finally:
            asyncio.run(cluster.down())
    wrong = sum(verdict.unexplained for verdict in verdicts)
    stale = sum(verdict.stale for verdict in verdicts)
    print(f"{len(verdicts)} cases, {wrong} differ without a reason, {stale} reasons are stale")
    if given.write:
        PAGE.write_text(page(verdicts, CONNECTOR))
    return int(wrong > 0 or stale > 0)


if __name__ == "__main__":
    raise SystemExit(main())
