"""The repository is complete, runs anywhere, and stays readable."""

from __future__ import annotations

import ast
import configparser
import os
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from tidegate.tests.architecture.source import tree_of

from .source_tree import ROOT, product_modules, project_files, pyproject

# Put together from pieces, or this file would contain what it forbids.
MACHINE_PATH = re.compile(r"(?<![\w.}/:-])/(?:" + "|".join(("work", "root", "home")) + r")(?![\w-])")
REGISTRY_HOSTS = tuple(
    ".".join(parts)
    for parts in (
        ("pypi", "org"),
        ("pythonhosted", "org"),
        ("docker", "io"),
        ("ghcr", "io"),
        ("quay", "io"),
        ("gcr", "io"),
        ("registry", "k8s", "io"),
        ("npmjs", "org"),
        ("proxy", "golang", "org"),
        ("repo1", "maven", "org"),
        ("deb", "debian", "org"),
    )
)


def text_files() -> Iterator[tuple[Path, str]]:
    for path in project_files():
        try:
            yield path, (ROOT / path).read_text()
        except UnicodeDecodeError:
            continue


def configured_registries() -> set[str]:
    """The package index of this machine, from any place where pip reads it; a loopback mirror's name is no
    secret."""
    named = [
        os.environ.get(name, "")
        for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "UV_INDEX_URL", "UV_DEFAULT_INDEX")
    ]
    files = [
        Path("/etc/pip.conf"),
        Path.home() / ".pip" / "pip.conf",
        Path.home() / ".config" / "pip" / "pip.conf",
    ]
    for file in files:
        if file.is_file():
            parser = configparser.ConfigParser(interpolation=None)
            parser.read(file)
            named += [
                value
                for section in parser.values()
                for key, value in section.items()
                if key.endswith("index-url")
            ]
    hosts = {urlsplit(url).hostname for text in named for url in text.split()}
    return {host for host in hosts if host and host not in ("localhost", "127.0.0.1", "::1")}


def findings(forbidden: re.Pattern[str]) -> list[str]:
    return [
        f"{path}:{number}: {line.strip()[:100]}"
        for path, text in text_files()
        if forbidden.search(text)
        for number, line in enumerate(text.splitlines(), 1)
        if forbidden.search(line)
    ]


def test_no_file_names_a_path_of_the_machine_it_was_written_on() -> None:
    assert findings(MACHINE_PATH) == []


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("cd /" + "work/main", True),
        ('open("/' + 'home/me/x")', True),
        ("see /" + "root.", True),
        ("the /" + "workers and src/" + "work/x", False),
        ("https://example.org/" + "home/page", False),
        ("$HOME/" + "work", False),
    ],
)
def test_machine_paths_are_recognised(line: str, found: bool) -> None:
    assert bool(MACHINE_PATH.search(line)) is found


def test_no_file_names_a_registry() -> None:
    hosts = sorted({*REGISTRY_HOSTS, *configured_registries()})
    assert findings(re.compile("|".join(re.escape(host) for host in hosts), re.IGNORECASE)) == []


def test_every_package_is_listed_for_the_wheel() -> None:
    """A missing one works in an editable installation and is absent from the wheel."""
    folders = {path.parent for path in product_modules()}
    expected = {"tidegate"} | {".".join(("tidegate", *folder.parts)) for folder in folders}
    listed = pyproject()["tool"]["setuptools"]["packages"]
    assert set(listed) == expected
    assert len(listed) == len(set(listed))
    missing = [str(folder) for folder in folders if folder / "__init__.py" not in project_files()]
    assert missing == [], "folders without __init__.py"


@pytest.mark.xdist_group("source")  # with the tests of the architecture: each module is parsed once
def test_every_product_module_says_what_it_is() -> None:
    silent = []
    for path in product_modules():
        source = (ROOT / path).read_text()
        if source.strip() and ast.get_docstring(tree_of(source)) is None:
            silent.append(str(path))
    assert silent == []
