"""Writes the lock files of the image anew: `make lock`.  Each package has an exact version and the hashes of
all its files; nothing says which index they come from.

locks/build.lock   what makes wheels: `build-system.requires` of pyproject.toml
locks/node.lock    what a node needs
locks/spark.lock   what a backfill needs besides

The files agree about the version of what they share.  The versions are those that a Python 3.11 on Linux
gets; the hashes are for every platform that a project has wheels for.
"""

from __future__ import annotations

import subprocess
import tomllib
from pathlib import Path

HERE = Path(__file__).resolve().parent
LOCKS = HERE / "locks"
PYPROJECT = HERE.parents[1] / "pyproject.toml"
COMPILE = (
    "uv", "pip", "compile", "--quiet", "--upgrade", "--generate-hashes", "--no-header", "--no-annotate",
    "--python-version=3.11", "--python-platform=linux",
)  # fmt: skip


def lock(name: str, *arguments: str, requirements: str | None = None) -> Path:
    """Raises CalledProcessError."""
    file = LOCKS / f"{name}.lock"
    command = [*COMPILE, "--output-file", str(file), *arguments]
    subprocess.run(command, input=requirements, text=True, check=True, stdout=subprocess.DEVNULL)
    print(f"{file.relative_to(PYPROJECT.parent)}: {file.read_text().count('==')} packages")
    return file


def main() -> None:
    node = lock("node", str(PYPROJECT))
    lock("spark", "--constraint", str(node), "--extra=spark", "--extra=java", str(PYPROJECT))
    build = tomllib.loads(PYPROJECT.read_text())["build-system"]["requires"]
    lock("build", "--constraint", str(node), "-", requirements="\n".join(build))


if __name__ == "__main__":
    main()
