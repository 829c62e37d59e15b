"""One node: makes its parts, starts them in order, and stops them in the reverse order.

Start: data folder (locked, recovered) -> gRPC and the metadata quorum -> Kafka listener bound ->
registration -> metadata applied up to it -> requests served -> unfenced by heartbeats -> ready.

Stop (SIGTERM): leaderships handed over -> listener closed -> coordinators -> replicas flushed and closed,
clean-shutdown mark with the broker epoch -> quorum.  `Node.parts_in_order` is the one list of both.

After a defect the node does not stop cleanly: the process exits at once (exit code 70), without the mark, so
that the next start recovers the logs.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Final, TypeVar

import grpc

from .. import __version__
from ..controller.planning.planner import ControllerConfig
from ..controller.raft.contract import RaftTimings
from ..controller.service.controller_node import ControllerNode
from ..controller.service.metadata_log import MetadataLog, MetadataLogUnusable
from ..controller.state.broker_fields import encode_replicas
from ..controller.state.features import SUPPORTED, as_messages
from ..controller.state.validation import StateValidator
from ..proto import admin_pb2, admin_pb2_grpc, cuts_pb2_grpc, jobs_pb2_grpc
from ..proto import controller_pb2 as pb
from ..runtime import logs
from ..runtime.clock import SystemClock
from ..runtime.connections.grpc_tls import node_credentials, server_credentials
from ..runtime.connections.tls import TlsError
from ..runtime.disk import RealDisk
from ..runtime.http import HttpServer, Page, serve_pages
from ..runtime.network import FrameServer, bind_grpc, grpc_server, opening
from ..security.bearer_tokens import KeySetError
from ..storage.directory.async_delete import AsyncFileDeleter
from ..storage.directory.folder_owner import DirectoryRefused, bind_folders
from ..storage.directory.log_loader import FolderOptions
from ..storage.directory.opening_progress import OpeningStopped
from ..storage.folders.data_folders import DataFolders
from ..wire.errors import KafkaError
from .assembly import Foundation, assemble
from .cluster.node_certificates import NodeCertificates
from .handlers import HANDLERS
from .lifecycle.log_recovery import open_logs, page_while_opening
from .node_view import node_view
from .observation.admin_service import AdminService
from .observation.metrics import NodeView
from .serving.authentication import server_tls
from .serving.codecs import Codecs
from .serving.grpc_peers import NodesOnly
from .serving.listener import listen
from .settings.configuration import Configuration
from .settings.definitions import RANGES_PORT
from .settings.run_time_settings import RunTimeSettings
from .settings.security_settings import first_users
from .start_and_stop import Part, Stage, in_order, start, stop
from .upkeep.disk_reserve import DiskReserves, ReservingDisk, full_folders

log = logs.get(__name__)

T = TypeVar("T")

FAIL_STOP_EXIT_CODE: Final = 70
UNCLEAN_STOP_EXIT_CODE: Final = 1
REGISTRATION_TIMEOUT_S: Final = 600.0
METADATA_TIMEOUT_S: Final = 120.0

OTHER_BROKERS_WAIT_S: Final = 3.0


class StartError(Exception):
    """The node could not start; the message is one line that says what to do."""


def _keep_loaded_classes() -> None:
    """Modules and classes never go.  To search them for unreachable cycles takes 26 to 40 ms, for a node with
    20 ms of CPU a second up to two seconds, whenever many objects are new.  Logs and connections are made
    later, and are searched."""
    gc.collect()
    gc.freeze()


class Node:
    """`run()` is the node's whole life."""

    def __init__(self, configuration: Configuration) -> None:
        self._configuration = configuration
        self._clock = SystemClock()
        self._disk = RealDisk()
        self._started_at = self._clock.monotonic()
        self._stop_wanted = asyncio.Event()
        self._state = "starting"
        self._listener: FrameServer | None = None
        self._pages: HttpServer | None = None
        self._controller_node: ControllerNode | None = None
        self._controller_grpc: grpc.aio.Server | None = None
        self._codecs = Codecs(HANDLERS.keys, self._clock.monotonic)
        self._recovered_logs = 0
        self._caught_up = False
        self._parts_made = False
        self._is_closed_clean = False

    async def run(self) -> int:
        """Starts, serves until SIGTERM or SIGINT, stops.  Returns the exit code; raises StartError."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop_wanted.set)
        configuration = self._configuration
        log.info(
            "node_starting",
            node=configuration.node_id,
            version=__version__,
            roles=configuration.values["process.roles"],
        )
        if configuration.listeners.open_to_others:
            log.warning(
                "insecure",
                listeners=[str(each) for each in configuration.listeners.open_to_others],
                consequence="each client there can speak for a node: acknowledge, abort or lose records",
            )
        if configuration.is_broker:
            await asyncio.to_thread(self._codecs.load_newest)
        _keep_loaded_classes()
        try:
            await self._open_logs()
            self._make_parts()
        except OpeningStopped:
            log.info(
                "node_stopped",
                node=configuration.node_id,
                clean=False,
                reason="stopped while logs were opened",
            )
            return UNCLEAN_STOP_EXIT_CODE
        except (OSError, DirectoryRefused, StartError, TlsError) as error:
            raise StartError(_reason(error)) from error
        finally:
            if self._pages is not None and not self._parts_made:
                await self._pages.close()
        try:
            await self._start()
        except (OSError, KafkaError, MetadataLogUnusable, StartError, KeySetError) as error:
            await self._abandon()
            raise StartError(_reason(error)) from error
        if not self._stop_wanted.is_set():
            self._state = "running"
            log.info(
                "node_ready",
                node=configuration.node_id,
                kafka=[str(listener) for listener in configuration.listeners.kafka],
                grpc=str(configuration.listeners.grpc),
            )
        await self._stop_wanted.wait()
        return 0 if await self._stop() else UNCLEAN_STOP_EXIT_CODE

    # --- putting together -----------------------------------------------------------------------------------

    async def _open_logs(self) -> None:
        """Opens and recovers the logs, while HTTP pages show the progress (`log_recovery.py`)."""
        configuration = self._configuration
        self._directory = DataFolders(
            self._disk,
            configuration.data_dirs,
            configuration.text("cluster.id"),
            configuration.node_id,
            lambda: str(self._clock.uuid()),
            FolderOptions(
                files_max=configuration.integer("log.open.files.max"),
                recovery_threads=configuration.integer("num.recovery.threads.per.data.dir"),
                file_deleter=AsyncFileDeleter(),
                now_s=self._clock.monotonic,
            ),
            essential=(configuration.data_dirs[0], "it is the metadata quorum's")
            if configuration.is_controller
            else None,
        )
        metrics = configuration.listeners.metrics
        self._pages_tls = server_tls(configuration.listener_security[metrics.name])
        with opening(metrics):
            self._pages = await serve_pages(metrics.host, metrics.port, self._page, self._pages_tls)
        report = await open_logs(self._directory, self._clock, self._stop_wanted.wait())
        self._recovered_logs = len(report.recovered)

    def _make_parts(self) -> None:
        configuration = self._configuration
        self._certificates = NodeCertificates(
            configuration.node_tls, configuration.listeners, configuration.node_id
        )
        self._reserves = DiskReserves(
            self._disk, configuration.data_dirs, configuration.integer("metadata.reserve.bytes")
        )
        self._reserves.restore(self._usable_folders)
        self._directory.make_room = self._reserves.make_room
        foundation = Foundation(
            configuration=configuration,
            clock=self._clock,
            disk=self._disk,
            directory=self._directory,
            reserves=self._reserves,
            certificates=self._certificates,
            codecs=self._codecs,
            pages_tls=self._pages_tls,
            fail_stop=self._fail_stop,
        )
        self._parts = assemble(
            foundation, HANDLERS.keys, node_view=self._view, on_settings=self._settings_changed
        )
        self._broker = self._parts.broker
        self._parts_made = True

    def _settings_changed(self, settings: RunTimeSettings) -> None:
        if self._listener is not None:
            settings.limit_connections(self._listener)

    # --- starting -------------------------------------------------------------------------------------------

    def parts_in_order(self) -> tuple[Part, ...]:
        """Every part that runs or holds something; `start_and_stop.py` says what the order means."""
        broker, parts = self._broker, self._parts
        bound, serving = Stage.BOUND, Stage.SERVING
        # fmt: off
        return in_order(
            Part("pages", (), self._close_pages),
            Part("grpc", (), lambda: parts.grpc.stop(grace=0.5), Stage.NETWORK, self._start_network),
            Part("controller_grpc", (), self._stop_controller_grpc),
            Part("renewal", ("grpc",), parts.renewal.stop, Stage.NETWORK, parts.renewal.start),
            Part("key_set", (), parts.key_set.stop, Stage.NETWORK, parts.key_set.start),
            Part("controller_node", ("grpc", "controller_grpc"), self._stop_controller),
            Part("controller", (), broker.controller.close),
            Part("data_service", ("grpc", "key_set"), parts.data_service.close),
            Part("peers", (), parts.peers.close),
            Part("batch_threads", (), broker.batch_threads.close),
            Part("directory", (), self._close_directory),
            Part("group_commit", ("directory",), parts.group_commit.close),
            Part("replicas", ("controller", "directory", "group_commit"),
                 lambda: broker.replicas.shutdown(clean=self._state == "stopping")),
            Part("application", ("directory", "replicas"), parts.application.stop),
            Part("metadata", ("controller", "application"),
                 parts.metadata.stop, Stage.METADATA, self._start_metadata),
            Part("probing", ("metadata",), broker.probing.stop, serving, broker.probing.start),
            Part("lifecycle", ("controller", "application", "replicas"),
                 broker.lifecycle.stop, serving, self._start_lifecycle),
            Part("groups", ("replicas", "metadata", "lifecycle"),
                 broker.groups.stop, bound, broker.groups.start),
            Part("transactions", ("controller", "peers", "replicas", "lifecycle", "groups"),
                 broker.transactions.stop, bound, broker.transactions.start),
            Part("cut_taker", ("controller", "metadata", "replicas", "transactions"), parts.cut_taker.stop),
            Part("cut_pinning", ("controller", "metadata", "cut_taker"), parts.cut_pinning.stop),
            Part("moves", ("directory",), parts.moves.stop, serving, parts.moves.start),
            Part("audit", (), broker.audit.close),
            Part("range_connections", ("data_service", "key_set", "audit"), parts.range_connections.close,
                 bound, self._open_range_connections),
            Part("listener",
                 ("controller", "batch_threads", "peers", "directory", "replicas", "probing", "lifecycle",
                  "groups", "transactions", "moves", "audit", "key_set"),
                 self._close_listener, bound, self._listen),
            Part("upkeep", ("directory", "group_commit", "replicas"),
                 parts.upkeep.stop, serving, parts.upkeep.start),
            Part("housekeeping", ("directory", "application", "replicas"),
                 parts.housekeeping.stop, serving, parts.housekeeping.start),
        )
        # fmt: on

    async def _start(self) -> None:
        parts, lifecycle = self.parts_in_order(), self._broker.lifecycle
        await start(parts, Stage.NETWORK)
        if not self._configuration.is_broker:
            await start(parts, Stage.METADATA)
            return
        await start(parts, Stage.BOUND)
        registration = await self._until_stopped(
            lifecycle.register(self._registration(), REGISTRATION_TIMEOUT_S)
        )
        if registration is None:
            return
        self._bind_folders(registration.metadata_id)
        log.info("broker_registered", broker_epoch=registration.broker_epoch, cluster=registration.cluster_id)
        await start(parts, Stage.METADATA)
        try:
            await self._until_stopped(
                self._parts.metadata.wait_for_index(registration.broker_epoch, METADATA_TIMEOUT_S)
            )
        except TimeoutError:
            raise StartError(
                f"registered, but the metadata did not come within {METADATA_TIMEOUT_S:g} s: does "
                "the quorum have a leader?"
            ) from None
        await start(parts, Stage.SERVING)
        await self._until_stopped(lifecycle.unfenced.wait())

    async def _start_network(self) -> None:
        """gRPC, and the quorum on a controller."""
        configuration, broker = self._configuration, self._broker
        controller = self._make_controller()
        if controller is not None:
            await self._serve_controller(controller)
            broker.controller.heartbeats_here(configuration.node_id, controller.service.Heartbeat)
            broker.controller.metadata_here(configuration.node_id, controller.service.FollowMetadata)
        admin_pb2_grpc.add_AdminServicer_to_server(
            AdminService(self._status, self._parts.access), self._parts.grpc
        )
        self._parts.data_service.add_to_server(self._parts.grpc, self._parts.range_connections.invite)
        jobs_pb2_grpc.add_JobsServicer_to_server(self._parts.job_service, self._parts.grpc)
        cuts_pb2_grpc.add_CutsServicer_to_server(self._parts.cut_service, self._parts.grpc)
        jobs_pb2_grpc.add_TwoPhaseCommitServicer_to_server(self._parts.two_phase_commit, self._parts.grpc)
        listeners = configuration.listeners
        with opening(listeners.grpc):
            bind_grpc(self._parts.grpc, listeners.grpc.host, listeners.grpc.port, self._grpc_credentials())
        await self._parts.grpc.start()
        if controller is not None and listeners.controller is not None:
            with opening(listeners.controller):
                await controller.start()
            self._controller_node = controller

    async def _open_range_connections(self) -> None:
        listener, port = self._configuration.listeners.grpc, self._configuration.integer(RANGES_PORT)
        if port < 0 or self._parts.identities[listener.name].tls is not None:
            return  # they are not encrypted
        await self._parts.range_connections.start(listener.host, port)

    async def _serve_controller(self, controller: ControllerNode) -> None:
        """On a listener of its own, or (the service is added only) beside the other gRPC services."""
        own = self._configuration.listeners.own_controller_grpc
        if not own:
            controller.add_to_server(self._parts.grpc)
            return
        tls = self._certificates.controllers
        server = grpc_server(
            interceptors=() if tls is None else (NodesOnly(),),
            connections_max=self._configuration.grpc_connections_max(own[0]),
            idle_s=self._configuration.seconds("connections.max.idle.ms"),
        )
        controller.add_to_server(server)
        with opening(own[0]):
            bind_grpc(server, own[0].host, own[0].port, None if tls is None else node_credentials(tls))
        await server.start()
        self._controller_grpc = server

    async def _stop_controller_grpc(self) -> None:
        if self._controller_grpc is not None:
            await self._controller_grpc.stop(grace=0.5)

    async def _listen(self) -> None:
        self._listener = await listen(self._broker, HANDLERS, self._parts.identities)

    async def _start_metadata(self) -> None:
        await self._parts.metadata.start(self._parts.application.apply)

    def _start_lifecycle(self) -> None:
        self._broker.lifecycle.start(self._broker.replicas, self._parts.application)

    def _bind_folders(self, metadata_id: str) -> None:
        """Binds the data folders to the cluster's metadata, before the node applies any: applying deletes
        logs of unknown topics."""
        if not metadata_id:
            return
        try:
            bind_folders(self._disk, self._usable_folders, metadata_id)
        except DirectoryRefused as refused:
            raise StartError(str(refused)) from refused

    @property
    def _usable_folders(self) -> list[Path]:
        return [folder.path for folder in self._directory.folders if not folder.is_offline]

    async def _until_stopped(self, work: Coroutine[Any, Any, T]) -> T | None:
        """The result of `work`, or None when a stop signal came first."""
        task = asyncio.ensure_future(work)
        stop = asyncio.ensure_future(self._stop_wanted.wait())
        try:
            await asyncio.wait({task, stop}, return_when=asyncio.FIRST_COMPLETED)
            return task.result() if task.done() else None
        finally:
            stop.cancel()
            task.cancel()

    def _make_controller(self) -> ControllerNode | None:
        configuration = self._configuration
        listener = configuration.listeners.controller
        if listener is None:
            return None
        election_s = configuration.seconds("controller.quorum.election.timeout.ms")
        metadata = MetadataLog(
            node_id=configuration.node_id,
            voters={voter.node_id: (voter.quorum.host, voter.quorum.port) for voter in configuration.voters},
            listen=(listener.host, listener.port),
            directory=configuration.data_dirs[0] / "quorum",
            disk=ReservingDisk(self._disk, self._reserves.first),
            clock=self._clock,
            cluster_id=configuration.text("cluster.id"),
            tls=self._certificates.quorum,
            # PySyncObj wants an election timeout of three heartbeats at least
            timings=RaftTimings(election_s, 2 * election_s, heartbeat_s=0.3 * election_s),
            validate=configuration.flag("debug.validate"),
        )
        return ControllerNode(
            metadata,
            self._clock,
            cluster_id=configuration.text("cluster.id"),
            config=ControllerConfig(
                session_timeout_ms=configuration.integer("broker.session.timeout.ms"),
                default_partitions=configuration.integer("num.partitions"),
                default_replication_factor=configuration.integer("default.replication.factor"),
                min_insync_replicas=configuration.integer("min.insync.replicas"),
                leader_rebalance=configuration.flag("auto.leader.rebalance.enable"),
                leader_rebalance_interval_ms=1000
                * configuration.integer("leader.imbalance.check.interval.seconds"),
                leader_imbalance_percentage=configuration.integer("leader.imbalance.per.broker.percentage"),
                group_limits=configuration.group_limits(),
                first_users=first_users(configuration.values["bootstrap.scram.credentials"]),
                mutation_window=configuration.mutation_window(),
                tokens=configuration.token_settings(),
                cut_retention_ms_max=configuration.integer("cut.retention.max.ms"),
            ),
            ask_voter=self._broker.controller.describe_quorum,
            validator=StateValidator() if configuration.flag("debug.validate") else None,
        )

    def _grpc_credentials(self) -> grpc.ServerCredentials | None:
        name = self._configuration.listeners.grpc.name
        of_nodes, tls = self._certificates.of(name), self._parts.identities[name].tls
        if of_nodes is not None:
            return node_credentials(of_nodes)
        try:
            return None if tls is None else server_credentials(tls)
        except TlsError as error:
            raise StartError(f"{self._configuration.listeners.grpc}: {error}") from error

    def _registration(self) -> pb.RegisterBrokerRequest:
        configuration = self._configuration
        listeners, inter_broker = configuration.listeners, configuration.listeners.inter_broker
        assert inter_broker is not None, "only brokers register"
        previous_epoch = self._directory.previous_broker_epoch
        return pb.RegisterBrokerRequest(
            node_id=configuration.node_id,
            incarnation=str(self._clock.uuid()),
            cluster_id=configuration.text("cluster.id"),
            rack=configuration.text("broker.rack"),
            kafka_host=inter_broker.host,
            kafka_port=inter_broker.port,
            grpc_host=listeners.advertised_grpc.host,
            grpc_port=listeners.advertised_grpc.port,
            listeners=[
                pb.ListenerEndpoint(
                    name=listener.name,
                    host=listener.host,
                    port=listener.port,
                    security_protocol=listener.security_protocol,
                )
                for listener in listeners.advertised
            ],
            clean_shutdown_broker_epoch=-1 if previous_epoch is None else previous_epoch,
            directory_id=self._directory.directory_id,
            # The same: no replica has a role yet, so what this node cannot serve is what its start found
            # damaged.  The heartbeats name both as they are later.
            offline_replicas=encode_replicas(self._parts.application.damaged_replicas(), pb.ReplicasOfTopic),
            damaged_replicas=encode_replicas(self._parts.application.damaged_replicas(), pb.ReplicasOfTopic),
            supported_features=as_messages(SUPPORTED),
        )

    # --- stopping -------------------------------------------------------------------------------------------

    async def _stop(self) -> bool:
        """False when the data could not be closed so that the next start needs no recovery: the log says
        why."""
        configuration, broker = self._configuration, self._broker
        self._state = "stopping"
        log.info("node_stopping", node=configuration.node_id)
        if configuration.is_broker and broker.lifecycle.broker_epoch >= 0:
            timeout_s = configuration.seconds("controlled.shutdown.timeout.ms")
            if broker.lifecycle.unfenced.is_set() and not await broker.lifecycle.leave(timeout_s):
                log.warning("leaderships_not_moved", leaderships=broker.replicas.hosted.leader_count)
            await self._wait_for_other_brokers()
        await stop(self.parts_in_order())
        log.info("node_stopped", node=configuration.node_id, clean=self._is_closed_clean)
        return self._is_closed_clean

    async def _wait_for_other_brokers(self) -> None:
        """When all nodes stop at once the active controller waits for the others: they need it to hand over
        their leaderships."""
        deadline = self._clock.monotonic() + OTHER_BROKERS_WAIT_S
        own_id = self._configuration.node_id
        while self._controller_active and self._clock.monotonic() < deadline:
            others = (known for node_id, known in self._broker.state.brokers.items() if node_id != own_id)
            if not any(known.shutting_down and not known.fenced for known in others):
                return
            await self._clock.sleep(0.02)

    async def _close_listener(self) -> None:
        if self._listener is not None:
            await self._listener.close()

    async def _stop_controller(self) -> None:
        if self._controller_node is not None:
            await self._controller_node.stop()

    async def _close_pages(self) -> None:
        if self._pages is not None:
            await self._pages.close()

    def _close_directory(self) -> None:
        """With the mark of a clean shutdown.  After a start that failed only a broker that was not registered
        gets it, and has written nothing: the mark of its last stop stays valid."""
        epoch, previous_epoch = self._broker.lifecycle.broker_epoch, self._directory.previous_broker_epoch
        if self._state != "stopping":
            if epoch < 0 and previous_epoch is not None:
                self._directory.close(clean=True, broker_epoch=previous_epoch)
            else:
                self._directory.close(clean=False)
            return
        try:
            self._directory.close(clean=True, broker_epoch=epoch)
            self._is_closed_clean = True
        except (KafkaError, OSError) as error:
            log.error("not_closed_clean", consequence="the next start recovers the logs", error=error)

    async def _abandon(self) -> None:
        """The start failed: closes what was opened, so that the reason is the last line and the process
        ends."""
        self._state = "failed"
        await stop(self.parts_in_order())

    def _fail_stop(self, error: BaseException) -> None:
        """A defect, after which answers could be wrong: the process exits at once, without the mark of a
        clean shutdown."""
        log.error("node_fail_stop", error=error)
        os._exit(FAIL_STOP_EXIT_CODE)

    # --- views ----------------------------------------------------------------------------------------------

    @property
    def _ready(self) -> bool:
        """Ready only after the node was in every ISR once: a rolling restart stops the next node when this
        one is ready, and two replicas of a partition must not be out of sync at a time."""
        if self._state != "running" or not self._configuration.is_broker:
            return self._state == "running"
        if not self._caught_up:
            self._caught_up = self._broker.cluster.in_sync_everywhere()
        return (
            self._caught_up
            and self._broker.lifecycle.unfenced.is_set()
            and self._broker.probing.is_reached_by_all
        )

    def _view(self) -> NodeView:
        return node_view(
            self._broker,
            controller_active=self._controller_active,
            ready=self._ready,
            connections=len(self._listener.connections) if self._listener else 0,
            offline_replicas=len(self._parts.application.offline_replicas()),
            upkeep=self._parts.upkeep.view(),
        )

    @property
    def _controller_active(self) -> bool:
        return self._controller_node is not None and self._controller_node.is_active

    def _page(self, path: str) -> Page:
        if not self._parts_made:
            return page_while_opening(self._directory, path)
        if path == "/metrics":
            return Page(200, "text/plain; version=0.0.4; charset=utf-8", self._broker.metrics.page())
        if path == "/livez":
            return Page(200, "text/plain", b"ok\n")
        if path == "/readyz":
            return self._readiness()
        return Page(404, "text/plain", b"there are /metrics, /livez and /readyz\n")

    def _readiness(self) -> Page:
        """503 also while a disk is full, so that a rolling restart stops and the operator sees it.  The node
        still serves clients."""
        if not self._ready:
            return Page(503, "text/plain", f"{self._state}\n".encode())
        full = full_folders(self._disk, self._configuration.data_dirs, self._reserves)
        return Page(503, "text/plain", "".join(f"{line}\n" for line in full).encode()) if full else _READY

    def _status(self) -> admin_pb2.StatusReply:
        broker = self._broker
        return admin_pb2.StatusReply(
            node_id=self._configuration.node_id,
            cluster_id=self._configuration.text("cluster.id"),
            version=__version__,
            controller_active=self._controller_active,
            controller_id=broker.cluster.controller_id,
            metadata_index=broker.cluster.metadata_index,
            leaders=broker.replicas.hosted.leader_count,
            replicas=sum(1 for _ in broker.replicas.hosted),
            under_replicated=broker.replicas.hosted.under_replicated_count,
            ready=self._ready,
            uptime_ms=int((self._clock.monotonic() - self._started_at) * 1000),
            recovered_logs=self._recovered_logs,
            state=self._state,
            process_id=os.getpid(),
        )


_READY = Page(200, "text/plain", b"ready\n")


def _reason(error: Exception) -> str:
    """One sentence, without Python's numbers."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror + (f": {error.filename}" if error.filename else "")
    return str(error)
