"""ApiVersions (18): which requests this node serves, and the cluster's finalised features (docs/semantics.md
T27).

Clients gate transactions v2 on the finalised level of `transaction.version`, so the level comes from the
metadata log, never from what this node's code could do.

Client metrics (71, 72) are announced while the cluster has a subscription to them, and with
`client.metrics.always.announced`; Kafka goes by whether a plugin takes them.  They are served all the same.

Up to version 3 a feature whose lowest supported level is 0 must not be listed as supported: Java clients
before 3.9 cannot read the answer then and fail to connect (KAFKA-17011, KAFKA-17492).  Version 4 lists all of
them.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, cast

from ....controller.state.features import shown, shown_ranges
from ....wire.errors import ErrorCode
from ...lifecycle import probing
from ...serving.broker import Broker
from ...serving.requests import Fields, RequestContext

if TYPE_CHECKING:
    from ....wire.request_types import ApiVersionsRequest, ApiVersionsRequestV4

_SOFTWARE_LENGTH_MAX = 256  # as much as is remembered of a connection
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")  # KIP-511


async def handle(broker: Broker, context: RequestContext, request: ApiVersionsRequest) -> Fields:
    version = context.api_version
    question = probing.parse(context.client_id)
    if question is not None and not (
        broker.permissions.speaks_for(context, question.asker[0]) and broker.probing.accept_question(question)
    ):
        return {"error_code": ErrorCode.STALE_BROKER_EPOCH, "api_keys": [], "throttle_time": 0}
    if version >= 3:
        named = cast("ApiVersionsRequestV4", request)
        software_name, software_version = named.client_software_name, named.client_software_version
        if not (_SOFTWARE.fullmatch(software_name) and _SOFTWARE.fullmatch(software_version)):
            return {"error_code": ErrorCode.INVALID_REQUEST, "api_keys": [], "throttle_time": 0}
        context.client.software_name = software_name[:_SOFTWARE_LENGTH_MAX]
        context.client.software_version = software_version[:_SOFTWARE_LENGTH_MAX]
    return {
        "error_code": ErrorCode.NONE,
        "api_keys": [
            {"api_key": key, "min_version": low, "max_version": high}
            for key, low, high in broker.announced_versions
        ],
        "throttle_time": 0,
        "supported_features": [
            {"name": name, "min_version": low, "max_version": high}
            for name, (low, high) in shown_ranges().items()
            if low > 0 or version >= 4
        ],
        "finalized_features_epoch": broker.cluster.metadata_index,
        "finalized_features": [
            {"name": name, "max_version_level": level, "min_version_level": level}
            for name, level in shown(broker.state.features).items()
            if level > 0
        ],
        "zk_migration_ready": False,
    }
