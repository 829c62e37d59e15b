"""Records of two topics in one transaction, with confluent-kafka:  python transaction_confluent.py
BOOTSTRAP"""

import sys

from confluent_kafka import KafkaException, Producer


def main(bootstrap: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": "transfer-1"})
    # fences every older producer of this name, and waits for what it left undecided
    producer.init_transactions()
    for number in range(3):
        producer.begin_transaction()
        try:
            producer.produce("debits", key=f"alice-{number}", value="-5")
            producer.produce("credits", key=f"bob-{number}", value="5")
            if number == 1:
                raise ValueError("changed my mind")
            producer.commit_transaction()
        except (KafkaException, ValueError) as error:
            if isinstance(error, KafkaException) and not error.args[0].txn_requires_abort():
                raise  # fenced, or broken for good: another producer has taken over
            producer.abort_transaction()  # neither record will be seen by readers of committed data
            print(f"transaction {number} was aborted: {error}")


if __name__ == "__main__":
    main(sys.argv[1])
