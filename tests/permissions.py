"""The permissions of a broker without an authorizer: every client may do everything."""

from tidegate.node.serving.permissions import Permissions
from tidegate.security.records import SecurityRecords

ALL_ALLOWED = Permissions(SecurityRecords, is_enabled=False)
