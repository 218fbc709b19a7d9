"""The pytest plugin: found by itself, cheap, and its failures point at the test."""

import subprocess
import sys

import pytest

pytest_plugins = ["pytester"]

APP = """
import rowmq
app = rowmq.App()

@app.subscriber("orders", group="billing")
async def bill(order: dict, mq: rowmq.AsyncRowMQ) -> None:
    if order["id"] < 0:
        raise ValueError("no such order")
    await mq.queue("receipts").put(order)
"""


def run(pytester: pytest.Pytester, test: str) -> pytest.RunResult:
    pytester.makepyfile(shop=APP, test_shop=test)
    return pytester.runpytest_subprocess(
        "-p", "no:cacheprovider", "-p", "no:asyncio", "-W", "error"
    )


def test_a_fixture_starts_apps_and_closes_them(pytester: pytest.Pytester) -> None:
    done = run(
        pytester,
        """
        import pytest, rowmq
        from shop import app

        def test_first(rowmq_app):
            t = rowmq_app(app)
            t.publish("orders", {"id": 1})
            t.drain()
            t.assert_enqueued("receipts", {"id": 1}, count=1)

        def test_each_has_a_database_of_its_own(rowmq_app):
            t = rowmq_app(app)
            assert t.drain() == []
            t.assert_not_enqueued("receipts")

        def test_without_an_app(rowmq_app):
            t = rowmq_app()
            t.publish("orders", 1)
            t.assert_published("orders", 1)

        def test_closed_by_then():
            with pytest.raises(rowmq.errors.Closed):
                app.mq
        """,
    )
    done.assert_outcomes(passed=4)


def test_failures_point_at_the_line_of_the_test(pytester: pytest.Pytester) -> None:
    done = run(
        pytester,
        """
        from shop import app

        def test_assertion(rowmq_app):
            t = rowmq_app(app)
            t.publish("orders", {"id": 1})
            t.assert_published("orders", {"id": 2})  # this line

        def test_handler(rowmq_app):
            t = rowmq_app(app)
            t.publish("orders", {"id": -1})
            t.drain()
        """,
    )
    done.assert_outcomes(failed=2)
    text = done.stdout.str()
    assert ">       t.assert_published(" in text
    assert "payload['id'] is 1, not 2" in text
    assert "assertions.py" not in text
    assert 'raise ValueError("no such order")' in text
    assert "handler 'bill', at attempt 1 of 'orders'" in text


def test_classes_named_like_tests_are_not_collected(pytester: pytest.Pytester) -> None:
    done = run(
        pytester,
        """
        from rowmq.testing import AsyncTestApp, TestApp

        def test_nothing():
            assert TestApp is not AsyncTestApp
        """,
    )
    done.assert_outcomes(passed=1)


def test_the_plugin_does_not_import_rowmq_where_nobody_asks_for_it(
    pytester: pytest.Pytester,
) -> None:
    done = run(
        pytester,
        """
        import sys

        def test_imports():
            assert "pytest_rowmq" in sys.modules
            assert "rowmq" not in sys.modules
        """,
    )
    done.assert_outcomes(passed=1)


def test_neither_rowmq_nor_its_testing_needs_pytest() -> None:
    program = (
        "import sys; sys.modules['pytest'] = None\n"
        "import rowmq; assert 'rowmq.testing' not in sys.modules\n"
        "from rowmq.testing import TestApp\n"
        "with TestApp(rowmq.App()) as t: t.publish('a', 1); t.assert_published('a', 1)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
