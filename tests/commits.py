"""Commits that are done, and whose answers are lost."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rowmq.store.statement import Operation
from tests.flavours import plain

__all__ = ["lost_answers"]


@contextmanager
def lost_answers(mq: Any, name: str) -> Iterator[list[str]]:
    """Have each operation that runs a statement of a name be committed and then repeated, as it is
    when the connection breaks before the answer to COMMIT has come. Gives what was repeated.
    """
    driver = plain(mq)._driver
    run = driver.run
    repeated: list[str] = []

    def watched(make: Callable[[], Operation[Any]]) -> Operation[Any]:
        operation = make()
        statement = next(operation)
        while True:
            if statement.name == name:
                repeated.append(name)
            result = yield statement
            try:
                statement = operation.send(result)
            except StopIteration as stop:
                return stop.value

    def run_again(make: Callable[[], Operation[Any]], **options: Any) -> Any:
        before = len(repeated)
        result = run(lambda: watched(make), **options)
        return run(make, **options) if len(repeated) > before else result

    async def run_again_async(make: Callable[[], Operation[Any]], **options: Any) -> Any:
        before = len(repeated)
        result = await run(lambda: watched(make), **options)
        return await run(make, **options) if len(repeated) > before else result

    driver.run = run_again_async if asyncio.iscoroutinefunction(run) else run_again
    try:
        yield repeated
    finally:
        del driver.run
