"""Django's connection, without a Django project: only its database layer is set up.

Its MySQL backend asks for mysqlclient, which has to be compiled. PyMySQL stands in for it, under
its name while that backend is imported, and not any longer.
"""

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock
from urllib.parse import urlsplit

import django
import django.db
import pymysql
from django.conf import settings
from django.db import transaction
from django.db.utils import ConnectionHandler

from tests.conformance.callers.kinds import Caller, Kind
from tests.databases import Database

ENGINES = {
    "postgres": "django.db.backends.postgresql",
    "mysql": "django.db.backends.mysql",
    "sqlite": "django.db.backends.sqlite3",
}


def options(database: Database) -> dict[str, Any]:
    """The entry of Django's DATABASES setting."""
    parts = urlsplit(database.url)
    engine = {"ENGINE": ENGINES[database.dialect], "NAME": parts.path[1:]}
    if database.dialect == "sqlite":
        return engine
    named = {"HOST": parts.hostname, "PORT": parts.port}
    return engine | named | {"USER": parts.username, "PASSWORD": parts.password}


@contextmanager
def default_connection(database: Database) -> Iterator[Any]:
    """`django.db.connection` on this database, closed at the end."""
    if not settings.configured:
        settings.configure(USE_TZ=True, LOGGING_CONFIG=None)
        django.setup()
    if database.dialect == "mysql":
        import_mysql_backend()
    django.db.connections["default"] = ConnectionHandler({"default": options(database)})["default"]
    try:
        yield django.db.connection
    finally:
        django.db.connection.close()
        del django.db.connections["default"]


def import_mysql_backend() -> None:
    if f"{ENGINES['mysql']}.base" not in sys.modules:
        with mock.patch.dict(sys.modules, MySQLdb=pymysql):
            backend = importlib.import_module(f"{ENGINES['mysql']}.base")
        sys.modules[backend.__name__] = backend


@contextmanager
def atomic(database: Database) -> Iterator[Caller]:
    with default_connection(database) as connection, transaction.atomic():
        yield of(connection)


@contextmanager
def wrapper(database: Database) -> Iterator[Caller]:
    """The object behind `django.db.connection`, as `connections["default"]` gives it."""
    with default_connection(database), transaction.atomic():
        yield of(django.db.connections["default"])


def of(connection: Any) -> Caller:
    def run(sql: str) -> None:
        with connection.cursor() as cursor:
            cursor.execute(sql)

    return Caller(connection, run)


KINDS = [Kind("django", "sync", atomic), Kind("django-wrapper", "sync", wrapper)]


@contextmanager
def not_atomic(database: Database) -> Iterator[Caller]:
    with default_connection(database) as connection:
        yield of(connection)


AUTOCOMMIT = Kind("django", "sync", not_atomic)
