"""Plays calls of the public interface on a client, and notes what each of them came to.

Whatever a call is given, it works, or it raises one of RowMQ's own errors that says in a line what
was wrong. The same calls are played on a sync and on an async client.
"""

import asyncio
import inspect
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, NamedTuple, Protocol, Self

from hypothesis import note
from hypothesis import strategies as st

import rowmq
from rowmq import errors
from rowmq.codec import encode
from rowmq.quoting import visible
from rowmq.times import to_micros
from tests.fuzz.values import HOSTILE, VALUES, Some

__all__ = ["RECEIVERS", "AsyncPlayer", "Call", "Game", "SyncPlayer", "calls", "methods", "refused"]

RECEIVERS: dict[str, Any] = {
    "client": rowmq.RowMQ,
    "queue": rowmq.Queue,
    "poller": rowmq.Poller,
    "subscriber": rowmq.Subscriber,
    "delivery": rowmq.Delivery,
    "job": rowmq.Job,
    "cron": rowmq.Cron,
    "access": rowmq.Access,
    "transaction": rowmq.Transaction,
}

EXCUSED = {
    ("client", "close"): "ends the game",
    ("client", "transaction"): "is a receiver of its own",
    ("client", "subscribe"): "is entered: see Game.subscribe",
    ("subscriber", "close"): "ends the game",
    ("subscriber", "reset"): "is for a forked child, where the threads are gone",
    ("cron", "start"): "starts a thread that writes when it likes",
}

EXPECTED: tuple[type[errors.RowMQError], ...] = (
    errors.InvalidInput,
    errors.ConfigurationError,
    errors.StaleLease,
    errors.AlreadySettled,
)
MESSAGE_CHARS = 20, 1_500


class Call(NamedTuple):
    receiver: str
    method: str
    arguments: dict[str, Any]
    within: bool = False
    """Whether a transaction is given as its connection."""

    def __repr__(self) -> str:
        given = ", ".join(f"{name}={shown(value)}" for name, value in self.arguments.items())
        where = " in a transaction" if self.within else ""
        return f"{self.receiver}.{self.method}({given}){where}"


def shown(value: Any) -> str:
    try:
        return repr(value)[:200]
    except Exception:  # noqa: BLE001 - that is the point of some
        return f"<{type(value).__name__}>"


def methods() -> list[tuple[str, str]]:
    """Every public method of what a client is and gives, by receiver and name."""
    return [
        (receiver, name)
        for receiver, kind in RECEIVERS.items()
        for name, member in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_")
    ]


def parameters(receiver: str, method: str) -> dict[str, inspect.Parameter]:
    signature = inspect.signature(getattr(RECEIVERS[receiver], method))
    return {name: found for name, found in signature.parameters.items() if name != "self"}


@st.composite
def calls(draw: Callable[..., Any], chosen: tuple[str, str] | None = None) -> Call:
    """A call of any method, or of one, in which at most one argument is what nobody should give."""
    receiver, method = chosen or draw(st.sampled_from(PLAYED))
    known = parameters(receiver, method)
    needed = [name for name, found in known.items() if found.default is found.empty]
    others = [name for name in known if name not in needed]
    more = draw(st.lists(st.sampled_from(others), unique=True, max_size=4)) if others else []
    wrong = draw(st.sampled_from([None, None, *needed, *more]))
    given = {name: draw(hostile(name) if name == wrong else VALUES[name]) for name in needed + more}
    open = "connection" in known and "connection" not in given
    return Call(receiver, method, given, open and draw(st.sampled_from([False, False, True])))


def hostile(name: str) -> st.SearchStrategy[Any]:
    """What nobody should give as a parameter; without what is right, and waits for ever, or starts
    a thread that writes when it likes.
    """
    if name == "tend":
        return VALUES[name]
    return HOSTILE.filter(lambda value: not waits(value)) if name == "timeout" else HOSTILE


def waits(timeout: Any) -> bool:
    plain = isinstance(timeout, int | float) and not isinstance(timeout, bool)
    return timeout is None or (plain and timeout > 0)


PLAYED = [found for found in methods() if found not in EXCUSED] + [("client", "subscribe")]


class Player(Protocol):
    """Has a client do something, and gives what comes of it."""

    flavour: str

    def do(self, call: Callable[[], Any]) -> Any: ...

    def entered(self, manager: Any) -> AbstractContextManager[Any]: ...


class SyncPlayer:
    flavour = "sync"

    def do(self, call: Callable[[], Any]) -> Any:
        return call()

    def entered(self, manager: Any) -> AbstractContextManager[Any]:
        return manager  # type: ignore[no-any-return]


class AsyncPlayer:
    flavour = "async"

    def __init__(self, runner: asyncio.Runner) -> None:
        self.runner = runner

    def do(self, call: Callable[[], Any]) -> Any:
        async def doing() -> Any:
            found = call()
            return await found if inspect.isawaitable(found) else found

        return self.runner.run(doing())

    @contextmanager
    def entered(self, manager: Any) -> Iterator[Any]:
        value = self.do(manager.__aenter__)
        try:
            yield value
        except BaseException as error:
            problem = error
            if not self.do(lambda: manager.__aexit__(type(problem), problem, None)):
                raise
        else:
            self.do(lambda: manager.__aexit__(None, None, None))


class Game:
    """A client, and what it has given so far, for calls to be played on."""

    def __init__(self, player: Player, mq: Any) -> None:
        self.player = player
        self.mq = mq
        self.stack = ExitStack()
        self.subscriber: Any = None

    def __enter__(self) -> Self:
        player, mq = self.player, self.mq
        player.do(
            lambda: mq.publish_many("t", [rowmq.Message(payload=n, key="k") for n in range(3)])
        )
        player.do(lambda: mq.queue("q").put_many([1, 2, 3]))
        return self

    def __exit__(self, *_: object) -> None:
        self.stack.close()

    def play(self, call: Call) -> tuple[str, str] | None:
        """What a call came to: done, or an error's name and sentence; None without a receiver."""
        try:
            with self.receiver(call.receiver) as receiver:
                if receiver is None:
                    return None
                given = self.run(receiver, call)
                self.read_back(receiver, call, given)
        except errors.RowMQError as error:
            return type(error).__name__, refused(call, error)
        except BaseException:
            note(f"{self.player.flavour}: {call!r}")
            raise
        return "done", ""

    @contextmanager
    def receiver(self, name: str) -> Iterator[Any]:
        player, mq = self.player, self.mq
        if name == "transaction":
            with player.entered(mq.transaction()) as tx:
                yield tx
            return
        found = {
            "client": lambda: mq,
            "queue": lambda: mq.queue("q"),
            "poller": lambda: mq.poller("q", "q2"),
            "cron": lambda: mq.cron,
            "access": lambda: mq.access,
            "job": lambda: player.do(mq.queue("q").try_poll),
            "subscriber": self.subscribed,
            "delivery": self.delivery,
        }
        yield found[name]()

    def subscribed(self) -> Any:
        if self.subscriber is None:
            new = self.mq.subscribe("t", group="g", discovery_interval=0.05)
            self.subscriber = self.stack.enter_context(self.player.entered(new))
        return self.subscriber

    def delivery(self) -> Any:
        subscriber = self.subscribed()
        found = self.player.do(lambda: subscriber.poll(max=1, timeout=0.2))
        return found[0] if found else None

    def run(self, receiver: Any, call: Call) -> Any:
        """What a call gives."""
        method = getattr(receiver, call.method)
        arguments = {name: self.given(value, name) for name, value in call.arguments.items()}
        if call.method == "poller":
            queues = arguments["queues"]
            return method(*(queues if isinstance(queues, list | tuple) else [queues]))
        if call.method in ("hold", "subscribe"):
            with self.player.entered(method(**arguments)):
                return None
        if not call.within:
            return self.player.do(lambda: method(**arguments))
        with self.player.entered(self.mq.transaction()) as tx:
            return self.player.do(lambda: method(**arguments, connection=tx))

    def given(self, value: Any, name: str) -> Any:
        """An argument; for `Some`, so many jobs or deliveries that nobody has settled."""
        if not isinstance(value, Some):
            return value
        if name == "jobs":
            queue = self.mq.queue("q")
            return self.player.do(lambda: queue.try_poll_many(int(value)))
        subscriber = self.subscribed()
        return self.player.do(lambda: subscriber.poll(max=int(value), timeout=0.2))

    # --- what was written reads back as it was ----------------------------------------------------

    def read_back(self, receiver: Any, call: Call, given: Any) -> None:
        arguments = call.arguments
        if (call.receiver, call.method) == ("client", "publish") and not given.duplicate:
            place = (given.key, given.shard)
            (message,) = self.player.do(
                lambda: self.mq.read(given.topic, key=place, from_offset=given.offset, limit=1)
            )
            assert same(message.payload, arguments["payload"])
            assert (message.key, message.topic) == (arguments.get("key"), arguments["topic"])
            assert message.id == (given.id if arguments.get("id") is None else arguments["id"])
            assert message.headers == (arguments.get("headers") or {})
        elif (call.receiver, call.method) == ("queue", "put"):
            job = self.player.do(lambda: receiver.get(given.id))
            assert same(job.payload, arguments["payload"])
            assert (job.key, job.ordering_key) == (
                arguments.get("key"),
                arguments.get("ordering_key"),
            )
            assert job.headers == (arguments.get("headers") or {})
            if (at := arguments.get("at")) is not None:
                assert to_micros(at) == to_micros(job.due_at)
            assert job.priority == arguments.get("priority", 0)
        elif call.receiver == "queue" and call.method.startswith("offer_") and given == CREATED:
            job = self.player.do(lambda: receiver.read(arguments["key"]))
            assert same(job.payload, arguments["payload"])
            assert job.key == arguments["key"]


CREATED = rowmq.Outcome.CREATED


def same(found: Any, given: Any) -> bool:
    """Whether a payload came back: as it was, or as JSON has it, where that has no such thing."""
    if isinstance(given, bytes | bytearray | memoryview):
        return isinstance(found, bytes) and found == bytes(given)
    if isinstance(given, str | int | float | list | dict | None):
        plain = str.__str__(given) if isinstance(given, str) else given
        return found == plain and repr(found) == repr(plain)
    return encode(found) == encode(given)


def refused(call: Call, error: errors.RowMQError) -> str:
    """What an error says, which must be in one line, not too long, and of use."""
    said = str(error)
    # What users write in SQL is between them and the database.
    expected = (*EXPECTED, errors.DatabaseError) if call.method == "execute" else EXPECTED
    assert isinstance(error, expected), f"{call!r}: {error!r}"
    assert visible(said) == said, f"{call!r}: {said!r}"
    least, most = MESSAGE_CHARS
    assert least <= len(said) <= most, f"{call!r}: {said!r}"
    return re.sub(r"0x[0-9a-f]+|[0-9a-f]{4,}|[0-9]+", "#", said)
