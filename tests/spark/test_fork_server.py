"""The fork server of a session: what it forks is what Python would have run, and whatever goes wrong, the
module runs once."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext
from tidegate.spark import fork_server, session
from tidegate.spark.fork_server import ASK, MODULES, REFUSED, ForkServer
from tidegate.spark.session import workers_python
from tidegate.spark.worker_python import FORK_SERVER

TELL = """
import gc, json, os, signal, sys
SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGCHLD, signal.SIGINT)
told = {
    "name": __name__, "spec": __spec__.name, "arguments": sys.argv[1:], "first": sys.path[0],
    "folder": os.getcwd(), "mine": os.environ.get("MINE"), "hash": hash("a"),
    "imported": "tidegate.spark.source" in sys.modules,
    "threads": len(os.listdir("/proc/self/task")), "input": sys.stdin.read(), "parent": os.getppid(),
    "signals": [str(signal.getsignal(each)) for each in SIGNALS],
    "mask": sorted(int(each) for each in signal.pthread_sigmask(signal.SIG_BLOCK, [])),
    "descriptors": sorted(int(name) for name in os.listdir("/proc/self/fd")),
    "heavy": sorted({"numpy", "pyarrow", "pandas"} & set(sys.modules)), "frozen": gc.get_freeze_count() > 0,
}
print("to stderr", file=sys.stderr)
print(json.dumps(told))
sys.exit(7)
"""


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    made = ForkServer()
    yield made
    made.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tell.py").write_text(TELL)
    return tmp_path


def run(
    address: str, folder: Path, *arguments: str, python: str = "", before: Sequence[str] = (), **more: str
) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {FORK_SERVER: address, "PYTHONPATH": str(folder)} | more
    return subprocess.run(
        [*before, python or workers_python(), "-m", *arguments],
        env=environment, cwd=folder, input="given", capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def told(done: subprocess.CompletedProcess[str], code: int = 7) -> dict[str, Any]:
    assert done.returncode == code, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("signals", ["", "INT", "INT QUIT", "TERM HUP CHLD"])
def test_a_forked_module_has_what_python_would_have_given_it(
    signals: str, server: ForkServer, folder: Path
) -> None:
    """Also the signals that it ignores: Java's children and what a script has in the background do."""
    before = ("env", "--default-signal", *(f"--ignore-signal={each}" for each in signals.split()))
    arguments = ("tell", "-x", "y")
    forked = run(server.address, folder, *arguments, before=before, MINE="1", PYTHONHASHSEED="0")
    alone = run("off", folder, *arguments, before=before, MINE="1", PYTHONHASHSEED="0")
    differ = ("imported", "parent", "frozen", "descriptors")
    assert forked.stderr == alone.stderr == "to stderr\n"
    found, expected = told(forked), told(alone)
    assert (found["parent"], found["imported"], found["frozen"]) == (server.process_id, True, True)
    assert len(found["descriptors"]) == len(expected["descriptors"]) + 1  # the connection
    assert (expected["imported"], expected["frozen"]) == (False, False)
    assert [found.pop(each) for each in differ] != [expected.pop(each) for each in differ]
    assert found == expected
    assert found["signals"].count(str(signal.SIG_IGN)) == len(signals.split())
    assert found["threads"] == 1
    assert found["heavy"] == []


def test_each_of_many_at_once_is_forked_once(server: ForkServer, folder: Path) -> None:
    (folder / "count.py").write_text(
        "import os, sys; os.write(os.open('ran', os.O_APPEND | os.O_CREAT | os.O_WRONLY), b'x')\n"
        "print(os.getppid()); sys.exit(int(sys.argv[1]))"
    )
    environment = os.environ | {FORK_SERVER: server.address, "PYTHONHASHSEED": "0"}
    running = [
        subprocess.Popen(
            [workers_python(), "-m", "count", str(number)],
            env=environment, cwd=folder, stdout=subprocess.PIPE, text=True,
        )
        for number in range(12)
    ]  # fmt: skip
    said = [each.communicate(timeout=60)[0] for each in running]
    assert [each.returncode for each in running] == list(range(12))
    assert said == [f"{server.process_id}\n"] * 12
    assert (folder / "ran").read_bytes() == b"x" * 12


def test_a_killed_child_is_told(server: ForkServer, folder: Path) -> None:
    (folder / "killed.py").write_text("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    assert run(server.address, folder, "killed").returncode == 128 + signal.SIGKILL


@pytest.mark.parametrize(
    ("number", "ignored"), [(signal.SIGTERM, "HUP"), (signal.SIGKILL, "HUP"), (signal.SIGKILL, "TERM")]
)
def test_what_is_forked_ends_with_the_python_that_spark_knows(
    number: signal.Signals, ignored: str, server: ForkServer, folder: Path
) -> None:
    (folder / "stays.py").write_text("import os, threading; print(os.getpid(), flush=True)\n"
                                     "threading.Event().wait()")  # fmt: skip
    running = subprocess.Popen(
        ["env", f"--ignore-signal={ignored}", workers_python(), "-m", "stays"],
        env=os.environ | {FORK_SERVER: server.address}, cwd=folder, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert running.stdout is not None
    descriptor = os.pidfd_open(int(running.stdout.readline()))
    running.send_signal(number)
    assert running.wait(30) == -number
    assert select.select([descriptor], [], [], 30)[0], "the forked one has not ended"
    os.close(descriptor)
    running.stdout.close()


def test_signals_for_the_program_end_no_server(folder: Path) -> None:
    """It shares the group of a terminal, or of `timeout`; else its folder would stay."""
    made = ForkServer()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        assert told(run(made.address, folder, "tell"))["imported"]
        os.kill(made.process_id, number)
    assert told(run(made.address, folder, "tell"))["imported"]
    made.close()


PROGRAM = """
import os, resource, signal, sys
from tidegate.spark.fork_server import ForkServer
{before}
made = ForkServer()
environment = os.environ | {{"TIDEGATE_SPARK_FORK_SERVER": made.address}}
code = os.spawnve(os.P_WAIT, sys.argv[1], [sys.argv[1], "-m", "tell"], environment)
made.close()
sys.exit(code)
"""


@pytest.mark.parametrize(
    "before",
    [
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])",
        "held = [os.open('/dev/null', 0) for _ in range(1_100)]",
        "os.close(0)",
    ],
)
def test_an_unusual_program_has_a_server_all_the_same(before: str, folder: Path) -> None:
    limits = (
        "resource.setrlimit(resource.RLIMIT_NOFILE, (4096, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))"
    )
    (folder / "tell.py").write_text(TELL.replace("sys.stdin.read()", "''"))
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(before=f"{limits}\n{before}"), workers_python()],
        cwd=folder, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    found = told(done)
    assert found["imported"], done.stderr
    assert found["mask"] == ([signal.SIGCHLD] if "SIG_BLOCK" in before else []), "that of the program"


def test_what_may_not_run_does_not(server: ForkServer, folder: Path) -> None:
    """Its Python has lost patience, and runs the module itself."""
    (folder / "count.py").write_text("open('ran', 'a').write('x')")
    request = {
        "arguments": ["count"], "environment": dict(os.environ), "folder": str(folder),
        "path": [str(folder), *sys.path], "python": fork_server._python(), "ignored": [],
    }  # fmt: skip
    data = json.dumps(request).encode()
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection,
        open(os.devnull, "r+b") as null,
    ):
        connection.connect(server.address)
        assert connection.recv(1) == ASK
        socket.send_fds(connection, [struct.pack(">I", len(data)) + data], [null.fileno()] * 3)
        assert connection.recv(1) == fork_server.FORKED
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(1) == b"\x01", "its exit code"
    assert not (folder / "ran").exists()


def test_a_deleted_folder_is_no_reason_to_fail(server: ForkServer, folder: Path) -> None:
    gone = folder / "gone"
    gone.mkdir()
    program = (
        f"import os, sys; os.chdir({str(gone)!r}); os.rmdir({str(gone)!r})\n"
        "os.execv(sys.argv[1], [sys.argv[1], '-m', 'tell'])"
    )
    environment = os.environ | {FORK_SERVER: server.address, "PYTHONPATH": str(folder)}
    (folder / "tell.py").write_text("import sys; sys.exit(7)")
    command = [sys.executable, "-c", program, workers_python()]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 7, done.stderr


def test_a_killed_server_ends_no_module(folder: Path) -> None:
    made = ForkServer()
    (folder / "waits.py").write_text("import sys; print('here', flush=True); print(sys.stdin.read())")
    running = subprocess.Popen(
        [workers_python(), "-m", "waits"],
        env=os.environ | {FORK_SERVER: made.address}, cwd=folder,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert running.stdout is not None
    assert running.stdout.readline() == "here\n"
    os.kill(made.process_id, signal.SIGKILL)
    made.close()
    with pytest.raises(subprocess.TimeoutExpired):
        running.wait(0.3)
    assert running.communicate("given")[0] == "given\n"
    assert running.returncode == 1  # its code is not known


def test_an_error_of_the_module_is_its_own(server: ForkServer, folder: Path) -> None:
    missing = run(server.address, folder, "no_such_module")
    assert missing.returncode == 1
    assert "No module named no_such_module" in missing.stderr
    assert told(run(server.address, folder, "tell"))["imported"], "the server serves on"


@pytest.mark.parametrize("seed", [None, "random", "0"])
def test_a_python_that_wants_no_other_seed_is_forked(
    seed: str | None, server: ForkServer, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    more = {} if seed is None else {"PYTHONHASHSEED": seed}
    assert told(run(server.address, folder, "tell", **more))["imported"]


def test_another_seed_of_hashes_runs_by_itself(server: ForkServer, folder: Path) -> None:
    """Records go to partitions by the hashes of their keys: all workers need the same ones."""
    found = told(run(server.address, folder, "tell", PYTHONHASHSEED="42"))
    assert not found["imported"]
    assert found["hash"] == told(run("off", folder, "tell", PYTHONHASHSEED="42"))["hash"]


@pytest.mark.parametrize(
    ("variable", "value", "ask"),
    [
        ("TZ", "Asia/Tokyo", "str(__import__('datetime').datetime.fromtimestamp(0))"),
        ("PYTHONOPTIMIZE", "1", "sys.flags.optimize"),
        ("PYTHONWARNINGS", "error", "sys.warnoptions"),
        ("PYTHONIOENCODING", "latin-1", "sys.stdout.encoding"),
        ("LC_ALL", "C", "os.environ['LC_ALL']"),
        ("LD_BIND_NOW", "1", "os.environ['LD_BIND_NOW']"),
    ],
)
def test_what_is_read_when_python_starts_is_not_ignored(
    variable: str, value: str, ask: str, server: ForkServer, folder: Path
) -> None:
    (folder / "ask.py").write_text(f"import os, sys; print({ask}, 'tidegate.spark.source' in sys.modules)")
    forked = run(server.address, folder, "ask", **{variable: value})
    alone = run("off", folder, "ask", **{variable: value})
    assert alone.stdout
    assert forked.stdout == alone.stdout


def test_variables_of_spark_itself_are_no_reason_to_start_another_python(
    server: ForkServer, folder: Path
) -> None:
    of_spark = {"PYTHON_WORKER_FACTORY_SECRET": "x", "PYTHONUNBUFFERED": "YES", "SPARK_BUFFER_SIZE": "1"}
    assert told(run(server.address, folder, "tell", **of_spark))["imported"]


def test_a_module_that_the_server_has_imported_is_not_loaded_twice(server: ForkServer, folder: Path) -> None:
    module = "pyspark.sql.worker.lookup_data_sources"
    assert module in MODULES
    done = run(server.address, folder, module)
    assert "found in sys.modules" not in done.stderr
    assert done.returncode == run("off", folder, module).returncode


@pytest.mark.parametrize("package", ["pyspark", "grpc", "google/protobuf"])
def test_where_the_path_has_another_package_first_a_module_runs_by_itself(
    package: str, server: ForkServer, folder: Path
) -> None:
    (folder / package).mkdir(parents=True)
    (folder / package / "__init__.py").touch()
    (folder / package / "daemon.py").touch()  # by which a PySpark is known
    assert not told(run(server.address, folder, "tell"))["imported"]


def test_without_a_server_a_module_runs_by_itself(folder: Path) -> None:
    ended = ForkServer()
    ended.close()
    assert not Path(ended.address).parent.exists()
    assert not told(run(ended.address, folder, "tell"))["imported"]


def test_a_server_that_does_not_answer_is_not_waited_for(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fork_server, "ASK_TIMEOUT_S", 0.1)
    address = str(folder / "mute")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(address)
        listener.listen(1)
        fork_server.run_forked(address, ["tell"])  # returns


def test_a_server_that_goes_before_it_has_forked_leaves_the_module_to_the_other(folder: Path) -> None:
    address = str(folder / "leaves")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(address)
        listener.listen(1)
        environment = os.environ | {FORK_SERVER: address}
        command = [workers_python(), "-m", "tell"]
        running = subprocess.Popen(
            command, env=environment, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
        )
        connection, _ = listener.accept()
        connection.sendall(ASK)
        _, descriptors, _, _ = socket.recv_fds(connection, 1, 3)
        connection.close()
        for descriptor in descriptors:
            os.close(descriptor)
        output, _ = running.communicate(timeout=60)
    assert not json.loads(output)["imported"]


def test_a_request_of_another_version_is_refused_and_the_next_one_served(
    server: ForkServer, folder: Path
) -> None:
    """It says nothing usable of the signals that it ignores."""
    request = {"arguments": ["tell"], "environment": dict(os.environ), "python": fork_server._python()}
    for more in ({}, {"ignored": 5}):
        data = json.dumps(request | more).encode()
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.connect(server.address)
            assert connection.recv(1) == ASK
            socket.send_fds(connection, [struct.pack(">I", len(data)) + data], (0, 1, 2))
            assert connection.recv(1) in (b"", REFUSED)
    assert told(run(server.address, folder, "tell"))["imported"]


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"\x00",
        struct.pack(">I", 1 << 31),
        struct.pack(">I", 9) + b"{",
        struct.pack(">I", 2) + b"{}",
        struct.pack(">I", 2) + b"[]",
    ],
)
def test_what_is_no_request_is_refused_and_the_next_one_served(
    sent: bytes, server: ForkServer, folder: Path
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.connect(server.address)
        assert connection.recv(1) == ASK
        if len(sent) >= 4:
            socket.send_fds(connection, [sent], (0, 1, 2))
        else:
            connection.sendall(sent)
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(1) in (b"", REFUSED)
    assert told(run(server.address, folder, "tell"))["imported"]


def test_a_request_without_its_streams_is_refused(server: ForkServer) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.connect(server.address)
        assert connection.recv(1) == ASK
        connection.sendall(struct.pack(">I", 2) + b"{}")
        with suppress(ConnectionResetError):  # not all was received
            assert connection.recv(1) == b""


def test_a_server_ends_with_its_session_and_leaves_no_folder(folder: Path) -> None:
    program = (
        "import os, signal; from tidegate.spark.fork_server import ForkServer; made = ForkServer()\n"
        "print(made.process_id, made.address, flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    process_id, address = done.stdout.split()
    with suppress(ProcessLookupError):  # it has ended already
        descriptor = os.pidfd_open(int(process_id))
        assert select.select([descriptor], [], [], 30)[0], "the server has not ended"
        os.close(descriptor)
    assert not Path(address).parent.exists()


def test_only_its_user_reaches_it(server: ForkServer) -> None:
    assert Path(server.address).parent.stat().st_mode & 0o077 == 0


def test_the_modules_are_there_and_start_no_thread() -> None:
    program = (
        f"import importlib, os, sys\nfor name in {MODULES!r}: importlib.import_module(name)\n"
        "print(len(os.listdir('/proc/self/task')), *{'numpy', 'pyarrow'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stdout == "1\n", done.stderr


@pytest.mark.parametrize("reason", ["the user wants none", "Java runs already", "no command would ask it"])
def test_a_session_has_none_where_it_is_of_no_use(reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "ForkServer", lambda: pytest.fail("started"))
    monkeypatch.setattr(session, "_fork_server", None)
    monkeypatch.setattr(SparkContext, "_gateway", object() if "Java" in reason else None)
    monkeypatch.setenv(FORK_SERVER, "off" if "user" in reason else "")
    if "command" in reason:
        monkeypatch.setattr(session, "workers_python", lambda: sys.executable)
    session._start_fork_server()


def test_a_server_that_cannot_fork_lets_the_module_run_by_itself(folder: Path) -> None:
    program = (
        "import os, socket, sys; from tidegate.spark import fork_server\n"
        "def fails(): raise BlockingIOError('no more processes')\n"
        "os.fork = fails; fork_server.serve(socket.socket(fileno=int(sys.argv[1])))"
    )
    address = str(folder / "full")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(address)
        listener.listen(4)
        number = listener.fileno()
        server = subprocess.Popen(
            [sys.executable, "-c", program, str(number)],
            stdin=subprocess.PIPE, pass_fds=[number], env=os.environ | {"PYTHONHASHSEED": "0"},
        )  # fmt: skip
    for _ in range(2):  # it serves on
        assert not told(run(address, folder, "tell"))["imported"]
    assert server.poll() is None
    server.communicate(timeout=30)


def test_a_session_goes_on_where_no_server_can_be_started(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails() -> ForkServer:
        raise OSError("no room")

    monkeypatch.setattr(session, "ForkServer", fails)
    monkeypatch.setattr(session, "_fork_server", None)
    monkeypatch.setattr(SparkContext, "_gateway", None)
    monkeypatch.delenv(FORK_SERVER, raising=False)
    session._start_fork_server()
    assert FORK_SERVER not in os.environ
    assert "fork_server_not_started" in caplog.text
