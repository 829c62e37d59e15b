"""Whether a broker may be in the ISR of a partition: the one rule that all ask (docs/semantics.md M4, R10).

| asks | before | with the replica's disk |
|---|---|---|
| the partition's leader, by the applied metadata | it proposes a follower, or waits for it | yes |
| the active controller | it proposes the change to the quorum | yes |
| the metadata log | it applies the change | no: a disk may fail at any time |

Fenced and unknown brokers leave the ISR.  A member that shuts down, or whose replica went offline, is removed
by the controller's own plan; until then it may stay, and only joining is refused.
"""

from __future__ import annotations

import enum

from .model import NO_BROKER_EPOCH, BrokerState


class Eligibility(enum.Enum):
    """Of a broker in one broker epoch."""

    YES = "yes"
    # the broker is fenced, or its replica is offline, or its registration is not applied here yet
    NOT_NOW = "not_now"
    NEVER = "never"  # the broker has a newer epoch, or shuts down in this one


def isr_eligibility(
    broker: BrokerState | None,
    broker_epoch: int,
    *,
    joins: bool = True,
    replica: tuple[bytes, int] | None = None,
) -> Eligibility:
    """`broker_epoch` is that of the replica's fetches, NO_BROKER_EPOCH where the leader saw none; `joins`:
    the broker is not in the ISR now; `replica`: (topic id, partition), to look at the broker's disks, too."""
    if broker is None:
        return Eligibility.NOT_NOW
    if broker_epoch not in (NO_BROKER_EPOCH, broker.broker_epoch):
        return Eligibility.NEVER if broker_epoch < broker.broker_epoch else Eligibility.NOT_NOW
    if joins and broker.shutting_down:
        return Eligibility.NEVER
    is_offline = joins and replica in broker.offline_replicas
    return Eligibility.NOT_NOW if broker.fenced or is_offline else Eligibility.YES
