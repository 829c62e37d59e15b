"""The Python of Spark's workers: the modules of its Spark from files, and Python itself for all else."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from tidegate.spark.session import workers_python
from tidegate.spark.worker_python import without_archive

WHERE = """
import sys, pyspark, py4j
print(pyspark.__file__, py4j.__file__, " ".join(sys.argv[1:]), sys.path[0], sep="\\n")
"""
LIB = ("python", "lib")


def package(folder: Path, *files: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("__init__.py", *files):
        (folder / name).touch()
    return folder


def archives(home: Path) -> list[str]:
    """As Spark names them."""
    lib = home.joinpath(*LIB)
    lib.mkdir(parents=True, exist_ok=True)
    for archive, module in (("pyspark.zip", "pyspark"), ("py4j-0.10-src.zip", "py4j")):
        with zipfile.ZipFile(lib / archive, "w") as file:
            file.writestr(f"{module}/__init__.py", "")
    return [str(lib / "pyspark.zip"), str(lib / "py4j-0.10-src.zip")]


def test_of_an_installed_package_no_archive_is_left(tmp_path: Path) -> None:
    home = package(tmp_path / "site" / "pyspark", "daemon.py")
    package(tmp_path / "site" / "py4j")
    other = str(tmp_path / "others.zip")
    path = ["/here", *archives(home), other, str(tmp_path / "site")]
    assert without_archive(path) == ["/here", other, str(tmp_path / "site")]


def test_a_distribution_of_spark_has_its_modules_beside_the_archive(tmp_path: Path) -> None:
    home = tmp_path / "spark-4.1"
    package(home / "python" / "pyspark", "daemon.py")
    found, py4j = archives(home)
    assert without_archive(["/here", found, py4j, "/site"]) == ["/here", str(home / "python"), py4j, "/site"]


def test_the_archives_stay_where_others_would_be_imported(tmp_path: Path) -> None:
    home = package(tmp_path / "site" / "pyspark", "daemon.py")
    given = archives(home)
    without_py4j = [*given, str(tmp_path / "site")]
    assert without_archive(without_py4j) == without_py4j
    package(tmp_path / "site" / "py4j")
    package(tmp_path / "mine" / "pyspark", "daemon.py")
    another_first = [*given, str(tmp_path / "mine"), str(tmp_path / "site")]
    assert without_archive(another_first) == another_first
    none = [*given, "/usr/lib/python3"]
    assert without_archive(none) == none


@pytest.mark.parametrize("path", [[], ["/here", "/site"], ["", "others.zip"]])
def test_without_an_archive_of_spark_the_path_stays(path: list[str]) -> None:
    assert without_archive(path) == path


def test_an_archive_alone_stays(tmp_path: Path) -> None:
    given = archives(tmp_path / "spark-4.1")
    assert without_archive(given) == given


def run(
    *arguments: str, path: list[str], folder: Path, python: str = "", **more: str
) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path)} | more
    command = [python or workers_python(), *arguments]
    return subprocess.run(
        command, env=environment, cwd=folder, capture_output=True, text=True, timeout=60, check=False
    )


def installed() -> tuple[Path, list[str]]:
    import pyspark

    home = Path(pyspark.__file__).parent
    return home, [str(found) for found in home.joinpath(*LIB).glob("*.zip")]


def test_a_module_runs_with_compiled_files(tmp_path: Path) -> None:
    home, found = installed()
    assert len(found) == 2, found
    (tmp_path / "where.py").write_text(WHERE)
    files = [str(home / "__init__.py"), str(home.parent / "py4j" / "__init__.py")]
    done = run("-m", "where", "-x", "y", path=found, folder=tmp_path)
    assert done.stdout.splitlines() == [*files, "-x y", str(tmp_path)], done.stderr


def test_python_alone_would_take_the_archives(tmp_path: Path) -> None:
    _, found = installed()
    (tmp_path / "where.py").write_text(WHERE)
    done = run("-m", "where", path=found, folder=tmp_path, python=sys.executable)
    pyspark, py4j = done.stdout.splitlines()[:2]
    assert {str(Path(pyspark).parents[1]), str(Path(py4j).parents[1])} == set(found), done.stderr


def test_a_safe_path_does_not_begin_with_the_folder(tmp_path: Path) -> None:
    _, found = installed()
    modules = tmp_path / "modules"
    modules.mkdir()
    (modules / "where.py").write_text(WHERE)
    done = run("-m", "where", path=[*found, str(modules)], folder=tmp_path, PYTHONSAFEPATH="1")
    assert done.stdout.splitlines()[-1] == str(modules), done.stderr


def test_the_exit_code_is_that_of_the_module(tmp_path: Path) -> None:
    (tmp_path / "ends.py").write_text("import sys; assert __name__ == '__main__'; sys.exit(7)")
    assert run("-m", "ends", path=[], folder=tmp_path).returncode == 7
    missing = run("-m", "no_such_module", path=[], folder=tmp_path)
    assert missing.returncode == 1
    assert "No module named no_such_module" in missing.stderr


def test_all_else_is_python(tmp_path: Path) -> None:
    done = run("-c", "import sys; print(sys.version_info[:2], sys.executable)", path=[], folder=tmp_path)
    assert done.stdout == f"{sys.version_info[:2]} {sys.executable}\n"
    assert run("-m", path=[], folder=tmp_path).returncode == 2
