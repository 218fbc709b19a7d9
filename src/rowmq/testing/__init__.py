"""For those who test code that uses RowMQ: apps run step by step, on a private database with a
clock that can be moved, and assertions about topics and queues.

pytest finds the fixture `rowmq_app` by itself; the classes need no pytest.
"""

from rowmq.testing.app import AsyncTestApp, TestApp
from rowmq.testing.assertions import Assertions, AsyncAssertions
from rowmq.testing.clock import Clock
from rowmq.testing.stage import Handled

__all__ = ["Assertions", "AsyncAssertions", "AsyncTestApp", "Clock", "Handled", "TestApp"]
