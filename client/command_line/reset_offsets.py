"""`tidegate groups reset-offsets`: sets the committed offsets of a group without members, with all of Kafka's
modes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ...runtime.clock import SystemClock
from ...runtime.disk import RealDisk
from ...wire.errors import ErrorCode
from ..administration.offset_reset import (
    Key,
    Known,
    Mode,
    Reset,
    moved_into_log,
    new_offset,
    parse_datetime,
    parse_duration,
    parse_file,
    parse_topic,
)
from ..connecting.errors import RequestError, error_for
from .connecting import LOCAL, Bootstrap, CommandConfig, connect
from .listing import Json
from .output import complain, run, show_json, show_table, warn

if TYPE_CHECKING:
    from ..administration.admin import Admin

INACTIVE = ("Empty", "Dead")  # Dead: the group does not exist yet


@dataclass(frozen=True, slots=True)
class _Row:
    group: str
    topic: str
    partition: int
    new_offset: int


@dataclass(frozen=True, slots=True)
class _Options:
    """What the command line says; `checked` refuses what contradicts itself."""

    groups: Sequence[str]
    all_groups: bool
    topics: Sequence[str]
    all_topics: bool
    modes: Mapping[Mode, object]
    """The modes that were given, with their values; one is allowed."""
    execute: bool
    dry_run: bool
    export: bool
    json: bool

    def checked(self) -> tuple[Mode, object]:
        """The mode and its value.  Raises ValueError."""
        if len(self.modes) != 1:
            options = ", ".join(f"--{mode.value}" for mode in Mode)
            raise ValueError(f"one of {options} is wanted, {len(self.modes)} are given")
        if self.execute and self.dry_run:
            raise ValueError("--execute and --dry-run exclude each other")
        if bool(self.groups) == self.all_groups:
            raise ValueError("name the groups, or use --all-groups")
        if self.topics and self.all_topics:
            raise ValueError("--topic and --all-topics: one of them, not both")
        if not self.topics and not self.all_topics and Mode.FILE not in self.modes:
            raise ValueError("one of --topic, --all-topics is wanted")
        [chosen] = self.modes.items()
        return chosen


def groups_reset_offsets(
    names: Annotated[
        list[str], typer.Argument(metavar="[GROUP]...", help="The groups; or --all-groups.")
    ] = [],  # noqa: B006
    all_groups: Annotated[bool, typer.Option("--all-groups", help="Every group.")] = False,
    topic: Annotated[
        list[str],
        typer.Option(
            "--topic", metavar="TOPIC[:P,P]", help="A topic, or some partitions of it; may be repeated."
        ),
    ] = [],  # noqa: B006
    all_topics: Annotated[
        bool, typer.Option("--all-topics", help="Every partition that the group has an offset for.")
    ] = False,
    to_earliest: Annotated[bool, typer.Option("--to-earliest", help="To where the log begins.")] = False,
    to_latest: Annotated[bool, typer.Option("--to-latest", help="To where the log ends.")] = False,
    to_current: Annotated[
        bool, typer.Option("--to-current", help="To the committed offset; to the end without one.")
    ] = False,
    to_offset: Annotated[
        int | None, typer.Option("--to-offset", min=0, help="To this offset, or the nearest there is.")
    ] = None,
    to_datetime: Annotated[
        str | None,
        typer.Option(
            "--to-datetime", metavar="TIME", help="To the first record since 2026-01-31T12:00:00.000 (UTC)."
        ),
    ] = None,
    by_duration: Annotated[
        str | None,
        typer.Option(
            "--by-duration", metavar="PnDTnHnMnS", help="To the first record of, say, the last PT1H."
        ),
    ] = None,
    shift_by: Annotated[
        int | None, typer.Option("--shift-by", help="Forward, or backward when negative.")
    ] = None,
    from_file: Annotated[
        Path | None, typer.Option("--from-file", help="CSV: topic,partition,offset; or a group first.")
    ] = None,
    execute: Annotated[
        bool, typer.Option("--execute", help="Do it; without this the new offsets are only shown.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show the new offsets, as is the default.")
    ] = False,
    export: Annotated[bool, typer.Option("--export", help="Print CSV that --from-file takes.")] = False,
    bootstrap: Bootstrap = LOCAL,
    command_config: CommandConfig = None,
    json: Json = False,
) -> None:
    """Set the committed offsets of groups, from which they continue; the groups must have no members."""
    given = {
        Mode.EARLIEST: to_earliest or None, Mode.LATEST: to_latest or None, Mode.CURRENT: to_current or None,
        Mode.OFFSET: to_offset, Mode.DATETIME: to_datetime, Mode.DURATION: by_duration, Mode.SHIFT: shift_by,
        Mode.FILE: from_file,
    }  # fmt: skip
    modes = {mode: value for mode, value in given.items() if value is not None}
    options = _Options(names, all_groups, topic, all_topics, modes, execute, dry_run, export, json)
    run(_reset_offsets(options, bootstrap, command_config))


async def _reset_offsets(options: _Options, bootstrap: str, command_config: Path | None) -> None:
    mode, value = options.checked()
    wanted = [parse_topic(text) for text in options.topics]
    async with connect(bootstrap, command_config) as admin:
        if options.all_groups:
            groups: Sequence[str] = [each.group_id for each in await admin.list_groups()]
        else:
            groups = options.groups
        resets = _resets(mode, value, groups)
        if mode is Mode.FILE and not resets:
            raise ValueError(f"--from-file {value}: it names no partition of {', '.join(groups)}")
        rows, failed = await _reset_groups(admin, groups, wanted, resets, execute=options.execute)
    if rows and not (options.execute or options.export or options.dry_run or options.json):
        warn("nothing was changed: --execute does it")
    if rows or options.json or not failed:
        _show(rows, export=options.export, json=options.json, one_group=len(groups) == 1)
    if failed:
        raise typer.Exit(1)


async def _reset_groups(
    admin: Admin,
    groups: Sequence[str],
    wanted: Sequence[tuple[str, list[int]]],
    resets: Mapping[str, Reset],
    *,
    execute: bool,
) -> tuple[list[_Row], bool]:
    """The new offsets, which with `execute` are committed, and whether a group failed."""
    rows, failed = list[_Row](), False
    for group in groups:
        try:
            new = await _new_offsets(admin, group, wanted, resets.get(group))
            if execute and new:
                await admin.set_group_offsets(group, new)
            rows += [_Row(group, name, number, offset) for (name, number), offset in sorted(new.items())]
        except RequestError as error:
            complain(f"{group}: {error}")
            failed = True
    return rows, failed


def _resets(mode: Mode, value: object, names: Sequence[str]) -> dict[str, Reset]:
    """The resets by group; a group that the file does not name has none."""
    match mode, value:
        case Mode.OFFSET | Mode.SHIFT, int():
            reset = Reset(mode, value)
        case Mode.DATETIME, str():
            reset = Reset(mode, parse_datetime(value))
        case Mode.DURATION, str():
            reset = Reset(mode, max(0, SystemClock().wall_ms() - parse_duration(value)))
        case Mode.FILE, Path():
            try:
                text = RealDisk().read(value).decode()
            except OSError as error:
                raise ValueError(f"--from-file {value}: {(error.strerror or str(error)).lower()}") from None
            except UnicodeDecodeError:
                raise ValueError(f"--from-file {value}: it is no text") from None
            return {group: Reset(mode, offsets=offsets) for group, offsets in parse_file(text, names).items()}
        case _:
            reset = Reset(mode)
    return dict.fromkeys(names, reset)


async def _new_offsets(
    admin: Admin, group: str, wanted: Sequence[tuple[str, list[int]]], reset: Reset | None
) -> dict[Key, int]:
    """Raises RequestError for a group with members, and for partitions that do not exist."""
    if reset is None:
        return {}
    state = (await admin.describe_group(group)).state
    if state not in INACTIVE:
        message = f"it is {state}: offsets are reset while a group has no members, stop them first"
        raise RequestError(ErrorCode.NON_EMPTY_GROUP, message)
    committed = {key: stored.offset for key, stored in (await admin.group_offsets(group)).items()}
    if state == "Dead" and not wanted and not committed and reset.mode is not Mode.FILE:
        raise error_for(ErrorCode.GROUP_ID_NOT_FOUND, "there is no such group")
    partitions = await _scope(admin, wanted, committed)
    if reset.mode is Mode.FILE:
        partitions = [key for key in partitions if key in reset.offsets] if wanted else list(reset.offsets)
    begins, ends = await admin.beginning_offsets(partitions), await admin.end_offsets(partitions)
    at_time: dict[Key, int] = {}
    if reset.needs_time:
        found = await admin.offsets_for_times(dict.fromkeys(partitions, reset.number))
        at_time = {key: entry.offset for key, entry in found.items()}
    known = Known(begins, ends, committed, at_time)
    for key in partitions:
        if moved := moved_into_log(reset, key, known):
            warn(f"{group}: {moved}")
    return {key: new_offset(reset, key, known) for key in partitions}


async def _scope(
    admin: Admin, wanted: Sequence[tuple[str, list[int]]], committed: dict[Key, int]
) -> list[Key]:
    """The named partitions; without names, all partitions for which the group has a committed offset."""
    if not wanted:
        return sorted(committed)
    described = {
        topic.name: topic for topic in await admin.describe_topics({name for name, _ in wanted}, config=False)
    }
    found: set[Key] = set()
    for name, numbers in wanted:
        there = {part.partition for part in described[name].partitions}
        missing = sorted(set(numbers) - there)
        if missing:
            raise RequestError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name!r} has no partition {missing[0]}"
            )
        found.update((name, number) for number in numbers or there)
    return sorted(found)


def _show(rows: Sequence[_Row], *, export: bool, json: bool, one_group: bool) -> None:
    if json:
        show_json(rows)
    elif export:
        for row in rows:
            head = "" if one_group else f'"{row.group}",'
            print(f'{head}"{row.topic}",{row.partition},{row.new_offset}')
    else:
        columns = ("group", "topic", "partition", "new offset")
        show_table(
            columns,
            [[row.group, row.topic, row.partition, row.new_offset] for row in rows],
            empty="no partitions",
        )
