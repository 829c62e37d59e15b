"""`tidegate txns`: lists and describes transactions, and aborts hanging ones."""

from __future__ import annotations

from typing import Annotated

import typer

from .connecting import LOCAL, Bootstrap, CommandConfig, connect, connect_to_read
from .listing import INT32_MAX, INT64_MAX, Json
from .output import CommandError, run, show_json, show_table, when

txns = typer.Typer(no_args_is_help=True, help="Look at transactions, and abort those that hang.")
# The names in ListTransactions; a broker ignores a name that it does not know.
TRANSACTION_STATES = (
    "Empty", "Ongoing", "Prepared", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort",
    "PrepareEpochFence", "Dead",
)  # fmt: skip


@txns.command("list")
def txns_list(
    state: Annotated[
        list[str], typer.Option("--state", help="Only these states, for example Ongoing; may be repeated.")
    ] = [],  # noqa: B006
    longer_than: Annotated[
        float | None,
        typer.Option(
            "--longer-than", min=0, max=INT32_MAX, help="Only transactions that run for more seconds."
        ),
    ] = None,
    bootstrap: Bootstrap = LOCAL,
    command_config: CommandConfig = None,
    json: Json = False,
) -> None:
    """List transactional ids and their states."""

    async def work() -> None:
        names = {name.lower(): name for name in TRANSACTION_STATES}
        for unknown in [name for name in state if name.lower() not in names]:
            raise ValueError(f"--state {unknown}: choose from {', '.join(TRANSACTION_STATES)}")
        async with connect(bootstrap, command_config) as admin:
            running_for_ms = -1 if longer_than is None else int(longer_than * 1000)
            found = await admin.list_transactions(
                [names[name.lower()] for name in state], running_for_ms=running_for_ms
            )
        if json:
            show_json(found)
        else:
            rows = [
                [entry.transactional_id, entry.state, entry.producer_id, entry.coordinator] for entry in found
            ]
            show_table(
                ("transactional id", "state", "producer id", "coordinator"),
                rows,
                empty="no transactional ids",
            )

    run(work())


@txns.command("describe")
def txns_describe(
    transactional_id: Annotated[str, typer.Argument()],
    bootstrap: Bootstrap = LOCAL,
    command_config: CommandConfig = None,
    json: Json = False,
) -> None:
    """Show one transactional id with its open transaction."""

    async def work() -> None:
        async with connect_to_read(bootstrap, command_config) as admin:
            found = await admin.describe_transaction(transactional_id)
        if json:
            show_json(found)
            return
        rows: list[tuple[str, object]] = [
            ("transactional id", found.transactional_id),
            ("state", found.state),
            ("producer id, epoch", f"{found.producer_id}, {found.producer_epoch}"),
            ("timeout", f"{found.timeout_ms / 1000:g} s"),
            ("started", when(found.started_ms)),
            ("coordinator", f"node {found.coordinator}"),
        ]
        for topic, numbers in sorted(found.partitions.items()):
            rows.append((f"partitions of {topic}", sorted(numbers)))
        show_table(("", ""), rows)

    run(work())


IdleSeconds = Annotated[
    int,
    typer.Option(
        "--idle", metavar="SECONDS", min=0, max=INT32_MAX, help="Only those without a record for so long."
    ),
]


@txns.command("hanging")
def txns_hanging(
    topic: Annotated[list[str], typer.Option("--topic", help="Only this topic; may be repeated.")] = [],  # noqa: B006
    idle: IdleSeconds = 900,
    bootstrap: Bootstrap = LOCAL,
    command_config: CommandConfig = None,
    json: Json = False,
) -> None:
    """Find hanging transactions: no coordinator will end them, and they block read_committed readers for
    ever."""

    async def work() -> None:
        async with connect(bootstrap, command_config) as admin:
            views = await admin.list_topics(internal=True)
            for unknown in sorted(set(topic) - {view.name for view in views}):
                raise CommandError(f"topic {unknown!r} does not exist")
            places = [
                (view.name, number)
                for view in views
                if not topic or view.name in topic
                for number in view.partitions
            ]
            found = await admin.hanging_transactions(places, idle_ms=1000 * idle)
        if json:
            show_json(found)
            return
        rows = [
            [
                f"{h.topic}-{h.partition}",
                h.producer_id,
                h.open_since_offset,
                when(h.last_timestamp_ms),
                h.why,
            ]
            for h in found
        ]
        columns = ("partition", "producer id", "open since offset", "last record", "why it hangs")
        show_table(columns, rows, empty="no hanging transactions")

    run(work())


@txns.command("abort")
def txns_abort(
    transactional_id: Annotated[str, typer.Argument()],
    bootstrap: Bootstrap = LOCAL,
    command_config: CommandConfig = None,
) -> None:
    """Abort the open or prepared transaction of a transactional id, and fence its producer: for one whose
    owner will not come back."""

    async def work() -> None:
        async with connect(bootstrap, command_config) as admin:
            await admin.abort_transaction(transactional_id)
        print(f"{transactional_id} has no transaction, and its former producers are fenced")

    run(work())


@txns.command("abort-hanging")
def txns_abort_hanging(
    topic: Annotated[str, typer.Argument()],
    partition: Annotated[int, typer.Argument(min=0, max=INT32_MAX)],
    producer_id: Annotated[int, typer.Argument(min=0, max=INT64_MAX)],
    idle: IdleSeconds = 900,
    bootstrap: Bootstrap = LOCAL,
    command_config: CommandConfig = None,
) -> None:
    """Abort a hanging transaction that `hanging` shows; the command refuses one that its coordinator
    knows."""

    async def work() -> None:
        async with connect(bootstrap, command_config) as admin:
            found = await admin.hanging_transactions([(topic, partition)], idle_ms=1000 * idle)
            chosen = [hanging for hanging in found if hanging.producer_id == producer_id]
            if not chosen:
                raise CommandError(
                    f"{topic}-{partition} has no hanging transaction of producer id {producer_id}: "
                    "`tidegate txns hanging` lists "
                    f"those there are (without a record for {idle} s: see --idle)"
                )
            for hanging in chosen:
                await admin.abort_hanging_transaction(hanging)
                print(f"aborted: {topic}-{partition} from offset {hanging.open_since_offset}")

    run(work())
