"""Topics into a Delta table, each committed record once, however often this runs:

    python spark_delta.py BOOTSTRAP FOLDER TOPIC TOPIC ...

A run adds what is new since the run before, and ends at a cut: the table has each transaction as a whole or
not at all.  FOLDER gets the table and the checkpoint.  Delta 4.4 is for PySpark 4.2; its jars come from Maven
Central, or are those that the environment names in DELTA_JARS, with commas between them.
"""

import os
import sys

from tidegate.spark import local_session
from tidegate.spark.progress.bars import watch

DELTA = "io.delta:delta-spark_4.2_2.13:4.4.0"
SETTINGS = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.databricks.delta.snapshotPartitions": "2",  # 50 otherwise: tasks that a small table does not need
}


def main(bootstrap: str, folder: str, *topics: str) -> None:
    given = os.environ.get("DELTA_JARS")
    jars = f"--jars {given}" if given else f"--packages {DELTA}"
    settings = " ".join(f"--conf {name}={value}" for name, value in SETTINGS.items())
    os.environ["PYSPARK_SUBMIT_ARGS"] = f"{jars} {settings} pyspark-shell"
    spark = local_session("delta")
    records = (
        spark.readStream.format("tidegate")
        .option("bootstrap", bootstrap)
        .option("subscribe", ",".join(topics))
        .option("startingOffsets", "earliest")
        .option("consistency", "cut")
        .schema("key binary, value binary, topic string, partition int, offset long, timestamp timestamp")
        .load()
    )
    writer = records.writeStream.format("delta").option("checkpointLocation", f"{folder}/checkpoint")
    reports = watch(writer.trigger(availableNow=True).start(f"{folder}/table"))
    added = sum(report["numInputRows"] for report in reports)
    print(f"{added} records added, {spark.read.format('delta').load(f'{folder}/table').count()} in the table")
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
