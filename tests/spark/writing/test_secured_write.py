"""Writes where clients log in: at the Kafka listeners and at the service of jobs, with the same options."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from tidegate.client import LocalCluster, NewTopic
from tidegate.client.blocking import Admin, Consumer
from tidegate.proto import jobs_pb2 as pb
from tidegate.security.properties import read_properties
from tidegate.spark.writing.options import parse_write_options
from tidegate.spark.writing.results import WriteError
from tidegate.spark.writing.rows import Layout
from tidegate.spark.writing.writer import Sink
from tidegate.tests.started import started
from tidegate.wire.errors import ErrorCode

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]

TOPIC = "secured"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    settings = {"transaction.state.log.num.partitions": 2, "offsets.topic.num.partitions": 2}
    cluster = LocalCluster(tmp_path_factory.mktemp("node"), 1, settings, with_users=True)
    with started(cluster):
        with Admin(cluster.bootstrap, security=cluster.security) as admin:
            admin.create_topics([NewTopic(TOPIC, 1, 1)])
        yield cluster


def sink(node: LocalCluster, **more: str) -> Sink:
    properties = read_properties((Path(node.directory) / "client.properties").read_bytes())
    given = {f"kafka.{name}": value for name, value in properties.items()}
    given |= {"topic": TOPIC, "jobBootstrap": node.node(1).grpc_address, "retryTimeoutMs": "5000"} | more
    options = parse_write_options(given)
    return Sink(options, Layout(("value",), options.topic))


def test_the_same_options_log_in_at_both_kinds_of_listeners(node: LocalCluster) -> None:
    values = [b"%d" % number for number in range(3)]
    batch = pa.RecordBatch.from_arrays([pa.array(values, pa.binary())], ["value"])
    writing, job = sink(node), pb.Job(sink="secured", batch="1")
    writing.commit([writing.write(job, "0-1-abc", iter([batch]))], "1")
    assert writing.write(job, "0-2-abc", iter([batch])).is_replay
    with Consumer(node.bootstrap, security=node.security, auto_offset_reset="earliest") as consumer:
        consumer.assign([(TOPIC, 0)])
        found: list[bytes | None] = []
        while len(found) < len(values):
            found += [record.value for record in consumer.poll(timeout_s=0.2)]
    assert found == values


def test_a_wrong_password_ends_at_once_and_is_not_shown(node: LocalCluster) -> None:
    login = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="x" password="not it";'
    batch = pa.RecordBatch.from_arrays([pa.array([b"v"], pa.binary())], ["value"])
    writing = sink(node, **{"kafka.sasl.jaas.config": login})
    with pytest.raises(WriteError) as refused:
        writing.write(pb.Job(sink="secured", batch="2"), "0-1-abc", iter([batch]))
    assert refused.value.code is ErrorCode.SASL_AUTHENTICATION_FAILED
    assert "not it" not in str(refused.value)
