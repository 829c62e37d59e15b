"""Spark's writes under fire: `make exactly-once` (docs/semantics.md X9).

A batch job with speculative execution, and a stream that aggregates, write while something is killed or lost
at each step of the commit; then what a reader of committed records has seen is compared with the input's
answer.  The same faults, where Spark's Kafka connector can meet them, through its sink: it shows duplicates,
or the faults are none.

`steps.py`          the table of steps
`faulty_source.py`  the product's source, with a fault at a step
`spark_child.py`    a process with one Spark session, which runs what it is given
`spark_process.py`  starts and kills it
`watcher.py`        the reader of committed records
`cuts_taken.py`     cuts of the output while Spark writes, read afterwards
`harness.py`        one run, and its verdict
"""
