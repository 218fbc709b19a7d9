"""What importing the package takes."""

import subprocess
import sys

import pytest

import rowmq.spark

WITHOUT = "import sys; sys.modules[{missing!r}] = None\n"


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout


@pytest.mark.parametrize("missing", ["pyspark", "pyarrow"])
def test_a_missing_extra_is_named(missing: str) -> None:
    code = """
import rowmq
try:
    import rowmq.spark
except rowmq.errors.MissingExtra as error:
    print(error)
"""
    said = run(WITHOUT.format(missing=missing) + code)
    assert missing in said
    assert "pip install 'rowmq[spark]'" in said


@pytest.mark.parametrize("missing", ["pyspark", "pyarrow"])
def test_spark_passes_over_a_source_whose_extra_is_missing(missing: str) -> None:
    code = "import pyspark_rowmq; print(hasattr(pyspark_rowmq, 'DefaultSource'))"
    assert run(WITHOUT.format(missing=missing) + code) == "False\n"


def test_rowmq_itself_needs_no_spark() -> None:
    said = run("import sys, rowmq, rowmq.cli.main; print(*{m.split('.')[0] for m in sys.modules})")
    assert not {"pyspark", "pyarrow", "deltalake", "connectorx"} & set(said.split())


def test_what_is_exported_is_there() -> None:
    for name in rowmq.spark.__all__:
        assert getattr(rowmq.spark, name), name
        assert name in dir(rowmq.spark)


def test_what_is_not_exported_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = rowmq.spark.nothing
