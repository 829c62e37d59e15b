"""A cluster of real node processes on this machine, for `tidegate cluster up`, the fault harness and tests.

    async with LocalCluster(directory, nodes=3) as cluster:      # up(): every node started and ready
        producer = Producer(cluster.bootstrap)
        await cluster.node(2).arm_fault("transaction.before_markers")
        await cluster.node(2).wait_exit()
        await cluster.node(2).start()
        await cluster.node(2).wait_ready(30)

Promises:

* nodes die with the process that made them, unless `detached=True`: then they live on, and
  `LocalCluster.attach(directory)` finds them again from another process;
* no process is ever signalled that was not started from this directory (see node_process.py);
* ports are chosen below the range of outgoing connections and are held by a lock file while the cluster
  object lives, so that clusters running side by side do not take one another's port, also not while a node is
  down;
* the directory keeps identities, ports and data: a second cluster object on it continues the first one's
  cluster.

    directory/cluster.json                     cluster id, ports, settings; only its owner may read it
    directory/node-<id>/config.toml, node.log, process.json, data/
    directory/tls/ca.pem, ca.key, node-<id>.pem of a secured cluster
    directory/client.properties                of a cluster whose clients log in: its administrator's
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import signal
import ssl
import subprocess
import sys
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ..runtime.clock import Clock, SystemClock
from ..runtime.connections.listeners import is_loopback
from ..runtime.disk import RealDisk
from ..runtime.http import get
from .administrator import NAME as ADMINISTRATOR
from .administrator import Administrator
from .cluster_certificates import ClusterCertificates
from .local_ports import (
    Hosts,
    LocalClusterError,
    Loopback,
    NodePorts,
    Reservations,
    ask_status,
    grpc_client,
    require_free,
)
from .node_pages import METRICS, pages_tls
from .node_process import NodeProcess, last_words, log_size

if TYPE_CHECKING:
    from ..proto.admin_pb2 import StatusReply
    from ..security.client_security import ClientSecurity

__all__ = ["ForeignNode", "LocalCluster", "LocalClusterError", "LocalNode", "NodePorts", "NotReady"]

DEFAULT_NODES: Final = 3
POLL_INTERVAL_S: Final = 0.05
STATUS_TIMEOUT_S: Final = 2.0
STOP_TIMEOUT_S: Final = 30.0
STALL_TIMEOUT_S: Final = 60.0
UNUSABLE_CONFIGURATION: Final = 2  # the exit code of such a node
RECOVERING: Final = "recovering"  # as /readyz says it
BROKERS: Final = "BROKERS"
CONTROLLER: Final = "CONTROLLER"
CONTROLLER_GRPC: Final = "CONTROLLER_GRPC"
_DISK: Final = RealDisk()


class ForeignNode(LocalClusterError):
    """The node's port is answered by another node."""


class NotReady(LocalClusterError):
    """The node runs, and was not ready in the time it was given."""


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a node before it is ready, in logs."""

    doing: str = ""
    opened: int = 0
    of: int = 0


@dataclass(frozen=True, slots=True)
class OtherVersion:
    """Another version of `tidegate` for nodes to run."""

    python_path: Path
    """The folder that has it, for PYTHONPATH."""
    settings: Callable[[Mapping[str, object]], Mapping[str, object]]
    """Gives this version's settings the names that they have there."""


class LocalNode:
    """One node of a LocalCluster.  `start` and `wait_ready` may be repeated after any kind of end."""

    def __init__(self, cluster: LocalCluster, ports: NodePorts) -> None:
        self._cluster = cluster
        self.id: int = ports.node_id
        self.ports = ports
        self.directory = cluster.directory / f"node-{self.id}"
        self.config_path = self.directory / "config.toml"
        self.data_path = self.directory / "data"
        self.log_path = self.directory / "node.log"
        self._record = self.directory / "process.json"
        self.progress = Progress()
        self._has_logs = False  # as far as it has said since its last start
        self.awaited = ""  # the node's progress, while the caller waits for it to be ready
        self.version: OtherVersion | None = None  # the code that its next start runs; None: this process's
        self._log_start = 0  # where its last start begins in the log
        self._process = NodeProcess.attach(self._record)

    @property
    def host(self) -> str:
        """Its host's address, which may change while the node is down."""
        return self._cluster.hosts.address(self.id)

    @property
    def kafka_address(self) -> str:
        """host:port of its listener for Kafka's protocol."""
        return f"{self.host}:{self.ports.kafka}"

    @property
    def grpc_address(self) -> str:
        """host:port of its listener for gRPC: the controller's, the data and the admin services."""
        return f"{self.host}:{self.ports.grpc}"

    @property
    def metrics_address(self) -> str:
        """host:port where /metrics, /livez and /readyz are."""
        return f"{self.host}:{self.ports.metrics}"

    @property
    def metrics_url(self) -> str:
        """... as it is configured."""
        return f"{'http' if self._pages_tls() is None else 'https'}://{self.metrics_address}"

    @property
    def is_secured(self) -> bool:
        """Whether its controller answers nodes alone."""
        return self._cluster.is_secured

    @property
    def pid(self) -> int | None:
        """The process id while the node runs."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether its process is there, ready or not."""
        return self._process.running

    async def start(self) -> None:
        """Starts the process; does not wait until it is ready.  A no-op while it runs.

        Raises LocalClusterError when another process listens on one of its ports.
        """
        if self._process.running:
            return
        if isinstance(self._cluster.hosts, Loopback):
            await require_free(self.ports, self._cluster.base_port_option)
        _DISK.make_directory(self.data_path)
        configuration = self._cluster.configuration(self).encode()
        # a full disk stops no start
        if not _DISK.exists(self.config_path) or _DISK.read(self.config_path) != configuration:
            _DISK.write_secret(self.config_path, configuration)
        self.progress, self._has_logs, self._log_start = Progress(), False, log_size(self.log_path)
        self._process = NodeProcess.spawn(
            self.config_path,
            log=self.log_path,
            record=self._record,
            environment=self._cluster.environment
            | ({"PYTHONPATH": str(self.version.python_path)} if self.version else {}),
            detached=self._cluster.detached,
            host_command=self._cluster.hosts.command(self.id),
        )

    async def terminate(self, timeout_s: float = STOP_TIMEOUT_S) -> int | None:
        """SIGTERM, then waits; the exit code (0 for a clean stop; None when another process started it).

        Raises LocalClusterError when it still runs after `timeout_s`.
        """
        self._process.signal(signal.SIGTERM)
        try:
            return await asyncio.wait_for(self._process.wait_exit(), timeout_s)
        except TimeoutError:
            raise LocalClusterError(
                f"node {self.id} still runs {timeout_s:g} s after SIGTERM: see {self.log_path}"
            ) from None

    def kill(self) -> None:
        """SIGKILL, at once; `wait_exit` returns when the process has ended."""
        self._process.signal(signal.SIGKILL)

    def pause(self) -> None:
        """SIGSTOP: the node falls silent and keeps its connections, like a process in a long pause."""
        self._process.signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT after `pause`."""
        self._process.signal(signal.SIGCONT)

    async def wait_exit(self, timeout_s: float | None = None) -> int | None:
        """Waits for the end of the process; its exit code (negative: the signal), None when another process
        started it."""
        return await asyncio.wait_for(self._process.wait_exit(), timeout_s)

    async def wait_ready(
        self, timeout_s: float = STALL_TIMEOUT_S, *, within_s: float | None = None
    ) -> StatusReply:
        """Waits until the node is registered, unfenced and caught up.  Raises LocalClusterError when it ends,
        and NotReady when nothing has moved for `timeout_s`, or after `within_s` seconds: a node that opens
        logs or fetches is waited for."""
        import grpc

        clock = self._cluster.clock
        began_s = moved_s = clock.monotonic()
        self.awaited, seen = "it does not answer yet", None
        while True:
            if not self._process.running:
                raise LocalClusterError(self._how_it_ended())
            try:
                status = await self.status()
                self._has_logs = self._has_logs or status.replicas > 0
                if status.ready:
                    self.progress, self.awaited = Progress(), ""
                    return status
                self.awaited = f"it is {status.state}"
                self.progress = Progress(
                    "catching up", status.replicas - status.under_replicated, status.replicas
                )
            except grpc.aio.AioRpcError:
                self.awaited = "it does not answer yet"
                self.progress = await self._recovery() or self.progress
                self._has_logs = self._has_logs or self.progress.of > 0
                if self.progress.doing == RECOVERING:
                    self.awaited = f"{self.progress.opened} of {self.progress.of} logs are open"
            except ForeignNode as error:
                self.awaited = str(error)  # ours will end: it cannot listen there
            now_s = clock.monotonic()
            if self.progress != seen:
                seen, moved_s = self.progress, now_s
            if within_s is not None and now_s - began_s >= within_s:
                raise NotReady(
                    f"node {self.id} is not ready after {within_s:g} s ({self.awaited}): see {self.log_path}"
                )
            if now_s - moved_s >= timeout_s:
                still = "" if moved_s - began_s < 1 else "and has got no further for as long, "
                raise NotReady(
                    f"node {self.id} is not ready after {timeout_s:g} s ({still}{self.awaited}): see "
                    f"{self.log_path}"
                )
            await asyncio.sleep(POLL_INTERVAL_S)

    def _how_it_ended(self) -> str:
        code = self._process.exit_code
        how = "" if code is None else f" with exit code {code}"
        said = last_words(self.log_path, self._log_start)
        wrong = (
            [key for key in self._cluster.settings if key in said] if code == UNUSABLE_CONFIGURATION else []
        )
        back = "".join(f"; `--set {key}=` takes it back" for key in wrong[:1])
        return f"node {self.id} ended{how}: {said} (log: {self.log_path}){back}"

    @property
    def has_logs(self) -> bool:
        """It runs, and has opened logs since its start or is at it: to stop it before it is ready is to begin
        anew."""
        return self.running and self._has_logs

    async def _recovery(self) -> Progress | None:
        """How far the opening of its logs is; None while that cannot be known."""
        said = await self.page("/readyz") or ""
        found = re.match(rf"{RECOVERING}: (\d+) of (\d+) logs", said)
        return Progress(RECOVERING, int(found[1]), int(found[2])) if found else None

    async def page(self, path: str) -> str | None:
        """What a page of its metrics' listener says, whatever its status; None when it does not answer."""
        tls = await asyncio.to_thread(self._pages_tls)
        return await get(self.host, self.ports.metrics, path, STATUS_TIMEOUT_S, tls)

    def _pages_tls(self) -> ssl.SSLContext | None:
        """Of the metrics' listener; None: it is plain text."""
        return pages_tls(tomllib.loads(self._cluster.configuration(self)))

    async def status(self, timeout_s: float = STATUS_TIMEOUT_S) -> StatusReply:
        """The node's own status.  Raises grpc.aio.AioRpcError when it does not answer, ForeignNode when
        another node does: one of another cluster, or one with this node's identity that is another
        process."""
        pid = self.pid
        reply = await ask_status(self.grpc_address, timeout_s, self._cluster.security)
        # 0: a node of an older version, which does not tell
        same_process = pid is None or reply.process_id in (0, pid)
        if (reply.cluster_id, reply.node_id) != (self._cluster.cluster_id, self.id) or not same_process:
            raise ForeignNode(
                f"{self.grpc_address} of node {self.id} is answered by node {reply.node_id} of "
                f"cluster {reply.cluster_id}, "
                f"process {reply.process_id}: that is not this cluster's"
            )
        return reply

    async def arm_fault(
        self, point: str, *, match: Mapping[str, object] | None = None, skip: int = 0, action: str = "kill"
    ) -> None:
        """Arms a fault point of the node: it kills itself at the next pass whose context has the values of
        `match`, or meets an error at every one (see runtime/faults.py)."""
        from ..proto import admin_pb2, admin_pb2_grpc

        request = admin_pb2.ArmFaultRequest(
            point=point,
            action=action,
            skip=skip,
            match={key: str(value) for key, value in (match or {}).items()},
        )
        security = self._cluster.security
        async with grpc_client(self.grpc_address, security, STATUS_TIMEOUT_S) as (channel, shown):
            stub = admin_pb2_grpc.AdminStub(channel)
            await stub.ArmFault(request, timeout=STATUS_TIMEOUT_S, metadata=shown)


class LocalCluster:
    """Nodes 1..n on loopback, the first 1, 3 or 5 also controllers.

    `settings` go into every node's configuration, at its next start.  A directory keeps them: later ones are
    added, and a value None takes one back.  `base_port` moves a stopped cluster.  `nodes` is 3 for a new
    cluster.  `hosts`: where the nodes run. `check_settings`: settings that a node would refuse are refused
    before they are stored.  `secured`: a new cluster makes an authority of its own, and its nodes speak to
    each other by mutual TLS on listeners of their own; those for clients are as in every cluster.
    `with_users`: it is secured, and its clients log in (SASL_SSL, SCRAM-SHA-512), and need rights (ACLs);
    `administrator` has all.
    """

    def __init__(
        self,
        directory: Path,
        nodes: int | None = None,
        settings: Mapping[str, object] | None = None,
        fault_points: bool = False,
        *,
        detached: bool = False,
        base_port: int | None = None,
        base_port_option: str = "--base-port",
        clock: Clock | None = None,
        hosts: Hosts | None = None,
        check_settings: bool = False,
        secured: bool = False,
        with_users: bool = False,
    ) -> None:
        if nodes is not None and nodes < 1:
            raise LocalClusterError(
                f"a cluster of {nodes} nodes: at least 1 is needed, 3 to survive the loss of one"
            )
        self.directory = directory.absolute()
        self.detached = detached
        self.clock: Clock = clock if clock is not None else SystemClock()
        self.fault_points = fault_points
        self.hosts: Hosts = hosts if hosts is not None else Loopback()
        self.base_port_option = base_port_option
        self._reservations = Reservations(self.clock)
        description = _read_description(self.directory)
        _DISK.make_directory(self.directory)
        self._is_new = description is None
        new = {"secured": secured or with_users, "with_users": with_users}
        self.is_secured, self.has_users = (
            bool((new if description is None else description).get(each)) for each in new
        )
        if with_users and not self.has_users:
            raise LocalClusterError(f"{directory} holds a cluster that is not secured: use another directory")
        self.administrator = Administrator(self.directory)
        self._security_of_client: ClientSecurity | None = None
        if description is None:
            self.cluster_id = base64.urlsafe_b64encode(self.clock.uuid().bytes).decode().rstrip("=")
            self._ports = self._new_ports(nodes or DEFAULT_NODES, base_port)
        else:
            self.cluster_id = description["cluster_id"]
            self._ports = [NodePorts(**ports) for ports in description["nodes"]]
            if nodes is not None and len(self._ports) != nodes:
                what = f"{self.directory} holds a cluster of {len(self._ports)} nodes, not {nodes}"
                if base_port_option == "--port":  # `tidegate dev`, which has one node
                    raise LocalClusterError(
                        f"{what}: start it with `tidegate cluster up --data {directory}`, or use another one"
                    )
                raise LocalClusterError(f"{what}: use --nodes {len(self._ports)}, or another directory")
            for ports in self._ports:
                self._reservations.keep(ports)
        stored: dict[str, object] = {} if description is None else description["settings"]
        # what the directory has when this object's settings turn out to be wrong
        self._kept_settings = stored
        self.settings = {
            key: value for key, value in {**stored, **(settings or {})}.items() if value is not None
        }
        self.settings_changed = description is not None and self.settings != stored
        self._nodes = {ports.node_id: LocalNode(self, ports) for ports in self._ports}
        self.certificates = ClusterCertificates(self.directory / "tls", self.clock)
        if self.is_secured and description is None:
            self.certificates.renew_authority()
            self.renew_certificates()
            if self.has_users:
                self.administrator.create(self.certificates.authorities)
        self.killed: list[int] = []  # by the last stop, because they did not end in time
        if description is not None and base_port is not None:
            self._move(base_port)
        if check_settings and self.settings != stored:
            self._check_settings()
        self._write_description(self.settings)

    def _check_settings(self) -> None:
        """Raises LocalClusterError when a node would refuse them; nothing was kept then."""
        asked = subprocess.run(
            [sys.executable, "-m", "tidegate.node", "--config", "/dev/stdin", "--check"],
            input=self.configuration(self.nodes[0]).encode(),
            capture_output=True,
            env=self.environment,
            check=False,
        )
        if asked.returncode == 0:
            return
        self.release()
        if self._is_new:
            _remove_if_empty(self.directory)
        said = asked.stderr.decode(errors="replace").strip()
        reason = said.removeprefix("tidegate-node: cannot use the configuration: ")
        reason = reason.replace("in the configuration file", "in --set")
        wrong = [
            key
            for key in self._kept_settings
            if key in said and self.settings.get(key) == self._kept_settings[key]
        ]
        raise LocalClusterError(
            reason + (f"; `--set {wrong[0]}=` takes it back" if wrong else " (nothing was changed)")
        )

    def _new_ports(self, nodes: int, base_port: int | None) -> list[NodePorts]:
        if base_port is None:
            return [
                self._reservations.choose(node_id, is_secured=self.is_secured)
                for node_id in range(1, nodes + 1)
            ]
        chosen = self._from_base(nodes, base_port)
        for ports in chosen:
            self._reservations.take(ports)
        return chosen

    def _from_base(self, nodes: int, base_port: int) -> list[NodePorts]:
        ids = range(1, nodes + 1)
        return [NodePorts.from_base(node_id, base_port, is_secured=self.is_secured) for node_id in ids]

    def renew_certificates(self) -> None:
        """Gives each node of a secured cluster a new certificate; nodes that run begin to use it soon."""
        for node in self.nodes:
            self.certificates.renew(node.id, {node.host, self.hosts.name(node.id), "localhost"})

    def _move(self, base_port: int) -> None:
        """Gives a stopped cluster the ports that its user asks for now."""
        wanted = self._from_base(len(self._ports), base_port)
        if wanted == self._ports:
            return
        running = [node for node in self.nodes if node.running]
        if running:
            raise LocalClusterError(
                f"{self.directory} runs on port {self._ports[0].kafka}: stop it first (`tidegate "
                "cluster down --data "
                f"{self.directory}`), or leave {self.base_port_option} out"
            )
        self._reservations.release()
        self._ports = self._new_ports(len(wanted), base_port)
        self._nodes = {ports.node_id: LocalNode(self, ports) for ports in self._ports}

    @staticmethod
    def exists(directory: Path) -> bool:
        """Whether `directory` holds a cluster. Raises LocalClusterError when cluster.json cannot be read."""
        return _read_description(directory.absolute()) is not None

    @staticmethod
    def attach(directory: Path, *, detached: bool = True) -> LocalCluster:
        """The cluster that lives in `directory`, with its running nodes.  Raises LocalClusterError when there
        is none."""
        description = _read_description(directory.absolute())
        if description is None:
            raise LocalClusterError(
                f"no cluster in {directory}: start one with `tidegate cluster up --data {directory}`"
            )
        return LocalCluster(
            directory,
            fault_points=description["fault_points"],
            detached=detached,
        )

    @property
    def bootstrap(self) -> str:
        """host:port,host:port,... of all nodes' Kafka listeners."""
        return ",".join(f"{self.hosts.name(node.id)}:{node.ports.kafka}" for node in self.nodes)

    @property
    def security(self) -> ClientSecurity | None:
        """How a client logs in as the administrator; None in a cluster without users."""
        if self.has_users and self._security_of_client is None:
            self._security_of_client = self.administrator.security()
        return self._security_of_client

    @property
    def nodes(self) -> list[LocalNode]:
        """All nodes, running or not, by their ids."""
        return [self._nodes[node_id] for node_id in sorted(self._nodes)]

    def node(self, node_id: int) -> LocalNode:
        """The node with this id (1..n)."""
        return self._nodes[node_id]

    async def __aenter__(self) -> LocalCluster:
        await self.up()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.down()

    async def up(self, timeout_s: float = STALL_TIMEOUT_S, *, within_s: float | None = None) -> None:
        """Starts the nodes that do not run and waits until all are ready (`LocalNode.wait_ready`). On failure
        it raises, and stops the nodes that it started.  Of a detached cluster nothing is stopped when only
        the waiting ends (NotReady, or a cancellation), nor are nodes that have logs: the next `up` finds them
        further on."""
        if self.has_users:
            self.administrator.note_bootstrap(self.bootstrap)
        absent = [node for node in self.nodes if not node.running]
        await self._require_free_ports(absent)
        started = False
        try:
            for node in absent:
                await node.start()
            started = True
            await asyncio.gather(*(node.wait_ready(timeout_s, within_s=within_s) for node in self.nodes))
        except BaseException as error:
            if self.detached and started and isinstance(error, NotReady | asyncio.CancelledError):
                raise
            left = [node.id for node in absent if self.detached and node.has_logs]
            await self._stop([node for node in absent if node.id not in left], STOP_TIMEOUT_S)
            self._write_description(self._kept_settings)  # a misspelt setting must not stay
            raise

    async def _require_free_ports(self, absent: list[LocalNode]) -> None:
        """Before anything is started: a new cluster whose ports are taken leaves nothing behind."""
        if not isinstance(self.hosts, Loopback):
            return
        try:
            for node in absent:
                await require_free(node.ports, self.base_port_option)
        except LocalClusterError:
            if self._is_new and not any(_DISK.exists(node.directory) for node in self.nodes):
                _DISK.remove(self.directory / "cluster.json")
                _remove_if_empty(self.directory)
            else:
                self._write_description(self._kept_settings)
            raise

    async def down(self, timeout_s: float = STOP_TIMEOUT_S) -> dict[int, int | None]:
        """Stops all nodes: SIGTERM, and SIGKILL for a node that does not end in time (`killed`).  Exit codes
        by node id."""
        codes = await self._stop(self.nodes, timeout_s)
        self.release()
        return codes

    async def _stop(self, nodes: list[LocalNode], timeout_s: float) -> dict[int, int | None]:
        async def stop(node: LocalNode) -> int | None:
            node.resume()  # a paused process would not see SIGTERM
            try:
                return await node.terminate(timeout_s)
            except LocalClusterError:
                node.kill()
                self.killed.append(node.id)
                return await node.wait_exit()

        self.killed = []
        running = [node for node in nodes if node.running]
        codes = await asyncio.gather(*(stop(node) for node in running))
        return {node.id: code for node, code in zip(running, codes, strict=True)}

    def release(self) -> None:
        """Gives the port reservations back; the nodes are left alone."""
        self._reservations.release()

    async def active_controller(self, timeout_s: float = 30.0) -> LocalNode:
        """The node that is the active controller now; waits for one."""
        import grpc

        deadline = self.clock.monotonic() + timeout_s
        while True:
            for node in self.nodes:
                if not node.running:
                    continue
                try:
                    if (await node.status()).controller_active:
                        return node
                except (grpc.aio.AioRpcError, ForeignNode):
                    continue  # it is starting or dying: ask the next one
            if self.clock.monotonic() >= deadline:
                raise LocalClusterError(
                    f"no active controller within {timeout_s:g} s: see the logs in {self.directory}"
                )
            await asyncio.sleep(POLL_INTERVAL_S)

    @property
    def environment(self) -> dict[str, str]:
        """The nodes' environment: this process's, without Tidegate's own variables (they would override the
        file)."""
        clean = {name: value for name, value in os.environ.items() if not name.startswith("TIDEGATE_")}
        return clean | ({"TIDEGATE_FAULT_POINTS": "1"} if self.fault_points else {})

    def configuration(self, node: LocalNode) -> str:
        """The TOML text of a node."""
        count = len(self._ports)
        # more would only make every change slower
        voters = self._ports[: 1 if count < 3 else 3 if count < 5 else 5]
        replicas = min(3, count)
        safe = 2 if replicas == 3 else 1
        values: dict[str, object] = {
            "node.id": node.id,
            "cluster.id": self.cluster_id,
            "process.roles": ["broker", "controller"] if node.ports in voters else ["broker"],
            "log.dirs": [str(node.data_path)],
            "broker.rack": f"rack-{node.id}",
            "listeners": self._listeners(node, is_controller=node.ports in voters),
            "controller.quorum.voters": [
                f"{p.node_id}@{self.hosts.name(p.node_id)}:{p.quorum}:{p.controller_grpc or p.grpc}"
                for p in voters
            ],
            **self._advertised(node),
            **self._security(node),
            "default.replication.factor": replicas,
            "min.insync.replicas": safe,
            "offsets.topic.replication.factor": replicas,
            "offsets.topic.min.isr": safe,
            "transaction.state.log.replication.factor": replicas,
            "transaction.state.log.min.isr": safe,
            # on one machine the members of a group join at the same time
            "group.initial.rebalance.delay.ms": 200,
            **self.settings,
        }
        if node.version is not None:
            values = dict(node.version.settings(values))
        # Quoted keys stay flat, also when another key begins with them.
        return "".join(f"{json.dumps(key)} = {json.dumps(value)}\n" for key, value in values.items())

    @property
    def _for_clients(self) -> str:
        """The name and the security protocol of the listener for clients."""
        return "SASL_SSL" if self.has_users else "PLAINTEXT"

    def _advertised(self, node: LocalNode) -> dict[str, object]:
        name = self.hosts.name(node.id)
        if name == node.host:
            return {}
        return {
            "advertised.listeners": [
                f"{self._for_clients}://{name}:{node.ports.kafka}",
                *([f"{BROKERS}://{name}:{node.ports.brokers}"] if self.is_secured else []),
                f"GRPC://{name}:{node.ports.grpc}",
            ]
        }

    def _security(self, node: LocalNode) -> dict[str, object]:
        if not self.is_secured:
            return {} if is_loopback(node.host) else {"insecure": True}
        users: dict[str, object] = (
            {
                "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
                "super.users": f"User:{ADMINISTRATOR}",
                "sasl.enabled.mechanisms": ["SCRAM-SHA-512"],
                "bootstrap.scram.credentials": self.administrator.first_users,
            }
            if self.has_users
            else {}
        )
        return {
            **users,
            "listener.security.protocol.map": [
                *(f"{name}:SSL" for name in (BROKERS, CONTROLLER, CONTROLLER_GRPC)),
                *(f"{name}:{self._for_clients}" for name in (self._for_clients, "GRPC")),
                f"{METRICS}:{'SSL' if self.has_users else 'PLAINTEXT'}",
            ],
            "inter.broker.listener.name": BROKERS,
            "controller.grpc.listener.name": CONTROLLER_GRPC,
            "ssl.keystore.location": str(self.certificates.of_node(node.id)),
            "ssl.truststore.location": str(self.certificates.authorities),
        }

    def _listeners(self, node: LocalNode, *, is_controller: bool) -> list[str]:
        of_controller = [f"{CONTROLLER}://{node.host}:{node.ports.quorum}"]
        if self.is_secured:
            of_controller.append(f"{CONTROLLER_GRPC}://{node.host}:{node.ports.controller_grpc}")
        return [
            f"{self._for_clients}://{node.kafka_address}",
            *([f"{BROKERS}://{node.host}:{node.ports.brokers}"] if self.is_secured else []),
            f"GRPC://{node.grpc_address}",
            *(of_controller if is_controller else []),
            f"{METRICS}://{node.metrics_address}",
        ]

    def _write_description(self, settings: Mapping[str, object]) -> None:
        description = {
            "cluster_id": self.cluster_id,
            "nodes": [asdict(ports) for ports in self._ports],
            "settings": settings,
            "fault_points": self.fault_points,
            "secured": self.is_secured,
            "with_users": self.has_users,
        }
        # Only a change is written: on a full disk a cluster must still be found, and stopped.
        if description != _read_description(self.directory):
            _DISK.write_secret(self.directory / "cluster.json", json.dumps(description, indent=1).encode())


def _remove_if_empty(directory: Path) -> None:
    if not _DISK.list_names(directory):
        _DISK.remove_tree(directory)


def _require_folder(path: Path) -> None:
    try:
        _DISK.list_names(path)
    except NotADirectoryError:
        raise LocalClusterError(f"{path} is a file: a folder is wanted") from None


def _read_description(directory: Path) -> dict[str, Any] | None:
    path = directory / "cluster.json"
    if not _DISK.exists(path):
        if _DISK.exists(directory):
            _require_folder(directory)
        return None
    try:
        found = json.loads(_DISK.read(path))
        if not {"cluster_id", "nodes", "settings", "fault_points"} <= found.keys():
            raise ValueError("it lacks a key")
    except (ValueError, AttributeError) as error:
        raise LocalClusterError(
            f"{path} is damaged ({error}). The data in {directory} is untouched: put a copy of this "
            "file back, with the cluster "
            "id and the ports that node-*/config.toml have"
        ) from error
    return dict(found)
