"""`rowmq demo`: it ends by itself, and says what was promised and whether it held."""

import io

import click
import pytest
from click.testing import CliRunner
from rich.console import Console

import rowmq
from rowmq.cli.demo import JOBS, check_queue, put_emails, send_emails, verify
from rowmq.cli.main import app


def test_the_demo_keeps_what_it_promises() -> None:
    result = CliRunner().invoke(app, ["demo"])
    assert result.exit_code == 0, result.output
    assert "BROKEN" not in result.stdout
    assert "billed by" in result.stdout
    assert "attempt 1 at flaky: the mail server did not answer" in result.stdout
    assert f"the queue has pending 0, processing 0, retryable 0, completed {JOBS}, failed 0" in (
        result.stdout
    )


def test_a_promise_that_broke_is_exit_code_1() -> None:
    with rowmq.connect("sqlite://") as mq:
        emails = mq.queue("emails", retry=rowmq.Constant(interval=0))
        put_emails(emails)
        sent = send_emails(emails)
        assert all(check_queue(emails, sent).values())
        promises = check_queue(emails, sent[1:])  # as if the first had not been done
    console = Console(file=io.StringIO())
    with pytest.raises(click.exceptions.Exit) as ended:
        verify(console, promises)
    assert ended.value.exit_code == 1
