"""Records the settings of Apache Kafka as its DescribeConfigs answers them, for the test that compares
Tidegate's with them.

    python -m bench.kafka_settings tests/node/data/kafka-4.1.1-settings.json

Starts one Kafka of the version of `kafka_peer.py` with its defaults, creates a topic without settings, and
writes down for every setting of the topic, and of the broker: name, type, default, source, whether it is
read-only, and the names of its synonyms. Values that depend on the machine (folders, ports, ids) stand as
they were found; the test leaves them out.  Then it offers every topic setting, and every broker setting that
Kafka changes at run time, a list of values, for validation only, and writes down which error code each gets:
for topics by CreateTopics, for brokers by IncrementalAlterConfigs of one broker and of all.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from tidegate.client.connecting.connection import BrokerConnection
from tidegate.client.connecting.errors import ConnectionFailed
from tidegate.wire.api import ApiKey

from .kafka_peer import HOST, VERSION, KafkaCluster, jars

TOPIC: Final = "settings"
START_TIMEOUT_S: Final = 120
KINDS: Final = {2: "topic", 4: "broker"}
LONG_MAX: Final = 2**63 - 1
VALUES: Final = (
    "-3", "-2", "-1", "0", "1", "2", "5", "10", "13", "14", "16", "17", "18", "23", "24", "64", "1023",
    "1024", "1048576",
    "2147483647", "2147483648", str(LONG_MAX), str(LONG_MAX + 1), "0.5", "1.0", "1.5", "1e3", "+2", "02",
    " 7 ", "0_2", "x", "",
    "true", "false", "True", " false",
    "delete", "compact", "compact,delete", "delete, compact", "delete,delete", "delete,,compact", "none",
    "gzip", "snappy", "lz4", "zstd", "uncompressed", "producer", "Gzip", "CreateTime", "LogAppendTime",
    "createtime",
    "*", "0:1", "0:1,1:2", "0:1,", "0:x", "0", "none:none", "0:1:2", "*,0:1",
)  # fmt: skip
"""The script offers all of them to every setting: for each setting some are valid and some are not."""
COMBINATIONS: Final[tuple[dict[str, str], ...]] = (
    {"min.compaction.lag.ms": "10", "max.compaction.lag.ms": "9"},
    {"min.compaction.lag.ms": "9", "max.compaction.lag.ms": "9"},
    {"remote.storage.enable": "true", "cleanup.policy": "compact"},
    {"remote.log.copy.disable": "true", "retention.ms": "5"},
    {"local.retention.ms": "10", "retention.ms": "5"},
    {"local.retention.bytes": "10", "retention.bytes": "5"},
    {"segment.bytes": "1048576", "segment.index.bytes": "5"},
    {"cleanup.policy": "compact", "compression.type": "zstd"},
    {"flush.messages": "1", "flush.ms": "1"},
    {"unknown.setting": "1"},
    {"message.format.version": "3.0"},
    {"message.downconversion.enable": "true"},
)
THROTTLES: Final = (
    "leader.replication.throttled.rate",
    "follower.replication.throttled.rate",
    "replica.alter.log.dirs.io.max.bytes.per.second",
)
"""Broker settings that DescribeConfigs shows only when they are set."""
NEUTRAL_FOLDER: Final = "/var/lib/kafka"
"""Written for the temporary folder in which this Kafka ran."""
UNDYNAMIC: Final = (
    "num.partitions",
    "log.dirs",
    "log.retention.hours",
    "no.such.setting",
    "log.cleaner.enable",
)


async def opened(bootstrap: str) -> BrokerConnection:
    """The connection, as soon as the broker answers."""
    host, _, port = bootstrap.partition(":")
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        try:
            return await BrokerConnection.open(
                host, int(port), client_id="settings", connect_timeout_s=5, request_timeout_s=30
            )
        except ConnectionFailed:
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.5)


async def described(connection: BrokerConnection, kind: int, name: str) -> list[dict[str, Any]]:
    """One row a setting, as DescribeConfigs answers with synonyms and documentation."""
    resource = {"resource_type": kind, "resource_name": name, "configuration_keys": None}
    request = {"resources": [resource], "include_synonyms": True, "include_documentation": True}
    answer = (await connection.request(ApiKey.DESCRIBE_CONFIGS, request)).results[0]
    if answer.error_code:
        raise SystemExit(f"DescribeConfigs of {name}: {answer.error_code} {answer.error_message}")
    rows = [
        {
            "name": config.name,
            "type": int(config.config_type),
            "value": config.value,
            "source": int(config.config_source),
            "read_only": config.read_only,
            "sensitive": config.is_sensitive,
            "synonyms": [[each.name, each.value, int(each.source)] for each in config.synonyms],
        }
        for config in answer.configs
    ]
    return sorted(rows, key=lambda row: str(row["name"]))


def _number(value: Any) -> int:
    return int(value)


async def of_topics(connection: BrokerConnection, configs: list[dict[str, str]]) -> list[int]:
    """The error code that a topic with each of these would be refused with; 0: it could be created."""
    topics = [
        {
            "name": f"offered-{number}",
            "num_partitions": 1,
            "replication_factor": 1,
            "assignments": [],
            "configs": [{"name": name, "value": value} for name, value in config.items()],
        }
        for number, config in enumerate(configs)
    ]
    fields = {"topics": topics, "timeout": 30_000, "timeout_ms": 30_000, "validate_only": True}
    answer = await connection.request(ApiKey.CREATE_TOPICS, fields)
    codes = {topic.name: _number(topic.error_code) for topic in answer.topics}
    return [codes[topic["name"]] for topic in topics]


async def of_broker(connection: BrokerConnection, broker: str, name: str, value: str) -> int:
    """The error code with which this change of a broker's setting would be refused."""
    config = {"name": name, "config_operation": 0, "value": value}
    resource = {"resource_type": 4, "resource_name": broker, "configs": [config]}
    answer = await connection.request(
        ApiKey.INCREMENTAL_ALTER_CONFIGS, {"resources": [resource], "validate_only": True}
    )
    return _number(answer.responses[0].error_code)


async def offered(connection: BrokerConnection, found: dict[str, Any]) -> None:
    """What becomes of every value: name -> value -> error code."""
    found["topic_values"] = {}
    for row in found["topic"]:
        codes = await of_topics(connection, [{row["name"]: value} for value in VALUES])
        found["topic_values"][row["name"]] = dict(zip(VALUES, codes, strict=True))
    found["topic_combinations"] = list(
        zip(COMBINATIONS, await of_topics(connection, list(COMBINATIONS)), strict=True)
    )
    foreign = ("sasl.", "ssl.", "remote.log.", "listener")
    names = [
        row["name"] for row in found["broker"] if not row["read_only"] and not row["name"].startswith(foreign)
    ]
    found["broker_values"], found["default_broker_values"] = {}, {}
    for name in (*names, *THROTTLES, *UNDYNAMIC):
        for target, broker in ((found["broker_values"], "1"), (found["default_broker_values"], "")):
            target[name] = {value: await of_broker(connection, broker, name, value) for value in VALUES}


async def recorded(bootstrap: str) -> dict[str, Any]:
    connection = await opened(bootstrap)
    topic = {"name": TOPIC, "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
    fields = {"topics": [topic], "timeout": 30_000, "timeout_ms": 30_000, "validate_only": False}
    await connection.request(ApiKey.CREATE_TOPICS, fields)
    found: dict[str, Any] = {"version": VERSION, "made_by": "python -m bench.kafka_settings"}
    for kind, name in ((2, TOPIC), (4, "1")):
        found[KINDS[kind]] = await described(connection, kind, name)
    await offered(connection, found)
    connection.close()
    return found


def written(found: dict[str, Any]) -> str:
    """One line a setting."""

    def text(value: Any) -> str:
        return json.dumps(value, ensure_ascii=False)

    parts = []
    for key, value in found.items():
        if isinstance(value, dict):
            rows = ",\n".join(f"  {text(name)}: {text(each)}" for name, each in value.items())
            parts.append(f" {text(key)}: {{\n{rows}\n }}")
        elif isinstance(value, list):
            rows = ",\n".join(f"  {text(each)}" for each in value)
            parts.append(f" {text(key)}: [\n{rows}\n ]")
        else:
            parts.append(f" {text(key)}: {text(value)}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def main() -> None:
    target = Path(sys.argv[1])
    with tempfile.TemporaryDirectory(prefix="kafka-settings-") as directory:
        cluster = KafkaCluster(Path(directory), 1, jars())
        cluster.format()
        cluster.start()
        try:
            found = asyncio.run(recorded(cluster.bootstrap.replace("localhost", HOST)))
        finally:
            cluster.stop()
    target.write_text(written(found).replace(directory, NEUTRAL_FOLDER))
    print(f"{len(found['topic'])} settings of topics, {len(found['broker'])} of brokers: {target}")


if __name__ == "__main__":
    main()
