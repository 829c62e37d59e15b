"""The command of a comparison with Spark's Kafka connector: one node, one Spark session with the jars
of the connector, a line for each case, and the page of all.

Ends with 1 when a case differs for which no reason is written down, or when a reason is not needed any more.
`--write` writes the page.  Needs `mvn` on the path to fetch the jars, unless --jars names a folder that has
them.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from tidegate.processes.local_cluster import LocalCluster
from tidegate.tests.started import started

from bench.spark_streams import jars

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Judged(Protocol):
    """What came of a case."""

    @property
    def lines(self) -> list[str]:
        """Where the two differ; empty when they do not."""

    @property
    def result(self) -> str: ...

    @property
    def unexplained(self) -> bool: ...

    @property
    def stale(self) -> bool:
        """Its reason to differ is not needed any more."""


CaseT = TypeVar("CaseT")
VerdictT = TypeVar("VerdictT", bound=Judged)


@dataclass(frozen=True, slots=True)
class Comparing(Generic[CaseT, VerdictT]):
    """`judging` fills topics for these cases, and gives what judges each of them."""

    program: str
    about: str
    cases: Sequence[CaseT]
    name_of: Callable[[CaseT], str]
    settings: Mapping[str, object]  # of the node
    judging: Callable[
        [SparkSession, LocalCluster, Path, Sequence[CaseT]],
        AbstractContextManager[Callable[[CaseT], VerdictT]],
    ]
    page: Path
    page_of: Callable[[Sequence[VerdictT]], str]

    def main(self) -> int:
        """The exit code."""
        parser = argparse.ArgumentParser(prog=f"python -m {self.program}", description=self.about)
        parser.add_argument("--only", default="", help="cases in whose name this stands")
        parser.add_argument("--write", action="store_true", help=f"write {self.page.name}")
        parser.add_argument("--jars", type=Path)
        given = parser.parse_args()
        found = ",".join(map(str, jars(given.jars)))
        os.environ["PYSPARK_SUBMIT_ARGS"] = f"--jars {found} pyspark-shell"
        cases = [case for case in self.cases if given.only in self.name_of(case)]
        with tempfile.TemporaryDirectory(prefix="spark-connector-") as place:
            cluster = LocalCluster(Path(place) / "node", 1, self.settings)
            with started(cluster):
                verdicts = self._verdicts(cases, cluster, Path(place))
        wrong = sum(verdict.unexplained for verdict in verdicts)
        stale = sum(verdict.stale for verdict in verdicts)
        print(f"{len(verdicts)} cases, {wrong} differ without a reason, {stale} reasons are stale")
        if given.write:
            self.page.write_text(self.page_of(verdicts))
        return int(wrong > 0 or stale > 0)

    def _verdicts(self, cases: Sequence[CaseT], cluster: LocalCluster, folder: Path) -> list[VerdictT]:
        from tidegate.spark.session import local_session, stop_session

        spark = local_session("spark-connector")
        spark.conf.set("spark.sql.session.timeZone", "UTC")
        try:
            with self.judging(spark, cluster, folder, cases) as judge:
                return [self._shown(case, judge) for case in cases]
        finally:
            stop_session(spark)

    def _shown(self, case: CaseT, judge: Callable[[CaseT], VerdictT]) -> VerdictT:
        begin = time.perf_counter()
        verdict = judge(case)
        sign = "FAIL" if verdict.unexplained or verdict.stale else "ok  "
        seconds = time.perf_counter() - begin
        print(f"{sign} {self.name_of(case)} ({seconds:.1f} s): {verdict.result}", flush=True)
        for line in verdict.lines:
            print(f"       {line[:700]}", flush=True)
        return verdict
