"""The data source `rowmq`: what Spark is told of, and where its calls go."""

from collections.abc import MutableMapping

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from rowmq.spark.columns import chosen_columns
from rowmq.spark.jobs import JobsReader, columns_of
from rowmq.spark.options import (
    JOBS,
    READING,
    TOPICS,
    Given,
    jobs_options,
    topics_options,
    truth,
)
from rowmq.spark.source.batch import TopicsReader
from rowmq.spark.source.reading import COLUMNS, EXTRA
from rowmq.spark.source.stream import TopicsStream

__all__ = ["RowMQDataSource"]


class RowMQDataSource(DataSource):
    """Topics, queues and archives as DataFrames, and DataFrames as messages and jobs."""

    options: MutableMapping[str, str]

    @classmethod
    def name(cls) -> str:
        return "rowmq"

    @property
    def given(self) -> Given:
        return Given(self.options)

    def schema(self) -> StructType:
        given = self.given
        given.refuse_unknown(READING)
        given.refuse_together((*TOPICS, *JOBS))
        known = columns_of(given.named(JOBS)[0]) if given.named(JOBS) else COLUMNS
        if given.parse("includeHeaders", truth, True):
            return known
        return StructType([field for field in known if field.name != "headers"])

    def reader(self, schema: StructType) -> DataSourceReader:
        if self.given.named(JOBS):
            chosen = jobs_options(self.given)
            return JobsReader(chosen, chosen_columns(schema, [columns_of(chosen.what)]))
        options = topics_options(self.given, stream=False)
        return TopicsReader(options, chosen_columns(schema, [COLUMNS, EXTRA]))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's
        options = topics_options(self.given, stream=True)
        return TopicsStream(options, chosen_columns(schema, [COLUMNS, EXTRA]))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from rowmq.spark.sink import batch_writer  # noqa: PLC0415 - readers need none of it

        return batch_writer(self.given, schema, overwrite=overwrite)

    def streamWriter(  # noqa: N802 - Spark's name
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamWriter:
        from rowmq.spark.sink import stream_writer  # noqa: PLC0415 - readers need none of it

        return stream_writer(self.given, schema, overwrite=overwrite)
