"""Only runtime/ reaches the outside: time, randomness, files, sockets (docs/architecture.md).

Why it is a test: the simulator replays a history from one seed only if nothing reaches around the ports, and
one forgotten `time.time()` is found here in a second and in a replay perhaps never.  chaos/ and bench/ drive
real processes and are exempt.

The check goes by names: it resolves import aliases, and takes `anything.read_text()` for a file.  It is meant
to catch slips, not malice.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import cache

import pytest
from tidegate.tests.architecture.source import parse, product_sources

pytestmark = pytest.mark.xdist_group("source")  # they share what is parsed

EXEMPT_FOLDERS = ("runtime", "chaos", "deploy")  # `deploy` has programs of their own, outside the package

MODULES = {
    "time", "random", "secrets", "socket", "select", "selectors", "socketserver", "tempfile", "shutil",
    "fcntl", "mmap",
    "http.client", "http.server", "urllib.request", "numpy.random",
}  # fmt: skip
"""Not to be imported at all."""

OS_FUNCTIONS = {
    "open", "close", "read", "write", "pread", "pwrite", "preadv", "pwritev", "readv", "writev", "lseek",
    "fsync", "fdatasync",
    "ftruncate", "truncate", "rename", "renames", "replace", "remove", "unlink", "link", "symlink", "mkdir",
    "makedirs", "rmdir",
    "removedirs", "listdir", "scandir", "walk", "stat", "lstat", "fstat", "statvfs", "fstatvfs", "access",
    "chmod", "chown",
    "utime", "urandom", "getrandom", "sendfile", "copy_file_range", "posix_fallocate", "mkfifo", "fdopen",
    "dup", "dup2", "pipe",
    "path.exists", "path.isfile", "path.isdir", "path.getsize", "path.getmtime",
}  # fmt: skip

FUNCTIONS = {
    "open", "io.open", "uuid.uuid1", "uuid.uuid4", "datetime.datetime.now", "datetime.datetime.utcnow",
    "datetime.datetime.today",
    "datetime.date.today", "asyncio.open_connection", "asyncio.start_server", "asyncio.open_unix_connection",
    "asyncio.start_unix_server", "grpc.server", "grpc.insecure_channel", "grpc.secure_channel",
    "grpc.aio.server",
    "grpc.aio.insecure_channel", "grpc.aio.secure_channel", *(f"os.{name}" for name in OS_FUNCTIONS),
}  # fmt: skip
"""Not to be used, by full name."""

METHODS = {
    "read_text", "read_bytes", "write_text", "write_bytes", "unlink", "mkdir", "rmdir", "touch", "iterdir",
    "rglob", "symlink_to",
    "hardlink_to", "is_file", "is_dir", "create_server", "create_connection", "create_unix_server",
    "create_unix_connection",
    "create_datagram_endpoint", "sock_connect", "sock_accept", "sock_recv", "sock_sendall",
}  # fmt: skip
"""Not to be called on anything: methods of pathlib.Path and of the event loop."""

_STARTS_PROCESSES = (
    "starts and watches real node processes for the command line, which no simulation contains"
)
_BEFORE_ANYTHING_RUNS = (
    "looks for a Java runtime while installing and before Spark starts; no broker code runs there"
)
_BEFORE_SPARK = "looks for a Python before Spark, or a worker of it, starts; no broker code runs there"
_FORKS_WORKERS = "a process of its own, which hands descriptors to Spark's workers; no broker code runs there"
_NOT_TO_BE_FORESEEN = "nonces, salts, tokens: what a simulated clock would give, an attacker could foresee"

ALLOWED: Mapping[tuple[str, str], str] = {
    ("processes/local_ports.py", "tempfile"): _STARTS_PROCESSES,
    ("processes/node_process.py", "open"): _STARTS_PROCESSES,
    ("processes/node_process.py", "os.close"): _STARTS_PROCESSES,
    (
        "node/__main__.py",
        "socket",
    ): "asks for the host's name, a default of the configuration, before the node is built",
    ("node/serving/authentication.py", "secrets"): _NOT_TO_BE_FORESEEN,
    ("client/command_line/certs.py", "secrets"): _NOT_TO_BE_FORESEEN,
    ("processes/administrator.py", "secrets"): _NOT_TO_BE_FORESEEN,
    ("security/client_security.py", "secrets"): _NOT_TO_BE_FORESEEN,
    ("security/session_tokens.py", "secrets"): _NOT_TO_BE_FORESEEN,
    (
        "wire/compression.py",
        "mmap",
    ): "anonymous memory, of which only the pages that are written cost anything; no file",
    ("spark/java.py", "os.access"): _BEFORE_ANYTHING_RUNS,
    ("spark/java.py", "shutil"): _BEFORE_ANYTHING_RUNS,
    **{
        ("spark/fork_server.py", name): _FORKS_WORKERS
        for name in (
            "fcntl",
            "select",
            "shutil",
            "socket",
            "tempfile",
            "os.close",
            "os.dup2",
            "os.pipe",
            "os.read",
        )
    },
    ("spark/session.py", "shutil"): _BEFORE_SPARK,
    ("spark/worker_python.py", "is_file"): _BEFORE_SPARK,
}
"""(module, name) -> why it may.  An entry that nothing needs any more fails a test."""


def uses(path: str, tree: ast.Module) -> Iterator[tuple[int, str]]:
    """(line, forbidden name) of everything in a module that reaches the outside."""
    aliases: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                aliases[alias.asname or alias.name.split(".")[0]] = (
                    alias.name if alias.asname else alias.name.split(".")[0]
                )
                if _module_is_forbidden(alias.name):
                    yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                aliases[alias.asname or alias.name] = full
                if _module_is_forbidden(full) or _module_is_forbidden(node.module):
                    yield node.lineno, node.module if _module_is_forbidden(node.module) else full
                elif full in FUNCTIONS:
                    yield node.lineno, full
    for node in ast.walk(tree):
        if isinstance(node, (ast.Attribute, ast.Name)) and isinstance(node.ctx, ast.Load):
            name = _dotted(node, aliases)
            if name in FUNCTIONS:
                yield node.lineno, name
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in METHODS:
            yield node.lineno, node.func.attr


def _module_is_forbidden(name: str) -> bool:
    return name in MODULES or any(name.startswith(f"{module}.") for module in MODULES)


def _dotted(node: ast.expr, aliases: Mapping[str, str]) -> str:
    """The full name of `a.b.c` with the alias of `a` resolved; "" for what is no plain name."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return ""
    return ".".join([aliases.get(node.id, node.id), *reversed(parts)])


def findings(sources: Mapping[str, str]) -> dict[tuple[str, str], list[int]]:
    """(module, forbidden name) -> lines."""
    found: dict[tuple[str, str], list[int]] = {}
    for path, tree in parse(sources):
        if path.split("/")[0] not in EXEMPT_FOLDERS:
            for line, name in uses(path, tree):
                found.setdefault((path, name), []).append(line)
    return found


@cache
def findings_in_the_product() -> Mapping[tuple[str, str], list[int]]:
    return findings(product_sources())


def test_nothing_but_the_runtime_reaches_the_outside() -> None:
    found = findings_in_the_product()
    assert [
        f"{path}:{lines[0]}: {name}"
        for (path, name), lines in sorted(found.items())
        if (path, name) not in ALLOWED
    ] == []


def test_every_exception_is_still_needed_and_says_why() -> None:
    found = findings_in_the_product()
    assert [entry for entry in ALLOWED if entry not in found] == []
    assert all(len(reason) > 20 for reason in ALLOWED.values())


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("import time", "time"),
        ("from time import monotonic", "time"),
        ("def late():\n    import random", "random"),
        ("import secrets as s", "secrets"),
        ("import urllib.request", "urllib.request"),
        ("import os\nos.write(1, b'')", "os.write"),
        ("import os as system\nsystem.fsync(1)", "os.fsync"),
        ("from os import replace\nreplace('a', 'b')", "os.replace"),
        ("import os\nos.path.exists('a')", "os.path.exists"),
        ("import os\nwriter = os.pwrite", "os.pwrite"),
        ("data = open('a').read()", "open"),
        ("from pathlib import Path\nPath('a').read_text()", "read_text"),
        ("def f(path):\n    path.write_bytes(b'')", "write_bytes"),
        ("import asyncio\nasyncio.start_server(None)", "asyncio.start_server"),
        ("def f(loop):\n    loop.create_connection(None)", "create_connection"),
        ("import grpc\ngrpc.insecure_channel('a')", "grpc.insecure_channel"),
        ("import grpc.aio\ngrpc.aio.server()", "grpc.aio.server"),
        ("from grpc import aio\naio.insecure_channel('a')", "grpc.aio.insecure_channel"),
        ("import uuid\nuuid.uuid4()", "uuid.uuid4"),
        ("from uuid import uuid4", "uuid.uuid4"),
        ("from datetime import datetime\ndatetime.now()", "datetime.datetime.now"),
    ],
)
def test_reaching_around_a_port_is_found(source: str, name: str) -> None:
    assert ("storage/log/log.py", name) in findings({"storage/log/log.py": source})


@pytest.mark.parametrize(
    "source",
    [
        "import asyncio\nasync def f():\n    await asyncio.sleep(0)",
        "import os\npath = os.path.join('a', 'b')\nnumber = os.getpid()",
        "def f(disk, path):\n    disk.open(path)\n    disk.exists(path)\n    disk.remove(path)",
        "from uuid import UUID\nUUID(int=5)",
        "from datetime import timedelta\nimport pathlib\npathlib.Path('a') / 'b'",
        "def f(clock):\n    return clock.random(), clock.uuid(), clock.monotonic()",
        "import grpc\ngrpc.StatusCode.OK",
    ],
)
def test_using_a_port_is_fine(source: str) -> None:
    assert findings({"storage/log/log.py": source}) == {}


@pytest.mark.parametrize("folder", EXEMPT_FOLDERS)
def test_the_runtime_itself_and_what_is_outside_the_product_may(folder: str) -> None:
    assert findings({f"{folder}/x.py": "import time, socket, os\nos.fsync(1)"}) == {}
