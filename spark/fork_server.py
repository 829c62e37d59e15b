"""Forks the Pythons of Spark's workers from one that has imported what they import.

For a first read Spark starts four Pythons one after the other, each of which imports for 0.2 to 0.6 s before
it works.  A fork server of the session does that once, while Java starts.  `worker_python.py`, which Spark
starts as its Python, then asks it: over a Unix socket it hands over its standard streams, its environment and
its path, and stays, as the process that Spark knows, until the forked one has ended.  Spark ends its Pythons
by closing their standard input, which the forked one has.

    worker_python                 fork server                      forked
    connects                      ASK, when it has time for it
    request, three descriptors    forks, or REFUSED
                                                                   FORKED; runs the module
    ends with the same code       its exit code                    ends

Where that does not come about (no server, another PySpark, another seed of hashes), `worker_python.py` runs
the module itself.  numpy and pyarrow are not imported here: they start threads, which do not survive a fork.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
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
ASK_TIMEOUT_S: Final = 10.0  # of one that asks: the server may still import
REQUEST_TIMEOUT_S: Final = 5.0  # of the server, which serves one at a time
STOP_TIMEOUT_S: Final = 10.0
REQUEST_BYTES_MAX: Final = 8 << 20
STREAMS: Final = (0, 1, 2)
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
                self._process = subprocess.Popen(
                    [sys.executable, "-m", __spec__.name, str(listener.fileno()), self._folder],
                    stdin=subprocess.PIPE,
                    pass_fds=[listener.fileno()],
                    # as Spark starts its Pythons
                    env=os.environ | {"PYTHONUNBUFFERED": "YES", "PYTHONHASHSEED": hash_seed()},
                )
        except BaseException:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise

    @property
    def process_id(self) -> int:
        return self._process.pid

    def close(self) -> None:
        """Ends it, not what it has forked."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)  # where it could not do that itself


def hash_seed() -> str:
    """What PySpark gives its workers."""
    return os.environ.get("PYTHONHASHSEED", "0")


def run_forked(address: str, arguments: Sequence[str]) -> None:
    """Has the server run a module in place of this process, and ends with its exit code; returns when there
    is none that would do it.  `arguments`: the module's name, and its own."""
    path = list(sys.path)
    found = PathFinder.find_spec("pyspark", path)
    request = {
        "arguments": list(arguments),
        "environment": dict(os.environ),
        "folder": os.getcwd(),
        "path": path,
        "python": [sys.executable, sys.version, found.origin if found else None],
    }
    data = json.dumps(request).encode()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        try:
            connection.settimeout(ASK_TIMEOUT_S)
            connection.connect(address)
            if connection.recv(1) != ASK:
                return
            connection.settimeout(None)
            socket.send_fds(connection, [_LENGTH.pack(len(data))], STREAMS)
            connection.sendall(data)
            is_forked = connection.recv(1) == FORKED
        except OSError:  # no server, or not in time: nothing was forked
            return
        if is_forked:
            code = connection.recv(1)
            os._exit(code[0] if code else 1)  # the streams are the other's now: nothing to flush


def serve(listener: socket.socket) -> Request:
    """Serves until its own standard input ends, and then exits; returns in each forked process."""
    for module in MODULES:
        with contextlib.suppress(ImportError):  # an older PySpark has other modules
            importlib.import_module(module)
    gc.collect()
    gc.freeze()  # the collectors of the forked ones leave these pages shared
    ended, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: it means the program, which ends this one
    children: dict[int, socket.socket] = {}
    while True:
        ready, _, _ = select.select([0, ended, listener.fileno()], [], [])
        if ended in ready:
            os.read(ended, 4096)
            _report_ends(children)
        if 0 in ready:
            sys.exit()
        if listener.fileno() not in ready:
            continue
        connection, _ = listener.accept()
        request = _request_of(connection)
        if request is None:
            connection.close()
            continue
        child = os.fork()
        if not child:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for descriptor in (ended, wake):
                os.close(descriptor)
            for other in (listener, *children.values()):
                other.close()
            request.take_over(connection)
            return request
        request.close()
        children[child] = connection


@dataclass(slots=True)
class Request:
    """What `run_forked` has sent."""

    fields: dict[str, Any] = field(default_factory=dict)
    streams: list[int] = field(default_factory=list)

    def close(self) -> None:
        for descriptor in self.streams:
            os.close(descriptor)

    def take_over(self, connection: socket.socket) -> None:
        """Makes the streams those of this process, and says so.  Raises OSError.

        The connection stays open as long as this process: should the server be killed, its other end knows.
        """
        for number, descriptor in zip(STREAMS, self.streams, strict=True):
            os.dup2(descriptor, number)
        self.close()
        connection.sendall(FORKED)
        connection.detach()


def _request_of(connection: socket.socket) -> Request | None:
    """None when it is refused, is none, or does not come in time."""
    request = Request()
    try:
        connection.settimeout(REQUEST_TIMEOUT_S)
        connection.sendall(ASK)
        _receive(connection, request)
        fits = request.fields["python"] == _python() and _has_seed(request.fields["environment"])
        if not fits:
            connection.sendall(REFUSED)
    except (OSError, ValueError, KeyError, TypeError):
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


def _python() -> list[str | None]:
    return [sys.executable, sys.version, getattr(sys.modules.get("pyspark"), "__file__", None)]


def _has_seed(environment: Mapping[str, str]) -> bool:
    """A Python that asks for no certain seed may have any."""
    return environment.get("PYTHONHASHSEED", "random") in ("random", hash_seed())


def _report_ends(children: dict[int, socket.socket]) -> None:
    while children:
        child, status = os.waitpid(-1, os.WNOHANG)
        if not child:
            return
        code = os.waitstatus_to_exitcode(status)
        with contextlib.suppress(OSError), children.pop(child) as connection:
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
