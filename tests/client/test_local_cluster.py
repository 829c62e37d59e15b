"""Clusters of processes on this machine: nodes end with their harness, and no other process ever gets a
signal."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import signal
import socket
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import grpc
import pytest
from tidegate.client.command_line.cluster import _unready
from tidegate.node.settings.configuration import load
from tidegate.processes import local_cluster
from tidegate.processes.local_cluster import ForeignNode, LocalCluster, LocalClusterError, LocalNode, NotReady
from tidegate.processes.local_ports import PORT_STEP
from tidegate.processes.node_process import NodeProcess, ProcessIdentity, last_words, log_tail
from tidegate.proto.admin_pb2 import StatusReply
from tidegate.runtime.clock import SystemClock
from tidegate.runtime.disk import RealDisk
from tidegate.tests.base_ports import free_base_port
from tidegate.tests.eventually import eventually

SLEEPER = [sys.executable, "-c", "import time; time.sleep(60)"]


async def until_gone(pid: int) -> None:
    await eventually(lambda: ProcessIdentity.of(pid) is None)


def test_a_recorded_process_is_found_again_and_signalled(tmp_path: Path) -> None:
    child = subprocess.Popen(SLEEPER)
    identity = ProcessIdentity.of(child.pid)
    assert identity is not None
    assert identity.alive()
    assert identity.signal(signal.SIGKILL)
    child.wait()
    assert not identity.alive()
    assert not identity.signal(signal.SIGKILL)


def test_a_pid_that_another_process_has_now_is_not_signalled(tmp_path: Path) -> None:
    """The record says this pid, but another start time: the kernel has given the pid away since."""
    child = subprocess.Popen(SLEEPER)
    try:
        identity = ProcessIdentity.of(child.pid)
        assert identity is not None
        for stale in (
            ProcessIdentity(identity.pid, identity.start_ticks - 1, identity.boot_id),
            ProcessIdentity(identity.pid, identity.start_ticks, "another boot"),
        ):
            assert not stale.signal(signal.SIGKILL)
            record = tmp_path / "process.json"
            record.write_text(
                json.dumps({"pid": stale.pid, "start_ticks": stale.start_ticks, "boot_id": stale.boot_id})
            )
            attached = NodeProcess.attach(record)
            assert not attached.running
            assert attached.pid is None
            assert not attached.signal(signal.SIGKILL)
        assert child.poll() is None
    finally:
        child.kill()
        child.wait()


@pytest.mark.parametrize("text", ["", "{}", "[]", "nonsense", '{"pid": 1}'])
def test_a_damaged_record_means_no_process(tmp_path: Path, text: str) -> None:
    record = tmp_path / "process.json"
    record.write_text(text)
    assert not NodeProcess.attach(record).running


async def test_waiting_for_a_process_that_is_not_our_child() -> None:
    shell = subprocess.Popen(
        ["sh", "-c", "sleep 60 & echo $!; wait"], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert shell.stdout is not None
    pid = int(shell.stdout.readline())
    identity = ProcessIdentity.of(pid)
    assert identity is not None
    waiting = asyncio.create_task(identity.wait_gone())
    await asyncio.sleep(0)
    assert not waiting.done()
    identity.signal(signal.SIGKILL)
    await asyncio.wait_for(waiting, 10)
    shell.wait()
    shell.stdout.close()


def test_clusters_side_by_side_have_own_ports_below_the_ephemeral_range(tmp_path: Path) -> None:
    clusters = [LocalCluster(tmp_path / str(number), 3) for number in range(3)]
    ports = [
        port
        for cluster in clusters
        for node in cluster.nodes
        for port in (node.ports.kafka, node.ports.grpc, node.ports.quorum, node.ports.metrics)
    ]
    assert len(set(ports)) == len(ports) == 36
    assert max(ports) < 32_768
    for cluster in clusters:
        cluster.release()


def test_a_directory_keeps_its_cluster(tmp_path: Path) -> None:
    first = LocalCluster(tmp_path, 3, {"num.partitions": 4}, fault_points=True)
    again = LocalCluster.attach(tmp_path)
    assert (again.cluster_id, again.bootstrap, again.settings) == (
        first.cluster_id,
        first.bootstrap,
        first.settings,
    )
    assert again.environment["TIDEGATE_FAULT_POINTS"] == "1"
    with pytest.raises(LocalClusterError, match="--nodes 3"):
        LocalCluster(tmp_path, 5)
    with pytest.raises(LocalClusterError, match="cluster up"):
        LocalCluster.attach(tmp_path / "elsewhere")
    (tmp_path / "cluster.json").write_text("{}")
    with pytest.raises(LocalClusterError, match="is damaged"):
        LocalCluster.attach(tmp_path)
    first.release()


def test_configuration_fits_the_number_of_nodes_and_settings_win(tmp_path: Path) -> None:
    three = LocalCluster(tmp_path / "three", 3, {"log.level": "DEBUG", "default.replication.factor": 2})
    values = tomllib.loads(three.configuration(three.node(2)))
    assert (values["node.id"], values["default.replication.factor"], values["log.level"]) == (2, 2, "DEBUG")
    assert values["transaction.state.log.min.isr"] == 2
    assert len(values["controller.quorum.voters"]) == 3
    one = LocalCluster(tmp_path / "one", 1)
    assert tomllib.loads(one.configuration(one.node(1)))["offsets.topic.replication.factor"] == 1
    three.release()
    one.release()


def test_the_nodes_know_every_setting_that_is_written_for_them(tmp_path: Path) -> None:
    from tidegate.node.settings.configuration import load

    cluster = LocalCluster(tmp_path, 3)
    for node in cluster.nodes:
        loaded = load(cluster.configuration(node).encode(), environment={})
        assert (loaded.node_id, loaded.listeners.kafka[0].address) == (node.id, node.kafka_address)
    cluster.release()


def test_the_environment_of_nodes_has_no_settings_of_the_harness(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDEGATE_NODE_ID", "9")
    cluster = LocalCluster(tmp_path, 1)
    assert not [name for name in cluster.environment if name.startswith("TIDEGATE_")]
    cluster.release()


async def test_a_node_restarts_with_its_configuration_on_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = LocalCluster(tmp_path, 1, {"min.insync.replicsa": 2})  # the process ends by itself
    node = cluster.node(1)
    await node.start()
    assert await node.wait_exit(30)
    write = RealDisk.write_atomic

    def full(disk: RealDisk, path: Path, data: bytes) -> None:
        if path == node.config_path:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(disk, path, data)

    monkeypatch.setattr(RealDisk, "write_atomic", full)
    await node.start()
    assert await node.wait_exit(30)
    cluster.release()


def test_a_process_that_cannot_be_written_down_does_not_run_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[int] = []

    def full(_disk: RealDisk, _path: Path, data: bytes) -> None:
        started.append(json.loads(data)["pid"])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(RealDisk, "write_atomic", full)
    with pytest.raises(OSError, match="No space"):
        NodeProcess.spawn(
            tmp_path / "c.toml",
            log=tmp_path / "log",
            record=tmp_path / "record",
            environment={},
            detached=True,
        )
    assert len(started) == 1
    assert ProcessIdentity.of(started[0]) is None


async def test_a_node_that_cannot_start_is_reported_with_its_last_output(tmp_path: Path) -> None:
    cluster = LocalCluster(tmp_path, 1, {"min.insync.replicsa": 2})
    with pytest.raises(LocalClusterError, match=r"min\.insync\.replicas"):
        await cluster.up(30)
    assert not cluster.node(1).running
    assert "min.insync.replicas" in log_tail(cluster.node(1).log_path)
    cluster.release()
    assert LocalCluster.attach(tmp_path).settings == {}, "the wrong setting stays behind"


HARNESS = """
import asyncio, sys
from pathlib import Path
from tidegate.processes.local_cluster import LocalCluster

async def main():
    cluster = LocalCluster(Path(sys.argv[1]), 1)
    await cluster.up(60)
    print(cluster.node(1).pid, flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


@pytest.mark.cluster
async def test_nodes_die_with_their_harness(tmp_path: Path) -> None:
    harness = subprocess.Popen(
        [sys.executable, "-c", HARNESS, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert harness.stdout is not None
    pid = int(await asyncio.to_thread(harness.stdout.readline))
    assert ProcessIdentity.of(pid) is not None
    harness.kill()  # nothing of the harness runs after this
    harness.wait()
    harness.stdout.close()
    await until_gone(pid)


@pytest.mark.cluster
async def test_a_detached_cluster_lives_on_and_is_found_from_another_process(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tidegate.client.command_line", "cluster"]
    cluster = LocalCluster(tmp_path, 1, detached=True)
    cluster.release()
    up = await asyncio.to_thread(
        subprocess.run,
        [*command, "up", "--nodes", "1", "--data", str(tmp_path), "--json"],
        capture_output=True,
        text=True,
    )
    assert up.returncode == 0, up.stderr
    try:
        node = json.loads(up.stdout)["nodes"][0]
        assert node["ready"]
        assert os.path.exists(f"/proc/{node['pid']}")
        attached = LocalCluster.attach(tmp_path)
        assert attached.node(1).pid == node["pid"]
        assert (await attached.node(1).status()).node_id == 1
    finally:
        down = await asyncio.to_thread(
            subprocess.run, [*command, "down", "--data", str(tmp_path)], capture_output=True, text=True
        )
    assert down.stdout == "stopped: node 1\n"
    await until_gone(node["pid"])
    assert not LocalCluster.attach(tmp_path).node(1).running


@pytest.fixture
def listener() -> Iterator[int]:
    """A port that some other program holds, with room below it for the other ports of a node."""
    with socket.create_server(("127.0.0.1", 0)) as held:
        yield held.getsockname()[1]


async def test_a_port_that_another_program_holds_is_named_before_anything_starts(
    tmp_path: Path, listener: int
) -> None:
    cluster = LocalCluster(tmp_path, 1, base_port=listener, base_port_option="--port")
    with pytest.raises(
        LocalClusterError,
        match=rf"port {listener} \(Kafka of node 1\) is in use by another program .* --port",
    ):
        await cluster.up()
    assert not cluster.node(1).running
    assert not cluster.node(1).log_path.exists()
    cluster.release()


def test_a_stopped_cluster_moves_to_the_ports_that_are_asked_for(tmp_path: Path) -> None:
    first, second = free_base_port(nodes=3), free_base_port(nodes=3)
    LocalCluster(tmp_path, 3, base_port=first).release()
    kept = LocalCluster(tmp_path)
    assert [node.ports.kafka for node in kept.nodes] == [first, first + 1, first + 2]
    kept.release()
    moved = LocalCluster(tmp_path, base_port=second)
    assert [node.ports.grpc - PORT_STEP for node in moved.nodes] == [second, second + 1, second + 2]
    assert moved.cluster_id == kept.cluster_id
    assert str(second + 2 * PORT_STEP) in moved.configuration(moved.node(3))
    moved.release()
    assert LocalCluster.attach(tmp_path).bootstrap == moved.bootstrap


def test_a_cluster_on_a_full_disk_is_still_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = LocalCluster(tmp_path, 1, {"num.partitions": 4})
    first.release()

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(RealDisk, "_write_atomic", full)
    monkeypatch.setattr(RealDisk, "lock", full)
    assert LocalCluster.attach(tmp_path).cluster_id == first.cluster_id
    with pytest.raises(OSError, match="No space"):
        LocalCluster(tmp_path, 1, {"num.partitions": 5})


def test_settings_are_kept_added_to_and_taken_back(tmp_path: Path) -> None:
    def settings(changes: dict[str, object] | None = None) -> tuple[dict[str, object], bool]:
        cluster = LocalCluster(tmp_path, 1, changes)
        cluster.release()
        return cluster.settings, cluster.settings_changed

    assert settings({"num.partitions": 4}) == ({"num.partitions": 4}, False)
    assert settings() == ({"num.partitions": 4}, False)
    assert settings({"log.level": "DEBUG"}) == ({"num.partitions": 4, "log.level": "DEBUG"}, True)
    assert settings({"num.partitions": None}) == ({"log.level": "DEBUG"}, True)


def test_the_last_words_are_the_line_that_tells_of_the_error(tmp_path: Path) -> None:
    log = tmp_path / "node.log"
    before = "tidegate-node: an older start's error\n"
    log.write_text(before + "t INFO a start\nt ERROR node broken thing=1\nt INFO b stop\n")
    assert last_words(log, len(before)) == "t ERROR node broken thing=1"
    log.write_text(before + "t INFO a start\nt INFO b stop\n")
    assert last_words(log, len(before)) == "t INFO b stop"
    assert "no log" in last_words(tmp_path / "absent")


@pytest.mark.cluster
async def test_a_cluster_on_the_ports_of_another_one_is_never_called_ready(tmp_path: Path) -> None:
    first = LocalCluster(tmp_path / "first", 1)
    await first.up()
    try:
        second = LocalCluster(tmp_path / "second", 1)
        second._ports = first._ports  # as when both use the default ports, one after the other
        node = second._nodes[1] = LocalNode(second, first.node(1).ports)
        with pytest.raises(LocalClusterError, match=rf"in use by a node of another .*{first.cluster_id}"):
            await second.up()
        with pytest.raises(ForeignNode, match="not this cluster's"):
            await node.status()
        # The same cluster and node, but another process than ours.
        copy = LocalCluster.attach(tmp_path / "first")
        copy.node(1)._process = NodeProcess(ProcessIdentity.of(os.getpid()), None, tmp_path / "record")
        with pytest.raises(ForeignNode):
            await copy.node(1).status()
        assert (await first.node(1).status()).process_id == first.node(1).pid
        second.release()
    finally:
        await first.down()


@pytest.mark.cluster
def test_the_command_refuses_taken_ports_and_applies_what_is_set(tmp_path: Path) -> None:
    def tidegate(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "tidegate.client.command_line", *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=90)

    LocalCluster(tmp_path / "a", 1).release()  # chooses free ports
    data = ["--data", str(tmp_path / "a")]
    try:
        up = tidegate("cluster", "up", *data, "--set", "num.partitions=4", "--json")
        assert up.returncode == 0, up.stderr
        assert up.stderr == "", up.stderr
        port = json.loads(up.stdout)["bootstrap"].rpartition(":")[2]
        again = tidegate("cluster", "up", *data, "--set", "num.partitions=5")
        assert again.returncode == 0
        assert "counts there from the next start" in again.stderr
        refused = tidegate("cluster", "up", *data, "--base-port", "10900")
        assert refused.returncode == 1
        assert f"runs on port {port}: stop it first" in refused.stderr
        dev = tidegate("dev", *data)
        assert dev.returncode == 1
        assert "runs already" in dev.stderr
        assert len(dev.stderr.splitlines()) == 1
        assert 'num.partitions" = 4' in (tmp_path / "a/node-1/config.toml").read_text()
        tidegate("cluster", "down", *data)
        up = tidegate("cluster", "up", *data)
        assert up.returncode == 0, up.stderr
        assert 'num.partitions" = 5' in (tmp_path / "a/node-1/config.toml").read_text()
    finally:
        tidegate("cluster", "down", *data)


class StepClock(SystemClock):
    """Each question about a node's progress takes 50 s."""

    now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def recovering(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[LocalNode, list[int]]]:
    """A node whose process runs and answers nothing but how many of its ten logs are open: the numbers of the
    list, in turn; when there are none left, it is ready."""
    clock, opened = StepClock(), list[int]()
    node = LocalCluster(tmp_path, nodes=1, clock=clock).node(1)
    child = subprocess.Popen(SLEEPER)
    node._process = NodeProcess(ProcessIdentity.of(child.pid), child, tmp_path / "record")

    async def status(*_: object) -> StatusReply:
        if opened:
            raise grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, grpc.aio.Metadata(), grpc.aio.Metadata())
        return StatusReply(ready=True)

    async def readyz(*_: object) -> str:
        clock.now_s += 50
        return f"recovering: {opened.pop(0)} of 10 logs are open\n"

    monkeypatch.setattr(local_cluster, "POLL_INTERVAL_S", 0)
    monkeypatch.setattr(local_cluster, "get", readyz)
    monkeypatch.setattr(node, "status", status)
    yield node, opened
    child.kill()
    child.wait()


async def test_a_node_that_gets_on_is_waited_for(recovering: tuple[LocalNode, list[int]]) -> None:
    node, opened = recovering
    opened += range(10)
    assert (await node.wait_ready()).ready, "500 s, and never 60 without another log"


async def test_a_node_that_gets_no_further_is_not_waited_for(recovering: tuple[LocalNode, list[int]]) -> None:
    node, opened = recovering
    opened += [1, 2, 3, 3, 3, 3, 3]
    with pytest.raises(
        LocalClusterError, match=r"not ready after 60 s .*got no further.*3 of 10 logs are open"
    ):
        await node.wait_ready()
    assert node.has_logs, "it is left alone"


async def test_wait_ready_ends_after_its_timeout(recovering: tuple[LocalNode, list[int]]) -> None:
    node, opened = recovering
    opened += range(10)
    with pytest.raises(LocalClusterError, match=r"not ready after 120 s .*2 of 10 logs are open"):
        await node.wait_ready(within_s=120)


@pytest.mark.parametrize(("replicas", "has_logs"), [(3000, True), (0, False)])
async def test_a_node_that_catches_up_has_logs_that_its_stop_would_close(
    recovering: tuple[LocalNode, list[int]], monkeypatch: pytest.MonkeyPatch, replicas: int, has_logs: bool
) -> None:
    """It has opened them all, and must not be stopped either; a first start that comes to nothing must."""
    node, _ = recovering
    clock = node._cluster.clock
    assert isinstance(clock, StepClock)

    async def status(*_: object) -> StatusReply:
        clock.now_s += 50
        return StatusReply(state="running", replicas=replicas, under_replicated=replicas)

    monkeypatch.setattr(node, "status", status)
    with pytest.raises(LocalClusterError, match="not ready"):
        await node.wait_ready()
    assert node.has_logs is has_logs


@pytest.mark.parametrize(
    ("detached", "error", "expected"),
    [
        (True, LocalClusterError("node 2 ended"), [2]),
        (True, NotReady("node 2 is not ready"), []),
        (True, asyncio.CancelledError(), []),
        (False, LocalClusterError("node 2 ended"), [1, 2]),
        (False, NotReady("node 2 is not ready"), [1, 2]),
        (False, asyncio.CancelledError(), [1, 2]),
    ],
)
async def test_detached_nodes_that_start_or_recover_go_on_when_the_waiting_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, detached: bool, error: BaseException, expected: list[int]
) -> None:
    cluster, stopped = LocalCluster(tmp_path, nodes=2, detached=detached), list[int]()
    cluster.node(1).progress = local_cluster.Progress(local_cluster.RECOVERING, 3, 10)
    monkeypatch.setattr(LocalNode, "has_logs", property(lambda self: bool(self.progress.of)))

    async def nothing(*_: object, **__: object) -> None:
        pass

    async def late(*_: object, **__: object) -> None:
        raise error

    async def stop(nodes: list[LocalNode], _timeout_s: float) -> None:
        stopped.extend(node.id for node in nodes)

    monkeypatch.setattr(LocalNode, "start", nothing)
    monkeypatch.setattr(LocalNode, "wait_ready", late)
    monkeypatch.setattr(cluster, "_stop", stop)
    with pytest.raises(type(error)):
        await cluster.up()
    assert stopped == expected


async def test_a_node_that_does_not_answer_is_reported_in_words(
    recovering: tuple[LocalNode, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    node, opened = recovering
    opened += [0] * 20

    async def no_answer(*_: object) -> str:
        cast(StepClock, node._cluster.clock).now_s += 50
        return ""

    monkeypatch.setattr(local_cluster, "get", no_answer)
    with pytest.raises(NotReady, match=r"not ready after 30 s \(it does not answer yet\)"):
        await node.wait_ready(within_s=30)


def test_the_command_tells_which_nodes_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = LocalCluster(tmp_path, nodes=3)
    cluster.release()
    cluster.node(2).awaited = "it does not answer yet"
    monkeypatch.setattr(LocalNode, "running", True)
    said = _unready(cluster, tmp_path)
    assert said.startswith(
        "not ready is node 2 (it does not answer yet); it goes on: `tidegate cluster status --data "
    )


def test_a_setting_that_a_node_refuses_is_not_kept(tmp_path: Path) -> None:
    folder = tmp_path / "new"
    with pytest.raises(
        LocalClusterError, match=r"unknown setting 'log.levl' in --set: did you mean 'log.level'"
    ):
        LocalCluster(folder, 1, {"log.levl": "INFO"}, check_settings=True)
    assert not folder.exists()
    LocalCluster(folder, 1, {"num.partitions": 4}, check_settings=True).release()
    with pytest.raises(LocalClusterError, match=r"broker\.session\.timeout\.ms = 'x'"):
        LocalCluster(folder, 1, {"broker.session.timeout.ms": "x"}, check_settings=True)
    kept = LocalCluster.attach(folder)
    kept.release()
    assert kept.settings == {"num.partitions": 4}


async def test_a_first_start_on_taken_ports_leaves_nothing_behind(tmp_path: Path, listener: int) -> None:
    cluster = LocalCluster(tmp_path / "new", 2, base_port=listener - 1)
    with pytest.raises(LocalClusterError, match="in use"):
        await cluster.up()
    cluster.release()
    assert not (tmp_path / "new").exists()


def test_a_file_in_the_folders_place_and_a_damaged_description_are_errors(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LocalClusterError, match="is a file: a folder is wanted"):
        LocalCluster.exists(tmp_path / "file")
    LocalCluster(tmp_path / "three", 3).release()
    with pytest.raises(LocalClusterError, match=r"`tidegate cluster up --data .*three`"):
        LocalCluster(tmp_path / "three", 1, base_port_option="--port")
    (tmp_path / "three/cluster.json").write_text("{")
    with pytest.raises(LocalClusterError, match=r"data in .* is untouched: put a copy"):
        LocalCluster.attach(tmp_path / "three")


class ElsewhereInNetwork:
    """Nodes on other hosts."""

    def address(self, node_id: int) -> str:
        return f"10.0.0.{node_id}"

    def name(self, node_id: int) -> str:
        return f"host-{node_id}"

    def command(self, node_id: int) -> list[str]:
        return []


@pytest.mark.parametrize("secured", [False, True])
def test_nodes_on_other_hosts_are_insecure_or_have_certificates(tmp_path: Path, secured: bool) -> None:
    """Both start: the word stands in the file, or no listener for nodes is open."""
    cluster = LocalCluster(tmp_path, 3, hosts=ElsewhereInNetwork(), secured=secured)
    try:
        text = cluster.configuration(cluster.node(1)).encode()
        assert ("insecure" in tomllib.loads(text.decode())) is not secured
        found = load(text, environment={}).listeners
        assert bool(found.open_to_others) is not secured
        again = LocalCluster(tmp_path, hosts=ElsewhereInNetwork())
        assert again.configuration(again.node(1)).encode() == text
        again.release()
    finally:
        cluster.release()


def test_only_their_owner_reads_the_keys_of_a_secured_cluster(tmp_path: Path) -> None:
    LocalCluster(tmp_path, 1, secured=True).release()
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "tls").iterdir()}
    assert modes == {"ca.pem": 0o644, "ca.key": 0o600, "node-1.pem": 0o600}
    # the settings in it may be secrets: delegation.token.secret.key, users of PLAIN
    assert (tmp_path / "cluster.json").stat().st_mode & 0o777 == 0o600
