"""Builds of the decode kernel for tests: of its source as it is, or with a safeguard taken out."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from types import ModuleType

from tidegate.tests.machine import Need, lacks

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "spark" / "decoding" / "kernel.c"
WARNINGS = ("-Wall", "-Wextra", "-Werror")
# Not optimised: of a read that gcc has moved, its sanitizer may say nothing.
SANITIZED = ("-O0", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")


def compiler() -> str:
    found = shutil.which(os.environ.get("CC", "cc")) or shutil.which("gcc")
    if found is None or not (Path(sysconfig.get_path("include")) / "Python.h").exists():
        lacks(Need.C_COMPILER, "there is no C compiler, or no Python.h")
    return found


def build_kernel(folder: Path, *flags: str, source: str | None = None) -> Path:
    """Raises CalledProcessError."""
    code, library = folder / "kernel.c", folder / "kernel.abi3.so"
    code.write_text(SOURCE.read_text() if source is None else source)
    command = [compiler(), "-shared", "-fPIC", *flags, f"-I{sysconfig.get_path('include')}", str(code)]
    subprocess.run([*command, "-o", str(library)], check=True, timeout=60)
    return library


def sanitizer() -> str:
    """The library that a sanitized kernel needs before all others, since Python is not sanitized."""
    command = [compiler(), "-print-file-name=libasan.so"]
    name = subprocess.run(command, check=True, capture_output=True, text=True, timeout=10).stdout.strip()
    if not Path(name).is_absolute():
        lacks(Need.C_COMPILER, "the C compiler has no AddressSanitizer")
    return str(Path(name).resolve())


def run_hostile(program: str, folder: Path, source: str | None = None) -> subprocess.CompletedProcess[str]:
    """Runs 6,000 rounds of a module of these tests against a sanitized build, of `source` or of the kernel's
    own."""
    library = build_kernel(folder, *SANITIZED, *(WARNINGS if source is None else ()), source=source)
    environment = {**os.environ, "LD_PRELOAD": sanitizer(), "ASAN_OPTIONS": "detect_leaks=0"}
    command = [sys.executable, "-m", f"{__package__}.{program}", str(library), "6000"]
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=100, check=False
    )


def load_kernel(library: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("kernel", library)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
