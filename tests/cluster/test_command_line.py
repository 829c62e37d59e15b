"""The `tidegate` command against three nodes: each command as people see it, and with --json as machines
do."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tidegate.client.consuming.consumer import Consumer
from tidegate.client.producing.producer import Producer
from tidegate.processes.local_cluster import LocalCluster
from tidegate.processes.node_process import NodeProcess
from tidegate.runtime.network import free_port

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("shared-cluster"), pytest.mark.timeout(120)]

_numbers = itertools.count()


def tidegate(
    *arguments: str, stdin: str | None = None, code: int = 0, notes: int = 0, **environment: str
) -> str:
    """Runs the command, which writes `notes` notes: its standard output, or for a failure what it wrote on
    standard error."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("TIDEGATE_")}
    done = subprocess.run(
        [sys.executable, "-m", "tidegate.client.command_line", *arguments],
        capture_output=True, text=True, timeout=60, input=stdin, env=clean | environment,
    )  # fmt: skip
    assert done.returncode == code, done.stderr or done.stdout
    if code:
        assert len(done.stderr.splitlines()) == 1, done.stderr
        assert done.stderr.startswith("error: "), done.stderr
        return done.stderr
    said = done.stderr.splitlines()
    assert len(said) == notes, done.stderr
    assert all(line.startswith("note: ") for line in said), done.stderr
    return done.stdout


class Command:
    """`tidegate` with a cluster to talk to."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap

    def __call__(self, *arguments: str, stdin: str | None = None, code: int = 0, notes: int = 0) -> str:
        return tidegate(*arguments, stdin=stdin, code=code, notes=notes, TIDEGATE_BOOTSTRAP=self.bootstrap)

    def json(self, *arguments: str, stdin: str | None = None) -> Any:
        documents = [json.loads(line) for line in self(*arguments, "--json", stdin=stdin).splitlines()]
        return documents[0] if len(documents) == 1 else documents


@pytest.fixture(scope="module")
def command(shared_cluster: LocalCluster) -> Command:
    return Command(shared_cluster.bootstrap)


@pytest.fixture
def topic(command: Command) -> str:
    """A topic of three partitions, made by the command."""
    name = f"cli-{next(_numbers)}"
    said = command("topics", "create", name, "--partitions", "3", "--config", "min.insync.replicas=2")
    assert said == f"created {name}: 3 partitions, 3 replicas each\n"
    return name


def test_settings_of_a_topic_are_changed_and_go_back_to_the_default(command: Command, topic: str) -> None:
    said = command("topics", "set", topic, "retention.ms=60000", "segment.bytes=1048576")
    assert said == f"{topic}: retention.ms=60000, segment.bytes=1048576\n"
    assert command.json("topics", "describe", topic)[0]["config"]["retention.ms"] == "60000"
    found = command.json("topics", "set", topic, "retention.ms=", "segment.bytes=2097152")
    assert found == {"topic": topic, "set": {"retention.ms": None, "segment.bytes": "2097152"}}
    config = command.json("topics", "describe", topic)[0]["config"]
    assert (config["retention.ms"], config["segment.bytes"]) == ("604800000", "2097152")


REFUSED = [["retention.ms=soon"], ["no.such.setting=1"], ["retention.ms"], ["segment.bytes=9999999", "x=1"]]


@pytest.mark.parametrize("changes", REFUSED)
def test_a_setting_that_is_refused_changes_nothing(command: Command, topic: str, changes: list[str]) -> None:
    before = command.json("topics", "describe", topic)[0]["config"]
    said = command("topics", "set", topic, *changes, code=1)
    assert changes[-1].partition("=")[0] in said
    assert command.json("topics", "describe", topic)[0]["config"] == before


def test_leaders_are_elected_when_asked(command: Command, topic: str) -> None:
    rows = command.json("partitions", "elect", f"{topic}:0", f"{topic}:1")
    assert [(row["topic"], row["partition"]) for row in rows] == [(topic, 0), (topic, 1)]
    assert rows[0]["leader"] > 0
    assert "has no partition 99" in command("partitions", "elect", f"{topic}:99", code=1)


def test_a_cut_is_pinned_shown_listed_and_unpinned(command: Command, topic: str) -> None:
    command("produce", topic, stdin="".join(f"{number}\n" for number in range(30)))
    said = command("cuts", "pin", "month-end", "--topic", topic, "--retention-ms", "60000")
    assert said.startswith("pinned: month-end, 3 partitions, until 20")
    shown = command.json("cuts", "show", "month-end")
    assert sum(each["end"] - each["start"] for each in shown["ranges"]) == 30
    assert f"{topic}" in command("cuts", "show", "month-end")
    assert "month-end: pinned, taken " in command("cuts", "show", "month-end")
    (listed,) = [cut for cut in command.json("cuts", "list") if cut["name"] == "month-end"]
    assert (listed["topics"], listed["partitions"], listed["is_confirmed"]) == ([topic], 3, True)
    again = ("cuts", "pin", "month-end", "--topic", topic, "--retention-ms", "60000")
    assert "a cut is pinned as 'month-end' already" in command(*again, code=1)
    assert command("cuts", "unpin", "month-end") == "unpinned: month-end\n"
    assert "no cut is pinned as month-end" in command("cuts", "unpin", "month-end", code=1)
    assert "no cut is pinned as 'month-end'" in command("cuts", "show", "month-end", code=1)


class TestCount:
    """count, with the address that all commands take."""

    def test_the_kafka_address_is_enough_and_a_range_beyond_the_end_is_refused(
        self, command: Command, topic: str
    ) -> None:
        command("produce", topic, stdin="".join(f"{number}\n" for number in range(90)))
        began_s = time.monotonic()
        assert command("count", topic).splitlines()[-1] == "90 records"
        assert command.json("count", topic)["records"] == 90
        assert "what can be read ends at " in command("count", topic, "--range", "0:0:5000", code=1)
        # three processes on a busy machine; 30 s is what one waits for a lost cluster
        assert time.monotonic() - began_s < 15

    def test_the_grpc_address_does_as_well(
        self, command: Command, topic: str, shared_cluster: LocalCluster
    ) -> None:
        assert (
            command("count", topic, "--bootstrap", shared_cluster.node(1).grpc_address).splitlines()[-1]
            == "0 records"
        )


class TestTopics:
    """create, list, describe, delete."""

    def test_a_topic_is_created_listed_described_and_deleted(self, command: Command, topic: str) -> None:
        assert [line.split() for line in command("topics", "list").splitlines() if topic in line] == [
            [topic, "3", "3", "0", "0"]
        ]
        described = command("topics", "describe", topic)
        assert f"{topic}: 3 partitions" in described
        assert "min.insync.replicas" in described
        assert command("topics", "delete", topic) == f"deleted {topic}\n"
        assert topic not in command("topics", "list")

    def test_the_same_as_json(self, command: Command) -> None:
        name = f"cli-{next(_numbers)}"
        (created,) = command.json("topics", "create", name, "-p", "2", "-r", "3")
        assert (created["name"], len(created["partitions"])) == (name, 2)
        assert {"name": name, "partitions": 2, "internal": False} in command.json("topics", "list")
        (described,) = command.json("topics", "describe", name)
        assert [part["partition"] for part in described["partitions"]] == [0, 1]
        assert all(sorted(part["in_sync_replicas"]) == [1, 2, 3] for part in described["partitions"])
        assert described["config"]["flush.policy"] == "always"
        assert command.json("topics", "delete", name) == {"deleted": [name]}

    def test_mistakes_are_one_line_that_says_what_to_do(self, command: Command, topic: str) -> None:
        assert "TOPIC_ALREADY_EXISTS" in command("topics", "create", topic, code=1)
        assert "did you mean 'retention.ms'" in command(
            "topics", "create", "x", "--config", "retention.m=1", code=1
        )
        assert "UNKNOWN_TOPIC_OR_PARTITION" in command("topics", "delete", "no-such-topic", code=1)
        assert "no-such-topic" in command("topics", "describe", "no-such-topic", code=1)
        assert "INVALID_REPLICATION_FACTOR" in command("topics", "create", "x", "-r", "9", code=1)


class TestRecords:
    """produce, consume."""

    def test_lines_go_in_and_come_out(self, command: Command, topic: str) -> None:
        lines = [f"key-{n}:value-{n}" for n in range(20)]
        said = command("produce", topic, "--separator", ":", stdin="\n".join(lines) + "\n")
        assert said == f"20 records written to {topic}\n"
        read = command("consume", topic, "--from-beginning", "--max", "20", "--keys")
        assert sorted(line.replace("\t", ":") for line in read.splitlines()) == sorted(lines)

    def test_the_same_as_json(self, command: Command, topic: str) -> None:
        written = command.json("produce", topic, "a", "b", "--key", "k", "--header", "h=1")
        assert [entry["offset"] for entry in written] == [0, 1]
        read = command.json("consume", topic, "--from-beginning", "--idle", "0")
        assert [(record["key"], record["value"], record["headers"]) for record in read] == [
            ("k", "a", {"h": "1"}),
            ("k", "b", {"h": "1"}),
        ]

    def test_records_in_one_transaction_are_visible_together(self, command: Command, topic: str) -> None:
        said = command("produce", topic, "a", "b", "c", "--transactional-id", f"tx-{topic}")
        assert said == f"3 records written to {topic} in one transaction\n"
        assert sorted(command("consume", topic, "--from-beginning", "--max", "3").split()) == ["a", "b", "c"]

    def test_an_unknown_topic_is_one_line(self, command: Command) -> None:
        assert "no-such-topic" in command("consume", "no-such-topic", "--idle", "0", code=1)


def test_a_group_is_listed_and_described(command: Command, topic: str) -> None:
    command("produce", topic, "--partition", "0", "a", "b", "c")
    group = f"group-{topic}"
    assert command("consume", topic, "--group", group, "--from-beginning", "--max", "2").split() == ["a", "b"]
    assert group in command("groups", "list")
    assert group in [entry["group_id"] for entry in command.json("groups", "list")]
    said = command("groups", "describe", group)
    assert said.startswith(f"{group}: ")
    assert topic in said
    described = command.json("groups", "describe", group)
    (row,) = [row for row in described["partitions"] if row["partition"] == 0]
    assert (row["committed"], row["end"], row["lag"]) == (2, 3, 1)
    listed = command.json("groups", "list", "--state", "empty", "--type", "Classic")
    assert {"group_id": group, "protocol_type": "consumer", "state": "Empty", "type": "classic"} in listed
    assert group not in [entry["group_id"] for entry in command.json("groups", "list", "--state", "Stable")]
    assert command("groups", "delete", group) == f"deleted {group}\n"
    assert "GROUP_ID_NOT_FOUND" in command("groups", "delete", group, code=1)


def test_offsets_of_a_group_are_reset_in_every_way(command: Command, topic: str, tmp_path: Path) -> None:
    command("produce", topic, "--partition", "0", *"abcdefgh")
    group, reset = f"reset-{topic}", ("groups", "reset-offsets")
    assert command("consume", topic, "--group", group, "--from-beginning", "--max", "4").split() == [*"abcd"]

    def committed() -> int:
        rows = command.json("groups", "describe", group)["partitions"]
        return next(int(row["committed"]) for row in rows if row["partition"] == 0)

    assert committed() == 4
    shown = command.json(*reset, group, "--topic", f"{topic}:0", "--to-earliest")
    assert shown == [{"group": group, "topic": topic, "partition": 0, "new_offset": 0}], "a dry run"
    assert committed() == 4, "a dry run"
    for mode, expected, notes in (
        (("--to-earliest",), 0, 0), (("--to-latest",), 8, 0), (("--shift-by", "-3"), 5, 0),
        (("--to-current",), 5, 0),
        (("--to-offset", "2"), 2, 0), (("--by-duration", "PT1H"), 0, 0),
        (("--to-datetime", "2199-01-01T00:00:00.000"), 8, 1), (("--shift-by", "-99"), 0, 1),
    ):  # fmt: skip
        command(*reset, group, "--topic", f"{topic}:0", *mode, "--execute", notes=notes)
        assert committed() == expected, mode
    file = tmp_path / "offsets.csv"
    file.write_text(command(*reset, group, "--all-topics", "--shift-by", "3", "--export", notes=2))
    assert f'"{topic}",0,3\n' in file.read_text()
    command(*reset, group, "--from-file", str(file), "--execute")
    assert committed() == 3
    assert "is wanted, 2 are given" in command(
        *reset, group, "--all-topics", "--to-latest", "--to-earliest", code=1
    )
    assert "has no partition 99" in command(*reset, group, "--topic", f"{topic}:99", "--to-latest", code=1)
    fresh = f"fresh-{topic}"
    command(*reset, fresh, "--topic", topic, "--to-offset", "6", "--execute", notes=2)
    assert command("consume", topic, "--group", fresh, "--max", "2").split() == ["g", "h"]


async def test_offsets_are_not_reset_under_members(command: Command, topic: str) -> None:
    group = f"busy-{topic}"
    async with Consumer(command.bootstrap, group_id=group) as consumer:
        consumer.subscribe([topic])
        while not consumer.assignment():
            await consumer.poll(timeout_s=0.2)
        line = ("groups", "reset-offsets", group, "--topic", topic, "--to-earliest", "--execute")
        said = await asyncio.to_thread(lambda: command(*line, code=1))
    assert "it is Stable" in said
    assert "stop them first" in said


def test_a_topic_is_altered_and_made_with_kafkas_name_for_replicas(command: Command, topic: str) -> None:
    before = command.json("topics", "describe", topic)[0]
    count = len(before["partitions"]) + 2
    command("topics", "alter", topic, "--partitions", str(count), "--config", "retention.ms=60000")
    after = command.json("topics", "describe", topic)[0]
    assert len(after["partitions"]) == count
    assert after["config"]["retention.ms"] == "60000"
    assert "is the default again" in command("topics", "alter", topic, "--delete-config", "retention.ms")
    assert command.json("topics", "describe", topic)[0]["config"] == before["config"]
    assert "nothing to change" in command("topics", "alter", topic, code=1)
    assert "would not be an increase" in command("topics", "alter", topic, "--partitions", "1", code=1)
    assert "2 replicas each" in command("topics", "create", f"{topic}-2", "--replication-factor", "2")


async def test_transactions_are_listed_and_described(command: Command, topic: str) -> None:
    transactional_id = f"open-{topic}"
    async with Producer(command.bootstrap, transactional_id=transactional_id) as producer:
        await producer.begin()
        await producer.send_and_wait(topic, b"not yet", partition=1)
        listed = await asyncio.to_thread(command, "txns", "list", "--state", "Ongoing")
        assert transactional_id in listed
        found = await asyncio.to_thread(command.json, "txns", "list")
        assert (transactional_id, "Ongoing") in [
            (entry["transactional_id"], entry["state"]) for entry in found
        ]
        said = await asyncio.to_thread(command, "txns", "describe", transactional_id)
        assert "Ongoing" in said
        assert f"partitions of {topic}" in said
        described = await asyncio.to_thread(command.json, "txns", "describe", transactional_id)
        assert described["partitions"] == {topic: [1]}
        assert described["state"] == "Ongoing"
        await producer.abort()
    assert "no-such-id" in await asyncio.to_thread(command, "txns", "describe", "no-such-id", code=1)


def test_the_status_of_the_cluster(command: Command) -> None:
    said = command("status")
    assert "3 nodes" in said
    assert "0 without leader" in said
    status = command.json("status")
    assert len(status["brokers"]) == 3
    assert status["leaderless"] == 0
    assert status["controller"] in (1, 2, 3)
    assert status["features"]["transaction.version"] == 2
    folders = status["data_folders"]
    assert [folder["node_id"] for folder in folders] == [1, 2, 3]
    assert "disk" in said.splitlines()[1]
    assert all(
        folder["disk"] != "offline" and 0 < folder["usable_bytes"] < folder["total_bytes"]
        for folder in folders
    )


def test_no_broker_is_one_line_with_advice() -> None:
    said = tidegate("topics", "list", code=1, TIDEGATE_BOOTSTRAP=f"127.0.0.1:{free_port()}")
    assert "is the node running?" in said


@pytest.mark.xdist_group("cluster-command")
def test_a_cluster_comes_up_in_the_background_and_ends_at_down(tmp_path: Path) -> None:
    folder = str(tmp_path / "cluster")
    # below those that others choose
    options = ("--data", folder, "--nodes", "2", "--base-port", str(11_300 + os.getpid() % 300))
    records = [tmp_path / "cluster" / f"node-{number}" / "process.json" for number in (1, 2)]
    try:
        assert "bootstrap: 127.0.0.1:" in tidegate("cluster", "up", *options)
        status = json.loads(tidegate("cluster", "status", "--data", folder, "--json"))
        assert [(node["node"], node["ready"]) for node in status["nodes"]] == [(1, True), (2, True)]
        assert all(NodeProcess.attach(record).running for record in records)
        command = Command(status["bootstrap"])
        command("topics", "create", "kept", "-r", "2")
        command("produce", "kept", "a")
        # Once more: what runs is left alone.
        tidegate("cluster", "up", *options)
        again = json.loads(tidegate("cluster", "status", "--data", folder, "--json"))
        assert [node["pid"] for node in again["nodes"]] == [node["pid"] for node in status["nodes"]]
    finally:
        stopped = json.loads(tidegate("cluster", "down", "--data", folder, "--json"))
    assert stopped == {"stopped": [1, 2], "killed": []}
    assert not any(NodeProcess.attach(record).running for record in records)
    assert "stopped" in tidegate("cluster", "status", "--data", folder)
    assert tidegate("cluster", "down", "--data", folder) == "no node was running\n"


def test_a_folder_without_a_cluster_is_one_line_with_advice(tmp_path: Path) -> None:
    assert "start one with `tidegate cluster up" in tidegate(
        "cluster", "status", "--data", str(tmp_path), code=1
    )
