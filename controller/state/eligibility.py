"""Whether a broker may be in the ISR of a partition: the one rule that all ask (docs/semantics.md M4, R10).

| asks | before | for which reasons |
|---|---|---|
| the partition's leader, by the applied metadata | it proposes a follower, or waits for it | all |
| the active controller | it proposes the change to the quorum | all |
| the metadata log | it applies the change | those that the log has at its level (`Ineligible`) |

Fenced and unknown brokers leave the ISR.  A member that shuts down, or whose replica went offline, is removed
by the controller's own plan; until then it may stay, and only joining is refused.
"""

from __future__ import annotations

import enum

from .model import NO_BROKER_EPOCH, BrokerState


class Eligibility(enum.Enum):
    """Of a broker in one broker epoch."""

    YES = "yes"
    NOT_NOW = "not_now"
    NEVER = "never"


class Ineligible(enum.Enum):
    """Why a broker may not be in an ISR, in the order in which the rule looks: a name; whether the reason can
    end within this broker epoch; whether it keeps only joining brokers out, not members; and the level of the
    metadata from which on the log refuses the change, too.

    The log applies old entries again, so a later reason has a later level, or None: the log never asks.
    """

    def __init__(self, label: str, eligibility: Eligibility, only_joins: bool, level: int | None) -> None:
        self.label, self.eligibility, self.only_joins, self.level = label, eligibility, only_joins, level

    UNREGISTERED = "unregistered", Eligibility.NOT_NOW, False, 1
    FORMER_EPOCH = "former_epoch", Eligibility.NEVER, False, 1
    LATER_EPOCH = "later_epoch", Eligibility.NOT_NOW, False, 1  # its registration is not applied here yet
    SHUTTING_DOWN = "shutting_down", Eligibility.NEVER, True, 1
    FENCED = "fenced", Eligibility.NOT_NOW, False, 1
    OFFLINE = "offline", Eligibility.NOT_NOW, True, None  # a disk may fail at any time


def isr_eligibility(
    broker: BrokerState | None,
    broker_epoch: int,
    *,
    joins: bool = True,
    replica: tuple[bytes, int] | None = None,
    level: int | None = None,
) -> Eligibility:
    """`broker_epoch` is that of the replica's fetches, NO_BROKER_EPOCH where the leader saw none; `joins`:
    the broker is not in the ISR now; `replica`: (topic id, partition), to look at the broker's disks, too;
    `level`: of the metadata (0: none is finalised yet), for the log, which asks only for the reasons that
    this level has."""
    for reason in Ineligible:
        asks = level is None or (reason.level is not None and reason.level <= max(level, 1))
        if asks and (joins or not reason.only_joins) and _applies(reason, broker, broker_epoch, replica):
            return reason.eligibility
    return Eligibility.YES


def _applies(
    reason: Ineligible, broker: BrokerState | None, broker_epoch: int, replica: tuple[bytes, int] | None
) -> bool:
    if broker is None:
        return reason is Ineligible.UNREGISTERED
    match reason:
        case Ineligible.UNREGISTERED:
            return False
        case Ineligible.FORMER_EPOCH:
            return broker_epoch != NO_BROKER_EPOCH and broker_epoch < broker.broker_epoch
        case Ineligible.LATER_EPOCH:
            return broker_epoch > broker.broker_epoch
        case Ineligible.SHUTTING_DOWN:
            return broker.shutting_down
        case Ineligible.FENCED:
            return broker.fenced
        case Ineligible.OFFLINE:
            return replica in broker.offline_replicas
