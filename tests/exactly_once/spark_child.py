"""A process with one Spark session: runs the jobs that come in as lines, one at a time, and leaves a file
with each answer.  `spark_process.py` starts it."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from tidegate.spark.java import java_home
from tidegate.spark.session import LOOPBACK, settings, stop_session
from tidegate.spark.source import register

from .faulty_source import Fault, FaultySource, stamped

KEYS = 20
LOOK_S = 0.5


def session(master: str) -> SparkSession:
    """With speculation, where there is more than one executor."""
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = LOOPBACK
    os.environ["JAVA_HOME"] = str(java_home())
    builder = SparkSession.builder.master(master).appName("exactly-once")
    given = settings(2) | {
        "spark.sql.shuffle.partitions": "2",
        "spark.speculation": "true",
        "spark.speculation.interval": "100ms",
        "spark.speculation.multiplier": "1.2",
        "spark.speculation.quantile": "0.5",
        "spark.speculation.minTaskRuntime": "100ms",
        "spark.executor.memory": "600m",
    }
    for name, value in given.items():
        builder = builder.config(name, value)
    spark: SparkSession = builder.getOrCreate()
    register(spark)
    spark.dataSource.register(FaultySource)
    return spark


class Runs:
    """What a line can ask for."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._session = f"{os.getpid()}"

    def run(self, command: dict[str, Any]) -> None:
        """Raises what Spark raises."""
        if command["workload"] == "batch":
            self._batch(command)
        else:
            self._stream(command)

    def _stamped(self, frame: DataFrame, command: dict[str, Any]) -> DataFrame:
        stamp: Any = stamped(
            Fault.of(command["fault"]),
            command["run"],
            self._session,
            is_slow=command["workload"] == "batch" and command["is_slow"],
        )
        return frame.mapInArrow(stamp, "key string, value string")

    def _batch(self, command: dict[str, Any]) -> None:
        frame = self._spark.range(0, command["rows"], 1, command["tasks"]).selectExpr(
            "cast(id as string) as row", f"cast(id % {KEYS} as string) as key"
        )
        writer = self._stamped(frame, command).write.format(command["format"]).options(**command["options"])
        writer.mode("append").save()

    def _stream(self, command: dict[str, Any]) -> None:
        read = self._spark.readStream.format(command["source"]).options(**command["source_options"]).load()
        counts = read.selectExpr("cast(key as string) as key").groupBy("key").count()
        frame = counts.selectExpr("concat(key, ':', cast(count as string)) as row", "key")
        writer = self._stamped(frame, command).writeStream.format(command["format"])
        writer = writer.options(**command["options"]).option("checkpointLocation", command["checkpoint"])
        query = writer.outputMode("complete").trigger(availableNow=True).start()
        try:
            query.awaitTermination()
        finally:
            query.stop()


def end_with(parent: int) -> None:
    """Kills this process, its Java and the executors, when the harness has ended."""
    while os.getppid() == parent:
        time.sleep(LOOK_S)
    os.killpg(0, signal.SIGKILL)


def main() -> None:
    threading.Thread(target=end_with, args=(os.getppid(),), daemon=True).start()
    spark = session(sys.argv[1])
    try:
        runs = Runs(spark)
        for line in sys.stdin:
            command = json.loads(line)
            try:
                runs.run(command)
                answer = {"error": ""}
            except Exception as error:
                answer = {"error": f"{type(error).__name__}: {error}"[:4000]}
            place = Path(command["answer"])
            place.with_suffix(".part").write_text(json.dumps(answer))
            place.with_suffix(".part").rename(place)
    finally:
        stop_session(spark)


if __name__ == "__main__":
    main()
