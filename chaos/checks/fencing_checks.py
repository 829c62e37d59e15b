"""Checks on fencing: once a newer producer of a transactional id is initialised, an older one cannot end a
transaction.

A process is one producer.  Its transaction is a zombie's when another process initialised the same
transactional id after this one did, and had its answer before this one sent its commit (or, when that time
was not recorded, before the transaction began).  The coordinator must reject such a commit; if it was
acknowledged, two producers own one id, and exactly-once is broken.

The same holds for producer ids and epochs: no initialisation returns an identity that another process already
got.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from .anomaly import Anomaly, AnomalyKind, about
from .evidence import Evidence
from .history import Init, Op, OpOutcome


@dataclass(frozen=True, slots=True)
class _Initialisation:
    op: Op
    identity: Init


def zombies(evidence: Evidence) -> Iterator[Anomaly]:
    initialisations = _initialisations(evidence)
    for op in evidence.history:
        if op.transactional_id is None or op.outcome is not OpOutcome.OK or not _has_effect(op):
            continue
        ended = op.invoked if op.ending is None else op.ending
        known = [init for init in initialisations[op.transactional_id] if init.op.completed < ended]
        own = [init.op.completed for init in known if init.op.process == op.process]
        if not own:
            continue
        newer = [init for init in known if init.op.process != op.process and init.op.invoked > max(own)]
        if newer:
            message = (
                f"{op} was acknowledged after {newer[0].op.process} had initialised "
                f"{op.transactional_id} anew"
            )
            yield about(AnomalyKind.ZOMBIE_ACKNOWLEDGED, message, newer[0].op, op)


def identities(evidence: Evidence) -> Iterator[Anomaly]:
    owners: dict[Init, _Initialisation] = {}
    for transactional_id, initialisations in _initialisations(evidence).items():
        for initialisation in initialisations:
            other = owners.setdefault(initialisation.identity, initialisation)
            if other.op.process != initialisation.op.process:
                identity = initialisation.identity
                message = (
                    f"producer id {identity.producer_id} epoch {identity.epoch} of "
                    f"{transactional_id} was given to "
                    f"{other.op.process} and to {initialisation.op.process}"
                )
                yield about(AnomalyKind.ZOMBIE_ACKNOWLEDGED, message, other.op, initialisation.op)


def _initialisations(evidence: Evidence) -> defaultdict[str, list[_Initialisation]]:
    found: defaultdict[str, list[_Initialisation]] = defaultdict(list)
    for op in evidence.history:
        if op.transactional_id is not None and op.outcome is OpOutcome.OK:
            for step in op.steps:
                if isinstance(step, Init):
                    found[op.transactional_id].append(_Initialisation(op, step))
    return found


def _has_effect(op: Op) -> bool:
    """An empty transaction ends in the client: no coordinator was asked, so none acknowledged it."""
    return any(True for _ in op.sends) or any(True for _ in op.commits)
