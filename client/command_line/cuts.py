"""`tidegate cuts`: takes and pins transaction-consistent cuts, shows and lists them, and lets go of them."""

from __future__ import annotations

from typing import Annotated

import typer

from .connecting import LOCAL, Bootstrap, CommandConfig, connect, connect_to_read
from .listing import Json
from .output import CommandError, run, show_json, show_table, when

cuts = typer.Typer(no_args_is_help=True, help="Keep consistent cuts of topics, and look at them.")
CutName = Annotated[str, typer.Argument(metavar="NAME")]


@cuts.command("take")
def cuts_take(
    topic: Annotated[list[str], typer.Argument(help="One or more topics.")],
    bootstrap: Bootstrap = LOCAL,
    command_config: CommandConfig = None,
) -> None:
    """Take a cut of topics and print it as JSON: what reads at it later finds what is still there."""

    async def work() -> None:
        async with connect(bootstrap, command_config) as admin:
            print((await admin.take_cut(topic)).to_json())

    run(work())


@cuts.command("pin")
def cuts_pin(
    name: CutName,
    topic: Annotated[list[str], typer.Option("--topic", help="A topic of the cut; may be repeated.")],
    retention_ms: Annotated[int, typer.Option("--retention-ms", help="How long it is kept.", min=1)],
    bootstrap: Bootstrap = LOCAL,
    command_config: CommandConfig = None,
) -> None:
    """Take a cut of topics and keep what it reads: retention, deletion and compaction leave it."""

    async def work() -> None:
        async with connect(bootstrap, command_config) as admin:
            found = await admin.pin_cut(name, topic, retention_ms=retention_ms)
        print(f"pinned: {name}, {len(found.cut.partitions)} partitions, until {when(found.expires_ms)}")

    run(work())


@cuts.command("list")
def cuts_list(
    bootstrap: Bootstrap = LOCAL,
    command_config: CommandConfig = None,
    json: Json = False,
) -> None:
    """List the pinned cuts."""

    async def work() -> None:
        async with connect_to_read(bootstrap, command_config) as admin:
            found = await admin.list_cuts()
        if json:
            show_json(found)
            return
        rows = [
            [
                cut.name, _state(cut.is_confirmed, cut.deleted_topics), when(cut.taken_ms),
                when(cut.expires_ms), cut.partitions, " ".join(cut.topics),
            ]
            for cut in found
        ]  # fmt: skip
        show_table(("cut", "state", "taken", "expires", "partitions", "topics"), rows, empty="no cuts")

    run(work())


@cuts.command("show")
def cuts_show(
    name: CutName,
    bootstrap: Bootstrap = LOCAL,
    command_config: CommandConfig = None,
    json: Json = False,
) -> None:
    """Show where a pinned cut begins and ends in each partition."""

    async def work() -> None:
        async with connect_to_read(bootstrap, command_config) as admin:
            found = await admin.describe_cut(name)
        rows = [
            [topic, partition, each.start, each.end, len(each.undecided)]
            for (topic, partition), each in found.cut.partitions.items()
        ]
        columns = ("topic", "partition", "start", "end", "undecided")
        if json:
            ranges = [dict(zip(columns, row, strict=True)) for row in rows]
            show_json({"name": name, "taken_ms": found.cut.taken_ms, "expires_ms": found.expires_ms,
                       "deleted_topics": list(found.deleted_topics), "ranges": ranges})  # fmt: skip
            return
        state = _state(True, found.deleted_topics)
        print(f"{name}: {state}, taken {when(found.cut.taken_ms)}, expires {when(found.expires_ms)}")
        show_table(columns, rows)

    run(work())


@cuts.command("unpin")
def cuts_unpin(
    name: CutName,
    bootstrap: Bootstrap = LOCAL,
    command_config: CommandConfig = None,
) -> None:
    """Let go of a cut: its records are deleted and compacted as the topics' settings say."""

    async def work() -> None:
        async with connect(bootstrap, command_config) as admin:
            was_pinned = await admin.unpin_cut(name)
        if not was_pinned:
            raise CommandError(f"no cut is pinned as {name}: `tidegate cuts list` shows those that are")
        print(f"unpinned: {name}")

    run(work())


def _state(is_confirmed: bool, deleted_topics: tuple[str, ...]) -> str:
    if deleted_topics:
        return f"unreadable, deleted: {' '.join(deleted_topics)}"
    return "pinned" if is_confirmed else "unconfirmed"
