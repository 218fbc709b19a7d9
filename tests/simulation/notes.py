"""What those who act in a world write down: what they did, and what came of it.

Of what was not answered, whoever asked for it knows nothing; but the world has seen whether the
database has committed it, and mostly that is what is written down. So a history has few secrets,
and rules can say much of it.
"""

from collections.abc import Callable, Sequence
from typing import Any

import rowmq
from rowmq.errors import StaleLease, TransientError
from tests.simulation.history import Event, Outcome
from tests.simulation.world import COMMIT, Attempt, Killed, World

__all__ = ["Notes"]


class Undone(Exception):
    """A transaction is rolled back, on purpose."""


class Notes:
    """The events of a run."""

    def __init__(self, world: World) -> None:
        self.events: list[Event] = []
        self._world = world
        self._marks = 0
        self._numbers = 0

    def note(self, event: Event) -> None:
        self.events.append(event)

    def attempt(self, event: Callable[..., Event], do: Callable[[], Any]) -> Outcome:
        """Do something, and note what came of it."""
        return self._attempt(event, do)

    def within(
        self,
        mq: rowmq.RowMQ,
        event: Callable[..., Event],
        body: Callable[[Any], Any],
        *,
        commit: bool = True,
    ) -> Outcome:
        """Do something in a transaction, and commit it, or not."""
        answers: list[Any] = []

        def do() -> Any:
            with mq.transaction() as tx:
                answers.append(body(tx))
                if not commit:
                    raise Undone
            return answers[0]

        return self._attempt(event, do, answers)

    def _attempt(
        self, event: Callable[..., Event], do: Callable[[], Any], answers: list[Any] | None = None
    ) -> Outcome:
        """`answers` are those of a transaction, before it was committed."""
        actor, began = self._world.current(), self._world.step
        before = len(actor.attempts)
        outcome, result = Outcome.OK, None
        died: Killed | None = None
        try:
            result = do()
        except StaleLease:
            outcome = Outcome.REFUSED
        except Undone:
            outcome = Outcome.FAILED
        except (TransientError, Killed) as error:
            outcome = seen(actor.attempts[before:], whole=answers is not None)
            result = answers[0] if answers and outcome is Outcome.OK else None
            died = error if isinstance(error, Killed) else None
        # What is under way when somebody dies has no end.
        over = died is None or outcome is not Outcome.UNKNOWN
        ended = self._world.step if over else None
        self.note(event(outcome, result, actor=actor.process.name, began=began, ended=ended))
        if died is not None:
            raise died
        return outcome

    def new_mark(self, kind: str) -> str:
        self._marks += 1
        return f"{kind}{self._marks}"

    def new_number(self) -> int:
        self._numbers += 1
        return self._numbers

    def at_least(self, began: int, seconds: float) -> int:
        """Until when something lasts that the database has set since a step."""
        world = self._world
        return min([*world.clocks[began:], world.clock]) + round(seconds * 1_000_000)


def seen(attempts: Sequence[Attempt], *, whole: bool) -> Outcome:
    """What came of something that was not answered; a `whole` transaction is its COMMIT. Else what
    was committed may be a part of it, or only have been read.
    """
    final = [attempt for attempt in attempts if not whole or attempt.point == COMMIT]
    if any(attempt.done is None for attempt in final):
        return Outcome.UNKNOWN
    if not any(attempt.done for attempt in final):
        return Outcome.FAILED
    return Outcome.OK if whole else Outcome.UNKNOWN
