"""Writes the tables that say what the product's own tables say: the settings and the metrics of nodes in
operations.md, the requests that nodes serve in kafka.md; `--check` only says whether they are current."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from tidegate.node.assembly import metrics_of
from tidegate.node.cuts.cut_metrics import CutMetrics
from tidegate.node.handlers import HANDLERS
from tidegate.node.observation.client_metrics import ClientMetrics
from tidegate.node.observation.metrics import NodeView
from tidegate.node.serving.key_set import OF_A_FILE, KeySet
from tidegate.node.serving.throttling import Throttling
from tidegate.node.settings.definitions import SETTINGS, Setting
from tidegate.runtime.clock import ManualClock
from tidegate.wire.api import ApiKey, advertised

BEGIN = "<!-- made by docs/tables.py{} -->\n"
END = "<!-- end of what is made -->\n"
COLUMNS = 3


def settings() -> str:
    return "| key | default | meaning |\n|---|---|---|\n" + "".join(
        row(key, setting) for key, setting in SETTINGS.items()
    )


def row(key: str, setting: Setting) -> str:
    default = setting.shown_default
    meaning = setting.doc.replace("|", "\\|")
    return f"| `{key}` | {f'`{default}`' if default else ''} | {meaning} |\n"


def requests() -> str:
    cells = [
        f"{''.join(word.capitalize() for word in ApiKey(key).name.split('_'))} ({key}) | {low} to {high}"
        for key, low, high in advertised(HANDLERS.keys)
    ]
    cells += [" | "] * (-len(cells) % COLUMNS)
    lines = [" | ".join(cells[at : at + COLUMNS]) for at in range(0, len(cells), COLUMNS)]
    return (
        "| request | versions " * COLUMNS
        + "|\n"
        + "|---|---" * COLUMNS
        + "|\n"
        + "".join(f"| {line} |\n" for line in lines)
    )


def metrics() -> str:
    opening = SimpleNamespace(progress=SimpleNamespace(found=0, opened=0))
    exported = metrics_of(
        1,
        cast(Any, opening),
        ClientMetrics(),
        Throttling(dict, ManualClock(), may_act_as_node=lambda _: False),
        {},
        KeySet(None, OF_A_FILE, ManualClock(), lambda _: None),
        CutMetrics(),
        lambda: NodeView([], 0, 0, 0, 0, False, 0, True, 0),
    )
    rows = sorted(
        f"| `{family.name}{'_total' if family.type == 'counter' else ''}` | {family.documentation} |\n"
        for family in exported.registry.collect()
    )
    return "| metric | meaning |\n|---|---|\n" + "".join(rows)


TABLES: dict[tuple[str, str], Callable[[], str]] = {
    ("operations.md", ""): settings, ("operations.md", ": metrics"): metrics, ("kafka.md", ""): requests,
}  # fmt: skip


def with_table(page: str, what: str, table: str) -> str:
    """The page with a fresh table between the markers."""
    begin = BEGIN.format(what)
    before, _, rest = page.partition(begin)
    _, _, after = rest.partition(END)
    return f"{before}{begin}\n{table}\n{END}{after}"


def main() -> int:
    late = 0
    for (name, what), table in TABLES.items():
        path = Path(__file__).with_name(name)
        page = path.read_text()
        fresh = with_table(page, what, table())
        if "--check" not in sys.argv[1:]:
            path.write_text(fresh)
        elif page != fresh:
            print(f"the table in docs/{name} is out of date: run `python docs/tables.py`", file=sys.stderr)
            late = 1
    return late


if __name__ == "__main__":
    raise SystemExit(main())
