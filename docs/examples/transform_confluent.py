"""Consume, transform, produce, each record exactly once, with confluent-kafka:  python transform_confluent.py
BOOTSTRAP COUNT"""

import sys

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition


def main(bootstrap: str, count: int) -> None:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "doubler-confluent",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
    )
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": "doubler-confluent-1"})
    producer.init_transactions()
    consumer.subscribe(["numbers"])
    done = 0
    while done < count:
        records = consumer.consume(100, timeout=1.0)
        if not records:
            continue
        producer.begin_transaction()
        try:
            for record in records:
                producer.produce("doubled-confluent", key=record.key(), value=str(2 * int(record.value())))
            # The offsets become part of the transaction: they count when the records do.
            positions = consumer.position(consumer.assignment())
            producer.send_offsets_to_transaction(positions, consumer.consumer_group_metadata())
            producer.commit_transaction()
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
            producer.abort_transaction()
            for record in reversed(records):  # what was read for nothing is read again
                consumer.seek(TopicPartition(record.topic(), record.partition(), record.offset()))
        else:
            done += len(records)
    consumer.close()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
