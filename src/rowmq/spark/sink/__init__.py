"""The sink: DataFrames as messages and as jobs, exactly once.

Each task writes its rows into a stage; the driver publishes the stages of all tasks in one
transaction, together with a note in the ledger of which batch of which query they were. A batch
that Spark runs again finds that note.

    options.py   what is asked for
    shape.py     which columns there are, by name and type
    rows.py      Arrow batches, checked and encoded as they are staged
    loading.py   how a stage gets into each database
    writers.py   what Spark calls: write in the tasks, commit and abort at the driver
"""

from rowmq.spark.sink.writers import batch_writer, stream_writer

__all__ = ["batch_writer", "stream_writer"]
