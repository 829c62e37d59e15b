"""Records of two topics in one transaction, with Tidegate's client:  python transaction_tidegate.py
BOOTSTRAP"""

import sys

from tidegate.client.blocking import Producer


def main(bootstrap: str) -> None:
    with Producer(bootstrap, transactional_id="transfer-2") as producer:
        for number in range(3):
            try:
                with producer.transaction():  # begin(); then commit(), or abort() when the body raises
                    producer.send("debits", "-5", key=f"alice-{number}")
                    producer.send("credits", "5", key=f"bob-{number}")
                    if number == 1:
                        raise ValueError("changed my mind")
            except ValueError as error:
                print(f"transaction {number} was aborted: {error}")


if __name__ == "__main__":
    main(sys.argv[1])
