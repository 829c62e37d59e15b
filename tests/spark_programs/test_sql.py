"""Topics in Spark's SQL: a temporary view is read by SELECT, and one with the columns of the sink is written
by INSERT INTO."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType
from tidegate.client import LocalCluster, NewTopic
from tidegate.client.blocking import Admin, Producer
from tidegate.spark.session import local_session, stop_session
from tidegate.tests.started import started

pytestmark = [
    pytest.mark.spark,
    pytest.mark.cluster,
    pytest.mark.xdist_group("spark"),
    pytest.mark.timeout(600),
]


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    session = local_session("tidegate-sql")
    yield session
    stop_session(session)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    settings = {"transaction.state.log.num.partitions": 2}
    cluster = LocalCluster(tmp_path_factory.mktemp("node"), 1, settings)
    with started(cluster):
        with Admin(cluster.bootstrap) as admin:
            admin.create_topics([NewTopic("flights", 2, 1), NewTopic("copies", 2, 1)])
        with Producer(cluster.bootstrap, transactional_id="writer") as producer:
            with producer.transaction():
                for number in range(20):
                    producer.send("flights", b"%d" % number, key=b"k%d" % (number % 3))
            producer.begin()
            producer.send("flights", b"aborted")
            producer.abort()
        yield cluster


def test_select_reads_a_topic_as_a_view(spark: SparkSession, node: LocalCluster) -> None:
    where = f"bootstrap '{node.bootstrap}', subscribe 'flights'"
    view = f"CREATE OR REPLACE TEMPORARY VIEW flights USING tidegate OPTIONS ({where})"
    spark.sql(view)
    assert spark.table("flights").columns[:3] == ["key", "value", "topic"]
    rows = spark.sql("SELECT CAST(value AS STRING) AS v FROM flights WHERE CAST(key AS STRING) = 'k1'")
    assert sorted(int(row.v) for row in rows.collect()) == list(range(1, 20, 3))
    # A view is a DataFrame: its first use fixes what is latest.
    with Producer(node.bootstrap) as producer:
        producer.send_and_wait("flights", b"20", key=b"new")
    count = "SELECT count(*) AS rows FROM flights"
    assert [row.rows for row in spark.sql(count).collect()] == [20]
    spark.sql(view)
    assert [row.rows for row in spark.sql(count).collect()] == [21]


def test_insert_into_a_view_writes_its_topic(spark: SparkSession, node: LocalCluster) -> None:
    where = f"bootstrap '{node.bootstrap}'"
    columns = "(key STRING, value STRING)"
    spark.sql(f"CREATE TEMPORARY VIEW sink {columns} USING tidegate OPTIONS ({where}, topic 'copies')")
    spark.sql("INSERT INTO sink VALUES ('a', '1'), (NULL, '2')")
    spark.sql("INSERT INTO sink SELECT 'b', '3'")
    spark.sql(f"CREATE TEMPORARY VIEW copies USING tidegate OPTIONS ({where}, subscribe 'copies')")
    found = spark.sql("SELECT CAST(key AS STRING), CAST(value AS STRING) FROM copies ORDER BY 2").collect()
    assert [tuple(row) for row in found] == [("a", "1"), (None, "2"), ("b", "3")]


def test_a_view_with_a_wrong_option_is_refused_by_name(spark: SparkSession) -> None:
    with pytest.raises(PySparkException, match="did you mean 'subscribe'"):
        spark.sql(
            "CREATE TEMPORARY VIEW wrong USING tidegate OPTIONS (bootstrap 'a:1', subscribes 'flights')"
        )


def test_a_table_of_the_catalog_is_refused_at_once(spark: SparkSession) -> None:
    with pytest.raises(PySparkException, match="write CREATE TEMPORARY VIEW name USING tidegate"):
        spark.sql("CREATE TABLE flights USING tidegate OPTIONS (bootstrap 'a:1', subscribe 'flights')")
    with pytest.raises(PySparkException, match="write CREATE TEMPORARY VIEW name USING tidegate"):
        spark.catalog.createTable("flights", source="tidegate", bootstrap="a:1", subscribe="flights")


def test_a_table_that_spark_makes_without_asking_is_refused_when_it_is_used(spark: SparkSession) -> None:
    """With columns, Spark needs no source to make it."""
    spark.sql("CREATE TABLE made (value STRING) USING tidegate OPTIONS (bootstrap 'a:1', topic 'copies')")
    try:
        for statement in ("SELECT * FROM made", "INSERT INTO made VALUES ('1')"):
            with pytest.raises(PySparkException, match="write CREATE TEMPORARY VIEW name USING tidegate"):
                spark.sql(statement).collect()
    finally:
        spark.sql("DROP TABLE made")


def test_spark_gives_the_options_of_a_table_to_no_python_source(spark: SparkSession) -> None:
    """When this fails, Spark has learned to: then CREATE TABLE need not be refused."""

    class OptionsGiven(DataSource):  # in here, Spark sends it to its workers by value
        """One row: the options that it has."""

        @classmethod
        def name(cls) -> str:
            return "options_given"

        def schema(self) -> str:
            return "options string"

        def reader(self, schema: StructType) -> DataSourceReader:
            given = str(dict(self.options))

            class Reader(DataSourceReader):
                def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
                    return iter([(given,)])

            return Reader()

    spark.dataSource.register(OptionsGiven)
    spark.sql("CREATE TABLE given USING options_given OPTIONS (bootstrap 'a:1')")
    try:
        (row,) = spark.sql("SELECT options FROM given").collect()
        assert row.options == "{}"
    finally:
        spark.sql("DROP TABLE given")
