"""Reads a topic once, read_committed, from its start to where it ends now, and writes it to Parquet.

The folder is written whole or not at all: Spark's committer renames it into place, and `--mode errorifexists`
refuses to mix two runs.  Exit code 0 means that every committed record of the frozen range is in it.
"""

from __future__ import annotations

import argparse
from datetime import UTC, datetime
from pathlib import Path

from tidegate.security.properties import read_properties
from tidegate.spark.session import local_session


def security(file: Path | None) -> dict[str, str]:
    """Options of the source, by the names that Kafka's have in Spark."""
    if file is None or not file.exists():
        return {}
    return {f"kafka.{name}": value for name, value in read_properties(file.read_bytes()).items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--bootstrap", required=True, help="host:port of a node's gRPC listener, or several, with commas"
    )
    parser.add_argument(
        "--command-config", type=Path, help="Kafka's properties of a client; without the file: no security"
    )
    parser.add_argument("--topic", required=True)
    parser.add_argument("--output", required=True, type=Path, help="a folder; the run gets its own below it")
    parser.add_argument("--mode", default="errorifexists", choices=["errorifexists", "overwrite"])
    parser.add_argument("--cores", default=2, type=int)
    arguments = parser.parse_args()
    target = arguments.output / arguments.topic / datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    spark = local_session(f"tidegate-backfill-{arguments.topic}", cores=arguments.cores)
    try:
        source = (
            spark.read.format("tidegate")
            .option("bootstrap", arguments.bootstrap)
            .option("subscribe", arguments.topic)
        )
        for name, value in security(arguments.command_config).items():
            source = source.option(name, value)
        source.option("isolation", "read_committed").load().write.mode(arguments.mode).parquet(str(target))
        print(f"{spark.read.parquet(str(target)).count()} records in {target}")
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
