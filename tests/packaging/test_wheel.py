"""The wheel holds all of the product and nothing else, and works where nothing but its dependencies is
installed.

An editable installation hides what is missing from a wheel; this builds one from a copy of the project's
files and tries it in a virtual environment of its own.
"""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

import pytest
from tidegate import __version__
from tidegate.tests.spark.kernel_builds import SOURCE, compiler

from .source_tree import ROOT, product_files, project_files, pyproject
from .wheels import build_wheel, environment, run

# One worker builds the wheel, once.
pytestmark = [pytest.mark.xdist_group("wheel"), pytest.mark.timeout(300)]


KERNEL = SOURCE.relative_to(ROOT)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("built"))


@pytest.fixture(scope="module")
def contents(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if not name.endswith("/")}


@pytest.fixture(scope="module")
def clean_python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return environment(tmp_path_factory.mktemp("environment"), wheel)


def modules_in(contents: set[str]) -> list[str]:
    paths = [Path(name) for name in contents if name.startswith("tidegate/") and name.endswith(".py")]
    parts = (path.with_suffix("").parts for path in paths)
    beside = pyproject()["tool"]["setuptools"].get("py-modules", [])
    return sorted([*beside, *(".".join(names[:-1] if names[-1] == "__init__" else names) for names in parts)])


def test_every_package_with_all_its_files_is_in_the_wheel(contents: set[str]) -> None:
    packaged = {f"tidegate/{path.as_posix()}" for path in product_files() if path != KERNEL} | {
        "tidegate/__init__.py",
        "tidegate/py.typed",
    }
    assert packaged - contents == set()
    present = {
        name.rpartition("/")[0].replace("/", ".") for name in contents if name.endswith("/__init__.py")
    }
    assert present == set(pyproject()["tool"]["setuptools"]["packages"])


def test_the_kernel_is_in_the_wheel_compiled(wheel: Path, contents: set[str], clean_python: Path) -> None:
    compiler()
    compiled = f"tidegate/{KERNEL.with_suffix('.abi3.so')}"
    assert [name for name in contents if "/kernel." in name and not name.endswith(".pyi")] == [compiled]
    assert "-cp311-abi3-linux_" in wheel.name  # for this Python and all later ones
    program = "import tidegate.spark; print(tidegate.spark.decoder_name())"
    done = run([str(clean_python), "-c", program], clean_python.parent)
    assert done.stdout == "kernel\n", done.stderr


def test_without_a_compiler_the_package_is_built_without_the_kernel(tmp_path: Path) -> None:
    with_no_compiler = ["env", "CC=no-such-compiler", sys.executable, "setup.py", "build_ext"]
    done = run([*with_no_compiler, "--build-lib", str(tmp_path), "--build-temp", str(tmp_path)], ROOT)
    assert done.returncode == 0, done.stderr
    assert 'extension "tidegate.spark.decoding.kernel" failed' in done.stderr
    assert list(tmp_path.rglob("*.so")) == []


def test_nothing_else_is_in_the_wheel(contents: set[str]) -> None:
    project = pyproject()
    top = {name.partition("/")[0] for name in contents}
    beside = {f"{name}.py" for name in project["tool"]["setuptools"].get("py-modules", [])}
    assert top == {"tidegate", f"tidegate-{__version__}.dist-info"} | beside
    folders = {name.split(".")[1] for name in project["tool"]["setuptools"]["packages"] if "." in name}
    second = {name.split("/")[1] for name in contents if name.startswith("tidegate/")}
    assert second == folders | {"__init__.py", "py.typed"}


def test_the_generated_protocol_modules_are_in_the_wheel(contents: set[str]) -> None:
    schemas = [path.stem for path in project_files() if path.suffix == ".proto"]
    assert schemas
    for schema in schemas:
        for suffix in ("_pb2.py", "_pb2_grpc.py", "_pb2.pyi"):
            assert f"tidegate/proto/{schema}{suffix}" in contents


def test_every_module_imports_from_a_clean_environment(
    clean_python: Path, contents: set[str], tmp_path: Path
) -> None:
    program = (
        "import importlib, sys, traceback\n"
        "import tidegate\n"
        "assert tidegate.__file__.startswith(sys.prefix), tidegate.__file__\n"
        "failed = 0\n"
        "for name in sys.argv[1:]:\n"
        "    try:\n"
        "        importlib.import_module(name)\n"
        "    except Exception:\n"
        "        failed += 1\n"
        "        print(name, traceback.format_exc().strip().splitlines()[-1])\n"
        "sys.exit(failed > 0)\n"
    )
    modules = modules_in(contents)
    assert len(modules) > len(pyproject()["tool"]["setuptools"]["packages"])
    done = run([str(clean_python), "-c", program, *modules], tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", sorted(pyproject()["project"]["scripts"]))
def test_every_command_runs_from_a_clean_environment(clean_python: Path, name: str, tmp_path: Path) -> None:
    done = run([str(clean_python.with_name(name)), "--help"], tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "usage" in done.stdout.lower()


def test_the_command_line_finds_the_commands_of_higher_floors(clean_python: Path, tmp_path: Path) -> None:
    shown = run([str(clean_python.with_name("tidegate")), "--help"], tmp_path).stdout
    for name in pyproject()["project"]["entry-points"]["tidegate.commands"]:
        assert f" {name} " in shown
