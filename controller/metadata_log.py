"""The metadata log as the rest of the node sees it: propose a command, learn what it did; read the state it leads to.

(The signatures stand; the quorum underneath follows.)
"""

from __future__ import annotations

from ..wire.errors import ErrorCode, KafkaError
from .model import ApplyResult


class NotController(KafkaError):
    """This node is not the active controller; nothing was proposed.  `leader_id` is whom to ask, -1 when unknown."""

    def __init__(self, leader_id: int = -1) -> None:
        super().__init__(ErrorCode.NOT_CONTROLLER, f"the active controller is {'not known' if leader_id < 0 else leader_id}")
        self.leader_id = leader_id


class ProposalUnknown(KafkaError):
    """Proposed, but whether it was or will be committed is not known."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.REQUEST_TIMED_OUT, message)


class MetadataLog:
    async def propose(self, command: bytes, timeout_s: float = 10.0) -> ApplyResult:
        raise NotImplementedError
