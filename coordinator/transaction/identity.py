"""Which producer may act for a transactional id (docs/semantics.md, chapter T; KIP-98, KIP-360, KIP-890).

| the request carries | the request is |
|---|---|
| the id and epoch that the client was given last | the current producer's |
| those before, in a repetition of what led to the current ones | answered as the first time |
| any other epoch | a zombie's: PRODUCER_FENCED |
| any other producer id | INVALID_PRODUCER_ID_MAPPING |

A repetition is possible while `last_producer_epoch` has the epoch before.  A new instance (InitProducerId
without an expected identity) clears it, so that nothing of an older instance succeeds any more.
"""

from __future__ import annotations

from ...wire.errors import ErrorCode, KafkaError
from .events import AddPartitions, EndTxn, InitProducerId, PrepareTransaction
from .state import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, TransactionMetadata, is_exhausted

Identity = tuple[int, int]
"""Producer id and epoch."""


def check_identity(
    event: AddPartitions | PrepareTransaction | EndTxn, current: TransactionMetadata | None
) -> None:
    """Raises KafkaError unless the current producer sent the request.  Without an entry it raises nothing:
    the table of states rejects the request."""
    if not event.transactional_id:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "the transactional id is empty")
    if current is None:
        return
    held, present = (event.producer_id, event.producer_epoch), current.client_identity
    if held == present:
        return
    if event.producer_id not in (present[0], current.producer_id):
        message = (
            f"{event.transactional_id}: producer id {event.producer_id} is not its producer id {present[0]}"
        )
        raise KafkaError(ErrorCode.INVALID_PRODUCER_ID_MAPPING, message)
    raise fenced(held, current)


def fenced(held: Identity, current: TransactionMetadata) -> KafkaError:
    present = current.client_identity
    held_by, now_by = f"producer {held[0]} epoch {held[1]}", f"producer {present[0]} epoch {present[1]}"
    message = f"{current.transactional_id}: {held_by} was replaced by {now_by}"
    return KafkaError(ErrorCode.PRODUCER_FENCED, message)


def expected_identity(event: InitProducerId) -> Identity | None:
    """None: a new instance asks."""
    expected = event.producer_id, event.producer_epoch
    return None if expected == (NO_PRODUCER_ID, NO_PRODUCER_EPOCH) else expected


def repeats_init(expected: Identity, current: TransactionMetadata) -> bool:
    """Whether the last request of this producer led to the current identity.  Epochs of one id only grow, so
    a last epoch that is not below the current one belongs to the previous id."""
    producer_id, producer_epoch = expected
    if producer_epoch == NO_PRODUCER_EPOCH or producer_epoch != current.last_producer_epoch:
        return False
    rotated = current.producer_epoch <= producer_epoch
    return producer_id == (current.previous_producer_id if rotated else current.producer_id)


def repeats_end(event: EndTxn, current: TransactionMetadata, max_producer_epoch: int) -> bool:
    """TV2: whether the request carries the epoch with which the last transaction ended (rule T13)."""
    if event.transaction_version < 2 or not (current.state.is_decided or current.state.is_complete):
        return False
    if event.producer_epoch == NO_PRODUCER_EPOCH or event.producer_epoch != current.last_producer_epoch:
        return False
    producer_id, producer_epoch = current.client_identity
    bumped = (event.producer_id, event.producer_epoch + 1) in (
        (producer_id, producer_epoch),
        (current.producer_id, current.producer_epoch),  # at the last epoch: the client has the next id
    )
    rotated = (
        event.producer_id == current.previous_producer_id
        and producer_epoch == 0
        and is_exhausted(event.producer_epoch, max_producer_epoch)
    )
    return bumped or rotated
