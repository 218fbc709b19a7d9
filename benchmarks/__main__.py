"""`make bench`: RowMQ, its peers and the raw limit on all three databases, in one run; and on a
MySQL server, if ROWMQ_TEST_MYSQL_URL names one.

The other servers are the benchmark's own. They flush every commit to the disk, as servers do that
may not lose anything; the settings that decide about speed are printed with the results. Options
are those of `rowmq bench`.
"""

import os
import sys
import tempfile
from contextlib import ExitStack

from rowmq.cli.main import app
from tests.servers import MariaDBServer, PostgresServer

POSTGRES = {
    "fsync": "on",
    "full_page_writes": "on",
    # As many workers as are measured at once, with the connections of each.
    "max_connections": "1200",
    # So that no trial is the one in which a checkpoint was due.
    "max_wal_size": "8GB",
}


def main() -> None:
    with ExitStack() as stack:
        postgres = stack.enter_context(PostgresServer(**POSTGRES))
        mariadb = stack.enter_context(MariaDBServer(durable=True))
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="rowmq-bench-"))
        mysql = [url] if (url := os.environ.get("ROWMQ_TEST_MYSQL_URL")) else []
        urls = [postgres.url, mariadb.url, *mysql, f"sqlite:///{folder}/bench.db"]
        given = [word for url in urls for word in ("--url", url)]
        app(["bench", "--peers", *given, *sys.argv[1:]])


if __name__ == "__main__":
    main()
