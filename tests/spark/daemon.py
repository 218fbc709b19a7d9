"""What Spark forks its Python processes from: they find everything imported.

Each call of Spark's into a data source is a process of its own, which would spend a second on that.
"""

import pyspark.daemon

import rowmq.spark.datasource
import rowmq.spark.pipelines  # noqa: F401 - see above

if __name__ == "__main__":
    pyspark.daemon.manager()
