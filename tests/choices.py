"""For tests of what only some databases, or only one flavour of client, can do at all.

A choice leaves the others out of the test: they do not count as passed there.
"""

import pytest

from tests.databases import NAMES

SERVERS = [name for name in NAMES if name != "sqlite"]
MYSQL = [name for name in SERVERS if name != "postgres"]

on_servers = pytest.mark.parametrize("database", SERVERS, indirect=True)
on_mysql = pytest.mark.parametrize("database", MYSQL, indirect=True)
not_on_postgres = pytest.mark.parametrize("database", ["sqlite", *MYSQL], indirect=True)
on_sqlite = pytest.mark.parametrize("database", ["sqlite"], indirect=True)
async_only = pytest.mark.parametrize("flavour", ["async"], indirect=True)
