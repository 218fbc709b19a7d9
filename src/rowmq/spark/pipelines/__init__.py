"""Ready pipelines over topics and queues: archive, report, replay, transform."""

from rowmq.spark.pipelines.archive import ArchiveProgress, ArchiveResult, archive
from rowmq.spark.pipelines.report import Report, report

__all__ = ["ArchiveProgress", "ArchiveResult", "Report", "archive", "report"]
