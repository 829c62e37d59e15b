"""The page of all cases."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bench.spark_streams import CONNECTOR

from .compare import Verdict

PAGE = Path(__file__).resolve().parents[2] / "docs" / "spark-connector.md"
TITLES = {"batch": "Batch reads", "stream": "Streams"}


def page(verdicts: Sequence[Verdict]) -> str:
    same = sum(not verdict.lines for verdict in verdicts)
    parts = [
        "# Beside Spark's Kafka connector\n\n"
        f"Each option of `spark-sql-kafka-0-10` {CONNECTOR}, run through the connector and through this "
        "source, in one\nSpark session on one cluster: rows with all their columns, where each micro-batch "
        f"ends, and errors.\n{len(verdicts)} cases, of which {same} are the same; each other one has its "
        "reason. The texts of errors are each\nsource's own. Made by `make spark-connector`.\n"
    ]
    for kind, title in TITLES.items():
        chosen = [verdict for verdict in verdicts if verdict.case.kind == kind]
        if chosen:
            parts.append(
                f"\n## {title}\n\n| case | options | Tidegate beside the connector |\n|---|---|---|\n"
            )
            parts += [row(verdict) for verdict in chosen]
    return "".join(parts)


def row(verdict: Verdict) -> str:
    options = " ".join(f"`{name}={value}`" for name, value in verdict.case.options.items())
    cells = (verdict.case.title, options.replace("|", "\\|"), verdict.result)
    return f"| {' | '.join(cells)} |\n"
