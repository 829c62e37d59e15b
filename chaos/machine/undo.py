"""Helper processes that keep something of the machine changed, and undo it when they are let go, in whatever manner.

A helper says a line when its work is done, and then reads its standard input.  This process holds the other end: when it closes
it, ends, or is killed, the kernel closes it, the helper reads on, and undoes its work.  So nothing is left behind by a run that
is interrupted, not even by SIGKILL.
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
    """The machine does not let this process do what the scenario needs; the message says what, why, and what would help."""


class UndoneOnExit:
    """One helper.  `script` is a shell's: it prints a line, waits by `cat >/dev/null`, and undoes what it did."""

    def __init__(self, script: str, arguments: Sequence[str] = (), *, before: Sequence[str] = ()) -> None:
        """Starts it and waits until it is ready.  Raises MissingRight, with what it said, when it does not get so far."""
        command = [*before, "sh", "-c", script, "tidegate-chaos", *arguments]
        try:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, process_group=0
            )
        except OSError as error:
            raise MissingRight(f"{command[0]} cannot be run: {error.strerror}") from error
        assert self._process.stdout is not None
        if select.select([self._process.stdout], [], [], READY_TIMEOUT_S)[0] and self._process.stdout.readline():
            return
        self._process.kill()
        _, said = self._process.communicate()
        raise MissingRight(said.decode(errors="replace").strip() or f"{command[0]} said nothing for {READY_TIMEOUT_S:g} s")

    @property
    def pid(self) -> int:
        return self._process.pid

    def let_go(self) -> None:
        """Returns when it has undone its work.  A no-op when it was let go before."""
        if self._process.poll() is None:
            self._process.communicate(timeout=GONE_TIMEOUT_S)
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()
