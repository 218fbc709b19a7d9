"""Nothing that was stored is ever run: what makes objects of bytes is not even imported."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import rowmq

SOURCE = Path(rowmq.__file__).parent

RUNS_BYTES = {
    "pickle", "_pickle", "cPickle", "cloudpickle", "dill", "marshal", "shelve", "joblib",
    "multiprocessing", "ProcessPoolExecutor", "read_pickle", "jsonpickle", "yaml", "copyreg",
}  # fmt: skip
CALLS = {"eval", "exec", "compile", "__import__"}

ALLOWED = {
    "spark/carrying.py": "has Spark carry its users' own code to their own executors",
    "cli/commands.py": "executes the empty string: see leave_interrupted",
}


def found_in(path: Path) -> set[str]:
    """What a file imports or calls that could run bytes."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [str(node.module), *(alias.name for alias in node.names)]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            found |= {node.func.id} & CALLS
        elif isinstance(node, ast.Attribute):
            found |= {node.attr} & RUNS_BYTES
        found |= {part for name in names for part in name.split(".")} & RUNS_BYTES
    return found


def test_no_file_imports_what_makes_objects_of_bytes() -> None:
    files = {path.relative_to(SOURCE).as_posix(): path for path in SOURCE.rglob("*.py")}
    found = {name: what for name, path in files.items() if (what := found_in(path))}
    assert set(found) == set(ALLOWED), found
    assert found["cli/commands.py"] == {"exec"}


def test_the_scan_finds_what_it_looks_for(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    for line, name in [
        ("import pickle", "pickle"), ("from pickle import loads", "pickle"), ("eval('1')", "eval"),
        ("from pyspark import cloudpickle", "cloudpickle"), ("if 1:\n  import marshal", "marshal"),
        ("import pandas\npandas.read_pickle('x')", "read_pickle"),
        ("import concurrent.futures as f\nf.ProcessPoolExecutor()", "ProcessPoolExecutor"),
    ]:  # fmt: skip
        path.write_text(line)
        assert found_in(path) == {name}


WATCHED = """
import sys
unpickled = []
sys.addaudithook(lambda event, args: unpickled.append(event) if "pickle" in event else None)

import base64, pickle
import rowmq

class Bomb:
    def __reduce__(self):
        return print, ("it went off",)

bomb = pickle.dumps(Bomb())
with rowmq.connect(sys.argv[1]) as mq:
    for payload in (bomb, base64.b64encode(bomb).decode(), {"py/object": "os.system"}):
        mq.publish("t", payload, headers={"content-type": "application/x-python-pickle"})
        mq.queue("q").put(payload, headers={"content-type": "application/x-python-pickle"})
    for kind in (None, bytes):
        mq.read("t", type=kind)
    with mq.subscribe("t", group="g", discovery_interval=0.05) as sub:
        found = []
        while len(found) < 3:
            found += sub.poll(timeout=10)
        sub.ack(found)
    jobs = mq.queue("q").try_poll_many(10)
    assert bomb in [job.payload for job in jobs]
    for job in jobs:
        job.reject(error="no")
    mq.queue("q").failed()
assert unpickled == [], unpickled
pickle.loads(bomb)
assert unpickled == ["pickle.find_class"], unpickled
"""


def test_a_pickle_is_stored_and_read_and_never_opened(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WATCHED, f"sqlite:///{tmp_path / 'queue.db'}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "it went off\n"  # by the script's own hand, at its end


@pytest.mark.parametrize("module", ["rowmq", "rowmq.cli.main", "rowmq.testing"])
def test_importing_brings_no_pickle_of_ours(module: str) -> None:
    """What others import is theirs; none of our modules holds one."""
    code = (
        f"import sys, {module}\n"
        "ours = [m for n, m in sys.modules.items() if n.split('.')[0] == 'rowmq']\n"
        "assert not [m for m in ours if 'pickle' in vars(m)]\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
