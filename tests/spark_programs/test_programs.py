"""The programs of docs/spark.md, as they stand, against one node."""

from __future__ import annotations

import base64
import io
import json
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import fastavro
import pyarrow.parquet
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from tidegate.client import LocalCluster, NewTopic
from tidegate.client.blocking import Admin, Consumer, Producer
from tidegate.tests.docs import test_examples
from tidegate.tests.docs.test_examples import DOCS, EXAMPLES
from tidegate.tests.started import started

from bench.kafka_peer import default_cache
from bench.spark_streams import fetched

pytestmark = [
    pytest.mark.spark,
    pytest.mark.cluster,
    pytest.mark.xdist_group("spark"),
    pytest.mark.timeout(600),
]

PYSPARK_FOR_DELTA = "4.2.1"
DELTA = ("delta-spark_4.2_2.13", "4.4.0")
DELTA_JARS = ("delta", "unitycatalog", "jts-core")  # Spark has the others that it needs
START_MS = 1_700_000_040_000  # a whole minute
AVRO = {
    "type": "record",
    "name": "Payment",
    "fields": [{"name": "account", "type": "string"}, {"name": "amount", "type": "long"}],
}


def run(
    name: str, *arguments: str, timeout_s: float = 240, environment: Mapping[str, str] | None = None
) -> str:
    """Starts a Spark of its own, which takes long on a busy machine."""
    return test_examples.run(name, *arguments, timeout_s=timeout_s, environment=environment)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    settings = {"transaction.state.log.num.partitions": 2, "offsets.topic.num.partitions": 2}
    cluster = LocalCluster(tmp_path_factory.mktemp("node"), 1, settings)
    with started(cluster):
        yield cluster


def create(node: LocalCluster, *topics: str) -> None:
    with Admin(node.bootstrap) as admin:
        admin.create_topics([NewTopic(topic, 2, 1, {"retention.ms": "-1"}) for topic in topics])


def values(node: LocalCluster, topic: str) -> list[dict[str, Any]]:
    """Of all committed records."""
    places = [(topic, 0), (topic, 1)]
    with Consumer(node.bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign(places)
        ends = consumer.end_offsets(places)
        found: list[dict[str, Any]] = []
        while any(consumer.positions().get(place, 0) < end for place, end in ends.items()):
            found += [json.loads(record.value or b"") for record in consumer.poll()]
    return found


def test_a_topic_is_written_to_parquet(node: LocalCluster, tmp_path: Path) -> None:
    create(node, "flights")
    with Producer(node.bootstrap, transactional_id="flights-writer") as producer:
        with producer.transaction():
            for number in range(100):
                producer.send("flights", b"%d" % number, key=b"UA", partition=number % 2)
        producer.begin()
        producer.send("flights", b"aborted")
        producer.abort()
    folder = tmp_path / "flights.parquet"
    said = run("spark_backfill.py", node.bootstrap, "flights", str(folder))
    assert said == f"100 records of flights are in {folder}\n"
    table = pyarrow.parquet.read_table(folder).to_pydict()
    assert sorted(map(int, table["value"])) == list(range(100))
    assert set(table["key"]) == {"UA"}


def test_sums_of_windows_come_into_a_topic_once_and_the_page_has_the_streams_charts(
    node: LocalCluster, tmp_path: Path
) -> None:
    create(node, "payments", "sums")

    def pay(first: int, last: int) -> None:
        """One payment a second."""
        with Producer(node.bootstrap) as producer:
            for number in range(first, last):
                value = json.dumps({"account": "ab"[number % 2], "amount": number})
                producer.send("payments", value, timestamp_ms=START_MS + 1000 * number)

    charts = tmp_path / "windows.html"
    arguments = (node.bootstrap, "payments", "sums", str(tmp_path / "checkpoint"), str(charts))
    pay(0, 300)
    assert run("spark_windows.py", *arguments).startswith("300 records read; ")
    pay(300, 600)
    assert run("spark_windows.py", *arguments).startswith("300 records read; ")
    assert run("spark_windows.py", *arguments).startswith("0 records read; ")
    found = sorted((each["minute"], each["account"], each["amount"]) for each in values(node, "sums"))
    minutes = [range(60 * minute, 60 * minute + 60) for minute in range(len(found) // 2)]
    assert len(minutes) >= 7  # the watermark is a minute behind
    assert [amount for _, _, amount in found] == [
        sum(number for number in minute if number % 2 == odd) for minute in minutes for odd in (0, 1)
    ]
    assert len({(minute, account) for minute, account, _ in found}) == len(found)
    assert "Lag after each micro-batch" in charts.read_text()


def test_a_snapshot_of_five_topics_has_each_transaction_whole_or_not_at_all(
    node: LocalCluster, tmp_path: Path
) -> None:
    topics = [f"branch-{number}" for number in range(5)]
    create(node, *topics)
    with (
        Producer(node.bootstrap, transactional_id="slow") as slow,
        Producer(node.bootstrap, transactional_id="teller") as teller,
    ):
        slow.begin()  # stays open while others commit above its records
        for topic in topics:
            slow.send_and_wait(topic, b"1000", partition=0)
        for number in range(20):
            with teller.transaction():
                teller.send(topics[number % 5], b"-%d" % number, partition=0)
                teller.send(topics[(number + 1) % 5], b"%d" % number, partition=0)
        run("spark_snapshot.py", node.bootstrap, str(tmp_path), *topics)
        slow.abort()
    table = pyarrow.parquet.read_table(tmp_path / "records").to_pydict()
    amounts = list(map(int, table["value"]))
    assert len(amounts) == 40
    assert sum(amounts) == 0
    assert json.loads((tmp_path / "cut.json").read_text())["topics"].keys() == set(topics)


@pytest.fixture
def spark_for_delta() -> dict[str, str]:
    """The environment in which Python finds Delta, and the PySpark that it is for."""
    folder = default_cache() / f"pyspark-{PYSPARK_FOR_DELTA}"
    if not folder.is_dir():
        with tempfile.TemporaryDirectory() as place:
            pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", place]
            subprocess.run([*pip, f"pyspark=={PYSPARK_FOR_DELTA}"], check=True)
            shutil.copytree(place, folder)
    libraries = fetched("io.delta", *DELTA)
    jars = [path for name in DELTA_JARS for path in libraries.glob(f"{name}-*.jar")]
    return {
        "PYTHONPATH": str(folder),
        "SPARK_HOME": str(folder / "pyspark"),
        "DELTA_JARS": ",".join(map(str, jars)),
    }


@pytest.mark.timeout(1500)
def test_a_delta_table_has_each_record_once_however_often_the_program_runs(
    node: LocalCluster, tmp_path: Path, spark_for_delta: dict[str, str]
) -> None:
    topics = ("debits", "credits")
    create(node, *topics)

    def rows() -> list[tuple[object, ...]]:
        files = (tmp_path / "table").glob("*.parquet")  # the table only grows
        tables = [pyarrow.parquet.read_table(file).to_pylist() for file in files]
        return [(row["topic"], row["partition"], row["offset"]) for table in tables for row in table]

    def added() -> str:
        arguments = (node.bootstrap, str(tmp_path), *topics)
        return run("spark_delta.py", *arguments, timeout_s=480, environment=spark_for_delta)

    with (
        Producer(node.bootstrap, transactional_id="late", transaction_timeout_ms=900_000) as late,
        Producer(node.bootstrap, transactional_id="clerk") as clerk,
    ):
        late.begin()  # is open at the end of the first run, below records that are committed
        for topic in topics:
            late.send_and_wait(topic, b"1000", partition=0)
        for number in range(20):
            with clerk.transaction():
                for topic in topics:
                    clerk.send(topic, b"%d" % number, partition=0)
        assert added() == "40 records added, 40 in the table\n"
        late.commit()
        with clerk.transaction():
            clerk.send("debits", b"21", partition=1)
        assert added() == "3 records added, 43 in the table\n"
        assert added() == "0 records added, 43 in the table\n"
    assert len(set(rows())) == len(rows()) == 43


class Registry(BaseHTTPRequestHandler):
    """Knows three schemas, as a schema registry answers for them."""

    file = descriptor_pb2.FileDescriptorProto(name="payment.proto", package="bank", syntax="proto3")
    asked: list[str]

    def do_GET(self) -> None:
        self.asked.append(self.path)
        schema_id = int(re.findall(r"/schemas/ids/(\d+)", self.path)[0])
        answer = {
            7: {"schema": json.dumps(AVRO)},
            8: {"schemaType": "JSON", "schema": "{}"},
            9: {"schemaType": "PROTOBUF", "schema": base64.b64encode(self.file.SerializeToString()).decode()},
        }[schema_id]
        data = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Not on the terminal."""


@pytest.fixture
def registry() -> Iterator[str]:
    declared = Registry.file
    del declared.message_type[:]
    declared.message_type.add(name="Other")
    payment = declared.message_type.add(name="Payment")
    payment.field.add(name="account", number=1, type="TYPE_STRING", label="LABEL_OPTIONAL")
    payment.field.add(name="amount", number=2, type="TYPE_INT64", label="LABEL_OPTIONAL")
    Registry.asked = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Registry)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_values_of_a_schema_registry_are_decoded(node: LocalCluster, registry: str) -> None:
    create(node, "framed")
    avro = io.BytesIO()
    fastavro.schemaless_writer(avro, fastavro.parse_schema(AVRO), {"account": "alice", "amount": 1})
    pool = descriptor_pool.DescriptorPool()
    pool.Add(Registry.file)
    message = message_factory.GetMessageClass(pool.FindMessageTypeByName("bank.Payment"))
    protobuf = bytes([2, 2]) + message(account="carol", amount=3).SerializeToString()  # the second message
    with Producer(node.bootstrap) as producer:
        for schema_id, payload in (
            (7, avro.getvalue()),
            (8, b'{"account": "bob", "amount": 2}'),
            (9, protobuf),
        ):
            producer.send_and_wait("framed", b"\0" + struct.pack(">I", schema_id) + payload, partition=0)
    assert run("spark_registry.py", node.bootstrap, "framed", registry) == "alice 1\nbob 2\ncarol 3\n"
    assert set(Registry.asked) == {  # twice: Spark samples the rows before it sorts them
        "/schemas/ids/7", "/schemas/ids/8", "/schemas/ids/9", "/schemas/ids/9?format=serialized",
    }  # fmt: skip


def test_the_page_names_every_program_for_spark_and_no_other() -> None:
    named = re.findall(r"\(examples/(\w+\.py)\)", (DOCS / "spark.md").read_text())
    assert sorted(set(named)) == [path.name for path in EXAMPLES if path.name.startswith("spark_")]
