"""All committed records of a topic into Parquet, with a progress bar:

python spark_backfill.py BOOTSTRAP TOPIC FOLDER
"""

import sys

from tidegate.spark import local_session
from tidegate.spark.progress.bars import tasks_bar


def main(bootstrap: str, topic: str, folder: str) -> None:
    spark = local_session("backfill")
    records = (
        spark.read.format("tidegate")
        .option("bootstrap", bootstrap)
        .option("subscribe", topic)
        .schema("key binary, value binary, partition int, offset long, timestamp timestamp")  # what is needed
        .load()
    )
    rows = records.selectExpr(
        "cast(key as string)", "cast(value as string)", "partition", "offset", "timestamp"
    )
    with tasks_bar(spark, topic):
        rows.write.mode("overwrite").option("compression", "zstd").parquet(folder)
    print(f"{spark.read.parquet(folder).count()} records of {topic} are in {folder}")
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
