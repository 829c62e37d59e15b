"""Asks whether a vulnerability is known in anything that the lock files name: `make audit`.  pip-audit gets
the data from the package index.

Ends with 0: none; 1: here they are; 3: the data of some packages could not be had, and of the others no
vulnerability is known.  pip-audit itself ends with 0 then.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

LOCKS = Path(__file__).resolve().parent / "locks"
COMMAND = ("pip-audit", "--format=json", "--progress-spinner=off", "--disable-pip", "--require-hashes")
CLEAN, VULNERABLE, UNKNOWN = 0, 1, 3


def verdict(answers: list[dict[str, object]]) -> tuple[int, list[str]]:
    """Exit code and lines for people, of the `dependencies` in pip-audit's answer."""
    asked = {f"{each['name']} {each['version']}": each for each in answers if "skip_reason" not in each}
    without = sorted({str(each["name"]) for each in answers if "skip_reason" in each})
    vulnerable = {name: each["vulns"] for name, each in sorted(asked.items()) if each["vulns"]}
    lines = []
    for name, found in vulnerable.items():
        assert isinstance(found, list)
        for each in found:
            fixed = ", ".join(each["fix_versions"]) or "no version"
            lines.append(f"{name}: {each['id']}, fixed in {fixed}")
    lines.append(f"{len(asked)} packages asked about, {len(vulnerable)} with known vulnerabilities")
    if without or not asked:
        lines.append(
            "NOT AUDITED: the package index has no data of vulnerabilities for "
            f"{', '.join(without) or 'anything'}. Run this where it has: nothing is known about them here"
        )
    if vulnerable:
        return VULNERABLE, lines
    return (UNKNOWN if without or not asked else CLEAN), lines


def main() -> int:
    answers: list[dict[str, object]] = []
    for lock in sorted(LOCKS.glob("*.lock")):
        done = subprocess.run(
            [*COMMAND, f"--requirement={lock}"], capture_output=True, text=True, check=False
        )
        try:
            answers += json.loads(done.stdout)["dependencies"]
        except json.JSONDecodeError:
            last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
            print(f"NOT AUDITED: pip-audit could not ask about {lock.name}: {last}")
            return UNKNOWN
    code, lines = verdict(answers)
    print("\n".join(lines))
    return code


if __name__ == "__main__":
    sys.exit(main())
