"""What Spark is started with."""

import os
import sys
from pathlib import Path

import pytest

from rowmq.errors import InvalidOption
from rowmq.spark import starting


@pytest.mark.parametrize(
    ("given", "used"),
    [
        ("local", "local[1,4]"),
        ("local[2]", "local[2,4]"),
        ("local[*]", "local[*,4]"),
        ("local[ 8 ]", "local[8,4]"),
        ("local[2,1]", "local[2,1]"),
        ("local[*, 7]", "local[*, 7]"),
        ("local-cluster[2,1,1024]", "local-cluster[2,1,1024]"),
        ("spark://host:7077", "spark://host:7077"),
        ("yarn", "yarn"),
    ],
)
def test_a_local_master_tries_failed_tasks_again(given: str, used: str) -> None:
    assert starting.with_retries(given) == used


@pytest.mark.parametrize("master", ["local", "local[2]", "local[*,4]", "local-cluster[2,1,1024]"])
def test_a_local_spark_listens_on_loopback_and_shows_no_pages(master: str) -> None:
    made = starting.settings(master, {})
    assert made["spark.driver.host"] == made["spark.driver.bindAddress"] == "127.0.0.1"
    assert made["spark.ui.enabled"] == "false"


@pytest.mark.parametrize("master", ["spark://host:7077", "yarn", "k8s://host", "localhost"])
def test_a_driver_in_a_cluster_can_be_reached_by_it(master: str) -> None:
    made = starting.settings(master, {})
    assert not {"spark.driver.host", "spark.driver.bindAddress", "spark.ui.enabled"} & set(made)
    assert made["spark.sql.session.timeZone"] == "UTC"


def test_the_callers_settings_are_the_last_word() -> None:
    given = {"spark.ui.enabled": "true", "spark.sql.session.timeZone": "Europe/Zurich", "x": "y"}
    made = starting.settings("local[*]", given)
    assert {key: made[key] for key in given} == given


def test_a_spark_that_runs_elsewhere_is_given_what_a_session_can_change() -> None:
    assert starting.settings("sc://host", {"x": "y"}) == {
        "spark.sql.session.timeZone": "UTC",
        "x": "y",
    }


def test_logs_are_quiet_also_beside_options_of_the_callers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("SPARK_HOME", raising=False)
    monkeypatch.delenv("SPARK_CONF_DIR", raising=False)
    made = starting.settings("local", {starting.JAVA_OPTIONS: "-Xss2m"})
    log, own = made[starting.JAVA_OPTIONS].split(" ")
    assert own == "-Xss2m"
    assert Path(log.removeprefix("-Dlog4j2.configurationFile=file://")).is_file()


@pytest.mark.parametrize("kind", ["properties", "xml", "yaml", "yml", "json"])
@pytest.mark.parametrize("variable", ["SPARK_CONF_DIR", "SPARK_HOME"])
def test_log_settings_that_are_there_are_left_alone(
    variable: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SPARK_HOME", raising=False)
    monkeypatch.delenv("SPARK_CONF_DIR", raising=False)
    monkeypatch.setenv(variable, str(tmp_path))
    folder = tmp_path if variable == "SPARK_CONF_DIR" else tmp_path / "conf"
    folder.mkdir(exist_ok=True)
    (folder / "log4j2.properties.template").touch()
    assert starting.JAVA_OPTIONS in starting.settings("local", {})
    (folder / f"log4j2.{kind}").touch()
    assert starting.JAVA_OPTIONS not in starting.settings("local", {})


def test_workers_on_this_machine_run_this_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {})
    starting.provide_python("local[*]")
    assert os.environ == dict.fromkeys(("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"), sys.executable)


def test_workers_elsewhere_run_their_own_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {})
    starting.provide_python("spark://host:7077")
    assert os.environ == {"PYSPARK_DRIVER_PYTHON": sys.executable}


def test_a_python_that_was_chosen_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = dict.fromkeys(("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"), "python3.13")
    monkeypatch.setattr(os, "environ", dict(chosen))
    starting.provide_python("local")
    assert os.environ == chosen


@pytest.mark.parametrize("master", ["", None, 3])
def test_a_master_that_is_none_is_refused(master: str) -> None:
    with pytest.raises(InvalidOption, match=r"local\[\*\]"):
        starting.session(master)
