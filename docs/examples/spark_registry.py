"""Values with the framing of a schema registry (a zero byte, the schema's id in four bytes, the payload) as
JSON that Spark can take apart; Avro, JSON Schema and Protobuf:

    python spark_registry.py BOOTSTRAP TOPIC REGISTRY

Avro needs `pip install fastavro`.  Each task asks the registry once for each schema that it meets.
"""

import base64
import io
import json
import sys
from collections.abc import Callable, Iterator
from urllib.request import urlopen

import pandas as pd
from pyspark.sql import functions as F
from tidegate.spark import local_session

Decode = Callable[[bytes], str]


def decoder(registry: str, schema_id: int) -> Decode:
    """From the payload of a value to JSON."""

    def ask(query: str = "") -> dict[str, str]:
        try:
            with urlopen(f"{registry}/schemas/ids/{schema_id}{query}", timeout=10) as answer:
                return json.load(answer)
        except OSError as error:
            raise ValueError(f"schema {schema_id} of {registry}: {error}") from None

    said = ask()
    match said.get("schemaType", "AVRO"):  # a registry leaves the type out where it is Avro
        case "AVRO":
            import fastavro

            schema = fastavro.parse_schema(json.loads(said["schema"]))
            return lambda data: json.dumps(fastavro.schemaless_reader(io.BytesIO(data), schema), default=str)
        case "JSON":
            return bytes.decode
        case "PROTOBUF":
            return protobuf_decoder(base64.b64decode(ask("?format=serialized")["schema"]))
        case other:
            raise ValueError(f"schema {schema_id} is of the unknown type {other}")


def protobuf_decoder(file: bytes) -> Decode:
    """Of the messages of one file, which imports no other.  The payload begins with the path to its message:
    how many steps, and the number of each, all as zigzag varints; 0 stands for the first message."""
    from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory

    declared = descriptor_pb2.FileDescriptorProto.FromString(file)
    found = descriptor_pool.DescriptorPool().AddSerializedFile(file)

    def decode(data: bytes) -> str:
        steps, data = varint(data)
        path = [0]
        if steps:
            path = []
            for _ in range(steps):
                step, data = varint(data)
                path.append(step)
        message = found.message_types_by_name[declared.message_type[path[0]].name]
        for step in path[1:]:
            message = message.nested_types[step]
        read = message_factory.GetMessageClass(message).FromString(data)
        return json_format.MessageToJson(read, preserving_proto_field_name=True, indent=None)

    return decode


def varint(data: bytes) -> tuple[int, bytes]:
    """A zigzag varint, and what follows it."""
    number = 0
    for place, byte in enumerate(data):
        number |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), data[place + 1 :]
    raise ValueError("the message's path is cut off")


def as_json(registry: str) -> Callable[..., object]:
    """A function for the columns `value`, `partition` and `offset`."""

    def decode_all(parts: Iterator[tuple[pd.Series, ...]]) -> Iterator[pd.Series]:
        decoders: dict[int, Decode] = {}

        def decode(value: bytes | None, partition: int, offset: int) -> str | None:
            if value is None:
                return None
            if len(value) < 5 or value[0] != 0:
                raise ValueError(f"the value at offset {offset} of partition {partition} has no framing")
            schema_id = int.from_bytes(value[1:5], "big")
            if schema_id not in decoders:
                decoders[schema_id] = decoder(registry, schema_id)
            return decoders[schema_id](value[5:])

        for values, partitions, offsets in parts:
            yield pd.Series(
                [decode(*row) for row in zip(values, partitions, offsets, strict=True)], dtype=object
            )

    return F.pandas_udf(decode_all, "string")


def main(bootstrap: str, topic: str, registry: str) -> None:
    spark = local_session("registry")
    records = (
        spark.read.format("tidegate")
        .option("bootstrap", bootstrap)
        .option("subscribe", topic)
        .schema("value binary, partition int, offset long")
        .load()
    )
    # Protobuf's JSON has integers of 64 bits as text, the others have them as numbers.
    payments = records.withColumn("json", as_json(registry)("value", "partition", "offset")).select(
        "partition", "offset", F.from_json("json", "account string, amount string").alias("payment")
    )
    for row in (
        payments.orderBy("partition", "offset")
        .selectExpr("payment.account", "cast(payment.amount as long) as amount")
        .collect()
    ):
        print(row.account, row.amount)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
