"""Writes the tables that say what the product's own tables say: the settings of nodes in operations.md, the
requests that nodes serve in kafka.md; `--check` only says whether they are current."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from tidegate.node.handlers import HANDLERS
from tidegate.node.settings.definitions import SETTINGS, Setting
from tidegate.wire.api import ApiKey, advertised

BEGIN = "<!-- made by docs/tables.py -->\n"
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


TABLES: dict[str, Callable[[], str]] = {"operations.md": settings, "kafka.md": requests}


def with_table(page: str, table: str) -> str:
    """The page with a fresh table between the markers."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table}\n{END}{after}"


def main() -> int:
    late = 0
    for name, table in TABLES.items():
        path = Path(__file__).with_name(name)
        page = path.read_text()
        fresh = with_table(page, table())
        if "--check" not in sys.argv[1:]:
            path.write_text(fresh)
        elif page != fresh:
            print(f"the table in docs/{name} is out of date: run `python docs/tables.py`", file=sys.stderr)
            late = 1
    return late


if __name__ == "__main__":
    raise SystemExit(main())
