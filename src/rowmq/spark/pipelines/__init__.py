"""Ready pipelines over topics and queues: archive, report, replay, transform."""

from rowmq.spark.pipelines.archive import ArchiveProgress, ArchiveResult, archive
from rowmq.spark.pipelines.lake import read_table
from rowmq.spark.pipelines.replay import ReplayProgress, ReplayResult, replay
from rowmq.spark.pipelines.report import Report, report
from rowmq.spark.pipelines.transform import TransformProgress, TransformResult, transform

__all__ = [
    "ArchiveProgress",
    "ArchiveResult",
    "ReplayProgress",
    "ReplayResult",
    "Report",
    "TransformProgress",
    "TransformResult",
    "archive",
    "read_table",
    "replay",
    "report",
    "transform",
]
