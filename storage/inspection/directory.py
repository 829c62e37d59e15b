"""Checks data folders against every invariant: owner, last stop, each partition, and the agreement between
them.

    for report in verify(disk, paths, now_ms=..., is_locked=...): ...

A path may be a data folder, or the folder of one partition; in the latter case, the data folder around it
says how it was left. Read-only, like everything of `inspection`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

from ...runtime.disk import Disk
from ..checkpoint import CheckpointInvalid, parse_value
from ..cleaning.positions import CLEANER_CHECKPOINT, decode_positions
from ..directory.creation import PARTITION_METADATA
from ..directory.folder_notes import (
    PARTITION_CHECKPOINT,
    PartitionCheckpoint,
    PartitionKey,
    decode_partition_checkpoint,
)
from ..directory.folder_owner import KEYS, OWNER_VERSION, decode_owner
from ..directory.log_directory import CLEAN_SHUTDOWN, META_PROPERTIES, parse_name
from ..directory.renamed_folders import DELETE_SUFFIX, FUTURE_SUFFIX, deleted_keys
from ..directory.set_aside import DAMAGED_SUFFIX
from .findings import Finding
from .moves import Standings, has_log, is_future, judge_moves, read_standings
from .partition import PartitionContext, PartitionReport, verify_partition
from .verification import FolderState


class NotInspectable(Exception):
    """The path is neither a data folder nor a partition's folder, or cannot be read."""


@dataclass(slots=True)
class DataFolder:
    """The state that a data folder's files describe.  `partitions` are the folders in it to verify."""

    path: Path
    state: FolderState
    identity: dict[str, str] = field(default_factory=dict)
    broker_epoch: int | None = None
    checkpoint: dict[PartitionKey, PartitionCheckpoint] = field(default_factory=dict)
    cleaned: frozenset[tuple[UUID, int]] = frozenset()
    partitions: list[Path] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)


@dataclass(slots=True, frozen=True)
class VerificationOptions:
    """Options of a verification.  `compacted` names topics whose logs may have offset gaps although their
    folders do not say so."""

    now_ms: int
    is_locked: Callable[[Path], bool]
    compacted: frozenset[str] = frozenset()
    progress: Callable[[int], None] = lambda _bytes: None


def verify(
    disk: Disk, paths: Sequence[Path], options: VerificationOptions
) -> Iterator[DataFolder | PartitionReport]:
    """First every data folder, then partition by partition, then once more a `DataFolder` for what only shows
    in comparison.

    Raises NotInspectable before anything else, OSError when a folder cannot be read.
    """
    folders = [read_data_folder(disk, path, options.is_locked) for path in paths]
    states = read_standings(disk, [directory for folder in folders for directory in folder.partitions])
    for folder in folders:
        _excuse_moved(folder, states)
        yield folder
    reports: list[PartitionReport] = []
    for folder in folders:
        for directory in folder.partitions:
            try:
                context = _partition_context(
                    disk, folder, directory, options, is_future=is_future(states, directory)
                )
                report = verify_partition(disk, directory, context, options.progress)
            except FileNotFoundError:
                if folder.state is not FolderState.RUNNING:
                    raise
                continue  # deleted meanwhile
            reports.append(report)
            yield report
    is_running = any(folder.state is FolderState.RUNNING for folder in folders)
    findings = [*_compare(folders, reports), *judge_moves(disk, states, is_running=is_running)]
    between = DataFolder(folders[0].path, folders[0].state, findings=findings)
    if between.findings:
        yield between


def read_data_folder(disk: Disk, path: Path, is_locked: Callable[[Path], bool]) -> DataFolder:
    """The kind of `path`, and its files' contents.  Raises NotInspectable."""
    try:
        names = disk.list_names(path)
    except OSError as error:
        raise NotInspectable(f"{path}: {error.strerror or error}") from error
    below = [] if META_PROPERTIES in names else data_folders_below(disk, path, names)
    if below:
        raise NotInspectable(
            f"{path} is no data folder, but there are some below: verify {' '.join(map(str, below))}"
        )
    if (
        META_PROPERTIES in names
        or PARTITION_CHECKPOINT in names
        or any(is_partition_folder(disk, path / name) for name in names)
    ):
        folder = _read_notes(disk, path, set(names), is_locked)
        folder.partitions = [path / name for name in names if is_partition_folder(disk, path / name)]
        _check_presence(disk, folder, set(names))
        return folder
    if not looks_like_a_log(names):
        raise NotInspectable(
            f"{path} is neither a data folder (no {META_PROPERTIES}, no partitions) nor a partition's folder"
        )
    parent = path.absolute().parent
    around = disk.list_names(parent)
    if META_PROPERTIES in around or PARTITION_CHECKPOINT in around:
        folder = _read_notes(disk, parent, set(around), is_locked)
        folder.findings.clear()  # the caller asked about one partition only
    else:
        folder = DataFolder(parent, FolderState.UNKNOWN)
    folder.partitions = [path]
    return folder


def data_folders_below(disk: Disk, path: Path, names: Sequence[str]) -> list[Path]:
    """Those of a node's folder, and of all nodes of a local cluster's: their names look like those of
    partitions."""
    candidates = [path / name for name in sorted(names) if name == "data"]
    if not candidates:
        candidates = [path / name / "data" for name in sorted(names) if parse_name(name) is not None]
    return [folder for folder in candidates if disk.exists(folder / META_PROPERTIES)]


def looks_like_a_log(names: Sequence[str]) -> bool:
    """Whether a folder with these names is a partition's."""
    return PARTITION_METADATA in names or any(name.endswith(".log") and name[:-4].isdigit() for name in names)


def is_partition_folder(disk: Disk, path: Path) -> bool:
    """Whether `path` is a folder whose name is one of a partition's."""
    if parse_name(path.name) is None:
        return False
    try:
        disk.list_names(path)
    except (NotADirectoryError, FileNotFoundError):
        return False
    return True


def _read_notes(disk: Disk, path: Path, names: set[str], is_locked: Callable[[Path], bool]) -> DataFolder:
    folder = DataFolder(path, FolderState.UNCLEAN)
    add = folder.findings.append
    if CLEAN_SHUTDOWN in names:
        mark = path / CLEAN_SHUTDOWN
        try:
            folder.broker_epoch = parse_value(disk.read(mark), int)
            folder.state = FolderState.CLEAN
        except FileNotFoundError:
            pass  # a node is starting
        except CheckpointInvalid as error:
            add(Finding("clean-mark-damaged", mark, str(error)))
    if is_locked(path / ".lock"):
        folder.state = FolderState.RUNNING
        if folder.broker_epoch is not None and disk.exists(path / CLEAN_SHUTDOWN):
            add(
                Finding(
                    "clean-mark-while-running", path / CLEAN_SHUTDOWN, "a crash would pass for a clean stop"
                )
            )
    if PARTITION_CHECKPOINT in names:
        try:
            folder.checkpoint = decode_partition_checkpoint(disk.read(path / PARTITION_CHECKPOINT))
        except CheckpointInvalid as error:
            add(Finding("checkpoint-damaged", path / PARTITION_CHECKPOINT, str(error)))
            folder.state = FolderState.UNCLEAN if folder.state is FolderState.CLEAN else folder.state
    if CLEANER_CHECKPOINT in names:
        try:
            folder.cleaned = frozenset(decode_positions(disk.read(path / CLEANER_CHECKPOINT)))
        except CheckpointInvalid as error:
            add(Finding("cleaner-notes-damaged", path / CLEANER_CHECKPOINT, str(error)))
    if META_PROPERTIES in names:
        _read_identity(disk, folder)
    return folder


def _read_identity(disk: Disk, folder: DataFolder) -> None:
    path = folder.path / META_PROPERTIES
    try:
        folder.identity = decode_owner(disk.read(path))
    except CheckpointInvalid as error:
        folder.findings.append(Finding("identity-damaged", path, str(error)))
        return
    if folder.identity["version"] != OWNER_VERSION or not folder.identity["node.id"].isdigit():
        what = f"version {folder.identity['version']!r}, node.id {folder.identity['node.id']!r}"
        folder.findings.append(Finding("identity-damaged", path, what))


def _check_presence(disk: Disk, folder: DataFolder, names: set[str]) -> None:
    add = folder.findings.append
    if META_PROPERTIES not in names and folder.partitions:
        add(
            Finding(
                "identity-missing",
                folder.path / META_PROPERTIES,
                f"{len(folder.partitions)} partitions are here",
            )
        )
    present = {path.name for path in folder.partitions}
    deleted = set(deleted_keys(folder.checkpoint, names))  # the next start forgets their rows
    for (topic, partition), row in sorted(folder.checkpoint.items()):
        is_missing = f"{topic}-{partition}" not in present and (topic, partition) not in deleted
        if is_missing and folder.state is FolderState.RUNNING:
            is_missing = not disk.exists(folder.path / f"{topic}-{partition}")  # it may be new
        if is_missing:
            what = f"its recovery point was {row.recovery_point}, its log start {row.log_start_offset}"
            add(
                Finding(
                    "partition-missing", folder.path / f"{topic}-{partition}", what, -1, row.recovery_point
                )
            )
    for name in sorted(names):
        if name.endswith(DAMAGED_SUFFIX) and name.removesuffix(DAMAGED_SUFFIX).isdigit():
            add(Finding("set-aside", folder.path / name, "the partition was fetched again from its leader"))
        elif folder.state is not FolderState.RUNNING and name.endswith(
            (".tmp", DELETE_SUFFIX, FUTURE_SUFFIX)
        ):
            add(Finding("leftover", folder.path / name, "a deletion, move or write that was cut short"))


def _excuse_moved(folder: DataFolder, states: Standings) -> None:
    """A log that has moved to another data folder is missing nowhere, although a crash may have left a note
    of it."""
    moved = {
        folder.path / f"{topic}-{partition}"
        for topic, partition in folder.checkpoint
        if has_log(states, (topic, partition))
    }
    folder.findings = [
        each for each in folder.findings if each.kind != "partition-missing" or each.file not in moved
    ]


def _partition_context(
    disk: Disk, folder: DataFolder, directory: Path, options: VerificationOptions, *, is_future: bool
) -> PartitionContext:
    """A future replica has no notes, and no stop closes it: the node looks at its files when the move
    continues."""
    key = parse_name(directory.name)
    if is_future:
        state = FolderState.RUNNING if folder.state is FolderState.RUNNING else FolderState.UNCLEAN
        return PartitionContext(state, None, now_ms=options.now_ms)
    noted = folder.checkpoint.get(key) if key is not None else None
    compacted = key is not None and key[0] in options.compacted
    if key is not None and folder.cleaned:
        compacted |= (_topic_id(disk, directory), key[1]) in folder.cleaned
    return PartitionContext(folder.state, noted, compacted, options.now_ms)


def _topic_id(disk: Disk, directory: Path) -> UUID | None:
    try:
        return parse_value(disk.read(directory / PARTITION_METADATA), UUID)
    except (OSError, CheckpointInvalid):
        return None  # `verify_partition` says so


def _compare(folders: Sequence[DataFolder], reports: Sequence[PartitionReport]) -> list[Finding]:
    """Findings that need several folders or partitions."""
    found: list[Finding] = []
    owner: tuple[Path, tuple[str, ...]] | None = None
    directory_ids: dict[str, Path] = {}
    for folder in {folder.path: folder for folder in folders if folder.identity}.values():
        name = tuple(folder.identity.get(key, "") for key in KEYS[1:3])
        path = folder.path / META_PROPERTIES
        if owner is not None and owner[1] != name:
            what = f"cluster and node are {'/'.join(name)} here, {'/'.join(owner[1])} in {owner[0]}"
            found.append(Finding("identity-differs", path, what))
        owner = owner or (folder.path, name)
        directory_id = folder.identity.get("directory.id", "")
        if directory_id and directory_id in directory_ids:
            found.append(
                Finding(
                    "directory-id-twice",
                    path,
                    f"{directory_id} is also that of {directory_ids[directory_id]}",
                )
            )
        directory_ids.setdefault(directory_id, folder.path)
    places: dict[PartitionKey, Path] = {}
    topics: dict[str, tuple[UUID, Path]] = {}
    names: dict[UUID, tuple[str, Path]] = {}
    for report in reports:
        key = parse_name(report.directory.name)
        if key is None:
            continue
        if key in places and places[key] != report.directory:
            continue  # see `judge_moves`
        places[key] = report.directory
        if report.topic_id is None:
            continue
        path = report.directory / PARTITION_METADATA
        known = topics.setdefault(key[0], (report.topic_id, report.directory))
        if known[0] != report.topic_id:
            found.append(
                Finding("topic-id-differs", path, f"{report.topic_id} here, {known[0]} in {known[1].name}")
            )
        other = names.setdefault(report.topic_id, (key[0], report.directory))
        if other[0] != key[0]:
            found.append(
                Finding(
                    "topic-id-shared",
                    path,
                    f"{report.topic_id} is also that of {other[0]}, in {other[1].name}",
                )
            )
    return found
