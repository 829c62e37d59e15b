"""`tidegate count`: how many records a topic holds for a read_committed reader, without Spark and without
reading data.

Exit codes: 0, 1 when there is no answer, 2 for a mistake in the arguments.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Final

import typer

LOCAL: Final = "127.0.0.1:9092"
PATIENCE_S: Final = 10.0


def count(
    topic: Annotated[str, typer.Argument(help="The topic.")],
    ranges: Annotated[
        list[str],
        typer.Option(
            "--range", metavar="P:START:END", help="Only these offsets of partition P; may be repeated."
        ),
    ] = [],  # noqa: B006
    uncommitted: Annotated[
        bool, typer.Option("--uncommitted", help="Up to the high watermark, aborted transactions included.")
    ] = False,
    bootstrap: Annotated[
        str,
        typer.Option(
            "--bootstrap",
            envvar="TIDEGATE_BOOTSTRAP",
            help="Brokers as host:port,host:port.",
            show_envvar=True,
        ),
    ] = LOCAL,
    command_config: Annotated[
        Path | None,
        typer.Option(
            "--command-config",
            envvar="TIDEGATE_COMMAND_CONFIG",
            metavar="FILE",
            help="Properties as of Kafka's tools; --bootstrap then names gRPC listeners.",
            show_envvar=True,
        ),
    ] = None,
    patience_s: Annotated[
        float, typer.Option("--patience", min=0.0, help="Seconds without an answer before it gives up.")
    ] = PATIENCE_S,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for machines.")] = False,
) -> None:
    """Count committed records, from indexes: no data is read."""
    from ..runtime import logs
    from ..runtime.connections.tls import TlsError
    from ..security.client_security import SecurityError, read_security
    from .connecting.errors import ReadError
    from .options import OptionError
    from .reading.counting import counts_of

    logs.configure(level="ERROR")
    wanted = dict(_range(text) for text in ranges) if ranges else None
    if wanted is not None and len(wanted) < len(ranges):
        raise typer.BadParameter("one --range for each partition")
    try:
        counts = counts_of(
            bootstrap,
            topic,
            wanted,
            read_committed=not uncommitted,
            retry_timeout_ms=int(patience_s * 1000),
            security=None if command_config is None else read_security(command_config)[0],
        )
    except (ReadError, OptionError, SecurityError, TlsError) as error:
        print("error: " + " ".join(str(error).split()), file=sys.stderr)
        raise typer.Exit(1) from None
    total = sum(each.records for each in counts)
    if as_json:
        print(json.dumps({"topic": topic, "records": total, "partitions": [asdict(each) for each in counts]}))
        return
    rows = [
        ("partition", "start", "end", "records"),
        *((str(value) for value in asdict(each).values()) for each in counts),
    ]
    cells = [tuple(row) for row in rows]
    widths = [max(len(row[column]) for row in cells) for column in range(4)]
    for row in cells:
        print("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)))
    print(f"{total} records")


def _range(text: str) -> tuple[int, tuple[int, int]]:
    try:
        partition, start, end = (int(part) for part in text.split(":"))
    except ValueError:
        raise typer.BadParameter(f"{text}: write it as PARTITION:START:END (END is not counted)") from None
    if min(partition, start) < 0 or end < start:
        raise typer.BadParameter(f"{text}: no range of offsets")
    return partition, (start, end)
