"""`tidegate topics`, `groups` and `status`: looking at a cluster, and changing its topics."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from ...wire.errors import ErrorCode
from ..connecting.errors import error_for
from . import disks
from .connecting import LOCAL, Bootstrap, CommandConfig, connect, connect_to_read
from .output import refuse_unknown, run, settings_of, show_json, show_table, warn

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from ..administration.admin import Admin
    from ..administration.operations import PartitionMove
    from ..connecting.metadata import TopicView

    Joining = Mapping[tuple[str, int], Collection[int]]

topics = typer.Typer(no_args_is_help=True, help="Create, list, describe, change and delete topics.")
groups = typer.Typer(
    no_args_is_help=True, help="Look at consumer groups, reset their offsets, and delete them."
)

Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]
GROUP_STATES = (
    "Empty",
    "PreparingRebalance",
    "CompletingRebalance",
    "Assigning",
    "Reconciling",
    "Stable",
    "Dead",
)
GROUP_TYPES = ("classic", "consumer")
SHOWN_MAX = 5
CREATED_MAX = 10_000  # the controller creates at most so many in one request
PARTITIONS_MAX = 200_000  # of one topic, reached by several requests
INT16_MAX = (1 << 15) - 1
INT32_MAX = (1 << 31) - 1
INT64_MAX = (1 << 63) - 1


OFFSETS_S_MAX = 3.0
"""How long the command waits for the offsets of partitions; it does not show those whose leaders have not
answered by then."""


async def offsets_to_show(
    admin: Admin,
    partitions: Collection[tuple[str, int]],
    times: Sequence[int],
    *,
    read_committed: bool = False,
) -> list[dict[tuple[str, int], int]]:
    """Offsets for each of the times, from the leaders that answer soon; warns on standard error when some do
    not."""
    asked = (
        admin.offsets_for_times(
            dict.fromkeys(partitions, time), read_committed=read_committed, within_s=OFFSETS_S_MAX
        )
        for time in times
    )
    answers = await asyncio.gather(*asked)
    missing = sorted(key for key in partitions if any(key not in answer for answer in answers))
    if missing:
        names = ", ".join(f"{topic}-{number}" for topic, number in missing[:SHOWN_MAX])
        more = f" and {len(missing) - SHOWN_MAX} more" if len(missing) > SHOWN_MAX else ""
        warn(
            f"the leaders of {names}{more} did not answer within {OFFSETS_S_MAX:g} s: their offsets "
            "are not shown, and the rest "
            "is what another node knew last: are enough nodes running? try `tidegate status`"
        )
    return [{key: entry.offset for key, entry in answer.items()} for answer in answers]


def joining_replicas(moves: Iterable[PartitionMove]) -> Joining:
    """The replicas that moves add to partitions: until they are in sync, the partition does not count as
    under-replicated."""
    return {(move.topic, move.partition): move.adding for move in moves}


def under_replicated(view: TopicView, joining: Joining) -> int:
    """Partitions of the topic with a settled replica outside the ISR, as the nodes' metric counts them."""
    settled = {
        n: set(part.replicas).difference(joining.get((view.name, n), ()))
        for n, part in view.partitions.items()
    }
    return sum(not settled[n].issubset(part.in_sync_replicas) for n, part in view.partitions.items())


# ---- topics ------------------------------------------------------------------------------------------------


@topics.command("create")
def topics_create(
    names: Annotated[list[str], typer.Argument(help="One or more names.")],
    partitions: Annotated[
        int, typer.Option("--partitions", "-p", min=-1, max=CREATED_MAX, help="-1: the cluster's default.")
    ] = -1,
    replication: Annotated[
        int,
        typer.Option(
            "--replication-factor",
            "--replication",
            "-r",
            min=-1,
            max=INT16_MAX,
            help="Of each partition; -1: the default.",
        ),
    ] = -1,
    config: Annotated[
        list[str], typer.Option("--config", metavar="KEY=VALUE", help="A topic setting; may be repeated.")
    ] = [],  # noqa: B006
    bootstrap: Bootstrap = LOCAL,
    command_config: CommandConfig = None,
    json: Json = False,
) -> None:
    """Create topics and wait until they can be written."""

    async def work() -> None:
        from ..administration.descriptions import NewTopic

        settings = settings_of(config, "--config")
        if partitions == 0:
            raise ValueError(
                f"--partitions 0: 1 to {CREATED_MAX} are possible, or -1 for the cluster's default"
            )
        async with connect(bootstrap, command_config) as admin:
            await admin.create_topics([NewTopic(name, partitions, replication, settings) for name in names])
            described = await admin.describe_topics(names, config=json and bool(settings))
        if json:
            rows = [asdict(topic) for topic in described]
            for row in rows:
                row["config"] = {
                    each["name"]: each["value"] for each in row["config"] if each["name"] in settings
                }
            show_json(rows)
        else:
            for topic in described:
                first = topic.partitions[0]
                print(
                    f"created {topic.name}: {len(topic.partitions)} partitions, "
                    f"{len(first.replicas)} replicas each"
                )

    run(work())


@topics.command("list")
def topics_list(
    internal: Annotated[bool, typer.Option("--internal", help="Show the state topics, too.")] = False,
    bootstrap: Bootstrap = LOCAL,
    command_config: CommandConfig = None,
    json: Json = False,
) -> None:
    """List topics."""

    async def work() -> None:
        async with connect(bootstrap, command_config) as admin:
            views = await admin.list_topics(internal=internal)
            joining = joining_replicas(await admin.list_reassignments())
        if json:
            show_json(
                [
                    {"name": view.name, "partitions": len(view.partitions), "internal": view.internal}
                    for view in views
                ]
            )
            return
        rows = [
            [
                view.name,
                len(view.partitions),
                max((len(part.replicas) for part in view.partitions.values()), default=0),
                sum(part.leader < 0 for part in view.partitions.values()),
                under_replicated(view, joining),
            ]
            for view in views
        ]
        show_table(
            ("topic", "partitions", "replicas", "leaderless", "under-replicated"),
            rows,
            empty="no topics yet: make one with `tidegate topics create NAME`",
        )

    run(work())


@topics.command("describe")
def topics_describe(
    names: Annotated[list[str], typer.Argument()],
    bootstrap: Bootstrap = LOCAL,
    command_config: CommandConfig = None,
    json: Json = False,
) -> None:
    """Show partitions, leaders, replicas, offsets and settings."""

    async def work() -> None:
        from ..requests.offset_requests import EARLIEST, LATEST

        async with connect_to_read(bootstrap, command_config) as admin:
            described = await admin.describe_topics(names)
            led = [
                (topic.name, part.partition)
                for topic in described
                for part in topic.partitions
                if part.leader >= 0
            ]
            starts, ends = await offsets_to_show(admin, led, (EARLIEST, LATEST))
        if json:
            show_json(
                [
                    {
                        "name": topic.name,
                        "internal": topic.internal,
                        "partitions": [
                            {
                                "partition": part.partition,
                                "leader": part.leader,
                                "leader_epoch": part.leader_epoch,
                                "replicas": part.replicas,
                                "in_sync_replicas": part.in_sync_replicas,
                                "start_offset": starts.get((topic.name, part.partition)),
                                "high_watermark": ends.get((topic.name, part.partition)),
                            }
                            for part in topic.partitions
                        ],
                        "config": {entry.name: entry.value for entry in topic.config},
                    }
                    for topic in described
                ]
            )
            return
        for topic in described:
            print(f"{topic.name}: {len(topic.partitions)} partitions")
            show_table(
                ("partition", "leader", "epoch", "replicas", "in sync", "start", "end"),
                [
                    [
                        part.partition,
                        part.leader if part.leader >= 0 else "none",
                        part.leader_epoch,
                        part.replicas,
                        part.in_sync_replicas,
                        starts.get((topic.name, part.partition)),
                        ends.get((topic.name, part.partition)),
                    ]
                    for part in topic.partitions
                ],
            )
            chosen = [[entry.name, entry.value] for entry in topic.config if not entry.is_default]
            if chosen:
                show_table(("setting", "value"), chosen)

    run(work())


@topics.command("set")
def topics_set(
    name: Annotated[str, typer.Argument(help="The topic.")],
    changes: Annotated[
        list[str], typer.Argument(metavar="KEY=VALUE", help="An empty value: back to the default.")
    ],
    bootstrap: Bootstrap = LOCAL,
    command_config: CommandConfig = None,
    json: Json = False,
) -> None:
    """Change settings of a topic: all of them, or none when one is invalid."""

    async def work() -> None:
        wanted = {key: value or None for key, value in settings_of(changes, "setting").items()}
        async with connect(bootstrap, command_config) as admin:
            await _refuse_unknown_of_topic(
                admin, name, [key for key, value in wanted.items() if value is None]
            )
            await admin.alter_config(name, wanted)
        if json:
            show_json({"topic": name, "set": wanted})
        else:
            said = (
                f"{key}={value}" if value else f"{key} is the default again" for key, value in wanted.items()
            )
            print(f"{name}: {', '.join(said)}")

    run(work())


async def _refuse_unknown_of_topic(admin: Admin, name: str, taken_back: Sequence[str]) -> None:
    """The controller validates only values that are set; as in Kafka, it accepts the reset of an unknown
    setting."""
    if taken_back:
        described = await admin.describe_configs([name])
        refuse_unknown(taken_back, [entry.name for entry in described[name]])


@topics.command("alter")
def topics_alter(
    name: Annotated[str, typer.Argument(help="The topic.")],
    partitions: Annotated[
        int | None,
        typer.Option(
            "--partitions", "-p", min=1, max=PARTITIONS_MAX, help="How many it shall have: more than now."
        ),
    ] = None,
    config: Annotated[
        list[str], typer.Option("--config", metavar="KEY=VALUE", help="A topic setting; may be repeated.")
    ] = [],  # noqa: B006
    delete_config: Annotated[
        list[str],
        typer.Option("--delete-config", metavar="KEY", help="Back to its default; may be repeated."),
    ] = [],  # noqa: B006
    bootstrap: Bootstrap = LOCAL,
    command_config: CommandConfig = None,
    json: Json = False,
) -> None:
    """Change the settings of a topic, and add partitions: keys then go to other partitions than before."""

    async def work() -> None:
        wanted: dict[str, str | None] = dict(settings_of(config, "--config"))
        twice = sorted(wanted.keys() & set(delete_config))
        if twice:
            raise ValueError(f"{twice[0]} is set and deleted at once")
        wanted |= dict.fromkeys(delete_config)
        if partitions is None and not wanted:
            raise ValueError("nothing to change: give --partitions, --config or --delete-config")
        async with connect(bootstrap, command_config) as admin:
            await _refuse_unknown_of_topic(admin, name, delete_config)
            if wanted:
                await admin.alter_config(name, wanted)
            if partitions is not None:
                await admin.create_partitions({name: partitions})
        if json:
            show_json({"topic": name, "set": wanted, "partitions": partitions})
        else:
            said = [
                f"{key}={value}" if value is not None else f"{key} is the default again"
                for key, value in wanted.items()
            ]
            said += [f"{partitions} partitions"] if partitions is not None else []
            print(f"{name}: {', '.join(said)}")

    run(work())


@topics.command("delete")
def topics_delete(
    names: Annotated[list[str], typer.Argument()],
    bootstrap: Bootstrap = LOCAL,
    command_config: CommandConfig = None,
    json: Json = False,
) -> None:
    """Delete topics with all their data."""

    async def work() -> None:
        async with connect(bootstrap, command_config) as admin:
            await admin.delete_topics(names)
        if json:
            show_json({"deleted": names})
        else:
            print(f"deleted {', '.join(names)}")

    run(work())


@topics.command("delete-records")
def topics_delete_records(
    name: Annotated[str, typer.Argument(help="The topic.")],
    before: Annotated[
        int,
        typer.Option(
            "--before",
            min=-1,
            max=INT64_MAX,
            help="First offset to keep; -1: delete everything that is committed.",
        ),
    ],
    partition: Annotated[
        list[int],
        typer.Option("--partition", "-p", min=0, max=INT32_MAX, help="May be repeated; all when not given."),
    ] = [],  # noqa: B006
    bootstrap: Bootstrap = LOCAL,
    command_config: CommandConfig = None,
    json: Json = False,
) -> None:
    """Delete the oldest records of a topic, up to an offset."""

    async def work() -> None:
        async with connect(bootstrap, command_config) as admin:
            chosen = partition
            if not chosen:
                (described,) = await admin.describe_topics([name], config=False)
                chosen = [part.partition for part in described.partitions]
            starts = await admin.delete_records({(name, number): before for number in chosen})
        if json:
            show_json(
                [{"partition": number, "start": start} for (_topic, number), start in sorted(starts.items())]
            )
        else:
            show_table(
                ("partition", "start"),
                [[number, start] for (_topic, number), start in sorted(starts.items())],
            )

    run(work())


# ---- groups ------------------------------------------------------------------------------------------------


@groups.command("list")
def groups_list(
    state: Annotated[
        list[str], typer.Option("--state", help="Only these states, for example Stable; may be repeated.")
    ] = [],  # noqa: B006
    kind: Annotated[
        list[str], typer.Option("--type", help="Only classic, or only consumer groups (KIP-848).")
    ] = [],  # noqa: B006
    bootstrap: Bootstrap = LOCAL,
    command_config: CommandConfig = None,
    json: Json = False,
) -> None:
    """List consumer groups."""

    async def work() -> None:
        for option, given, known in (("--state", state, GROUP_STATES), ("--type", kind, GROUP_TYPES)):
            for unknown in [name for name in given if name.lower() not in {each.lower() for each in known}]:
                raise ValueError(f"{option} {unknown}: choose from {', '.join(known)}")
        async with connect(bootstrap, command_config) as admin:
            found = await admin.list_groups(state, kind)
        if json:
            show_json(found)
        else:
            rows = [[group.group_id, group.state, group.type, group.protocol_type] for group in found]
            show_table(("group", "state", "type", "protocol"), rows, empty="no groups")

    run(work())


@groups.command("delete")
def groups_delete(
    group: Annotated[str, typer.Argument()],
    bootstrap: Bootstrap = LOCAL,
    command_config: CommandConfig = None,
    json: Json = False,
) -> None:
    """Delete a group without members, with its offsets."""

    async def work() -> None:
        async with connect(bootstrap, command_config) as admin:
            await admin.delete_group(group)
        if json:
            show_json({"deleted": group})
        else:
            print(f"deleted {group}")

    run(work())


@groups.command("describe")
def groups_describe(
    group: Annotated[str, typer.Argument()],
    bootstrap: Bootstrap = LOCAL,
    command_config: CommandConfig = None,
    json: Json = False,
) -> None:
    """Show a group's members, offsets and lag."""

    async def work() -> None:
        from ..requests.offset_requests import LATEST

        async with connect_to_read(bootstrap, command_config) as admin:
            described = await admin.describe_group(group)
            if described.state == "Dead":  # the coordinator's answer for a group that does not exist
                raise error_for(ErrorCode.GROUP_ID_NOT_FOUND, f"group {group!r} does not exist")
            offsets = await admin.group_offsets(group)
            (ends,) = await offsets_to_show(admin, offsets, (LATEST,), read_committed=True)
        owner = {
            (topic, number): member.client_id
            for member in described.members
            for topic, numbers in member.assignment.items()
            for number in numbers
        }
        partitions = [
            {
                "topic": topic,
                "partition": number,
                "committed": stored.offset,
                "end": ends.get((topic, number)),
                "lag": max(0, ends[topic, number] - stored.offset) if (topic, number) in ends else None,
                "member": owner.get((topic, number)),
            }
            for (topic, number), stored in sorted(offsets.items())
        ]
        if json:
            show_json({"group": described, "partitions": partitions})
            return
        print(
            f"{group}: {described.state}, coordinator node {described.coordinator}, "
            f"{len(described.members)} members"
        )
        columns = ("topic", "partition", "committed", "end", "lag", "member")
        show_table(
            columns, [[row[column] for column in columns] for row in partitions], empty="no committed offsets"
        )

    run(work())


# ---- status ------------------------------------------------------------------------------------------------


def status(
    bootstrap: Bootstrap = LOCAL,
    command_config: CommandConfig = None,
    json: Json = False,
) -> None:
    """Show the cluster: nodes, their disks, the controller, and whether every partition has a leader and its
    replicas.

    The exit code is 1 when a partition has no leader.
    """

    async def work() -> int:
        async with connect(bootstrap, command_config) as admin:
            described = await admin.describe_cluster()
            away = [each for each in await admin.list_brokers() if not each.alive]
            views = await admin.list_topics(internal=True)
            moves = await admin.list_reassignments()
            features = dict(admin.features)
            folders = await admin.describe_data_folders()
        parts = [part for view in views for part in view.partitions.values()]
        leaderless = sum(part.leader < 0 for part in parts)
        under = sum(under_replicated(view, joining_replicas(moves)) for view in views)
        summary = {
            "cluster_id": described.cluster_id,
            "controller": described.controller_id,
            "topics": sum(not view.internal for view in views),
            "partitions": len(parts),
            "leaderless": leaderless,
            "under_replicated": under,
            "moving": len(moves),
            "features": features,
        }
        if json:
            listed = [{"disk": disks.condition(folder), **asdict(folder)} for folder in folders]
            show_json(summary | {"brokers": described.brokers, "away": away, "data_folders": listed})
            return leaderless
        absent = f" and {len(away)} away" if away else ""
        print(
            f"cluster {described.cluster_id}: {len(described.brokers)} nodes{absent}, "
            f"{summary['topics']} topics, "
            f"{len(parts)} partitions ({leaderless} without leader, {under} under-replicated, "
            f"{len(moves)} moving)"
        )
        show_table(
            ("node", "address", "rack", "controller", "leads", "disk"),
            [
                [
                    broker.node_id,
                    str(broker),
                    broker.rack,
                    broker.node_id == described.controller_id,
                    sum(part.leader == broker.node_id for part in parts),
                    disks.worst([folder for folder in folders if folder.node_id == broker.node_id]),
                ]
                for broker in described.brokers
                if broker.node_id not in {each.node_id for each in away}
            ],
        )
        for broker in away:
            print(f"node {broker.node_id} {broker.address}: away")
        for sentence in disks.in_words(
            [folder for folder in folders if folder.node_id not in {each.node_id for each in away}]
        ):
            print(sentence)
        return leaderless

    if run(work()):
        raise typer.Exit(1)
