"""Real database servers that the tests provide themselves: installed, or unpacked."""

from .errors import ServerError
from .mariadb import MariaDBServer
from .pgbouncer import PgBouncer
from .postgres import PostgresServer

__all__ = ["MariaDBServer", "PgBouncer", "PostgresServer", "ServerError"]
