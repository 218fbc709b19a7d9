"""The pytest plugin of RowMQ. It is a package of its own so that pytest, which loads the plugins of
all that is installed, does not import rowmq where no test asks for it.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import datetime
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from rowmq import App
    from rowmq.testing import TestApp

__all__ = ["rowmq_app"]


@pytest.fixture
def rowmq_app() -> "Iterator[Callable[..., TestApp]]":
    """Start apps under test, on a private database: see `rowmq.testing.TestApp`.

    It is a function that is given an app and starts it, to be closed at the end of the test.
    Without an app there are a database, a clock and assertions.
    """
    from rowmq.testing import TestApp

    with ExitStack() as stack:

        def start(app: "App | None" = None, *, now: datetime | None = None) -> TestApp:
            return stack.enter_context(TestApp(app, now=now))

        yield start
