"""The handlers, for `manage.py worker`."""

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from django.conf import settings
from django.db import close_old_connections, connection, transaction
from django.db.models import F

import rowmq
from webshop.messaging import OrderPlaced
from webshop.models import Order

P = ParamSpec("P")
R = TypeVar("R")

app = rowmq.App(settings.ROWMQ_URL, name="shop")


def with_database(handler: Callable[P, R]) -> Callable[P, R]:
    """What Django does around a request: let go of connections that broke or are too old."""

    @wraps(handler)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        close_old_connections()
        try:
            return handler(*args, **kwargs)
        finally:
            close_old_connections()

    return wrapped


@app.subscriber("orders", group="billing", concurrency=4)
@with_database
def bill(placed: OrderPlaced) -> None:
    Order.objects.filter(pk=placed.id).update(billed=True)
    print(f"billed order {placed.id}", flush=True)


@app.subscriber("orders", group="loyalty", concurrency=4)
@with_database
def add_points(placed: OrderPlaced, delivery: rowmq.Delivery[OrderPlaced]) -> None:
    with transaction.atomic():
        Order.objects.filter(pk=placed.id).update(points=F("points") + 10)
        delivery.ack(connection=connection)  # with the points, or not at all
    print(f"points for order {placed.id}", flush=True)
