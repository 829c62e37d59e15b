"""Cuts of a network that is made for the purpose: exactly what is cut is lost, and nothing of it is left
behind.

These tests need the right to make network namespaces, and fail where it is missing: what they promise would
not be tested.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import permutations
from pathlib import Path

import pytest
from tidegate.chaos.machine import network_lab
from tidegate.chaos.machine.network_lab import CLIENTS, NetworkLab
from tidegate.chaos.machine.small_disks import SmallDisks, empty, fill
from tidegate.chaos.machine.undo import MissingRight, UndoProcess

pytestmark = [pytest.mark.xdist_group("network-lab"), pytest.mark.timeout(60)]

HOSTS = (1, 2, 3)
EVERY_WAY = {(a, b) for a in (*HOSTS, CLIENTS) for b in (*HOSTS, CLIENTS) if a != b}
SEEN_S = 0.4
"""So long is waited for packets that may not come."""
HOST = """
import socket, sys
me, *others = sys.argv[1:]
socket_ = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
socket_.bind((me, 7777))
print("ready", flush=True)
for line in sys.stdin:
    what, *waits = line.split()
    if what == "send":
        for other in others:
            socket_.sendto(b"!", (other, 7777))
    else:
        heard, wait = set(), float(waits[0])
        while True:
            socket_.settimeout(wait)
            try:
                heard.add(socket_.recvfrom(10)[1][0])
            except TimeoutError:
                break
        print(*sorted(heard), flush=True)
"""


class Talk:
    """A program on every host: each sends a packet to each, and prints the hosts from which it received
    one."""

    def __init__(self, lab: NetworkLab) -> None:
        self._lab = lab
        self._hosts: dict[int, subprocess.Popen[str]] = {}
        numbers = (*lab.nodes, CLIENTS)
        for number in numbers:
            before = lab.command(number) if number != CLIENTS else ()
            addresses = [lab.address(number), *(lab.address(other) for other in numbers if other != number)]
            self._hosts[number] = subprocess.Popen(
                [*before, sys.executable, "-c", HOST, *addresses],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        for host in self._hosts.values():
            assert host.stdout is not None
            assert host.stdout.readline() == "ready\n"

    def heard(self) -> set[tuple[int, int]]:
        """(sender, receiver) of what arrives now."""
        for host in self._hosts.values():
            assert host.stdin is not None
            host.stdin.write("send\n")
            host.stdin.flush()
        for host in self._hosts.values():
            assert host.stdin is not None
            host.stdin.write(f"hear {SEEN_S}\n")
            host.stdin.flush()
        found = set()
        for number, host in self._hosts.items():
            assert host.stdout is not None
            found |= {(int(sender.rpartition(".")[2]), number) for sender in host.stdout.readline().split()}
        return found

    def close(self) -> None:
        for host in self._hosts.values():
            host.kill()
            host.communicate()


@pytest.fixture
def lab() -> Iterator[NetworkLab]:
    with NetworkLab(len(HOSTS)) as lab:
        yield lab


@pytest.fixture
def talk(lab: NetworkLab) -> Iterator[Talk]:
    talk = Talk(lab)
    try:
        yield talk
    finally:
        talk.close()


def test_a_cut_drops_packets_in_exactly_its_direction_until_healed(lab: NetworkLab, talk: Talk) -> None:
    assert talk.heard() == EVERY_WAY
    lab.cut([(1, 2)])
    assert talk.heard() == EVERY_WAY - {(1, 2)}
    lab.cut((3, other) for other in HOSTS if other != 3)
    assert talk.heard() == EVERY_WAY - {(1, 2), (3, 1), (3, 2)} == EVERY_WAY - lab.cuts
    lab.heal()
    assert talk.heard() == EVERY_WAY
    assert not lab.cuts
    lab.cut(permutations(HOSTS, 2))
    assert talk.heard() == {way for way in EVERY_WAY if CLIENTS in way}
    lab.cut([(1, CLIENTS), (CLIENTS, 1)])
    assert talk.heard() == {way for way in EVERY_WAY if CLIENTS in way and 1 not in way}


def test_a_cut_that_does_not_cut_is_noticed(
    lab: NetworkLab, talk: Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ablation of the test above: with the right hardware address, packets arrive."""
    monkeypatch.setattr(NetworkLab, "_nowhere", property(lambda self: self._hardware(2)))
    lab.cut([(1, 2)])
    assert (1, 2) in lab.cuts
    assert (1, 2) in talk.heard()


def interfaces() -> set[str]:
    return {path.name for path in Path("/sys/class/net").iterdir() if path.name.startswith("tidegate")}


def gone(name: str, *pids: int) -> bool:
    return name not in interfaces() and not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_nothing_is_left_behind_by_a_run_that_failed() -> None:
    name, pids = "", []
    with pytest.raises(ZeroDivisionError), NetworkLab(2) as lab:
        name, pids = lab.interface, [holder.pid for holder in lab._holders.values()]
        assert name in interfaces()
        _ = 1 / 0
    assert gone(name, *pids)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_nothing_is_left_behind_by_a_run_that_was_ended(number: signal.Signals, tmp_path: Path) -> None:
    program = (
        "import sys, time\nfrom pathlib import Path\n"
        "from tidegate.chaos.machine.network_lab import NetworkLab\nfrom "
        "tidegate.chaos.machine.small_disks import SmallDisks\n"
        "with NetworkLab(2) as lab, SmallDisks([Path(sys.argv[1])], 1 << 20):\n"
        "    print(lab.interface, *(holder.pid for holder in lab._holders.values()), flush=True)\n"
        "    time.sleep(60)\n"
    )
    folder = tmp_path / "disk"
    run = subprocess.Popen(
        [sys.executable, "-c", program, str(folder)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert run.stdout is not None
    name, *pids = run.stdout.readline().decode().split()
    assert name in interfaces()
    assert os.path.ismount(folder)
    run.send_signal(number)
    run.communicate()
    deadline = time.monotonic() + 20
    while not gone(name, *map(int, pids)) or os.path.ismount(folder):
        assert time.monotonic() < deadline, f"left behind: {name}, {pids}, {folder}"
        time.sleep(0.05)


def test_two_labs_side_by_side_have_networks_of_their_own(lab: NetworkLab) -> None:
    with NetworkLab(1) as other:
        assert other.address(1) != lab.address(1)
        assert other.interface != lab.interface


def test_where_the_right_is_missing_it_is_said_what_for_and_what_helps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        network_lab, "_namespace", lambda: UndoProcess("echo unshare: Operation not permitted >&2")
    )
    with pytest.raises(
        MissingRight, match=r"NETWORK CANNOT BE CUT HERE.*Operation not permitted.*run as root"
    ):
        NetworkLab(1).__enter__()


def test_a_program_that_is_not_installed_is_named() -> None:
    with pytest.raises(MissingRight, match="no-such-program"):
        UndoProcess("echo", before=["no-such-program"])


def test_a_small_disk_is_filled_to_the_last_byte_and_has_room_again(tmp_path: Path) -> None:
    folder = tmp_path / "disk"
    with SmallDisks([folder], 1 << 20):
        fill(folder)
        with pytest.raises(OSError, match="No space left"):
            (folder / "more").write_bytes(b"!")
        (folder / "more").unlink(missing_ok=True)
        empty(folder)
        (folder / "more").write_bytes(bytes(1 << 19))
        fill(folder)
        fill(folder)
        assert os.statvfs(folder).f_bavail == 0
    assert not os.path.ismount(folder)
