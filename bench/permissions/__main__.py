"""Asks an Apache Kafka the questions of the permission matrix.

    python -m bench.permissions record tests/security/data/kafka-4.1.1-permissions.json
    python -m bench.permissions check tests/security/data/kafka-4.1.1-permissions.json

`record` writes its answers into the file that a test compares Tidegate's with; `check` ends with 1 when they
are not those of the file.  Needs Java 17, and Maven for the first time (see bench/kafka_peer.py).
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

from ..answers.side import Connection
from ..kafka_peer import KafkaCluster, jars
from .matrix import READY_S, SETTINGS, Matrix, asked, by_user

LISTENER = "SASL_PLAINTEXT"


def of_kafka(directory: Path) -> Matrix:
    settings = {**SETTINGS, "sasl.enabled.mechanisms": "PLAIN"}
    cluster = KafkaCluster(directory, 1, jars(), settings, listeners=[LISTENER])
    cluster.format()
    cluster.start()
    host, _, port = cluster.addresses(LISTENER).rpartition(":")
    try:
        deadline = time.monotonic() + READY_S
        while True:
            cluster.check_running()
            try:
                Connection((host, int(port))).close()
                break
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)
        return asked((host, int(port)))
    finally:
        cluster.stop()


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.permissions", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("do", choices=("record", "check"))
    parser.add_argument("file", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        found = of_kafka(Path(directory))
    if arguments.do == "record":
        arguments.file.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
        return 0
    recorded = by_user(json.loads(arguments.file.read_text()))
    differences = 0
    for key, answer in by_user(found).items():
        if recorded.get(key) != answer:
            differences += 1
            print(f"{key[0]}, {key[1]}: {answer}, and the file has {recorded.get(key)}")
    print(f"{len(recorded)} answers compared, {differences} differ")
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
