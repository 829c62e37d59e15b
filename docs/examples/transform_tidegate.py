"""Consume, transform, produce, each record exactly once, with Tidegate's client:  python
transform_tidegate.py BOOTSTRAP COUNT"""

import sys

from tidegate.client import AbortableError
from tidegate.client.blocking import Consumer, Producer


def main(bootstrap: str, count: int) -> None:
    producer = Producer(bootstrap, transactional_id="doubler-tidegate-1")
    consumer = Consumer(
        bootstrap, group_id="doubler-tidegate", auto_commit=False, auto_offset_reset="earliest"
    )
    with producer, consumer:
        consumer.subscribe(["numbers"])
        done = 0
        while done < count:
            records = consumer.poll(100)
            if not records:
                continue
            try:
                with producer.transaction():
                    for record in records:
                        producer.send("doubled-tidegate", str(2 * int(record.value or b"0")), key=record.key)
                    # The offsets become part of the transaction: they count when the records do.
                    producer.send_offsets_to_transaction(consumer.positions(), consumer.group_metadata())
            except AbortableError:
                for record in reversed(records):  # what was read for nothing is read again
                    consumer.seek((record.topic, record.partition), record.offset)
            else:
                done += len(records)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
