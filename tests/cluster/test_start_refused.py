"""A node that cannot start says why in one clear line and ends with the exit code that its kind of trouble
has, at once.

2: the configuration cannot be used.  3: the node could not start (a port in use, a foreign data folder).
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tidegate.processes.local_cluster import LocalCluster
from tidegate.runtime.connections.listeners import parse_listener
from tidegate.runtime.network import free_port

from .witness import Witness

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("start-refused"), pytest.mark.timeout(120)]

LISTENERS = ("PLAINTEXT", "GRPC", "CONTROLLER", "METRICS")


def settings(directory: Path, **changes: object) -> dict[str, Any]:
    """A configuration that works: one of three voters, so that the quorum's listener opens, too."""
    ports = {name: free_port() for name in LISTENERS}
    return {
        "node.id": 1,
        "cluster.id": "test-cluster",
        "log.dirs": [str(directory / "data")],
        "listeners": [f"{name}://127.0.0.1:{port}" for name, port in ports.items()],
        "controller.quorum.voters": [f"1@127.0.0.1:{ports['CONTROLLER']}:{ports['GRPC']}"]
        + [f"{node_id}@127.0.0.1:{free_port()}:{free_port()}" for node_id in (2, 3)],
    } | changes


def port_of(values: dict[str, Any], listener: str) -> int:
    (found,) = (each for each in map(parse_listener, values["listeners"]) if each.name == listener)
    return found.port


def start(directory: Path, values: dict[str, Any], *options: str) -> tuple[int, str]:
    """Runs a node process that is expected to end by itself: (exit code, its last line, the one for
    people)."""
    path = directory / "config.toml"
    path.write_text("".join(f"{json.dumps(key)} = {json.dumps(value)}\n" for key, value in values.items()))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TIDEGATE_")}
    command = [sys.executable, "-m", "tidegate.node", "--config", str(path), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, env=environment)
    assert "Traceback" not in done.stderr, done.stderr
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("tidegate-node: "), done.stderr
    assert sum(line.startswith("tidegate-node: ") for line in done.stderr.splitlines()) == 1
    return done.returncode, last


class TestConfiguration:
    """Exit code 2; nothing was opened, made or changed."""

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            (
                {"min.insync.replica": 2},
                "unknown setting 'min.insync.replica' in the configuration file: did you mean",
            ),
            (
                {"data.dirs": ["/data"]},
                "'data.dirs' in the configuration file is a former setting's name: write log.dirs instead",
            ),
            ({"node.id": "one"}, "node.id = 'one': int is needed, this is str"),
            ({"listeners": ["9092"]}, "Unable to parse a listener name from 9092"),
            (
                {"controller.quorum.voters": ["1@localhost"]},
                "'1@localhost' is not of the form id@host:quorum-port:grpc-port",
            ),
            (
                {"node.id": 9},
                "this node (9) has the role controller but is not among controller.quorum.voters [1, 2, 3]",
            ),
        ],
    )
    def test_a_wrong_configuration_is_one_clear_line(
        self, tmp_path: Path, change: dict[str, Any], words: str
    ) -> None:
        code, line = start(tmp_path, settings(tmp_path) | change)
        assert code == 2
        assert line.startswith("tidegate-node: cannot use the configuration: ")
        assert words in line
        assert not (tmp_path / "data").exists()

    def test_a_configuration_file_that_is_not_there(self, tmp_path: Path) -> None:
        done = subprocess.run(
            [sys.executable, "-m", "tidegate.node", "--config", str(tmp_path / "absent.toml")],
            capture_output=True, text=True, timeout=30,
        )  # fmt: skip
        assert done.returncode == 2
        assert "absent.toml" in done.stderr
        assert len(done.stderr.splitlines()) == 1

    def test_a_misspelt_option_on_the_command_line(self, tmp_path: Path) -> None:
        code, line = start(tmp_path, settings(tmp_path), "--set", "log.levle=DEBUG")
        assert code == 2
        assert "unknown setting 'log.levle' in --set: did you mean 'log.level'?" in line

    def test_the_settings_are_listed(self) -> None:
        done = subprocess.run(
            [sys.executable, "-m", "tidegate.node", "--settings"], capture_output=True, text=True, timeout=30
        )
        assert done.returncode == 0
        assert "listener.security.protocol.map" in done.stdout
        assert "PLAINTEXT://127.0.0.1:9092" in done.stdout


class TestPorts:
    """Exit code 3."""

    @pytest.mark.parametrize("listener", LISTENERS)
    def test_a_port_in_use_is_named(self, tmp_path: Path, listener: str) -> None:
        values = settings(tmp_path)
        port = port_of(values, listener)
        with socket.create_server(("127.0.0.1", port)):
            code, line = start(tmp_path, values)
        assert code == 3
        assert f"port {port} on 127.0.0.1 is in use: stop the process that holds it" in line
        assert f"listener {listener}://127.0.0.1:{port}: " in line

    def test_an_address_of_another_machine(self, tmp_path: Path) -> None:
        values = settings(tmp_path, insecure=True)
        values["listeners"][0] = "PLAINTEXT://192.0.2.1:9092"
        code, line = start(tmp_path, values)
        assert code == 3
        assert "192.0.2.1" in line


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LocalCluster, Witness]]:
    """A cluster of one node that holds data and is stopped."""
    cluster = LocalCluster(tmp_path_factory.mktemp("owner"), nodes=1)
    witness = Witness(cluster.bootstrap)

    async def fill() -> None:
        await cluster.up()
        await witness.create()
        await witness.write(3)
        await cluster.node(1).terminate()

    async def check() -> None:
        await cluster.up()
        try:
            assert (await cluster.node(1).status()).recovered_logs == 0, (
                "refused starts took the mark of the clean stop away"
            )
            await witness.still_serves()
        finally:
            await cluster.down()

    asyncio.run(fill())
    yield cluster, witness
    asyncio.run(check())


class TestDataFolder:
    """Exit code 3; the folder and what is in it stay as they were, and serve again where they belong."""

    def _values(self, cluster: LocalCluster, directory: Path, **changes: object) -> dict[str, Any]:
        import tomllib

        mine = tomllib.loads(cluster.configuration(cluster.node(1)))
        return settings(
            directory, **{"cluster.id": mine["cluster.id"], "log.dirs": mine["log.dirs"], **changes}
        )

    def test_a_folder_of_another_cluster(self, tmp_path: Path, stopped: tuple[LocalCluster, Witness]) -> None:
        code, line = start(tmp_path, self._values(stopped[0], tmp_path, **{"cluster.id": "other"}))
        assert code == 3
        assert str(stopped[0].node(1).data_path) in line
        assert f"belongs to cluster.id={stopped[0].cluster_id!r}; this node has cluster.id='other'" in line

    def test_a_folder_of_another_node(self, tmp_path: Path, stopped: tuple[LocalCluster, Witness]) -> None:
        values = self._values(stopped[0], tmp_path)
        own = values["controller.quorum.voters"][0].partition("@")[2]
        values |= {"node.id": 2, "controller.quorum.voters": [f"2@{own}"]}
        code, line = start(tmp_path, values)
        assert code == 3
        assert "belongs to node.id='1'; this node has node.id='2'" in line

    def test_the_folder_of_the_metadata_quorum_cannot_be_used(self, tmp_path: Path) -> None:
        """Another one would only take its own partitions down (`test_data_folders`)."""
        file = tmp_path / "a-file"
        file.write_bytes(b"no folder can be made here")
        code, line = start(tmp_path, settings(tmp_path, **{"log.dirs": [str(file), str(tmp_path / "other")]}))
        assert code == 3
        assert f"the data folder {file} fails" in line
        assert "it is the metadata quorum's" in line
        assert "cannot start without it" in line

    def test_a_folder_that_another_process_uses(
        self, tmp_path: Path, stopped: tuple[LocalCluster, Witness]
    ) -> None:
        cluster = stopped[0]
        asyncio.run(cluster.up())
        try:
            code, line = start(tmp_path, self._values(cluster, tmp_path))
        finally:
            asyncio.run(cluster.node(1).terminate())
        assert code == 3
        assert f"the data folder {cluster.node(1).data_path} is in use by another process" in line

    def test_a_port_in_use_leaves_the_folder_as_clean_as_it_was(
        self, tmp_path: Path, stopped: tuple[LocalCluster, Witness]
    ) -> None:
        cluster = stopped[0]
        values = self._values(cluster, tmp_path)
        with socket.create_server(("127.0.0.1", port_of(values, "PLAINTEXT"))):
            code, _ = start(tmp_path, values)
        assert code == 3
        assert (cluster.node(1).data_path / "clean-shutdown").exists()

    def test_a_folder_that_cannot_be_made(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("not a folder")
        code, line = start(tmp_path, settings(tmp_path, **{"log.dirs": [str(tmp_path / "file" / "data")]}))
        assert code == 3
        assert str(tmp_path / "file") in line

    def test_a_folder_that_is_named_twice(self, tmp_path: Path) -> None:
        code, line = start(
            tmp_path, settings(tmp_path, **{"log.dirs": [str(tmp_path / "a"), str(tmp_path / "a")]})
        )
        assert code == 2
        assert "log.dirs names a folder twice" in line

    def test_a_log_that_is_in_two_folders(self, tmp_path: Path) -> None:
        for name in "ab":
            (tmp_path / name / "flights-0").mkdir(parents=True)
        code, line = start(
            tmp_path, settings(tmp_path, **{"log.dirs": [str(tmp_path / "a"), str(tmp_path / "b")]})
        )
        assert code == 3
        assert "flights-0" in line
        assert str(tmp_path / "a") in line
        assert str(tmp_path / "b") in line


def test_a_node_that_others_could_speak_for_does_not_start_without_a_word(tmp_path: Path) -> None:
    values = settings(tmp_path)
    values["listeners"] = [each.replace("127.0.0.1", "0.0.0.0") for each in values["listeners"]]
    values["advertised.listeners"] = ["PLAINTEXT://127.0.0.1:1", "GRPC://127.0.0.1:2"]
    code, said = start(tmp_path, values)
    assert code == 2
    assert "other machines reach this listener for nodes" in said
    assert not (tmp_path / "data").exists()


async def test_an_insecure_node_says_so_at_every_start(tmp_path: Path) -> None:
    cluster = LocalCluster(tmp_path, 1, {"insecure": True})
    node = cluster.node(1)
    open_to_all = f"CONTROLLER://0.0.0.0:{node.ports.quorum}"
    cluster.settings["listeners"] = [
        f"PLAINTEXT://{node.kafka_address}", f"GRPC://{node.grpc_address}", open_to_all,
        f"METRICS://{node.metrics_address}",
    ]  # fmt: skip
    for starts in (1, 2):
        await cluster.up()
        await cluster.down()
        warnings = [line for line in node.log_path.read_text().splitlines() if " insecure " in line]
        assert len(warnings) == starts
        assert "WARNING" in warnings[-1]
        assert open_to_all in warnings[-1]
