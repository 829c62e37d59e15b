"""Kafka's own command-line tools as users of a secured cluster, over each way to prove an identity: records,
groups, administration, ACLs.  What each prints is compared with Kafka's elsewhere
(tests/kafka_tools); here every call must do its work."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tidegate.tests.cluster.secured_ways import WAYS, SecuredCluster
from tidegate.tests.kafka_tools.cases import MAINS
from tidegate.tests.kafka_tools.jvm import ToolJvm, compiled, fetched

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

RECORDS = [f"value-{number}" for number in range(20)]
Call = Callable[..., str]


@pytest.fixture(params=WAYS)
def cluster(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[SecuredCluster]:
    made = SecuredCluster(tmp_path, request.param, {})
    for name, value in made.environment_of_programs.items():
        monkeypatch.setenv(name, value)
    with asyncio.Runner() as runner:
        runner.run(made.up())
        yield made
        runner.run(made.down())


@pytest.fixture
def call(cluster: SecuredCluster) -> Iterator[Call]:
    """Runs a tool, which must succeed; returns what it printed."""
    libraries = fetched()
    classes = compiled(libraries)
    shared = ToolJvm(libraries, classes)

    def run(tool: str, arguments: str, text: str = "", *, option: str = "--command-config") -> str:
        main, flag = MAINS[tool]
        words = [flag, cluster.bootstrap, option, str(cluster.java_properties), *arguments.split()]
        outcome = shared.run(main, words, text)
        assert outcome.code == 0, f"{tool} {arguments}: {outcome.out}{outcome.err}"
        return outcome.out

    yield run
    shared.close()


def test_tools_work_for_a_user_however_it_proves_its_identity(call: Call) -> None:
    for topic in ("from", "to"):
        call("kafka-topics", f"--create --topic {topic} --partitions 2 --replication-factor 3")
    assert call("kafka-topics", "--list").split()[:2] == ["from", "to"]
    text = "".join(f"{value}\n" for value in RECORDS)
    call("kafka-console-producer", "--topic from --sync", text, option="--producer.config")
    read = call(
        "kafka-console-consumer",
        "--topic from --from-beginning --group readers --max-messages 20 --timeout-ms 30000",
        option="--consumer.config",
    )
    assert sorted(read.split()) == sorted(RECORDS)
    assert "readers" in call("kafka-consumer-groups", "--list")
    described = call("kafka-consumer-groups", "--describe --group readers")
    assert sum(int(line.split()[3]) for line in described.splitlines() if line.startswith("readers")) == 20
    call("kafka-consumer-groups", "--reset-offsets --group readers --topic from --to-earliest --execute")
    assert "retention.ms=60000" in (
        call("kafka-configs", "--alter --topic from --add-config retention.ms=60000")
        + call("kafka-configs", "--describe --topic from")
    )
    call("kafka-acls", "--add --allow-principal User:carol --operation Read --topic from")
    assert "User:carol" in call("kafka-acls", "--list --topic from")
    call(
        "kafka-configs",
        "--alter --entity-type users --entity-name carol --add-config consumer_byte_rate=1000",
    )
    assert "consumer_byte_rate" in call("kafka-configs", "--describe --entity-type users --entity-name carol")
    assert "from:" in call("kafka-get-offsets", "--topic from")
    call("kafka-transactions", "list")
    call("kafka-topics", "--delete --topic from")
