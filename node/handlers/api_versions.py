"""ApiVersions (18): which requests this node serves, and the cluster's finalised features (SEMANTICS 3.3 31).

Clients gate transactions v2 on the finalised level of `transaction.version`, so the level comes from the metadata log, never
from what this node's code could do.
"""

from __future__ import annotations

from typing import Any

from ...wire import api
from ..broker import Broker
from ..requests import Fields, RequestContext


async def handle(broker: Broker, context: RequestContext, request: Any) -> Fields:
    state = broker.state
    return {
        "error_code": 0,
        "api_keys": [
            {"api_key": key, "min_version": low, "max_version": high} for key, low, high in api.advertised(broker.handled_keys)
        ],
        "throttle_time": 0,
        "supported_features": [
            {"name": name, "min_version": 0, "max_version": level} for name, level in broker.supported_features.items()
        ],
        "finalized_features_epoch": broker.metadata_index,
        "finalized_features": [
            {"name": name, "max_version_level": level, "min_version_level": level} for name, level in state.features.items()
        ],
        "zk_migration_ready": False,
    }
