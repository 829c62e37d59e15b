"""Helper processes that change something of the machine, and undo the change when this process ends, for
whatever reason.

A helper prints a line when the change is made, and then reads its standard input.  This process holds the
other end of the pipe. When this process closes it, exits, or is killed, the helper reads end of file and
undoes the change.  So an interrupted run leaves nothing behind, not even after SIGKILL.
"""

from __future__ import annotations

import select
import subprocess
from collections.abc import Sequence
from typing import Final

from ...processes.local_cluster import LocalClusterError

READY_TIMEOUT_S: Final = 10.0
GONE_TIMEOUT_S: Final = 10.0


class MissingRight(LocalClusterError):
    """This process lacks a right that the scenario needs; the message says which, why, and how to get it."""


class UndoProcess:
    """One helper.  The shell `script` makes the change, prints a line, waits in `cat >/dev/null`, and undoes
    the change."""

    def __init__(self, script: str, arguments: Sequence[str] = (), *, before: Sequence[str] = ()) -> None:
        """Starts the helper and waits for its line.  Raises MissingRight, with its output, when the change
        fails."""
        command = [*before, "sh", "-c", script, "tidegate-chaos", *arguments]
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                process_group=0,
            )
        except OSError as error:
            raise MissingRight(f"{command[0]} cannot be run: {error.strerror}") from error
        assert self._process.stdout is not None
        if (
            select.select([self._process.stdout], [], [], READY_TIMEOUT_S)[0]
            and self._process.stdout.readline()
        ):
            return
        self._process.kill()
        _, said = self._process.communicate()
        raise MissingRight(
            said.decode(errors="replace").strip() or f"{command[0]} said nothing for {READY_TIMEOUT_S:g} s"
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def undo(self) -> None:
        """Returns when the helper has undone the change.  A second call does nothing."""
        if self._process.poll() is None:
            self._process.communicate(timeout=GONE_TIMEOUT_S)
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()
