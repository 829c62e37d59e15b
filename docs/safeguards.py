"""Prints which tests and ablations hold each rule of semantics.md, raft.md and hot-path.md.

python docs/safeguards.py                    every rule
python docs/safeguards.py T L                the chapters T and L
python docs/safeguards.py T11                one rule
python docs/safeguards.py coordinator/transaction/shard.py   the rules that this file keeps
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

PAGES = ("semantics.md", "raft.md", "hot-path.md")
RULE = re.compile(r"^### ([A-Z]\d+)\n(.*?)(?=^#|\Z)", re.MULTILINE | re.DOTALL)
ITEM = re.compile(r"^- (Kept by|Held by): ?(.*?)(?=^- |\Z)", re.MULTILINE | re.DOTALL)


def rules(page: str) -> list[tuple[str, str, str]]:
    """Number, what keeps the rule, what holds it; each on one line."""
    found = []
    for number, text in RULE.findall((Path(__file__).parent / page).read_text()):
        items = {kind: " ".join(rest.split()) for kind, rest in ITEM.findall(text)}
        found.append((number, items.get("Kept by", ""), items.get("Held by", "")))
    return found


def main(wanted: list[str]) -> int:
    count = 0
    for page in PAGES:
        for number, kept, held in rules(page):
            if wanted and not any(
                each in (number, number[0]) or (len(each) > 3 and each in kept) for each in wanted
            ):
                continue
            count += 1
            print(f"{number}  ({page})")
            for symbol, path in re.findall(r"\[`([^`]+)`\]\(\.\./([^)]+)\)", kept):
                print(f"    kept by  {path}: {symbol}")
            for kind, name in re.findall(r"(ablation )?`([^`]+)`", held):
                print(f"    held by  {kind}{name}")
    if not count:
        print(f"no rule: {' '.join(wanted)}", file=sys.stderr)
    return 0 if count else 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
