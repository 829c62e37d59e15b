"""Writes the table of settings in operations.md from the node's own definitions; `--check` only says whether it is current."""

from __future__ import annotations

import sys
from pathlib import Path

from tidegate.node.configuration import SETTINGS, Setting

PAGE = Path(__file__).with_name("operations.md")
BEGIN = "<!-- settings: made by docs/settings.py -->\n"
HEAD = "| key | default | meaning |\n|---|---|---|\n"
END = "<!-- end of settings -->\n"


def row(key: str, setting: Setting) -> str:
    match setting.default:
        case None:
            default = "(required)"
        case list() as items:
            default = ", ".join(items)
        case bool() as flag:
            default = str(flag).lower()
        case other:
            default = str(other)
    meaning = setting.doc.replace("|", "\\|")
    return f"| `{key}` | {f'`{default}`' if default else ''} | {meaning} |\n"


def with_table(page: str) -> str:
    """The page with a fresh table between the markers."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    table = HEAD + "".join(row(key, setting) for key, setting in SETTINGS.items())
    return f"{before}{BEGIN}\n{table}\n{END}{after}"


def main() -> int:
    page = PAGE.read_text()
    fresh = with_table(page)
    if "--check" in sys.argv[1:]:
        if page != fresh:
            print("the table of settings in docs/operations.md is out of date: run `python docs/settings.py`", file=sys.stderr)
            return 1
        return 0
    PAGE.write_text(fresh)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
