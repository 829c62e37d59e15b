"""Forks the Pythons of Spark's workers from one that has imported what they import.

For a first read Spark starts four Pythons one after the other, each of which imports for 0.2 to 0.6 s before
it works.  A fork server of the session does that once, while Java starts.  `worker_python.py`, which Spark
starts as its Python, then asks it: over a Unix socket it hands over its standard streams, its environment and
its path, and stays, as the process that Spark knows, until the forked one has ended.  Spark ends its Pythons
by closing their standard input, which the forked one has.

    worker_python                 fork server                      forked
    connects                      ASK, when it has time for it
    request, three descriptors    forks, or REFUSED
                                                                   FORKED
    RUN                                                            runs the module
    ends with the same code       its exit code                    ends
    is ended                      SIGTERM                          ends

Where that does not come about before RUN (no server, no time, another PySpark, another variable that Python
or its libraries read when they start), `worker_python.py` runs the module itself, and what was forked does
not.
numpy and pyarrow are not imported here: they start threads, which do not survive a fork.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import importlib
import json
import os
import re
import runpy
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.machinery import PathFinder
from pathlib import Path
from struct import Struct
from typing import Any, Final, NoReturn

MODULES: Final = (
    "pyspark.worker",
    "pyspark.sql.worker.create_data_source",
    "pyspark.sql.worker.lookup_data_sources",
    "tidegate.client.consuming.chunk_check",
    "tidegate.client.consuming.cut",
    "tidegate.proto.cuts_pb2_grpc",
    "tidegate.proto.data_pb2_grpc",
    "tidegate.runtime.network",
    "tidegate.security.grpc_session",
    "tidegate.spark.connecting.answers",
    "tidegate.spark.connecting.kafka_address",
    "tidegate.spark.connecting.local_files",
    "tidegate.spark.connecting.retry",
    "tidegate.spark.source",
    "tidegate.spark.worker_logs",
)
ASK: Final = b"?"
REFUSED: Final = b"-"
FORKED: Final = b"+"
RUN: Final = b"!"
ASK_TIMEOUT_S: Final = 10.0  # of one that asks: the server may still import
REQUEST_TIMEOUT_S: Final = 5.0  # of the server, which serves one at a time
REQUEST_BYTES_MAX: Final = 8 << 20
STREAMS: Final = (0, 1, 2)
PACKAGES: Final = ("google.protobuf", "grpc", "pyspark", "tidegate")  # of which each path must find the same
# what the C library, Python and its modules read once
READ_AT_START: Final = re.compile(
    r"TZ|TZDIR|LANG|LANGUAGE|GLIBC_TUNABLES|(LC|LD|MALLOC|GRPC|OPENSSL|SSL|PROTOCOL_BUFFERS)_.*"
    r"|PYTHON(?!PATH$|HASHSEED$|UNBUFFERED$)[A-Z].*"
)
MEANT_FOR_THE_PROGRAM: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_SET_BY_SERVER: Final = (*MEANT_FOR_THE_PROGRAM, signal.SIGCHLD)
_LENGTH: Final = Struct(">I")


class ForkServer:
    """The process, as its session has it."""

    def __init__(self) -> None:
        """Raises OSError."""
        self._folder = tempfile.mkdtemp(prefix="tidegate-")
        self.address = str(Path(self._folder, "fork"))
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
                listener.bind(self.address)
                listener.listen(64)
                # a program may lack standard streams: then the listener has the number of one
                descriptor = fcntl.fcntl(listener, fcntl.F_DUPFD_CLOEXEC, len(STREAMS))
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", __spec__.name, str(descriptor), self._folder],
                    stdin=subprocess.PIPE,
                    pass_fds=[descriptor],
                    # as Spark starts its Pythons
                    env=os.environ | {"PYTHONUNBUFFERED": "YES", "PYTHONHASHSEED": hash_seed()},
                )
            finally:
                os.close(descriptor)
        except BaseException:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise

    @property
    def process_id(self) -> int:
        return self._process.pid

    def close(self) -> None:
        """Ends it, not what it has forked."""
        assert self._process.stdin is not None
        self._process.kill()  # a fork of the program may hold its standard input open; it has nothing to lose
        self._process.wait()
        self._process.stdin.close()
        shutil.rmtree(self._folder, ignore_errors=True)


def hash_seed() -> str:
    """What PySpark gives its workers."""
    return os.environ.get("PYTHONHASHSEED", "0")


def run_forked(address: str, arguments: Sequence[str]) -> None:
    """Has the server run a module in place of this process, and ends with its exit code; returns when there
    is none that would do it.  `arguments`: the module's name, and its own."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with connection:
        try:
            request = {
                "arguments": list(arguments),
                "environment": dict(os.environ),
                "folder": os.getcwd(),
                "ignored": [each for each in _SET_BY_SERVER if signal.getsignal(each) == signal.SIG_IGN],
                "path": list(sys.path),
                "python": _python(),
            }
            data = json.dumps(request).encode()
            connection.settimeout(ASK_TIMEOUT_S)
            connection.connect(address)
            if connection.recv(1) != ASK:
                return
            socket.send_fds(connection, [_LENGTH.pack(len(data))], STREAMS)
            connection.sendall(data)
            if connection.recv(1) != FORKED:
                return
        except OSError:  # no server, no folder, or not in time: what may be forked does not run without RUN
            return
        try:
            connection.settimeout(None)
            connection.sendall(RUN)
            code = connection.recv(1)
        except OSError:  # it ended at once
            code = b""
        os._exit(code[0] if code else 1)  # the streams are the other's now: nothing to flush


def serve(listener: socket.socket) -> Request:
    """Serves until its own standard input ends, and then exits; returns in each forked process."""
    for number in MEANT_FOR_THE_PROGRAM:  # which ends this one
        signal.signal(number, signal.SIG_IGN)
    for module in MODULES:
        with contextlib.suppress(ImportError):  # an older PySpark has other modules
            importlib.import_module(module)
    gc.collect()
    gc.freeze()  # the collectors of the forked ones leave these pages shared
    ended, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    mask = signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
    children: dict[int, Forked] = {}
    poll = select.poll()
    for descriptor in (0, ended, listener.fileno()):
        poll.register(descriptor, select.POLLIN)
    while True:
        ready = {descriptor for descriptor, _ in poll.poll()}
        for child, forked in children.items():
            if forked.connection.fileno() in ready:  # its Python was ended
                poll.unregister(forked.connection)
                os.kill(child, forked.ended_by)
        if ended in ready:
            os.read(ended, 4096)
            _report_ends(children, poll)
        if 0 in ready:
            sys.exit()
        if listener.fileno() not in ready:
            continue
        connection, _ = listener.accept()
        request = _request_of(connection)
        if request is None:
            connection.close()
            continue
        try:
            child = os.fork()
        except OSError:  # no more processes: it may try itself
            request.close()
            connection.close()
            continue
        if not child:
            signal.set_wakeup_fd(-1)
            request.set_signals()
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            for descriptor in (ended, wake):
                os.close(descriptor)
            for other in (listener, *(forked.connection for forked in children.values())):
                other.close()
            request.take_over(connection)
            return request
        request.close()
        is_deaf = signal.SIGTERM in request.fields["ignored"]
        children[child] = Forked(connection, signal.SIGKILL if is_deaf else signal.SIGTERM)
        poll.register(connection, select.POLLHUP)  # RUN is for the forked one


@dataclass(frozen=True, slots=True)
class Forked:
    """A process that was forked for the Python at the other end of `connection`."""

    connection: socket.socket
    ended_by: signal.Signals  # once that Python is gone


@dataclass(slots=True)
class Request:
    """What `run_forked` has sent."""

    fields: dict[str, Any] = field(default_factory=dict)
    streams: list[int] = field(default_factory=list)

    def close(self) -> None:
        for descriptor in self.streams:
            os.close(descriptor)

    def set_signals(self) -> None:
        """As the other process had them when it began: Java's children ignore SIGINT, and what a script has
        in the background ignores more."""
        for number in _SET_BY_SERVER:
            begins_with = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
            is_ignored = number in self.fields["ignored"]
            signal.signal(number, signal.SIG_IGN if is_ignored else begins_with)

    def take_over(self, connection: socket.socket) -> None:
        """Makes the streams those of this process, and goes on when it may run.

        The connection stays open as long as this process: should the server be killed, its other end knows.
        """
        for number, descriptor in zip(STREAMS, self.streams, strict=True):
            os.dup2(descriptor, number)
        self.close()
        answer = b""
        with contextlib.suppress(OSError):
            connection.sendall(FORKED)
            answer = connection.recv(1)
        if answer != RUN:
            sys.exit(1)  # the other runs the module itself
        connection.detach()


def _request_of(connection: socket.socket) -> Request | None:
    """None when it is refused, is none, or does not come in time."""
    request = Request()
    try:
        connection.settimeout(REQUEST_TIMEOUT_S)
        connection.sendall(ASK)
        _receive(connection, request)
        fits = (
            request.fields["python"] == _python()
            and request.fields["arguments"][0] not in sys.modules  # to run it would load it twice
            and isinstance(request.fields["ignored"], list)
            and _starts_alike(request.fields["environment"])
        )
        if not fits:
            connection.sendall(REFUSED)
    except (OSError, ValueError, LookupError, TypeError):
        fits = False
    if fits:
        return request
    request.close()
    return None


def _receive(connection: socket.socket, request: Request) -> None:
    """Raises OSError, ValueError."""
    head, streams, _, _ = socket.recv_fds(connection, _LENGTH.size, len(STREAMS))
    request.streams += streams
    if len(head) != _LENGTH.size or len(streams) != len(STREAMS):
        raise ValueError("no request")
    left: int = _LENGTH.unpack(head)[0]
    if left > REQUEST_BYTES_MAX:
        raise ValueError("a request that is too large")
    data = bytearray()
    while left > len(data):
        more = connection.recv(left - len(data))
        if not more:
            raise ValueError("the request ends early")
        data += more
    request.fields = json.loads(data)


def _python() -> list[Any]:
    """What must be the same: this Python, and where its path finds the packages."""
    return [sys.executable, sys.version, __file__, [_places(name) for name in PACKAGES]]


def _places(package: str) -> list[str]:
    """Where the path finds it; none for a package of an editable installation."""
    within = list(sys.path)
    parts = package.split(".")
    for count in range(1, len(parts) + 1):
        spec = PathFinder.find_spec(".".join(parts[:count]), within)
        within = list(spec.submodule_search_locations or ()) if spec else []
    return within


def _starts_alike(environment: Mapping[str, str]) -> bool:
    """Whether a Python with this environment would have started as this one did.  One that asks for no
    certain seed of hashes may have any."""
    mine, other = (
        {name: value for name, value in each.items() if READ_AT_START.fullmatch(name)}
        for each in (os.environ, environment)
    )
    return mine == other and environment.get("PYTHONHASHSEED", "random") in ("random", hash_seed())


def _report_ends(children: dict[int, Forked], poll: select.poll) -> None:
    while children:
        child, status = os.waitpid(-1, os.WNOHANG)
        if not child:
            return
        code = os.waitstatus_to_exitcode(status)
        with contextlib.suppress(OSError), children.pop(child).connection as connection:
            with contextlib.suppress(KeyError):  # its other end has gone before
                poll.unregister(connection)
            connection.sendall(bytes([code if code >= 0 else 128 - code]))


def main() -> NoReturn:
    """`fork_server DESCRIPTOR_OF_LISTENER ITS_FOLDER`."""
    server, folder = os.getpid(), sys.argv[2]
    try:
        wanted = serve(socket.socket(fileno=int(sys.argv[1]))).fields
        os.environ.clear()
        os.environ.update(wanted["environment"])
        os.chdir(wanted["folder"])
        sys.path[:] = wanted["path"]
        sys.argv[:] = wanted["arguments"]
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        sys.exit()
    finally:
        if os.getpid() == server:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
