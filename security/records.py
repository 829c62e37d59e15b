"""What the cluster keeps for its security: ACLs, SCRAM credentials, delegation tokens and client quotas.

Values: a change makes another `SecurityRecords`, and the former one stays what it was.  They come from the
metadata log (`controller/state/security_commands.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from .acls import Acl
from .delegation_tokens import DelegationToken
from .quotas import QuotaEntity, QuotaKind
from .scram import ScramCredential, ScramMechanism


@dataclass(frozen=True, slots=True)
class SecurityRecords:
    """See the module's text."""

    acls: frozenset[Acl] = frozenset()
    scram: Mapping[tuple[str, ScramMechanism], ScramCredential] = field(default_factory=dict)
    """By user name and mechanism."""
    tokens: Mapping[str, DelegationToken] = field(default_factory=dict)
    """By token id."""
    quotas: Mapping[tuple[QuotaEntity, QuotaKind], float] = field(default_factory=dict)
