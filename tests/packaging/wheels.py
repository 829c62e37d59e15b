"""A wheel of the project's files as they are, and virtual environments that have it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

from .source_tree import ROOT, project_files


def run(command: list[str], cwd: Path) -> subprocess.CompletedProcess[str]:
    # protoc looks its plugins up in PATH; they live next to the interpreter that runs this.
    environment = {
        **os.environ,
        "PATH": os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", ""))),
    }
    return subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=240, check=False
    )


def build_wheel(folder: Path) -> Path:
    """From a copy of the files, in this folder."""
    copy, built = folder / "source", folder / "wheel"
    for path in project_files():
        target = copy / path
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, target)
    done = run([sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(built)], copy)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    [found] = built.glob("*.whl")
    return found


def environment(home: Path, *wheels: Path) -> Path:
    """Its Python, with these wheels.  The dependencies are lent to it by path, so that no network is needed;
    the editable installation is not, because Python does not follow `.pth` files of a folder that was itself
    named by one."""
    venv.create(home, with_pip=False, symlinks=True)
    python = home / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check"]
    for wheel in wheels:
        done = run([*pip, "install", "--quiet", "--no-deps", "--no-index", str(wheel)], home)
        assert done.returncode == 0, done.stderr
    [site] = home.glob("lib/python*/site-packages")
    lent = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    (site / "lent_dependencies.pth").write_text("\n".join(sorted(lent)) + "\n")
    return python
