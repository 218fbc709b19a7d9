"""Placing orders: what a view, a form or a command calls."""

from django.db import connection, transaction

from webshop.messaging import OrderPlaced, client
from webshop.models import Order


def place_order(customer: str, total: float) -> Order:
    """The order and its message are there together, or not at all."""
    with transaction.atomic():
        order = Order.objects.create(customer=customer, total=total)
        client().publish(
            "orders",
            OrderPlaced(order.pk, order.total),
            key=customer,
            id=f"order-{order.pk}",
            connection=connection,
        )
    return order
