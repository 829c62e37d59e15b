"""The stage of the stories about the quorum: three voters on a virtual clock, without chance.

Real: the voters, their shells, journals and snapshots, over disks in memory.  Modelled: a network that
delivers in order and at once, but what the story cuts or holds back; and a state machine that keeps the
commands.

After each command every voter runs its rounds (sync, messages, tick) until no message is on its way.  What
happens is a line each: what a voter persists, sends and applies, in the order of the contract
(`controller/raft/state.py`).  Heartbeats and answers that say nothing new are left out.  After every round
each voter is held against its invariants (`RaftCore.validate`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from random import Random

from tidegate.chaos.sim.disk import LyingDisk
from tidegate.controller.raft.contract import Proposal, QuorumStatus, RaftTimings, Role
from tidegate.controller.raft.core import RaftCore
from tidegate.controller.raft.failure import RaftFatal
from tidegate.controller.raft.journal import DurableJournal
from tidegate.controller.raft.membership import VOTER_RETURNS
from tidegate.controller.raft.messages import (
    NO_OP,
    AppendEntries,
    AppendReply,
    Entry,
    Message,
    SnapshotChunk,
    SnapshotReply,
    VoteReply,
    VoteRequest,
    VoterStatus,
)
from tidegate.controller.raft.snapshot_store import Snapshot, SnapshotStore
from tidegate.controller.raft.state import (
    Append,
    Change,
    Committed,
    Installed,
    Ready,
    ReplaceLog,
    SetTerm,
    StoreSnapshot,
    StoreVoterRecords,
    TrimTo,
    TruncateFrom,
)

from .transcript import Command

VOTERS = (1, 2, 3)
FOLDER = Path("/data/raft")
ROUNDS_MAX = 200
TIMINGS = RaftTimings(
    batch_bytes=10, compact_after_entries=6, trailing_entries=0, snapshot_chunk_bytes=1 << 10
)
Way = tuple[int, int]


class SpeakingCore(RaftCore):
    """Says what each step asks for."""

    say: Callable[[Ready], None] = staticmethod(lambda ready: None)

    def _carry_out(self, ready: Ready) -> None:
        self.say(ready)
        super()._carry_out(ready)


class Member:
    """One voter: its disk, and the core of its present life."""

    def __init__(self, node_id: int) -> None:
        self.node_id, self.disk, self.lives = node_id, LyingDisk(), 0
        self.core: SpeakingCore | None = None
        self.role = (Role.FOLLOWER, False)
        self.said: dict[tuple[int, type], object] = {}


class Machine:
    """The commands that were applied; a snapshot of them is made at once."""

    def __init__(self, stage: Stage, member: Member, snapshots: SnapshotStore) -> None:
        self._stage, self._member, self._snapshots = stage, member, snapshots
        self.index = self.term = 1
        self.commands: list[str] = []

    def applied(self, entries: list[Entry]) -> None:
        self.index, self.term = entries[-1][1:]
        self.commands += [command.decode() for command, _, _ in entries if command]

    def installed(self, snapshot: Snapshot) -> None:
        self.index, self.term = snapshot.index, snapshot.term
        self.commands = bytes(snapshot.state).decode().split()

    def snapshot_wanted(self) -> None:
        snapshot = Snapshot.make(self.index, self.term, " ".join(self.commands).encode())
        self._snapshots.store(snapshot)
        self._stage.say(f"{self._member.node_id} stores a snapshot of entry {self.index}")
        self._stage.stored.append((self._member, self.index))

    def status_changed(self, status: QuorumStatus) -> None: ...


class Stage:
    """One story's three voters."""

    def __init__(self) -> None:
        self.now = 100.0
        self.members = {node_id: Member(node_id) for node_id in VOTERS}
        self.machines: dict[int, Machine] = {}
        self.cuts: set[Way] = set()
        self.held: dict[Way, list[Message]] = {}
        self.on_the_way: list[tuple[int, int, Message]] = []
        self.stored: list[tuple[Member, int]] = []
        self.lines: list[str] = []

    def say(self, line: str) -> None:
        self.lines.append(line)

    def execute(self, command: Command) -> list[str]:
        """What happens upon the command."""
        self.lines = []
        getattr(self, "do_" + command.name.replace("-", "_"))(command)
        self._settle()
        return self.lines or ["nothing"]

    # --- voters ---------------------------------------------------------------------------------------------

    def do_start(self, command: Command) -> None:
        """start N...: the voters start, with the disks that they have, and connect."""
        for word in command.words:
            self._open(self.members[int(word)])
        started = {int(word) for word in command.words}
        up = [member.node_id for member in self._up()]
        for a, b in itertools.combinations(up, 2):
            if {a, b} & started:
                self._connect(a, b)

    def do_begin(self, command: Command) -> None:
        """begin: the three voters start and elect voter 1, as the story `election` tells it."""
        self.do_start(Command("start 1 2 3"))
        self._settle()
        self.do_elect(Command("elect 1"))
        self._settle()
        self.lines = [line for line in self.lines if line.endswith("active")]

    def _open(self, member: Member) -> None:
        member.lives += 1
        member.said.clear()
        node_id, disk = member.node_id, member.disk
        try:
            journal = DurableJournal(disk, FOLDER, node_id=node_id, new_id=10 * node_id + member.lives)
            snapshots = SnapshotStore(disk, FOLDER)
            machine = self.machines[node_id] = Machine(self, member, snapshots)
            core = member.core = SpeakingCore(
                node_id,
                VOTERS,
                journal,
                snapshots,
                machine,
                Outbox(self, node_id),
                timings=TIMINGS,
                random=lambda: 0.2 * node_id,
                now=lambda: self.now,
            )
        except RaftFatal as error:
            self.say(f"{node_id} refuses to start: {error}")
            return
        member.role = (Role.FOLLOWER, False)
        vote = "" if core.state.voted_for is None else f" with its vote for {core.state.voted_for}"
        self.say(
            f"{node_id} starts in term {core.term}{vote}, its journal ends with {_position(journal[-1])}"
        )
        core.say = lambda ready: self._say_ready(member, ready)

    def do_crash(self, command: Command) -> None:
        """crash N: the power of its host goes, and its connections break."""
        member = self.members[int(command.words[0])]
        member.core = None
        member.disk.crash(Random(1))
        for other in self._up():
            self.held.pop((member.node_id, other.node_id), None)
            self._core(other.node_id).peer_disconnected(member.node_id)

    def do_tear(self, command: Command) -> None:
        """tear N BYTES: the crash left so many bytes of a record that was never synced."""
        disk = self.members[int(command.words[0])].disk
        data = disk.read(FOLDER / "entries")
        disk.put(FOLDER / "entries", data + b"\x01" * int(command.words[1]))

    def do_damage(self, command: Command) -> None:
        """damage N: a bit of the last record but one flips; the last one says that it was durable."""
        disk, position, last = self.members[int(command.words[0])].disk, 0, 0
        data = disk.read(FOLDER / "entries")
        while position < len(data):
            last, position = position, position + 8 + int.from_bytes(data[position : position + 4], "little")
        disk.flip_bit(FOLDER / "entries", last - 1)

    def do_lose_disk(self, command: Command) -> None:
        """lose-disk N: an empty disk in the place of the one of a voter that is down."""
        self.members[int(command.words[0])].disk = LyingDisk()

    # --- the network ----------------------------------------------------------------------------------------

    def do_cut(self, command: Command) -> None:
        """cut N [to=M]: its messages, in both directions, are lost; with `to` in this one."""
        node_id = int(command.words[0])
        if "to" in command.options:
            self.cuts.add((node_id, int(command.options["to"])))
            return
        for other in VOTERS:
            if other != node_id:
                self.cuts |= {(node_id, other), (other, node_id)}

    def do_mend(self, command: Command) -> None:
        """mend [N M]: nothing is cut any more (between these two); voters that were cut have new
        connections."""
        only = {int(word) for word in command.words} or set(VOTERS)
        mended = {way for way in self.cuts if set(way) <= only}
        self.cuts -= mended
        for pair in sorted({(min(way), max(way)) for way in mended}):
            if all(self.members[node_id].core is not None for node_id in pair):
                for source, target in (pair, pair[::-1]):
                    self._core(target).peer_disconnected(source)
                self._connect(*pair)

    def do_hold(self, command: Command) -> None:
        """hold N to=M: the messages of N to M stay on their way."""
        self.held[int(command.words[0]), int(command.options["to"])] = []

    def do_release(self, command: Command) -> None:
        """release N to=M: what was held arrives, and nothing is held any more.  With `count=K` only the first
        K arrive, with `order=0,1,...` these, by number, and the others are lost; then more is held."""
        way = int(command.words[0]), int(command.options["to"])
        messages = self.held[way]
        arrive = messages
        if "count" in command.options:
            count = int(command.options["count"])
            arrive, self.held[way] = messages[:count], messages[count:]
        elif "order" in command.options:
            arrive = [messages[int(number)] for number in command.options["order"].split(",")]
            self.held[way] = []
        else:
            del self.held[way]
        for message in arrive:
            self.say(f"{way[0]} => {way[1]} {self._message(message)}")
            self.on_the_way.append((*way, message))

    def _connect(self, a: int, b: int) -> None:
        for source, target in ((a, b), (b, a)):
            said = self.members[target].said
            self.members[target].said = {key: said[key] for key in said if key[1] is VoterStatus}
            self._core(target).peer_connected(source)

    # --- time and commands ----------------------------------------------------------------------------------

    def do_time(self, command: Command) -> None:
        """time MS: so much time passes."""
        end = self.now + int(command.words[0]) / 1000
        while self.now < end:
            wakes_in_s = min(self._core(member.node_id).seconds_to_wake() for member in self._up())
            self.now = min(end, self.now + wakes_in_s)
            self._settle()

    def do_elect(self, command: Command) -> None:
        """elect N: so much time passes without a message that its election timer ends, before all others."""
        for member in self._up():
            state = self._core(member.node_id).state
            state.election_deadline = self.now + 3600
            if state.role is not Role.LEADER:
                state.leader_heard_at = self.now - 3600
        self._core(int(command.words[0])).state.election_deadline = self.now - 0.001

    def do_propose(self, command: Command) -> None:
        """propose N COMMAND...: at voter N."""
        node_id, *texts = command.words
        for text in texts:
            self._propose(int(node_id), text)

    def do_read(self, command: Command) -> None:
        """read N: a linearizable read at voter N, which is a committed barrier."""
        self._propose(int(command.words[0]), "")

    def _propose(self, node_id: int, text: str) -> None:
        what = text or "the barrier"

        def accepted(index: int, term: int) -> None:
            self.say(f"{node_id} accepts {what} as {index}/{term}")

        def refused(reason: str) -> None:
            self.say(f"{node_id} refuses {what}: {reason}")

        self._core(node_id).propose(Proposal(text.encode(), accepted, refused))

    # --- what can be seen -----------------------------------------------------------------------------------

    def do_log(self, command: Command) -> None:
        """log [N...]: the entries on the disks."""
        for word in command.words or [str(member.node_id) for member in self._up()]:
            core = self._core(int(word))
            entries = ", ".join(map(_entry, core.journal[:]))
            self.say(f"{word}: {entries}; committed up to {core.commit_index}")

    def do_state(self, command: Command) -> None:
        """state: of all voters that are up."""
        for member in self._up():
            core = self._core(member.node_id)
            active = ", active" if core.active else ""
            vote = "" if core.state.voting else ", no vote"
            applied = " ".join(self.machines[member.node_id].commands)
            leader = "none" if core.state.leader_id is None else core.state.leader_id
            self.say(
                f"{member.node_id}: {core.role.name} in term {core.term}{active}{vote}, leader {leader}, "
                f"applied [{applied}]"
            )

    # --- until nothing moves --------------------------------------------------------------------------------

    def _up(self) -> list[Member]:
        return [member for member in self.members.values() if member.core is not None]

    def _core(self, node_id: int) -> SpeakingCore:
        core = self.members[node_id].core
        assert core is not None, f"voter {node_id} is down"
        return core

    def _settle(self) -> None:
        """Rounds of all voters, as the Raft thread runs them."""
        for _ in range(ROUNDS_MAX):
            arrived, self.on_the_way = self.on_the_way, []
            stored, self.stored = self.stored, []
            more = [self._round(member, arrived, stored) for member in self._up()]
            if not any(more) and not self.on_the_way and not self.stored:
                return
        raise AssertionError("the stage does not come to rest")

    def _round(
        self, member: Member, arrived: list[tuple[int, int, Message]], stored: list[tuple[Member, int]]
    ) -> bool:
        core = self._core(member.node_id)
        core.sync()
        for which, index in stored:
            if which is member:
                core.snapshot_stored(index)
        for source, target, message in arrived:
            if target == member.node_id:
                core.receive(source, message)
                core.validate()
        more = core.tick()
        core.validate()
        if (core.role, core.active) != member.role:
            member.role = (core.role, core.active)
            active = ", active" if core.active else ""
            self.say(f"{member.node_id} is {core.role.name} in term {core.term}{active}")
        return more

    def carry(self, source: int, target: int, message: Message) -> None:
        if self.members[target].core is None or (source, target) in self.cuts:
            return
        if (source, target) in self.held:
            self.held[source, target].append(message)
        else:
            self.on_the_way.append((source, target, message))

    # --- what is said of a step -----------------------------------------------------------------------------

    def _say_ready(self, member: Member, ready: Ready) -> None:
        node_id = member.node_id
        for change in ready.persist:
            self.say(f"{node_id} persists {_change(change)}")
        for target, message in ready.send:
            if self._is_news(member, target, message):
                self.say(f"{node_id} -> {target} {self._message(message)}{self._fate(node_id, target)}")
        for applied in ready.apply:
            match applied:
                case Committed(entries):
                    self.say(
                        f"{node_id} applies {', '.join(f'{index}/{term}' for _, index, term in entries)}"
                    )
                case Installed(snapshot):
                    self.say(f"{node_id} installs the snapshot of entry {snapshot.index}/{snapshot.term}")
                case _:
                    pass

    def _fate(self, source: int, target: int) -> str:
        if self.members[target].core is None or (source, target) in self.cuts:
            return " (lost)"
        return " (held)" if (source, target) in self.held else ""

    @staticmethod
    def _is_news(member: Member, target: int, message: Message) -> bool:
        """Not for heartbeats, repeated probes and statuses, and repeated acknowledgements."""
        match message:
            case AppendEntries():
                news: object = message if message.entries else (message.term, message.commit_index)
            case AppendReply(success=True):
                news = (message.term, message.next_index)
            case VoterStatus():
                news = message
            case _:
                return True
        kind = (target, type(message))
        known, member.said[kind] = member.said.get(kind), news
        return known != news

    @staticmethod
    def _message(message: Message) -> str:
        match message:
            case AppendEntries(term, commit_index, previous_index, previous_term, entries):
                what = f" [{', '.join(map(_entry, entries))}]" if entries else ""
                after = f"after {previous_index}/{previous_term}"
                return f"append in term {term}, {after}{what}, committed {commit_index}"
            case AppendReply(term, True, next_index, _, _, voting):
                return f"in term {term}: has up to {next_index - 1}{'' if voting else ', without a vote'}"
            case AppendReply(term, _, _, 0):
                return f"this is term {term}"
            case AppendReply(term, _, next_index, previous_index):
                return f"in term {term}: no entry {previous_index} like that, go on from {next_index}"
            case VoteRequest(term, last_index, last_term, preliminary):
                return f"{_ask(preliminary)} in term {term}, my log ends with {last_index}/{last_term}"
            case VoteReply(term, granted, preliminary):
                return f"{_ask(preliminary)} in term {term}: {'yes' if granted else 'no'}"
            case VoterStatus(journal, voting, _, roster):
                names = ", ".join(f"{voter} has {journal_id}" for voter, journal_id, _ in roster)
                vote = "with a vote" if voting else "without a vote"
                return f"I am journal {journal} {vote}{', roster: ' if names else ''}{names}"
            case SnapshotChunk(term, _, _, total_bytes, position, data):
                return f"snapshot in term {term}, bytes {position} to {position + len(data)} of {total_bytes}"
            case SnapshotReply(term, _, received_bytes, last_index):
                return f"in term {term}: has {received_bytes} bytes of the snapshot, and up to {last_index}"


class Outbox:
    """Where a voter's messages leave."""

    def __init__(self, stage: Stage, node_id: int) -> None:
        self._stage, self._node_id = stage, node_id

    def send(self, node_id: int, message: Message) -> None:
        self._stage.carry(self._node_id, node_id, message)


def _ask(preliminary: bool) -> str:
    return "pre-vote" if preliminary else "vote"


def _entry(entry: Entry) -> str:
    command, index, term = entry
    if command[:1] == VOTER_RETURNS:
        return f"{index}/{term} return of a voter"
    return f"{index}/{term} {'no-op' if command == NO_OP else command[1:].decode() or 'barrier'}"


def _position(entry: Entry) -> str:
    return f"{entry[1]}/{entry[2]}"


def _change(change: Change) -> str:
    match change:
        case SetTerm(term, voted_for):
            return f"term {term}, " + ("no vote given" if voted_for is None else f"the vote for {voted_for}")
        case Append(entries):
            return f"[{', '.join(map(_entry, entries))}]"
        case TruncateFrom(index):
            return f"the truncation from {index} on"
        case TrimTo(index):
            return f"that the log begins at {index}"
        case StoreSnapshot(snapshot):
            return f"the snapshot of entry {snapshot.index}/{snapshot.term}"
        case ReplaceLog(entry):
            return f"a log that begins and ends with {_position(entry)}"
        case StoreVoterRecords(voter_records, voting):
            names = ", ".join(f"{voter} has {journal}" for voter, journal, _ in voter_records)
            return f"the votes of: {names}{'; its own is one of them' if voting else ''}"
