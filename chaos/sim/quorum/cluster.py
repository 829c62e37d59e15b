"""The members of a simulated quorum with their network and their time: what clients use and faults break."""

from __future__ import annotations

from ....controller.raft.contract import Role
from ....controller.state.cluster_state import ClusterState
from .ledger import Ledger
from .member import Member, Parts
from .network import Network
from .options import QuorumOptions
from .process import Process
from .schedule import Schedule


class Cluster:
    """Of one simulation."""

    def __init__(self, options: QuorumOptions, parts: Parts) -> None:
        self.options = options
        self.schedule = Schedule(options.seed)
        self.ledger = Ledger(options, self.schedule)
        processes = {node_id: Process(node_id, self.schedule, self.ledger) for node_id in options.ids}
        self.network = Network(processes, self.schedule, options)
        self.members = {
            node_id: Member(process, self.network, self.schedule, self.ledger, options, parts)
            for node_id, process in processes.items()
        }

    def leader(self) -> Member | None:
        """Of the newest term."""
        leaders = [m for m in self.members.values() if m.core is not None and m.core.role is Role.LEADER]
        return max(
            leaders, key=lambda member: member.core.term if member.core is not None else -1, default=None
        )

    def without_vote(self) -> set[int]:
        """The voters whose disk was lost, and which have not got the vote back yet."""
        for member in self.members.values():
            if member.core is not None and member.core.state.voting:
                member.disk_was_lost = False
        return {node_id for node_id, member in self.members.items() if member.disk_was_lost}

    def may_lose_disk(self) -> bool:
        """One more lost disk leaves a majority with a vote."""
        return len(self.without_vote()) < (len(self.members) - 1) // 2

    def states(self) -> dict[int, ClusterState]:
        """Of all members, which are up."""
        states = {}
        for node_id, member in self.members.items():
            assert member.machine is not None
            states[node_id] = member.machine.state
        return states
