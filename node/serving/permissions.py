"""Whether the client of a request may do what the request asks: the rights of `security/request_rights.py`,
decided by the cluster's ACLs as of now.

Without an authorizer (`authorizer.class.name` is empty) everything is allowed to clients.

What only nodes ask (followers' fetches, markers, verifications) is answered on the brokers' listener alone
when that has certificates, with or without an authorizer: a node is what its certificate says, and speaks for
no other node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ...security.acls import CLUSTER_NAME, Acl, AclOperation, ResourceType
from ...security.authorizer import Authorizer, Decisions
from ...security.principals import Principal
from ...security.records import SecurityRecords
from ...security.request_rights import RIGHTS, Right
from ...wire.errors import ErrorCode, KafkaError
from .requests import RequestContext

OnRefused = Callable[[RequestContext, AclOperation, ResourceType, str], None]


class Permissions:
    """See the module's text.  Used on the node's loop."""

    def __init__(
        self,
        records: Callable[[], SecurityRecords],
        *,
        is_enabled: bool,
        nodes_have_certificates: bool = False,
        super_users: frozenset[Principal] = frozenset(),
        allow_if_no_acl: bool = False,
        on_refused: OnRefused = lambda *_: None,
    ) -> None:
        """`records`: the cluster's, as of now."""
        self.is_enabled = is_enabled
        self._nodes_have_certificates = nodes_have_certificates
        self._records = records
        self._on_refused = on_refused
        self._acls: frozenset[Acl] = frozenset()
        self._authorizer = Authorizer(super_users=super_users, allow_if_no_acl=allow_if_no_acl)

    def allows(self, context: RequestContext, subject: str, name: str = CLUSTER_NAME) -> bool:
        """Whether the client may do to this what its request does to a subject of that kind."""
        return not self.is_enabled or self.refusal(context, subject, name) is ErrorCode.NONE

    def speaks_for(self, context: RequestContext, node_id: int) -> bool:
        """Whether what comes on this connection may be of that node."""
        return not self._nodes_have_certificates or node_id in context.nodes

    def allows_follower(self, context: RequestContext, node_id: int) -> bool:
        """Whether this is the follower on that node, as far as can be known."""
        if not self._nodes_have_certificates:
            return self.allows(context, "follower")
        if node_id in context.nodes:
            return True
        self._on_refused(context, AclOperation.CLUSTER_ACTION, ResourceType.CLUSTER, CLUSTER_NAME)
        return False

    def allows_node(self, context: RequestContext, subject: str) -> bool:
        """Whether the client is a node, or may act like one (CLUSTER_ACTION)."""
        if not self._nodes_have_certificates:
            return self.allows(context, subject)
        return bool(context.nodes) or (self.is_enabled and self.allows(context, subject))

    def may_act_as_node(self, context: RequestContext) -> bool:
        """Whether the client is a node, or may act like one.  Nothing is refused by this."""
        return bool(context.nodes) or (
            not self._nodes_have_certificates
            and self.may(context, AclOperation.CLUSTER_ACTION, ResourceType.CLUSTER, CLUSTER_NAME)
        )

    def refusal(self, context: RequestContext, subject: str, name: str = CLUSTER_NAME) -> ErrorCode:
        """NONE when the client may, else the error that says so."""
        if not self.is_enabled:
            return ErrorCode.NONE
        right = RIGHTS[context.api_key][subject]
        if self._decides(context, right, name):
            return ErrorCode.NONE
        if not right.hidden:
            self._on_refused(context, right.operation, right.resource_type, name)
        return right.error

    def asker(self, context: RequestContext, subject: str) -> Callable[[str], bool]:
        """`allows` for the many names of one request.  It holds as of each call, also after a wait in which
        ACLs have changed."""
        if not self.is_enabled:
            return lambda _name: True
        right, records = RIGHTS[context.api_key][subject], self._records
        decisions, acls = self._decisions(context, right), self._acls

        def allows(name: str) -> bool:
            nonlocal decisions, acls
            if records().acls is not acls:
                decisions, acls = self._decisions(context, right), self._acls
            if decisions[name]:
                return True
            self._on_refused(context, right.operation, right.resource_type, name)
            return False

        return allows

    def require(self, context: RequestContext, subject: str, name: str = CLUSTER_NAME) -> None:
        """Raises KafkaError when the client may not."""
        error = self.refusal(context, subject, name)
        if error is not ErrorCode.NONE:
            raise KafkaError(error, f"{context.principal} may not do this to {subject} {name}")

    def allowed(self, context: RequestContext, subject: str, names: Iterable[str]) -> list[str]:
        """Those of the names that the client may do it to, in their order."""
        if not self.is_enabled:
            return list(names)
        decisions = self._decisions(context, RIGHTS[context.api_key][subject])
        return [name for name in names if decisions[name]]

    def allows_some(self, context: RequestContext, subject: str) -> bool:
        """Whether there is a resource to which the client may do it (KIP-679)."""
        if not self.is_enabled:
            return True
        right = RIGHTS[context.api_key][subject]
        return self._current().allows_some(
            context.principal, context.client_host, right.operation, right.resource_type
        )

    def may(
        self, context: RequestContext, operation: AclOperation, resource_type: ResourceType, name: str
    ) -> bool:
        """For the fields of responses that list what a client may do."""
        return not self.is_enabled or self._decides(context, Right(operation, resource_type), name)

    def permits(self, principal: Principal, host: str, right: Right, name: str) -> bool:
        """For a call over gRPC."""
        return not self.is_enabled or self._current().allows(
            principal, host, right.operation, right.resource_type, name
        )

    def _decides(self, context: RequestContext, right: Right, name: str) -> bool:
        return self._decisions(context, right)[name]

    def _decisions(self, context: RequestContext, right: Right) -> Decisions:
        return self._current().decisions(
            context.principal, context.client_host, right.operation, right.resource_type
        )

    def _current(self) -> Authorizer:
        """The authorizer, with every ACL that the metadata have now."""
        acls = self._records().acls
        if acls is not self._acls:
            for acl in self._acls - acls:
                self._authorizer.remove(acl)
            for acl in acls - self._acls:
                self._authorizer.add(acl)
            self._acls = acls
        return self._authorizer
