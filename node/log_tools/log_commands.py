"""`tidegate log dump` and `tidegate log verify`: what a data folder holds, and whether it is sound.  No node
is needed, and none is disturbed.

They live on this floor because they know what nodes write: storage's files, and the records of the
coordinators' logs.

Exit codes: 0 sound, 1 a violation was found, 2 the path cannot be used.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

if TYPE_CHECKING:
    from ...storage.inspection.directory import DataFolder
    from ...storage.inspection.dump import Row
    from ...storage.inspection.findings import Finding
    from ...storage.inspection.partition import PartitionReport

UNUSABLE: Final = 2
PROGRESS_BYTES: Final = 256 * 1024 * 1024

app = typer.Typer(
    no_args_is_help=True, help="Look into data folders: what logs hold, and whether they are sound."
)

Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines, one object a line.")]


@contextmanager
def _speaking() -> Iterator[None]:
    """What a user can do something about becomes one line; a reader that has gone (head) is no error."""
    from ...runtime import logs
    from ...storage.inspection.directory import NotInspectable

    logs.configure(level="ERROR")
    try:
        yield
        if sys.stdout is not None:
            sys.stdout.flush()
        return
    except BrokenPipeError:
        sys.stdout = None  # the reader of the output has gone, and the interpreter must not try to write
        raise typer.Exit(0) from None
    except NotInspectable as error:
        sentence = str(error)
    except OSError as error:
        sentence = f"{error.filename or ''}: {error.strerror or error}"
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    print("error: " + " ".join(sentence.split()), file=sys.stderr)
    raise typer.Exit(UNUSABLE)


def _range(text: str) -> tuple[int, int]:
    from ...storage.inspection.dump import EVERY_OFFSET

    first, dots, end = text.partition("..")
    try:
        low = int(first) if first else 0
        high = (int(end) if end else EVERY_OFFSET) if dots else low + 1
    except ValueError:
        raise typer.BadParameter(f"{text}: write it as A..B, A.., ..B or A (from A, below B)") from None
    return low, high


@app.command()
def dump(
    path: Annotated[
        Path,
        typer.Argument(help="A segment or another file of a log, a partition's folder, or a data folder."),
    ],
    batches: Annotated[
        bool, typer.Option("--batches", help="Of segments, show the batches (the default).")
    ] = False,
    records: Annotated[bool, typer.Option("--records", help="Of segments, show the records.")] = False,
    offsets: Annotated[
        str, typer.Option(metavar="A..B", help="Only what has offsets from A, below B.")
    ] = "..",
    decode: Annotated[
        bool, typer.Option("--decode", help="Show what records of the coordinators' logs say.")
    ] = False,
    topic: Annotated[str, typer.Option(help="For --decode, when the folder's name does not tell it.")] = "",
    full: Annotated[bool, typer.Option("--full", help="Do not shorten keys and values in tables.")] = False,
    json: Json = False,
) -> None:
    """Show what is in a log's files.  Works on a node that runs, and on what is left of one."""
    from ...runtime.disk import RealDisk
    from ...runtime.lock_probe import is_locked
    from ...storage.inspection import dump as inspection_dump
    from .log_output import print_json, print_tables

    first, end = _range(offsets)
    records = records or decode
    selection = inspection_dump.Selection(batches or not records, records, first, end)
    with _speaking():
        rows = inspection_dump.dump(RealDisk(), path, selection, is_locked)
        if decode:
            rows = _decoded(rows, path, topic)
        if json:
            print_json(rows)
        else:
            print_tables(rows, full=full or decode)


def _decoded(rows: Iterator[Row], path: Path, topic: str) -> Iterator[Row]:
    from ...storage.directory.log_directory import parse_name
    from ...storage.inspection.directory import NotInspectable
    from .log_decode import TOPICS, decoded

    names = [parse_name(folder.name) for folder in (path.absolute(), path.absolute().parent)]
    topic = topic or next((name[0] for name in names if name is not None), "")
    if topic not in TOPICS:
        raise NotInspectable(
            f"--decode knows {' and '.join(TOPICS)}, not "
            f"{topic or 'a file outside their folders: use --topic'}"
        )
    return decoded(rows, topic)


@app.command()
def verify(
    paths: Annotated[
        list[Path],
        typer.Argument(help="Data folders (all of a node, to compare them), or folders of partitions."),
    ],
    compacted: Annotated[
        list[str],
        typer.Option("--compacted", metavar="TOPIC", help="A compacted topic whose folder does not say so."),
    ] = [],  # noqa: B006
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only violations, no notes.")] = False,
    json: Json = False,
) -> None:
    """Find every violated invariant, without a node.  Nothing is changed.  Exit code 0: sound, 1: not, 2:
    cannot look."""
    from ...runtime.clock import SystemClock
    from ...runtime.disk import RealDisk
    from ...runtime.lock_probe import is_locked
    from ...storage.inspection.directory import DataFolder, VerificationOptions
    from ...storage.inspection.directory import verify as look
    from ...storage.inspection.findings import Severity

    progress = _Progress(is_shown=sys.stderr.isatty() and not json)
    manner = VerificationOptions(SystemClock().wall_ms(), is_locked, frozenset(compacted), progress.add)
    totals: Counter[str] = Counter()
    introduced: set[Path] = set()
    with _speaking():
        for report in look(RealDisk(), paths, manner):
            progress.clear()
            if json:
                _print_report(report)
            elif isinstance(report, DataFolder) and report.path not in introduced:
                introduced.add(report.path)
                print(_about(report))
            for finding in report.findings:
                totals[finding.severity.value] += 1
                if not (quiet and finding.severity is Severity.NOTE):
                    _print_finding(finding, json=json)
            if not isinstance(report, DataFolder):
                totals.update(partitions=1, batches=report.batches, bytes=report.size_bytes)
        _print_totals(totals, json=json)
    if totals["violation"]:
        raise typer.Exit(1)


def _about(folder: DataFolder) -> str:
    known = [key for key in ("cluster.id", "node.id", "directory.id") if folder.identity.get(key)]
    whose = ", ".join(f"{key} {folder.identity[key]}" for key in known)
    mark = f" (broker epoch {folder.broker_epoch})" if folder.broker_epoch is not None else ""
    return f"{folder.path}: {folder.state.value}{mark}" + (f"; {whose}" if whose else "")


def _print_report(report: DataFolder | PartitionReport) -> None:
    from ...storage.inspection.directory import DataFolder
    from .log_output import print_json

    if isinstance(report, DataFolder):
        row: Row = {
            "type": "folder", "path": report.path, "state": report.state.name.lower(),
            "identity": report.identity,
            "broker_epoch": report.broker_epoch,
        }  # fmt: skip
    else:
        row = {
            "type": "partition", "path": report.directory, "state": report.state.name.lower(),
            "topic_id": report.topic_id,
            "segments": report.segments, "batches": report.batches, "bytes": report.size_bytes,
            "first_offset": report.first_offset, "end_offset": report.end_offset,
            "producers": report.producers,
            "open_transactions": report.open_transactions,
        }  # fmt: skip
    print_json([row])


def _print_finding(finding: Finding, *, json: bool) -> None:
    from .log_output import print_json

    if json:
        print_json([{
            "type": "finding", "severity": finding.severity, "kind": finding.kind, "file": finding.file,
            "position": finding.position if finding.position >= 0 else None,
            "offset": finding.offset if finding.offset >= 0 else None, "detail": finding.detail,
            "meaning": finding.meaning, "action": finding.action,
        }])  # fmt: skip
        return
    place = str(finding.file)
    if finding.position >= 0:
        place += f", byte {finding.position}"
    if finding.offset >= 0:
        place += f", offset {finding.offset}"
    print(f"\n{finding.severity.value}: {finding.kind}: {place}")
    for name, text in (("found", finding.detail), ("means", finding.meaning), ("to do", finding.action)):
        print(f"    {name:<5}  {text}")


def _print_totals(totals: Counter[str], *, json: bool) -> None:
    from .log_output import print_json

    counts = {name: totals[name] for name in ("partitions", "batches", "bytes")}
    found = {"violations": totals["violation"], "notes": totals["note"]}
    if json:
        print_json([{"type": "summary", **counts, **found}])
        return
    looked = f"{counts['partitions']} partitions, {counts['batches']} batches, {counts['bytes']} bytes"
    verdict = "no violation" if not found["violations"] else f"{found['violations']} violations"
    print(f"\n{looked}: {verdict}, {found['notes']} notes")


class _Progress:
    """The progress of the reading, on standard error, for a person at a terminal."""

    def __init__(self, *, is_shown: bool) -> None:
        self._is_shown = is_shown
        self._bytes = 0
        self._said = 0

    def add(self, size_bytes: int) -> None:
        self._bytes += size_bytes
        if self._is_shown and self._bytes - self._said >= PROGRESS_BYTES:
            self._said = self._bytes
            print(f"\r{self._bytes / 1e9:.1f} GB read", end="", file=sys.stderr, flush=True)

    def clear(self) -> None:
        if self._is_shown and self._said:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


if __name__ == "__main__":
    app()
