"""The `tidegate` command: quick help, one line for an error, tables for people and JSON for machines."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import typer
from tidegate.client import command_line
from tidegate.client.administration.descriptions import ConfigEntry, TopicDescription
from tidegate.client.administration.operations import RegisteredBroker
from tidegate.client.administration.topic_admin import _refusal
from tidegate.client.command_line.output import CommandError, cell, plain, refuse_unknown, settings_of
from tidegate.client.connecting.errors import error_for
from tidegate.client.connecting.metadata import BrokerAddress, PartitionMetadata
from tidegate.processes.local_cluster import LocalCluster
from tidegate.tests.eventually import eventually
from tidegate.wire.api import ApiKey
from tidegate.wire.errors import ErrorCode
from typer.testing import CliRunner, Result

HEAVY = ("grpc", "kio", "rich", "cramjam", "re2", "google.protobuf", "asyncio", "pyspark")


def tidegate(*arguments: str, text: str | None = None) -> Result:
    return CliRunner().invoke(command_line.build(arguments), list(arguments), input=text)


def test_help_loads_nothing_heavy() -> None:
    """What makes `--help` quick, held without a stop watch."""
    script = (
        "import sys; from tidegate.client.command_line import build; build(['--help']); "
        f"print([name for name in {HEAVY!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    loaded = set(json.loads(done.stdout.replace("'", '"'))) - {"asyncio"}
    assert loaded == set()


@pytest.mark.parametrize("command", [[], ["topics"], ["groups"], ["txns"], ["jobs"], ["cluster"]])
def test_help_lists_the_commands(command: list[str]) -> None:
    done = tidegate(*command, "--help")
    assert done.exit_code == 0
    assert "Commands:" in done.output


def test_version() -> None:
    assert tidegate("--version").output.startswith("tidegate 0.")


@pytest.mark.parametrize(
    "command",
    [
        ["topics", "list"],
        ["topics", "create", "t"],
        ["topics", "describe", "t"],
        ["topics", "delete", "t"],
        ["topics", "delete-records", "t", "--before", "3"],
        ["groups", "list"],
        ["groups", "describe", "g"],
        ["txns", "list"],
        ["txns", "describe", "x"],
        ["status"],
        ["produce", "t", "v"],
        ["consume", "t"],
    ],
)
def test_no_node_is_said_in_one_line_with_advice(command: list[str]) -> None:
    done = tidegate(*command, "--bootstrap", "127.0.0.1:1")
    assert done.exit_code == 1
    assert done.stdout == ""
    assert done.stderr.splitlines() == [
        "error: cannot reach any of 127.0.0.1:1: connection refused: is the node running? try "
        "`tidegate cluster status`"
    ]


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["topics", "list", "--bootstrap", "nonsense"], "host:port"),
        (["topics", "create", "t", "--config", "broken"], "key=value"),
        (["topics", "create", "t", "-p", "0"], "--partitions 0"),
        (["topics", "list", "--bootstrap", "nosuch.invalid:9092"], "no such host name"),
        (["groups", "reset-offsets", "g", "--to-latest", "--topic", "t", "--all-topics"], "not both"),
        (["produce", "t", "v", "--acks", "7"], "choose 'all', 1 or 0"),
        (["produce", "t", "v", "--compression", "brotli"], "zstd"),
        (["produce", "t", "v", "--header", "x"], "key=value"),
        (["consume", "t", "--isolation", "perfect"], "read_committed"),
        (["cluster", "status", "--data", "/nonexistent/folder"], "tidegate cluster up"),
        (["cluster", "down", "--data", "/nonexistent/folder"], "tidegate cluster up"),
    ],
)
def test_wrong_options_are_said_in_one_line(command: list[str], words: str) -> None:
    done = tidegate(*command)
    assert done.exit_code == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    assert words in line


def test_a_setting_that_no_node_knows_is_the_nodes_own_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="key=value"):
        settings_of(["a"], "--set")
    assert settings_of(["a=1", "b = x=y"], "--set") == {"a": "1", "b": "x=y"}


class FakeAdmin:
    """Answers for the listing commands."""

    features: ClassVar = {"transaction.version": 2}

    async def __aenter__(self) -> FakeAdmin:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def list_groups(self, states: list[str], types: list[str]) -> list[Any]:
        from tidegate.client.administration.descriptions import GroupListing

        return [GroupListing("billing", "consumer", "Stable", "classic")]

    async def list_transactions(self, states: list[str], *, running_for_ms: int) -> list[Any]:
        from tidegate.client.administration.descriptions import TransactionListing

        return [TransactionListing("slow", 7, "Ongoing", 1)] if 0 <= running_for_ms < 90_000 else []


def test_lists_are_tables_or_json(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("listing", "transactions"):
        monkeypatch.setattr(f"tidegate.client.command_line.{module}.connect", lambda *_: FakeAdmin())
    table = tidegate("groups", "list").stdout
    assert "billing" in table
    assert "Stable" in table
    assert "group" in table.splitlines()[0]
    found = json.loads(tidegate("groups", "list", "--json").stdout)
    assert found == [
        {"group_id": "billing", "protocol_type": "consumer", "state": "Stable", "type": "classic"}
    ]
    assert tidegate("txns", "list").stdout.strip() == "no transactional ids"
    assert json.loads(tidegate("txns", "list", "--json").stdout) == []
    assert "slow" in tidegate("txns", "list", "--longer-than", "60.5").stdout
    assert "slow" not in tidegate("txns", "list", "--longer-than", "90").stdout


def test_values_become_text_and_json() -> None:
    assert [cell(value) for value in (None, True, b"x", (1, 2), 3.5)] == ["-", "yes", "x", "1,2", "3.5"]
    assert plain({("t", 1): b"\xff", "e": ErrorCode.NONE}) == {"('t', 1)": {"base64": "/w=="}, "e": "NONE"}
    assert plain(BrokerAddress(1, "h", 2)) == {"node_id": 1, "host": "h", "port": 2, "rack": None}


def test_commands_of_higher_floors_join_and_are_loaded_only_when_called(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loaded: list[str] = []

    class Entry:
        def __init__(self, name: str, made: object) -> None:
            self.name = name
            self._made = made

        def load(self) -> object:
            loaded.append(self.name)
            return self._made

    app = typer.Typer()

    @app.command()
    def run() -> None:
        print("chaos ran")

    @app.command()
    def other() -> None:
        pass

    def demo(fast: bool = False) -> None:
        """The demo."""
        print(f"demo ran {fast}")

    entries = [Entry("chaos", app), Entry("demo", demo)]
    monkeypatch.setattr(command_line, "entry_points", lambda group: entries)
    assert "chaos" in tidegate("--help").stdout
    assert loaded == []
    assert tidegate("demo", "--fast").stdout == "demo ran True\n"
    assert loaded == ["demo"]
    assert tidegate("chaos", "run").stdout == "chaos ran\n"
    assert loaded == ["demo", "chaos"]


async def test_produce_splits_lines_and_can_be_atomic(broker: Any) -> None:
    async def call(*arguments: str, text: str | None = None) -> tuple[int, str, str]:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tidegate.client.command_line", *arguments, "--bootstrap", broker.bootstrap,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        out, err = await process.communicate((text or "").encode())
        return process.returncode or 0, out.decode(), err.decode()

    broker.partitions = 1
    code, out, _ = await call("produce", "t", "--separator", ":", text="a:1\nb:2\n")
    assert (code, out) == (0, "2 records written to t\n")
    assert broker.logs["t", 0] == [(b"a", b"1"), (b"b", b"2")]
    code, out, _ = await call("produce", "t", "x", "y", "--transactional-id", "tx", "--json")
    assert code == 0
    assert [json.loads(line)["offset"] for line in out.splitlines()] == [2, 3]
    assert [committed for _, _, committed in broker.outcomes] == [True]
    code, _, err = await call(
        "produce", "t", "--separator", ":", "--transactional-id", "tx", text="c:3\nbroken\n"
    )
    assert code == 1
    assert err.startswith("error: no ':' in 'broken'")
    assert len(err.splitlines()) == 1
    assert [committed for _, _, committed in broker.outcomes].count(True) == 1


class Produce:
    """`tidegate produce` as a process, with the scripted broker."""

    def __init__(self, broker: Any) -> None:
        self._broker = broker

    async def start(self, *arguments: str) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tidegate.client.command_line", "produce", *arguments, "--bootstrap",
            self._broker.bootstrap,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip

    async def __call__(self, *arguments: str, stdin: bytes = b"") -> tuple[int | None, str, str]:
        process = await self.start(*arguments)
        out, err = await process.communicate(stdin)
        return process.returncode, out.decode(), err.decode()


@pytest.fixture
def produce(broker: Any) -> Produce:
    broker.partitions = 1
    return Produce(broker)


async def arrived(broker: Any, count: int) -> None:
    await eventually(lambda: len(broker.logs["t", 0]) >= count)


async def test_a_record_is_sent_when_its_line_arrives_and_ctrl_c_prints_a_count(
    broker: Any, produce: Produce
) -> None:
    process = await produce.start("t")
    assert process.stdin is not None
    for number in (1, 2):
        process.stdin.write(b"%d\n" % number)
        await arrived(broker, number)
    process.send_signal(signal.SIGINT)
    async with asyncio.timeout(10):
        out, err = await process.communicate()
    assert (process.returncode, out, err) == (130, b"2 records written to t, then interrupted\n", b"")


async def test_ctrl_c_in_a_transaction_aborts_it(broker: Any, produce: Produce) -> None:
    process = await produce.start("t", "--transactional-id", "tx")
    assert process.stdin is not None
    process.stdin.write(b"1\n")
    await arrived(broker, 1)
    process.send_signal(signal.SIGINT)
    async with asyncio.timeout(10):
        out, err = await process.communicate()
    assert (process.returncode, out, err) == (130, b"0 records written to t, then interrupted\n", b"")
    assert [committed for _, _, committed in broker.outcomes] == [False]


async def test_lines_are_bytes(broker: Any, produce: Produce) -> None:
    code, out, err = await produce("t", "-s", ":", stdin=b"k\xff:\xfe\x00v\r\n:\nlast:1")
    assert (code, out, err) == (0, "3 records written to t\n", "")
    assert broker.logs["t", 0] == [(b"k\xff", b"\xfe\x00v"), (b"", b""), (b"last", b"1")]


async def test_a_mistake_in_the_middle_says_how_much_was_written(broker: Any, produce: Produce) -> None:
    code, out, err = await produce("t", "-s", ":", stdin=b"a:1\nb:2\nbroken\n")
    assert (code, out) == (1, "")
    assert len(err.splitlines()) == 1
    assert "no ':' in 'broken'" in err
    assert "(2 records were written to t before)" in err


async def test_offsets_of_a_transaction_are_printed_after_its_commit(broker: Any, produce: Produce) -> None:
    broker.script(
        ApiKey.END_TXN, {"error_code": ErrorCode.INVALID_TXN_STATE, "producer_id": -1, "producer_epoch": -1}
    )
    code, out, err = await produce("t", "x", "--transactional-id", "tx", "--json")
    assert (code, out) == (1, "")
    assert "INVALID_TXN_STATE" in err
    code, out, _ = await produce("t", "x", "--transactional-id", "tx", "--json")
    assert code == 0
    assert json.loads(out)["topic"] == "t"


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (
            ["topics", "create", "x", "-p", "99999999999"],
            "a number up to 10000 is wanted (see `tidegate topics create --help`)",
        ),
        (["consume", "t", "--max", "-3"], "a number from 1 on is wanted"),
        (["consume", "t", "--idle", "-1"], "a number from 0 on is wanted"),
        (["produce", "t", "x", "--partition", "-1"], "a number from 0 on is wanted"),
        (["dev", "--data", "/nonexistent/x", "--port", "70000"], "a number up to"),
        (["cluster", "up", "--nodes", "0"], "a number from 1 on is wanted"),
        (["consume", "t", "--max", "x"], "a whole number is wanted"),
        (["consume"], "missing argument"),
        (["bogus"], "no such command 'bogus' (see `tidegate --help`)"),
        (["topics", "list", "--bogus"], "no such option: --bogus"),
    ],
)
def test_a_mistake_in_the_arguments_is_one_line_with_what_is_permitted(
    command: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command_line.call(command_line.build(command), command) == 2
    said = capsys.readouterr()
    (line,) = said.err.splitlines()
    assert said.out == ""
    assert line.startswith("error: ")
    assert words in line


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (("list", "--state", "Foo"), "choose from open, committed, aborted"),
        (("describe", "x"), "SINK/BATCH is wanted"),
        (("abort", "x/"), "SINK/BATCH is wanted"),
    ],
)
def test_a_job_that_is_named_wrongly_is_refused(command: tuple[str, ...], said: str) -> None:
    done = tidegate("jobs", *command)
    assert done.exit_code == 1
    assert said in done.stderr


def test_a_state_that_does_not_exist_is_refused_with_those_that_do() -> None:
    done = tidegate("txns", "list", "--state", "Foo")
    assert done.exit_code == 1
    assert "choose from Empty, Ongoing, Prepared, PrepareCommit" in done.stderr


def test_the_states_are_those_of_the_coordinator() -> None:
    from tidegate.client.command_line.transactions import TRANSACTION_STATES
    from tidegate.coordinator.transaction.state import TransactionState

    assert sorted(TRANSACTION_STATES) == sorted(state.display_name for state in TransactionState)


def test_the_states_and_types_of_groups_are_those_of_their_coordinator() -> None:
    from tidegate.client.command_line.listing import GROUP_STATES, GROUP_TYPES
    from tidegate.coordinator.group.classic.state import GroupState
    from tidegate.coordinator.group.consumer.state import ConsumerGroupState
    from tidegate.coordinator.group.events import GroupType

    assert set(GROUP_STATES) == {
        state.value for states in (GroupState, ConsumerGroupState) for state in states
    }
    assert set(GROUP_TYPES) == {kind.value for kind in GroupType}


@pytest.mark.parametrize(("option", "value"), [("--state", "Sleeping"), ("--type", "modern")])
def test_an_unknown_group_state_or_type_is_an_error_with_the_known_ones(option: str, value: str) -> None:
    done = tidegate("groups", "list", option, value)
    assert done.exit_code == 1
    assert f"{option} {value}: choose from " in done.stderr


def test_a_code_is_named_once() -> None:
    for said in ("TOPIC_ALREADY_EXISTS", "TOPIC_ALREADY_EXISTS: it is there", "it is there"):
        error = error_for(ErrorCode.TOPIC_ALREADY_EXISTS, "creating topic 'x'", said)
        assert str(error).count("TOPIC_ALREADY_EXISTS") == 1
        assert "x'" in str(error)


def test_a_change_of_several_things_says_what_was_done() -> None:
    refused = error_for(ErrorCode.TOPIC_ALREADY_EXISTS, "creating topic 'c'")
    assert str(_refusal([refused], ["a", "b"])).endswith("; it was done for a, b")
    assert "done for" not in str(_refusal([refused], []))


def test_the_summaries_of_commands_that_are_not_loaded_are_their_own() -> None:
    own = {}
    for entry in entry_points(group=command_line.ENTRY_POINT_GROUP):
        loaded = entry.load()
        own[entry.name] = (
            (loaded.info.help if isinstance(loaded, typer.Typer) else loaded.__doc__).strip().splitlines()[0]  # type: ignore[union-attr]
        )
    assert own == command_line.SUMMARIES


def test_an_unknown_setting_is_an_error_that_names_the_similar_one() -> None:
    refuse_unknown(["a.b"], ["a.b", "c"])
    with pytest.raises(CommandError, match=r"unknown setting 'retention.sm': did you mean 'retention.ms'\?"):
        refuse_unknown(["retention.sm"], ["retention.ms", "segment.ms"])
    with pytest.raises(CommandError, match=r"unknown setting 'nope'$"):
        refuse_unknown(["nope"], ["retention.ms"])


class Brokers(FakeAdmin):
    """Broker 3 is away; one setting is set for all brokers."""

    changed: ClassVar[list[Any]] = []

    async def list_brokers(self) -> list[Any]:
        return [
            RegisteredBroker(1, "127.0.0.1:9092", None, True),
            RegisteredBroker(3, "127.0.0.1:9094", None, False),
        ]

    async def broker_settings(self, node_id: int | None) -> dict[str, str | None]:
        return (
            {"log.cleaner.threads": "2"}
            if node_id is None
            else {"log.cleaner.threads": "1", "num.partitions": "1"}
        )

    async def alter_broker_config(self, node_id: int | None, changes: Any) -> None:
        self.changed.append((node_id, changes))

    async def describe_cluster(self) -> Any:
        return SimpleNamespace(cluster_id="c", controller_id=1, brokers=[BrokerAddress(1, "127.0.0.1", 9092)])

    async def list_topics(self, *, internal: bool) -> list[Any]:
        return []

    async def list_reassignments(self) -> list[Any]:
        return []

    async def describe_data_folders(self) -> list[Any]:
        return []

    async def describe_topics(self, names: list[str], config: bool = True) -> list[Any]:
        part = PartitionMetadata(0, 1, 0, (1,), (1,))
        return [
            TopicDescription(name, False, [part], [ConfigEntry("retention.ms", "5", False, False)])
            for name in names
        ]

    async def create_topics(self, topics: Any) -> None:
        pass


def test_settings_of_brokers_are_taken_back_to_what_counts_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["tidegate.client.command_line.brokers"], "connect", lambda *_: Brokers())
    assert tidegate("brokers", "set", "--broker", "1", "log.cleaner.threads=").stdout == (
        "broker 1: log.cleaner.threads=2, as for all brokers\n"
    )
    assert (
        tidegate("brokers", "set", "--broker", "1", "num.partitions=").stdout
        == "broker 1: num.partitions as in the file\n"
    )
    Brokers.changed.clear()
    refused = tidegate("brokers", "set", "nonsense=")
    assert refused.exit_code == 1
    assert "unknown setting 'nonsense'" in refused.stderr
    assert Brokers.changed == []


def test_a_broker_that_is_away_stands_in_the_status(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidegate.client.command_line.listing.connect", lambda *_: Brokers())
    shown = tidegate("status")
    assert shown.exit_code == 0
    assert "node 3 127.0.0.1:9094: away\n" in shown.stdout
    assert "1 nodes and 1 away" in shown.stdout
    assert [each["node_id"] for each in json.loads(tidegate("status", "--json").stdout)["away"]] == [3]


def test_created_topics_are_printed_with_their_given_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidegate.client.command_line.listing.connect", lambda *_: Brokers())
    (created,) = json.loads(tidegate("topics", "create", "t", "--config", "retention.ms=5", "--json").stdout)
    assert created["name"] == "t"
    assert created["config"] == {"retention.ms": "5"}


def test_the_nodes_of_a_cluster_fit_a_terminal_of_80_columns(tmp_path: Path) -> None:
    LocalCluster(tmp_path, 3).release()
    shown = tidegate("cluster", "status", "--data", str(tmp_path)).stdout
    rows = [line.split() for line in shown.splitlines()]
    assert rows[0] == ["node", "pid", "address", "state", "ready", "ctrl", "vote", "leads", "reps", "behind"]
    longer_pid = len("1234567") - len("pid")
    assert max(map(len, shown.splitlines())) + longer_pid <= 80
