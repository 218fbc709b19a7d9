"""An order and its message in one transaction, with SQLAlchemy's Session."""

import os

from sqlalchemy import String, create_engine, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

import rowmq

URL = os.environ.get("DATABASE_URL", "sqlite:///shop.db")


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"

    id: Mapped[int] = mapped_column(primary_key=True)
    customer: Mapped[str] = mapped_column(String(200))
    total: Mapped[float]


def place_order(session: Session, mq: rowmq.RowMQ, order: Order) -> None:
    """Neither the row nor the message is there before the caller commits."""
    session.add(order)
    session.flush()  # so that a row that cannot be written fails here, and has its id
    mq.publish(
        "orders",
        {"id": order.id, "total": order.total},
        key=order.customer,
        id=f"order-{order.id}",
        connection=session,
    )


def main() -> None:
    engine = create_engine(sqlalchemy_url(URL))
    Base.metadata.create_all(engine)
    with rowmq.connect(URL) as mq:
        mq.migrate()

        with Session(engine) as session, session.begin():
            place_order(session, mq, Order(customer="ann", total=12.5))

        with Session(engine) as session:
            place_order(session, mq, Order(customer="ann", total=99.0))
            session.rollback()  # the card was refused

        with Session(engine) as session:
            print("orders:", [order.total for order in session.scalars(select(Order))])
        print("messages:", [message.payload["total"] for message in mq.read("orders", key="ann")])
    engine.dispose()


def sqlalchemy_url(url: str) -> str:
    """The same database, with the driver that SQLAlchemy is to use."""
    scheme, rest = url.split("://", 1)
    driver = {"postgresql": "+psycopg", "mysql": "+pymysql", "mariadb": "+pymysql", "sqlite": ""}
    return f"{scheme}{driver[scheme]}://{rest}"


if __name__ == "__main__":
    main()
