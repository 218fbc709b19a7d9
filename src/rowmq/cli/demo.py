"""`rowmq demo`: the main job on SQLite, by real worker processes, one of which is killed."""

import contextlib
import shutil
import signal
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import NoReturn

import click
from rich.console import Console

import rowmq
from rowmq.cli.commands import Command
from rowmq.cli.demo_app import LEDGER_SQL, RECEIPT_SECONDS, Order
from rowmq.cli.demo_ledger import Ledger, Story, promises
from rowmq.cli.demo_show import Show, held, summary
from rowmq.cli.demo_spark import Archivist, show_report
from rowmq.cli.demo_workers import Worker, Workers
from rowmq.cli.showing import pulse

__all__ = ["demo"]

CUSTOMERS = 8
WORKERS = 3
FIRST, SECOND = 130, 45
"""How many orders are published before a worker is killed, and after."""

TWICE = 20
PAUSE_SECONDS = 0.1
"""How long it is between two orders."""

LOOK_SECONDS = 0.1
WAIT_SECONDS = 60.0
"""How long anything is waited for. If that is not enough, a promise has not been kept."""


@click.command(cls=Command)
@click.option("--keep", is_flag=True, help="Leave it running, to look at it, until Ctrl-C.")
@click.option("--spark", is_flag=True, help="Have Spark archive it all to a lake, and report.")
def demo(*, keep: bool, spark: bool) -> None:
    """See it work, on SQLite, in under a minute.

    Orders flow through a topic to two consumer groups, run by three worker processes. Some fail and
    are tried again, some die, a worker is killed, a redrive heals. At the end it is checked that
    nothing was lost and nothing was done twice; if not, the exit code is 1. It all happens in a
    temporary folder, which is removed, or left there with --keep or --spark.
    """
    with shop() as the_demo:
        if spark:
            the_demo.archivist = Archivist(the_demo.folder, the_demo.url)
        kept = the_demo.run(keep=keep)
    if not kept:
        raise click.exceptions.Exit(1)


@contextlib.contextmanager
def shop() -> "Iterator[Demo]":
    """A demo, and the end of all that it has started, however it ends."""
    the_demo = Demo(Console(highlight=False), Path(tempfile.mkdtemp(prefix="rowmq-demo-")))
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, the_demo.end_by)
    try:
        yield the_demo
    finally:
        for number in before:
            signal.signal(number, signal.SIG_IGN)  # it is ending, and soon has
        the_demo.workers.stop()
        if the_demo.archivist is not None:
            the_demo.archivist.stop()
        if not the_demo.stays:
            shutil.rmtree(the_demo.folder, ignore_errors=True)
        for number, handler in before.items():
            signal.signal(number, handler)


class Demo:
    """One run of it."""

    def __init__(self, console: Console, folder: Path) -> None:
        self.console = console
        self.folder = folder
        self.workers = Workers()
        self.stays = False
        """Whether the folder is to be left there."""
        self.archivist: Archivist | None = None
        self.url = f"sqlite:///{folder / 'demo.db'}"
        self.story = Story()
        self.doing = ""
        self._told: set[str] = set()
        self._ended_by: int | None = None

    def end_by(self, number: int, _: FrameType | None = None) -> NoReturn:
        """A signal says that this is to end: nothing is left behind."""
        self._ended_by = number
        raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)

    def _refuse_if_ended(self) -> None:
        """What a signal raises is lost if that is where Python cannot raise: in a destructor."""
        if self._ended_by is not None:
            self.end_by(self._ended_by)

    def run(self, *, keep: bool) -> bool:
        """Do all of it; whether every promise held."""
        began = time.monotonic()
        self.console.print(
            f"[bold]RowMQ {rowmq.__version__}[/]: a shop, its queues and {WORKERS} workers on one "
            f"SQLite file\n"
        )
        with rowmq.connect(self.url) as mq, self._ledger() as ledger:
            self.mq, self.ledger = mq, ledger
            with Show(self.console) as self.show:
                self._play()
                if not keep:
                    self._stop()
                self._archive()
            summary(self.console, ledger.figures(mq, self.story), time.monotonic() - began)
            kept = held(self.console, self._promises())
            self._report()
            self._say_what_next(keep=keep, kept=kept)
            if keep:
                self.stays = True
                self._keep_on()
        return kept

    @contextlib.contextmanager
    def _ledger(self) -> Iterator[Ledger]:
        path = self.folder / "demo.db"
        with contextlib.closing(sqlite3.connect(path)) as connection:
            connection.executescript(LEDGER_SQL)
        with contextlib.closing(Ledger(path)) as ledger:
            yield ledger

    # --- what happens -----------------------------------------------------------------------------

    def _play(self) -> None:
        self._open_the_shop()
        self._sell()
        self._kill_a_worker()
        self._heal()
        self._finish()

    def _open_the_shop(self) -> None:
        """Groups, a schedule, workers."""
        for group in ("billing", "search"):
            self.mq.create_group("orders", group)
        for number in range(WORKERS):
            self.workers.append(Worker(f"worker-{number + 1}", self.folder, self.url))
        self._until("the workers start", lambda: len(self.mq.workers()) == WORKERS)
        pids = ", ".join(str(worker.pid) for worker in self.workers)
        self.show.say(f"{WORKERS} workers are up, processes {pids}")
        self.mq.cron.install_periodic("tick", 1, queue="ticks", catch_up="all", tend=False)
        self.show.say("a schedule makes a job each second")

    def _sell(self) -> None:
        """Orders, some twice, and one in a transaction that fails."""
        self.show.say(
            f"customers order; each order goes to two groups: it is billed, which puts a job for "
            f"its receipt, due {RECEIPT_SECONDS:g} s later, and it is indexed for search"
        )
        self._publish(FIRST)
        for number in range(1, TWICE + 1):
            self.story.duplicates.append(self._publish_order(Order(number)).duplicate)
        self.show.say(f"{TWICE} of them were published twice: their ids give that away")
        self._fail_to_publish()

    def _kill_a_worker(self) -> None:
        """End a process that has work in its hands, and go on selling."""
        slow = Order(self.story.published + 1, slow=True)
        self._publish_order(slow)
        self.story.published += 1
        self.story.slow = slow.id
        self._until(
            "a worker begins a long order", lambda: bool(self.ledger.begun_by("bill", slow.id))
        )
        (pid, *_) = self.ledger.begun_by("bill", slow.id)
        victim = next(worker for worker in self.workers if worker.pid == pid)
        victim.kill()
        self.story.killed_pid = pid
        self.show.say(f"worker {pid} is killed (kill -9) in the middle of {slow.id}", "red")
        self._publish(SECOND)
        self._until(
            f"others take over {slow.id}",
            lambda: len(self.ledger.begun_by("bill", slow.id)) > 1,
        )
        heir = self.ledger.begun_by("bill", slow.id)[-1]
        self.show.say(f"worker {heir} has taken over: nobody had to tell it", "green")

    def _heal(self) -> None:
        """Wait for the orders with the bug to die, fix it, and redrive them."""
        self._until("orders in yen die", self._all_others_are_done)
        letters = self.mq.dead_letters("orders", limit=1_000)
        self.story.dead = {str(letter.message.id) for letter in letters}
        errors = sorted({str(letter.error) for letter in letters})
        self.show.say(f"{len(letters)} orders in yen are dead letters: {', '.join(errors)}", "red")
        self._archive()
        self.ledger.fix()
        redriven = self.mq.redrive("orders", group="billing")
        self.show.say(f"the bug is fixed, and {redriven} orders are given back: redrive", "green")
        self._until("they are billed", lambda: self._billed() >= self.story.published)

    def _finish(self) -> None:
        """Let what is due later be done, and the last tick."""
        self._until(
            "the last receipts are sent",
            lambda: self.ledger.count("sent") >= self.story.published,
        )
        self.mq.cron.pause("tick")
        self._until("the last tick is done", lambda: not live(self.mq, "ticks"))
        self._until("search is done", lambda: lag_of(self.mq, "search") == 0)
        self.show.say(f"all is done: {self.ledger.count('sent')} receipts were sent", "green")

    def _stop(self) -> None:
        self.doing = "the workers stop"
        self._look()
        self.story.stopped = self.workers.stop()
        self.show.say("the workers were asked to stop, and have")

    def _archive(self) -> None:
        """Have Spark archive what is there: also dead letters, before they are healed."""
        if self.archivist is not None:
            self.doing = "Spark archives"
            self._look()
            self.show.say(self.archivist.archive(), "cyan")

    # --- parts of it ------------------------------------------------------------------------------

    def _publish(self, count: int) -> None:
        """Publish orders, one after the other; every 25th has a bug waiting for it."""
        first = self.story.published + 1
        self.doing = f"customers order, {count} times"
        for number in range(first, first + count):
            order = Order(number, currency="JPY" if number % 25 == 0 else "EUR")
            if order.currency == "JPY":
                self.story.yen.add(order.id)
            self._publish_order(order)
            self.story.published += 1
            self._refuse_if_ended()
            if number % 3 == 0:
                self._look()
            time.sleep(PAUSE_SECONDS)

    def _publish_order(self, order: Order) -> rowmq.PublishResult:
        key = f"customer-{order.number % CUSTOMERS}"
        return self.mq.publish("orders", order, key=key, id=order.id)

    def _fail_to_publish(self) -> None:
        with contextlib.suppress(ConnectionAbortedError), self.mq.transaction() as tx:
            tx.publish("orders", Order(0), key="customer-0", id="never")
            raise ConnectionAbortedError("the customer's browser is gone")
        found = self.mq.read("orders", key="customer-0", limit=1_000)
        self.story.rolled_back = all(message.id != "never" for message in found)
        self.show.say("one was published in a transaction that failed: it never was")

    def _billed(self) -> int:
        return self.ledger.count("billed")

    def _all_others_are_done(self) -> bool:
        dead = {letter.message.id for letter in self.mq.dead_letters("orders", limit=1_000)}
        return dead >= self.story.yen and self._billed() + len(dead) >= self.story.published

    def _until(self, doing: str, holds: Callable[[], bool]) -> None:
        """Wait for something that the workers bring about. If they do not, the check will tell."""
        self.doing = doing
        deadline = time.monotonic() + WAIT_SECONDS
        while not holds():
            self._refuse_if_ended()
            self._refuse_dead_workers()
            if time.monotonic() > deadline:
                self.show.say(f"in {WAIT_SECONDS:g} s this has not come about: {doing}", "red")
                return
            self._look()
            time.sleep(LOOK_SECONDS)

    def _look(self) -> None:
        billing, search, receipts, ticks = self.ledger.figures(self.mq, self.story)
        if billing.again:
            self._once("an order could not be billed at first, and was tried again", "yellow")
        if receipts.done:
            self._once("the first receipts are sent, each at its time")
        if billing.dead:
            self._once("an order failed at every attempt, and is a dead letter now", "red")
        figures = [billing, search, receipts, ticks]
        self.show.update(self.doing, figures, self.workers, self.ledger.done_by())

    def _once(self, text: str, style: str = "") -> None:
        """Say something the first time it is so."""
        if text not in self._told:
            self._told.add(text)
            self.show.say(text, style)

    def _refuse_dead_workers(self) -> None:
        """A worker that ends by itself is an error: say what it said."""
        for worker in self.workers:
            if worker.code is not None and not worker.killed:
                raise click.ClickException(
                    f"{worker.name} has ended with exit code {worker.code}:\n{worker.log.strip()}"
                )

    # --- at the end -------------------------------------------------------------------------------

    def _promises(self) -> dict[str, bool]:
        found = promises(self.mq, self.ledger, self.story)
        if self.archivist is not None:
            found |= self.archivist.promises(self.mq, self.story)
        return found

    def _report(self) -> None:
        if self.archivist is not None:
            with pulse("Spark reports"):
                report = self.archivist.report()
            show_report(self.console, report, self.archivist.lake)
            self.stays = True

    def _say_what_next(self, *, keep: bool, kept: bool) -> None:
        if not kept:
            self.console.print("\n[bold red]A promise was broken.[/] That is a bug: please tell us")
            return
        self.console.print("\n[bold]Next[/]")
        if keep:
            self._print_commands()
            return
        for command, why in (
            ("rowmq demo --keep", "the same, left running, to look at it"),
            ("rowmq demo --spark", "the same, with a lake and a report of it")
            if self.archivist is None
            else ("rowmq pipeline --help", "archive, report, replay and transform your own"),
            ("rowmq worker --help", "run handlers of your own"),
            ("rowmq --help", "what else there is"),
        ):
            self.console.print(f"  [cyan]{command:<22}[/] {why}")

    def _print_commands(self) -> None:
        self.console.print(
            "  The shop stays open, with an order each second. In another terminal:\n"
        )
        self.console.print(f"  [cyan]export ROWMQ_URL={self.url}[/]", soft_wrap=True)
        for command, why in (
            ("rowmq topics", "what is stored"),
            ("rowmq tail orders", "what comes in"),
            ("rowmq lag orders", "how far each group is"),
            ("rowmq workers", "who is at work on what"),
            ("rowmq jobs ls receipts", "what is to be done later"),
            ("rowmq schedules", "what fires when"),
            ("rowmq dlq ls orders", "what has died"),
            ("rowmq doctor", "whether all is well"),
        ):
            self.console.print(f"  [cyan]{command:<24}[/] {why}")
        self.console.print("\n  Ctrl-C ends it; the folder stays: ", end="")
        self.console.print(str(self.folder), soft_wrap=True)

    def _keep_on(self) -> None:
        """Stay open until Ctrl-C."""
        self.mq.cron.resume("tick")
        with contextlib.suppress(KeyboardInterrupt):
            while True:
                self.story.published += 1
                self._publish_order(Order(self.story.published))
                time.sleep(1)
                self._refuse_if_ended()
        self.console.print("\nstopping the workers ...")


def live(mq: rowmq.RowMQ, queue: str) -> int:
    """How many jobs of a queue are not done."""
    counts = mq.queue(queue).counts()
    return counts["pending"] + counts["processing"] + counts["retryable"]


def lag_of(mq: rowmq.RowMQ, group: str) -> int:
    return sum(row.lag for row in mq.lag("orders", group))
