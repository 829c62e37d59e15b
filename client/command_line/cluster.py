"""`tidegate dev` and `tidegate cluster`: nodes on this machine."""

from __future__ import annotations

import asyncio
import itertools
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .output import complain, run, settings_of, show_json, show_table, warn

if TYPE_CHECKING:
    from ...processes.local_cluster import LocalCluster, LocalNode

cluster = typer.Typer(no_args_is_help=True, help="Run several nodes on this machine.")

Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]
Data = Annotated[Path, typer.Option("--data", help="The folder that holds everything of the cluster.")]
Settings = Annotated[
    list[str],
    typer.Option(
        "--set", metavar="KEY=VALUE", help="A node setting, kept for later starts; KEY= takes it back."
    ),
]
CLUSTER_FOLDER = Path("tidegate-cluster")
DEV_FOLDER = Path("tidegate-dev")
DEFAULT_PORT = 9092
BASE_PORT_MAX = 65_000
BAR_INTERVAL_S = 0.2
LINE_INTERVAL = 25  # in bar intervals; without a terminal, progress is printed as lines


def dev(
    data: Data = DEV_FOLDER,
    port: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=BASE_PORT_MAX,
            help="The Kafka port, gRPC is 100 above it; 9092, or what the folder has.",
        ),
    ] = None,
    settings: Settings = [],  # noqa: B006  (typer reads it, no code changes it)
) -> None:
    """Run one node (broker and controller) until Ctrl-C: the quickest way to try things."""
    run(_dev(data, port, settings))


async def _dev(data: Path, port: int | None, settings: list[str]) -> None:
    from ...processes.local_cluster import LocalCluster, LocalClusterError

    chosen = port if port is not None or LocalCluster.exists(data) else DEFAULT_PORT
    cluster = LocalCluster(
        data,
        nodes=1,
        settings=_typed(settings),
        base_port=chosen,
        base_port_option="--port",
        check_settings=True,
    )
    node = cluster.node(1)
    if node.running:
        raise LocalClusterError(
            f"the node of {data} runs already (process {node.pid}, Kafka on {node.kafka_address}): "
            "use it, or another folder "
            "with --data and another --port"
        )
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    ended = asyncio.create_task(_after_start(cluster, node))
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait({ended, stopping}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if not ended.done():
        print("stopping ...", flush=True)
        ended.cancel()
        await asyncio.gather(ended, return_exceptions=True)
        await cluster.down()
        return
    await ended  # raises the error of the start
    complain(f"the node ended by itself: see {node.log_path}")
    raise typer.Exit(1)


async def _after_start(cluster: LocalCluster, node: LocalNode) -> None:
    await cluster.up()
    print(f"ready: Kafka clients connect to {node.kafka_address}, gRPC to {node.grpc_address}")
    print(f"       metrics {node.metrics_url}/metrics, data in {node.directory}, log in {node.log_path}")
    print("       try: tidegate topics create hello   (Ctrl-C stops the node)", flush=True)
    await node.wait_exit()


@cluster.command()
def up(
    nodes: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=15,
            help="How many nodes; 1, 3 or 5 of them are controllers, too.  3, or what the folder has.",
        ),
    ] = None,
    data: Data = CLUSTER_FOLDER,
    base_port: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=BASE_PORT_MAX,
            help="The first node's Kafka port, the others follow; 9092, or the folder's.",
        ),
    ] = None,
    settings: Settings = [],  # noqa: B006
    secure: Annotated[
        bool,
        typer.Option(
            "--secure",
            help="A new cluster with TLS, users and ACLs; its client.properties says how to connect.",
        ),
    ] = False,
    timeout: Annotated[
        float | None,
        typer.Option(
            min=1, help="Seconds after which to wait no longer.  By default: as long as the nodes get on."
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Start the nodes in the background and wait until they are ready.

    The command also waits for nodes that recover their logs or catch up.  When it ends early (--timeout,
    Ctrl-C), it stops no node: the nodes continue, `tidegate cluster status` shows them, and the next `up`
    waits for them again.
    """
    run(_up(nodes, data, base_port, settings, secure, timeout, json))


async def _up(
    nodes: int | None,
    data: Path,
    base_port: int | None,
    settings: list[str],
    secure: bool,
    timeout_s: float | None,
    json: bool,
) -> None:
    from ...processes.local_cluster import LocalCluster, LocalClusterError, NotReady

    chosen = base_port if base_port is not None or LocalCluster.exists(data) else DEFAULT_PORT
    cluster = LocalCluster(
        data, nodes=nodes, settings=_typed(settings), detached=True, base_port=chosen, check_settings=True,
        with_users=secure,
    )  # fmt: skip
    running = [str(node.id) for node in cluster.nodes if node.running]
    showing = asyncio.create_task(_show_progress(cluster))
    try:
        await cluster.up(within_s=timeout_s)
    except NotReady as error:
        after = "" if timeout_s is None else f"after {timeout_s:g} s "
        raise LocalClusterError(f"{after}{_unready(cluster, data) or error}") from None
    except asyncio.CancelledError:  # Ctrl-C
        warn(_unready(cluster, data))
        raise
    except LocalClusterError as error:
        left = [str(node.id) for node in cluster.nodes if node.has_logs]
        if left:
            names = f"node {left[0]} goes" if len(left) == 1 else f"nodes {', '.join(left)} go"
            more = (
                f"{error}; {names} on starting: `tidegate cluster up --data {data}` waits again, `down` stops"
            )
            raise LocalClusterError(more) from None
        raise
    finally:
        showing.cancel()
        await asyncio.gather(showing, return_exceptions=True)
    if running and cluster.settings_changed:
        which = f"node {running[0]} was" if len(running) == 1 else f"nodes {', '.join(running)} were"
        warn(f"{which} running: --set counts there from the next start (`tidegate cluster down`, then `up`)")
    await _show(cluster, json)
    if not json:
        print(f"bootstrap: {cluster.bootstrap}")
        if cluster.has_users:
            _show_how_to_connect(cluster)


def _show_how_to_connect(cluster: LocalCluster) -> None:
    properties, authorities = cluster.administrator.properties_path, cluster.certificates.authorities
    print(f"gRPC (Spark): {','.join(node.grpc_address for node in cluster.nodes)}")
    print(f"administrator: {properties} has its password, and is its owner's alone")
    print(f"  tidegate:   tidegate topics list --command-config {properties}")
    print(f"  Kafka:      kafka-topics.sh --bootstrap-server ... --command-config {properties} --list")
    print("  librdkafka: security.protocol=SASL_SSL, sasl.mechanisms=SCRAM-SHA-512,")
    print(f"              ssl.ca.location={authorities}")


def _unready(cluster: LocalCluster, data: Path) -> str:
    """The error of an `up` that ended early: it names the nodes that are not ready and says that they
    continue."""
    nodes = [node for node in cluster.nodes if node.running and node.awaited]
    if not nodes:
        return ""
    one = len(nodes) == 1
    which = ", ".join(f"node {node.id} ({node.awaited})" for node in nodes)
    what = f"not ready {'is' if one else 'are'} {which}; {'it goes' if one else 'they go'} on"
    shows = f"`tidegate cluster status --data {data}` shows {'it' if one else 'them'}"
    return f"{what}: {shows}, `tidegate cluster up --data {data}` waits again"


async def _show_progress(cluster: LocalCluster) -> None:
    """Shows a bar on standard error for each node that opens logs or catches up; without a terminal, prints
    lines instead."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    console, printed = Console(stderr=True), dict[int, str]()
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("logs"),
        TimeElapsedColumn(),
    )
    with Bars(*columns, console=console, transient=True, disable=not console.is_terminal) as bars:
        tasks = {
            node.id: bars.add_task(f"node {node.id}", visible=False, total=None) for node in cluster.nodes
        }
        for turn in itertools.count():
            for node in cluster.nodes:
                now = node.progress
                shown = {"completed": now.opened, "total": now.of or None, "visible": bool(now.of)}
                bars.update(tasks[node.id], description=f"node {node.id} {now.doing}", **shown)  # type: ignore[arg-type]
                line = f"node {node.id} {now.doing}: {now.opened} of {now.of} logs"
                is_due = turn % LINE_INTERVAL == LINE_INTERVAL - 1
                if not console.is_terminal and now.of and is_due and printed.get(node.id) != line:
                    printed[node.id] = line
                    console.print(line, soft_wrap=True)
            await asyncio.sleep(BAR_INTERVAL_S)


@cluster.command()
def status(data: Data = CLUSTER_FOLDER, json: Json = False) -> None:
    """Show the nodes: which run, which are ready, which one is the active controller, and which controllers
    have a vote in the quorum."""
    run(_status(data, json))


async def _status(data: Path, json: bool) -> None:
    from ...processes.local_cluster import LocalCluster

    await _show(LocalCluster.attach(data), json)


@cluster.command()
def down(
    data: Data = CLUSTER_FOLDER,
    timeout: Annotated[
        float, typer.Option(min=0.1, help="Seconds after which a node that does not end is killed.")
    ] = 30.0,
    json: Json = False,
) -> None:
    """Stop the nodes; the data stays for the next `up`."""
    run(_down(data, timeout, json))


async def _down(data: Path, timeout_s: float, json: bool) -> None:
    from ...processes.local_cluster import LocalCluster

    cluster = LocalCluster.attach(data)
    stopped = sorted(await cluster.down(timeout_s))
    for node_id in cluster.killed:
        warn(
            f"node {node_id} did not end within {timeout_s:g} s and was killed: its next start "
            "recovers its logs"
        )
    if json:
        show_json({"stopped": stopped, "killed": cluster.killed})
    else:
        print(
            f"stopped: {', '.join(f'node {node_id}' for node_id in stopped)}"
            if stopped
            else "no node was running"
        )


async def _show(cluster: LocalCluster, json: bool) -> None:
    rows = await asyncio.gather(*(_describe(node) for node in cluster.nodes))
    if json:
        show_json({"bootstrap": cluster.bootstrap, "directory": str(cluster.directory), "nodes": rows})
        return
    # Narrow enough for a terminal: --json has every field.
    columns = {
        "node": "node", "pid": "pid", "address": "kafka", "state": "state", "ready": "ready",
        "ctrl": "controller",
        "vote": "vote", "leads": "leaders", "reps": "replicas", "behind": "under_replicated",
    }  # fmt: skip
    show_table(list(columns), [[row.get(key) for key in columns.values()] for row in rows])
    for row in rows:
        if row.get("waits_for"):
            print(f"node {row['node']} has no vote in the metadata quorum: {row['waits_for']}")


async def _describe(node: LocalNode) -> dict[str, Any]:
    import grpc

    from ...processes.local_cluster import ForeignNode

    row: dict[str, Any] = {
        "node": node.id,
        "pid": node.pid,
        "kafka": node.kafka_address,
        "grpc": node.grpc_address,
        "metrics": node.metrics_address,
        "log": str(node.log_path),
        "state": "running" if node.running else "stopped",
        "ready": False,
    }
    if not node.running:
        return row
    if not node.is_secured:  # else nodes alone may ask
        row |= await _vote(node)
    try:
        status = await node.status()
    except ForeignNode as error:
        return row | {"state": f"not ours: {error}"}
    except grpc.aio.AioRpcError as error:
        return row | {"state": f"no answer ({error.code().name.lower()})"}
    return row | {
        "state": status.state or "running",
        "ready": status.ready,
        "controller": status.controller_active,
        "leaders": status.leaders,
        "replicas": status.replicas,
        "under_replicated": status.under_replicated,
        "uptime_s": round(status.uptime_ms / 1000, 1),
    }


def _typed(settings: list[str]) -> dict[str, object]:
    """`--set` values with TOML's types: numbers and booleans are not strings; an empty value removes the
    setting."""
    typed: dict[str, object] = {}
    for key, text in settings_of(settings, "--set").items():
        if text.lower() in ("true", "false"):
            typed[key] = text.lower() == "true"
        elif text.lstrip("-").isdigit():
            typed[key] = int(text)
        else:
            typed[key] = text or None
    return typed


async def _vote(node: LocalNode) -> dict[str, Any]:
    """Whether a controller has a vote, and if not, what it waits for.  A controller reports this before it is
    ready."""
    import grpc

    from ...processes.local_cluster import STATUS_TIMEOUT_S
    from ...proto import controller_pb2, controller_pb2_grpc
    from ...runtime.network import grpc_channel

    try:
        async with grpc_channel(node.grpc_address) as channel:
            quorum = controller_pb2_grpc.ControllerStub(channel)
            reply = await quorum.DescribeQuorum(
                controller_pb2.DescribeQuorumRequest(), timeout=STATUS_TIMEOUT_S
            )
    except grpc.aio.AioRpcError:
        return {}  # not a controller, or no answer: the other columns show it
    votes = not any(voter.without_vote for voter in reply.voters if voter.node_id == reply.node_id)
    return {"vote": votes, "waits_for": reply.waits_for}
