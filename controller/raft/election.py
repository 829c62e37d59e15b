"""Elections: PreVote, votes, and the voters that step down (docs/raft.md Q9 to Q11).  Pure.

    the election timer of a follower ends (`library`)
      -> `may_start` asks all voters whether they would vote (PreVote); the term stays
      -> a majority would: the term rises, the voter votes for itself and asks for votes (`library`)
      -> a majority did: it leads

A voter that could not win does not raise the term, so a voter that returns from a network partition does not
depose a good leader.  A journal without a vote gives none, and does not stand (docs/raft.md Q29).
"""

from __future__ import annotations

from .contract import Role
from .messages import VoteReply, VoteRequest
from .state import NEVER, VoterState


class Election:
    """One voter's side, as a voter and as a candidate."""

    def __init__(self, state: VoterState) -> None:
        self._state = state
        # (the term asked for, the voters that would grant it)
        self.pre_vote: tuple[int, set[int]] | None = None
        self.pre_vote_again_at = 0.0
        self.gave_way_in = 0  # the last term for which this voter let another candidate go first

    def may_vote(self) -> bool:
        return self._state.voting

    def is_up_to_date(self, request: VoteRequest) -> bool:
        return self._state.log.is_up_to_date(request.last_index, request.last_term)

    # ---- the candidate -------------------------------------------------------------------------------------

    def may_start(self) -> bool:
        """The election timer has ended: whether a majority would vote for this voter.  Asks the others when
        that is not known."""
        state = self._state
        if not state.others:
            return True
        if not state.is_majority_connected or not self.may_vote():
            return False
        wanted_term = state.term + 1
        term, would_vote = self.pre_vote or (0, set())
        if term == wanted_term and len(would_vote) >= state.majority:
            self.pre_vote = None
            return True
        if state.now >= self.pre_vote_again_at:
            self.pre_vote = (wanted_term, {state.node_id})
            # After a lost connection to the leader it asks again soon: the others may notice only now that
            # the leader is gone.
            lost_leader = state.leader_heard_at == NEVER
            pause_s = state.timings.hurry_s if lost_leader else state.election_timeout_s() / 2
            self.pre_vote_again_at = state.now + pause_s
            request = VoteRequest(wanted_term, state.log.last_index, state.log.last_term, preliminary=True)
            for other in state.others:
                state.send(other, request)
        return False

    def on_vote_reply(self, voter: int, reply: VoteReply) -> bool:
        """True: this vote made the majority, and this voter leads from now on."""
        state = self._state
        if not reply.granted:
            if reply.term > state.term:
                state.step_down(reply.term)
        elif reply.preliminary:
            if self.pre_vote is not None and reply.term == self.pre_vote[0]:
                self.pre_vote[1].add(voter)
        elif state.role is Role.CANDIDATE and reply.term == state.term:
            state.votes.add(voter)  # a set: a repeated reply is one vote
            return len(state.votes) >= state.majority
        return False

    # ---- the voter -----------------------------------------------------------------------------------------

    def on_pre_vote_request(self, candidate: int, request: VoteRequest) -> None:
        """Would this voter vote for the candidate?  Not while it hears a leader."""
        state = self._state
        leader_is_silent = state.now - state.leader_heard_at > state.timings.election_s_min
        granted = request.term > state.term and state.role is not Role.LEADER and leader_is_silent
        granted = granted and self.is_up_to_date(request) and self.may_vote()
        if granted:
            self._give_way(candidate, request.term)
        term = request.term if granted else state.term
        state.send(candidate, VoteReply(term, granted, preliminary=True))

    def _give_way(self, candidate: int, term: int) -> None:
        """Two candidates at once would split the votes and lose a whole timeout: the one with the lower id
        lets the other go first.  Once a term: the other may fail to win."""
        state = self._state
        stands_too = self.pre_vote is not None and self.pre_vote[0] == term
        if self.gave_way_in < term and (candidate > state.node_id or not stands_too):
            self.gave_way_in, self.pre_vote = term, None
            self.put_off(state.timings.election_s_min)

    def on_vote_request(self, candidate: int, request: VoteRequest) -> None:
        """One vote a term, to a candidate whose log is at least as far."""
        state = self._state
        if not self.may_vote():
            state.send(candidate, VoteReply(state.term, granted=False, preliminary=False))
            return
        if request.term > state.term:
            state.step_down(request.term)
        granted = request.term == state.term and state.voted_for in (None, candidate)
        granted = granted and state.role is not Role.LEADER and self.is_up_to_date(request)
        if granted:
            state.set_term(request.term, candidate)  # the vote is on disk before it is given
            self.restart_timer()
        state.send(candidate, VoteReply(state.term, granted, preliminary=False))

    # ---- the timer -----------------------------------------------------------------------------------------

    def restart_timer(self) -> None:
        self._state.election_deadline = self._state.now + self._state.election_timeout_s()

    def put_off(self, seconds: float) -> None:
        state = self._state
        state.election_deadline = max(state.election_deadline, state.now + seconds)

    def heard_leader(self) -> None:
        self.restart_timer()
        self.pre_vote = None
        self._state.leader_heard_at = self._state.now

    def hurry(self) -> None:
        """The connection to the leader broke: PreVote stops the election when only this connection did."""
        state = self._state
        state.leader_heard_at = NEVER
        soon = state.now + state.timings.hurry_s * (0.2 + state.random())
        state.election_deadline = min(state.election_deadline, soon)

    def began_voting(self) -> None:
        """This journal may vote from now on.  All voters begin at the same time: a short random wait keeps
        them from all starting an election at once."""
        state = self._state
        state.election_deadline = state.now + state.timings.election_s_min * state.random()

    def due_at(self) -> float:
        """When the next step is due while no message arrives."""
        state = self._state
        if state.election_deadline < state.now and not state.is_majority_connected:
            return state.now + state.timings.election_s_min  # a new connection wakes the thread before that
        return max(state.election_deadline, self.pre_vote_again_at)
