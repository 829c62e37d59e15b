"""A separate network for a cluster: every node in a network namespace, all on one bridge, with cuts between
any two of them.

    with NetworkLab(3) as lab:
        async with LocalCluster(directory, 3, hosts=lab) as cluster:
            lab.cut([(2, 1)])           # what node 2 sends to node 1 is lost; node 1 is still heard by node 2
            lab.cut([(1, 2), (2, 3)])   # any set of directions, between nodes or a node and CLIENTS
            lab.heal()

    host 1 (198.18.n.1) ---+
    host 2 (198.18.n.2) ---+--- bridge, in a namespace of its own --- clients, in this process (198.18.n.254)
    host 3 (198.18.n.3) ---+

A cut drops packets without an answer: no reset, no unreachable, like a broken cable or a firewall that drops.
Each host has its neighbours' hardware addresses in a fixed table; a cut of one direction gives the sender a
wrong one.  That needs no firewall in the kernel, works for every pair and direction, and takes effect at
once, for open connections as well.

The namespaces have no names: a helper process (undo.py) holds each.  The kernel removes a namespace, its wire
and its address when the helper and the nodes in it have ended.  The nodes reach no other hosts.
"""

from __future__ import annotations

import os
import subprocess
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from tempfile import gettempdir
from types import TracebackType
from typing import Final, Self

from ...runtime.disk import FileLock, RealDisk
from .undo import MissingRight, UndoProcess

CLIENTS: Final = 254
"""The number of the host that clients and the harness are on: where this process runs."""
NETWORKS: Final = range(1, 250)
TIMEOUT_S: Final = 10.0
MOVED_BY: Final = 10
MOVES_MAX: Final = 20
ADVICE: Final = "run as root (CAP_NET_ADMIN and CAP_SYS_ADMIN), on Linux with iproute2 and util-linux"
_DISK: Final = RealDisk()


class NetworkLab:
    """See the module's text.  Implements the `hosts` of a LocalCluster."""

    def __init__(self, nodes: int) -> None:
        self.nodes = range(1, nodes + 1)
        self._number = 0
        self._lock: FileLock | None = None
        self._holders: dict[int, UndoProcess] = {}
        self._hub: UndoProcess | None = None
        self._cuts: set[tuple[int, int]] = set()
        self._moves: Counter[int] = Counter()

    def __enter__(self) -> Self:
        """Makes the hosts.  Raises MissingRight where that is not permitted."""
        try:
            self._build()
        except BaseException as error:
            self.__exit__(None, None, None)
            if isinstance(error, MissingRight):
                raise MissingRight(
                    f"THE NETWORK CANNOT BE CUT HERE, so nothing was tried: {error}; {ADVICE}"
                ) from error
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Removes all hosts.  The nodes must have ended: their processes keep the namespaces alive."""
        self._cuts.clear()
        if self._hub is not None:
            # The bridge's namespace ends in the background, when its holder has; the end of the wire that is
            # here goes at once.
            _run_quietly(["ip", "link", "del", self.interface])
            self._hub.undo()
            self._hub = None
        for holder in self._holders.values():
            holder.undo()
        self._holders.clear()
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    @property
    def interface(self) -> str:
        """The name of the wire's end where this process is."""
        return f"tidegate{self._number}"

    def address(self, node_id: int) -> str:
        return f"198.18.{self._number}.{node_id + MOVED_BY * self._moves[node_id]}"

    def name(self, node_id: int) -> str:
        return self.address(node_id)

    def move(self, node_id: int) -> None:
        """The host gets another address, as a restarted pod does: packets to the old address are lost."""
        before = self.address(node_id)
        self._moves[node_id] = self._moves[node_id] % MOVES_MAX + 1
        self._ip(
            node_id,
            [f"address delete {before}/24 dev eth0", f"address add {self.address(node_id)}/24 dev eth0"],
        )
        for number in (*self.nodes, CLIENTS):
            if number != node_id:
                self._ip(number, [self._neighbour(number, node_id, self._hardware(node_id))])
        self._ip(
            node_id,
            [self._neighbour(node_id, n, self._hardware(n)) for n in (*self.nodes, CLIENTS) if n != node_id],
        )

    def command(self, node_id: int) -> Sequence[str]:
        return _inside(self._holders[node_id])

    # ---- cuts ----------------------------------------------------------------------------------------------

    def cut(self, pairs: Iterable[tuple[int, int]]) -> None:
        """From now on, packets from the first host of each pair to the second are lost; all pairs change
        almost at once."""
        wanted = set(pairs) - self._cuts
        self._cuts |= wanted
        self._point(wanted)

    def heal(self) -> None:
        """Ends all cuts.  TCP sends lost packets again."""
        healed, self._cuts = self._cuts, set()
        self._point(healed)

    @property
    def cuts(self) -> frozenset[tuple[int, int]]:
        """The (sender, receiver) pairs that are cut now."""
        return frozenset(self._cuts)

    def _point(self, pairs: Iterable[tuple[int, int]]) -> None:
        by_sender: dict[int, list[str]] = {}
        for sender, receiver in sorted(pairs):
            hardware = self._nowhere if (sender, receiver) in self._cuts else self._hardware(receiver)
            by_sender.setdefault(sender, []).append(self._neighbour(sender, receiver, hardware))
        for sender, lines in by_sender.items():
            self._ip(sender, lines)

    # ---- making --------------------------------------------------------------------------------------------

    def _build(self) -> None:
        self._lock, self._number = _free_network()
        self._hub = _namespace()
        _ip(self._hub, ["link add hub type bridge forward_delay 0", "link set hub up"])
        for node_id in self.nodes:
            self._holders[node_id] = _namespace()
            _ip(self._holders[node_id], ["link set lo up"])
        for number in (*self.nodes, CLIENTS):
            name = "eth0" if number != CLIENTS else self.interface
            where = self._holders[number].pid if number != CLIENTS else os.getpid()
            wire = (
                f"link add port{number} type veth peer name {name} address {self._hardware(number)} "
                f"netns {where}"
            )
            _ip(self._hub, [wire, f"link set port{number} master hub", f"link set port{number} up"])
            self._ip(number, [f"address add {self.address(number)}/24 dev {name}", f"link set {name} up"])
        for number in (*self.nodes, CLIENTS):
            self._ip(
                number,
                [
                    self._neighbour(number, n, self._hardware(n))
                    for n in (*self.nodes, CLIENTS)
                    if n != number
                ],
            )

    def _hardware(self, number: int) -> str:
        return f"02:00:c6:12:{self._number:02x}:{number:02x}"

    @property
    def _nowhere(self) -> str:
        return f"02:00:c6:12:{self._number:02x}:00"

    def _neighbour(self, number: int, other: int, hardware: str) -> str:
        device = "eth0" if number != CLIENTS else self.interface
        return f"neighbour replace {self.address(other)} lladdr {hardware} dev {device} nud permanent"

    def _ip(self, number: int, lines: Sequence[str]) -> None:
        _ip(self._holders[number] if number != CLIENTS else None, lines)


def _namespace() -> UndoProcess:
    return UndoProcess("echo ready; cat >/dev/null", before=["unshare", "--net", "--"])


def _inside(holder: UndoProcess) -> list[str]:
    return ["nsenter", f"--net=/proc/{holder.pid}/ns/net", "--"]


def _ip(holder: UndoProcess | None, lines: Sequence[str]) -> None:
    command = [*(_inside(holder) if holder is not None else []), "ip", "-batch", "-"]
    try:
        done = subprocess.run(
            command, input="\n".join(lines).encode(), capture_output=True, timeout=TIMEOUT_S, check=False
        )
    except OSError as error:
        raise MissingRight(f"{command[0]} cannot be run: {error.strerror}") from error
    if done.returncode != 0:
        raise MissingRight(f"ip {lines[0]}: {done.stderr.decode(errors='replace').strip()}")


def _run_quietly(command: Sequence[str]) -> None:
    """Ignores a failure: the object to remove may have ended by itself."""
    subprocess.run(command, capture_output=True, timeout=TIMEOUT_S, check=False)


def _free_network() -> tuple[FileLock, int]:
    """A network of 198.18.0.0/15, which is set aside for tests (RFC 2544), that no other run of this machine
    uses: what holds it, and its number."""
    directory = Path(gettempdir()) / "tidegate-networks"
    _DISK.make_directory(directory)
    for number in NETWORKS:
        if _DISK.exists(Path(f"/sys/class/net/tidegate{number}")):
            continue
        try:
            return _DISK.lock(directory / str(number)), number
        except OSError:
            continue  # in use, or another user's
    raise MissingRight(f"no free network of 198.18.0.0/15 (see {directory})")
