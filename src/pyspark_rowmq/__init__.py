"""Where Spark finds the format "rowmq" by itself: it looks for packages called `pyspark_*`, and
takes the `DefaultSource` of each. What that is stands in `rowmq.spark`.
"""

import contextlib

__all__ = ["DefaultSource"]

# Spark imports this for every format that it does not know: where the extra is missing, it is
# passed over, and whatever else was looked for is still found.
with contextlib.suppress(ImportError):
    from rowmq.spark.datasource import RowMQDataSource as DefaultSource
