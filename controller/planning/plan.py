"""Plans: the operations that one request, heartbeat or tick leads to, on their way into the metadata log."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from ...proto import controller_pb2 as rpc
from ...proto import metadata_pb2 as pb


@dataclass(slots=True)
class Plan:
    """Operations in order; `commands()` splits them into log entries.  Later entries rely on earlier ones.

    The last entry carries the id of the client's request (empty without one): the request counts as done only
    when the whole plan is applied.  So a plan with a request id has an entry even without operations: a late
    copy of the request must not be carried out after another client has changed something."""

    operations: list[pb.Operation] = field(default_factory=list)
    reason: str = ""
    request_id: rpc.RequestId = field(default_factory=rpc.RequestId)

    def commands(self, controller_epoch: int, bytes_max: int = 400_000) -> Iterator[pb.Command]:
        command, size = pb.Command(controller_epoch=controller_epoch), 0
        for operation in self.operations:
            operation_bytes = operation.ByteSize()
            if size and size + operation_bytes > bytes_max:
                yield command
                command, size = pb.Command(controller_epoch=controller_epoch), 0
            command.operations.append(operation)
            size += operation_bytes
        if size or self.request_id.client_id:
            command.proposer, command.sequence = self.request_id.client_id, self.request_id.sequence
            yield command
