"""The clients of other languages are there and current, or it is said why not: no test passes over them in
silence."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tidegate.tests import foreign_clients
from tidegate.tests.foreign_clients import Broken, Client, Missing, command_for, install, main
from tidegate.tests.machine import Need, lacks

TOY = Client("toy", "java", "[1,2)", ("no-such-tool-anywhere",))


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Client:
    sources = tmp_path / "sources" / "java"
    sources.mkdir(parents=True)
    (sources / "pom.xml").write_text("<project/>")
    (sources / "Main.java").write_text("class Main {}")
    monkeypatch.setattr(foreign_clients, "FOLDER", tmp_path / "installed")
    monkeypatch.setattr(foreign_clients, "SOURCES", tmp_path / "sources")
    monkeypatch.setattr(foreign_clients, "CLIENTS", {"toy": TOY})
    return TOY


@pytest.fixture
def steps(toy: Client, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which steps ran; they need no registry and no compiler."""
    ran: list[str] = []

    def fetch(client: Client) -> None:
        client.folder.mkdir(parents=True, exist_ok=True)
        ran.append("fetch")

    monkeypatch.setattr(foreign_clients, "_fetch", fetch)
    monkeypatch.setattr(foreign_clients, "_build", lambda client: ran.append("build"))
    return ran


def test_what_is_current_is_neither_fetched_nor_built_again(toy: Client, steps: list[str]) -> None:
    assert (install(toy), steps) == ("fetched and built", ["fetch", "build"])
    assert (install(toy), steps) == ("is current", ["fetch", "build"])
    (foreign_clients.SOURCES / "java" / "Main.java").write_text("class Main { }")
    assert (install(toy), steps) == ("built", ["fetch", "build", "build"])
    (foreign_clients.SOURCES / "java" / "pom.xml").write_text("<project></project>")
    assert (install(toy), steps[3:]) == ("fetched and built", ["fetch", "build"])


def test_a_missing_tool_is_named_by_the_installation_and_by_the_tests(
    toy: Client, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main() == 1
    assert "toy: no-such-tool-anywhere is not installed" in capsys.readouterr().err
    with pytest.raises(
        Missing,
        match=r"toy is not installed \(no-such-tool-anywhere is not installed\): make foreign-clients",
    ):
        command_for("toy")


def test_a_client_that_is_not_installed_says_how_to_get_it(toy: Client) -> None:
    with pytest.raises(Missing, match=r"not asked for\): make foreign-clients"):
        command_for("toy")


def test_a_program_older_than_its_sources_is_an_error(toy: Client, steps: list[str]) -> None:
    install(toy)
    assert command_for("toy")[0][-1] == "Main"
    (foreign_clients.SOURCES / "java" / "Main.java").write_text("class Main { }")
    with pytest.raises(Broken, match="older than its sources: make foreign-clients"):
        command_for("toy")


def test_a_program_that_does_not_compile_is_an_error_and_no_missing_client(
    toy: Client, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if shutil.which("javac") is None:
        lacks(Need.JAVAC, "javac is not installed")
    monkeypatch.setattr(
        foreign_clients, "_fetch", lambda client: client.folder.mkdir(parents=True, exist_ok=True)
    )
    assert main() == 0
    (foreign_clients.SOURCES / "java" / "Main.java").write_text("class Main { int f() { } }")
    assert main() == 1
    assert "missing return statement" in capsys.readouterr().err
    with pytest.raises(Broken, match="missing return statement"):
        command_for("toy")
