"""A Python for Spark's workers that runs compiled files: the command `tidegate-spark-python`, for
`PYSPARK_PYTHON` or `spark.pyspark.python`.

Spark starts a Python process for each kind of worker, four for a first read, and names `pyspark.zip` first
in their path.  Python keeps no compiled files beside an archive: each process compiles what it imports, more
than a second of CPU time, and the first workers that it forks compile some more.  Where Spark's folder, or
the installed package, has the same modules as files, this command leaves the archive out.  In a session that
has a fork server (`fork_server.py`) it hands the rest to that.  Else, and for all but `-m module`, it is
Python.
"""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Sequence
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Final, NoReturn

COMMAND: Final = "tidegate-spark-python"
FORK_SERVER: Final = "TIDEGATE_SPARK_FORK_SERVER"  # the variable with its address
NO_FORK_SERVER: Final = "off"  # a value of it
ARCHIVE: Final = "pyspark.zip"


def without_archive(path: Sequence[str]) -> list[str]:
    """The path with the modules of its Spark as files where there are such, else as it is."""
    archive = next((entry for entry in path if Path(entry).name == ARCHIVE), None)
    if archive is None:
        return list(path)
    lib = Path(archive).parent  # SPARK_HOME/python/lib
    if _is_package(home := lib.parent.parent):  # installed with pip: SPARK_HOME is the package
        left = [entry for entry in path if not (entry.endswith(".zip") and Path(entry).parent == lib)]
        return left if _finds(home, left) else list(path)
    if _is_package(lib.parent / "pyspark"):  # Spark's own distribution, which has py4j as an archive alone
        return [str(lib.parent) if entry == archive else entry for entry in path]
    return list(path)


def _is_package(folder: Path) -> bool:
    return folder.name == "pyspark" and (folder / "daemon.py").is_file()


def _finds(home: Path, path: list[str]) -> bool:
    """Whether the path finds this PySpark, and a py4j."""
    found = PathFinder.find_spec("pyspark", path)
    is_home = found is not None and found.origin is not None and Path(found.origin).parent == home
    return is_home and PathFinder.find_spec("py4j", path) is not None


def _folder() -> str:
    """What the path of `python -m` begins with."""
    try:
        return os.getcwd()
    except FileNotFoundError:  # it was deleted
        return ""


def main() -> NoReturn:
    arguments = sys.argv[1:]
    if len(arguments) < 2 or arguments[0] != "-m":
        os.execv(sys.executable, [sys.executable, *arguments])
    if not sys.flags.safe_path:
        sys.path[0] = _folder()
    sys.path[:] = without_archive(sys.path)
    address = os.environ.get(FORK_SERVER, NO_FORK_SERVER)
    if address != NO_FORK_SERVER:
        from .fork_server import run_forked

        run_forked(address, arguments[1:])  # returns where it could not
    sys.argv[:] = arguments[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    sys.exit()


if __name__ == "__main__":
    main()
