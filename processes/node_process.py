"""One node as a process of this machine: start it, signal it, wait for it, and never touch another process.

A pid alone proves nothing, for the kernel uses it again for other processes. The record is (pid, start time,
boot id). Before any signal this module opens a pidfd of the process and compares the process with the record:
between the comparison and the signal the kernel cannot give the pid to another process.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from ..runtime.disk import RealDisk
from ..runtime.kernel_id import kernel_id

LOG_TAIL_BYTES: Final = 16_384
ERROR_MARKS: Final = ("tidegate-node: ", " ERROR ", " CRITICAL ", "Error: ")
_DISK: Final = RealDisk()


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """Identifies one process among all that ever had its pid."""

    pid: int
    start_ticks: int
    boot_id: str

    @staticmethod
    def of(pid: int) -> ProcessIdentity | None:
        """The identity of a running process; None when there is none, or only its zombie."""
        try:
            stat = _DISK.read(Path(f"/proc/{pid}/stat")).decode(errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            return None
        # the name in parentheses may hold anything; fields[0] is the state
        fields = stat.rpartition(")")[2].split()
        if fields[0] in ("Z", "X"):
            return None
        return ProcessIdentity(pid, int(fields[19]), kernel_id())

    def alive(self) -> bool:
        return ProcessIdentity.of(self.pid) == self

    def signal(self, number: signal.Signals) -> bool:
        """Sends a signal to exactly this process; False when it is gone."""
        try:
            pidfd = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return False
        try:
            if not self.alive():
                return False
            signal.pidfd_send_signal(pidfd, number)
            return True
        except ProcessLookupError:
            return False
        finally:
            os.close(pidfd)

    async def wait_gone(self) -> None:
        """Returns when the process has ended; works for processes that are not children."""
        try:
            pidfd = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return
        loop = asyncio.get_running_loop()
        gone = asyncio.Event()
        try:
            if self.alive():
                loop.add_reader(pidfd, gone.set)
                try:
                    await gone.wait()
                finally:
                    loop.remove_reader(pidfd)
        finally:
            os.close(pidfd)


class NodeProcess:
    """A running (or ended) node process; `attach` finds a node that another process started."""

    def __init__(
        self, identity: ProcessIdentity | None, child: subprocess.Popen[bytes] | None, record: Path
    ) -> None:
        self.identity = identity
        self._child = child
        self._record = record

    @staticmethod
    def spawn(
        config: Path,
        *,
        log: Path,
        record: Path,
        environment: Mapping[str, str],
        detached: bool,
        options: Sequence[str] = (),
        host_command: Sequence[str] = (),
    ) -> NodeProcess:
        """Starts `python -m tidegate.node --config CONFIG`, its output appended to `log`.

        Not detached: the process ends with this one.  Detached: it lives on, in a session of its own;
        `record` then lets another process find it.  `host_command` must become the node by exec, so that the
        record fits the process.
        """
        module = "tidegate.node" if detached else "tidegate.processes.child_node"
        with open(log, "ab") as output:
            child = subprocess.Popen(
                [*host_command, sys.executable, "-m", module, "--config", str(config), *options],
                stdin=subprocess.DEVNULL if detached else subprocess.PIPE,
                stdout=output,
                stderr=output,
                env=dict(environment),
                start_new_session=detached,
                # a Ctrl-C at the terminal is for the harness, which stops its nodes
                process_group=None if detached else 0,
            )
        identity = ProcessIdentity.of(child.pid)
        if identity is not None:
            try:
                _DISK.write_atomic(record, json.dumps(asdict(identity)).encode())
            except OSError:
                child.kill()  # without its record no later command would find the process again
                child.wait()
                raise
        return NodeProcess(identity, child, record)

    @staticmethod
    def attach(record: Path) -> NodeProcess:
        """The process that `record` names, if it still runs."""
        identity = None
        if _DISK.exists(record):
            try:
                found = ProcessIdentity(**json.loads(_DISK.read(record)))
            except (ValueError, TypeError):
                found = None  # not one of ours: then there is nothing here that we may signal
            identity = found if found is not None and found.alive() else None
        return NodeProcess(identity, None, record)

    @property
    def pid(self) -> int | None:
        """The pid while the process runs."""
        return self.identity.pid if self.identity is not None and self.running else None

    @property
    def running(self) -> bool:
        if self._child is not None:
            return self._child.poll() is None
        return self.identity is not None and self.identity.alive()

    @property
    def exit_code(self) -> int | None:
        """The exit code of a child that has ended (negative: the signal), None while it runs or when it is
        not our child."""
        return self._child.poll() if self._child is not None else None

    def signal(self, number: signal.Signals) -> bool:
        return self.identity is not None and self.running and self.identity.signal(number)

    async def wait_exit(self) -> int | None:
        """Waits for the end; the exit code when the process is our child, else None."""
        if self.identity is not None:
            await self.identity.wait_gone()
        if self._child is None:
            return None
        code = self._child.wait()  # the pidfd said that it has ended: this reaps it and does not block
        if self._child.stdin is not None:
            self._child.stdin.close()
        return code


def log_size(log: Path) -> int:
    """How much is in a node's log now."""
    if not _DISK.exists(log):
        return 0
    file = _DISK.open(log, read_only=True)
    try:
        return file.size()
    finally:
        file.close()


def log_tail(log: Path, lines: int = 5, since: int = 0) -> str:
    """The last lines of a node's log before it ended, from `since` on."""
    if not _DISK.exists(log):
        return "(no log)"
    file = _DISK.open(log, read_only=True)
    try:
        size = file.size()
        data = file.read_at(max(0, since, size - LOG_TAIL_BYTES), LOG_TAIL_BYTES)
    finally:
        file.close()
    return "\n".join(data.decode(errors="replace").splitlines()[-lines:])


def last_words(log: Path, since: int = 0) -> str:
    """Why a node ended, by its own log: the last line with an error, else the last line."""
    lines = [line.strip() for line in log_tail(log, 50, since).splitlines() if line.strip()]
    telling = [line for line in lines if any(mark in line for mark in ERROR_MARKS)]
    return (telling or lines or ["(nothing in its log)"])[-1]
