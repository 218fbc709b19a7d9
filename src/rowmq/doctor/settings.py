"""The settings of the server: what would lose a commit, hold up clean-up, or refuse our work."""

from collections.abc import Iterator, Mapping, Sequence

from rowmq.doctor.case import Case
from rowmq.doctor.wording import count, duration, size
from rowmq.message import Finding
from rowmq.store.doctor_mysql import MySQLTable
from rowmq.store.doctor_postgres import Capacity, Setting
from rowmq.store.topics import PAYLOAD_BYTES_DEFAULT

__all__ = [
    "judge_capacity",
    "judge_engines",
    "judge_mysql_settings",
    "judge_packet",
    "judge_postgres_settings",
]

XIDS_PROBLEM = 1_600_000_000
"""Of two thousand million: at this age PostgreSQL has begun to vacuum for its life."""

SHORT_IDLE_SECONDS = 60
PACKET_ROOM_BYTES = 32 * 1024


# --- PostgreSQL -----------------------------------------------------------------------------------


def judge_postgres_settings(settings: Mapping[str, Setting], case: Case) -> Iterator[Finding]:
    values = {name: setting.value for name, setting in settings.items()}
    found = [
        *durability(values, case),
        *clean_up(values, case),
        *timeouts(values, case),
        *modes(values, case),
    ]
    yield from found or [case.ok("the settings suit", **values)]


def durability(values: Mapping[str, str], case: Case) -> Iterator[Finding]:
    for name, harm in (
        ("fsync", "a crash of the machine may destroy the whole database"),
        ("full_page_writes", "a crash of the machine may leave half-written pages"),
    ):
        if values.get(name) == "off":
            yield case.problem(
                f"{name} is off: {harm}",
                f"ALTER SYSTEM SET {name} = on; SELECT pg_reload_conf()",
                **{name: "off"},
            )
    if values.get("synchronous_commit") == "off":
        yield case.warning(
            "synchronous_commit is off: a crash loses what was committed in the last moments, so "
            "a message that was published, or acked, may not have been",
            "turn it on for this user: ALTER ROLE "
            f'"{case.identity.user}" SET synchronous_commit = on',
            synchronous_commit="off",
        )


def clean_up(values: Mapping[str, str], case: Case) -> Iterator[Finding]:
    for name in ("autovacuum", "track_counts"):
        if values.get(name) == "off":
            yield case.problem(
                f"{name} is off: rows that were deleted are never cleaned up, and queues get "
                f"slower and slower",
                f"ALTER SYSTEM SET {name} = on; SELECT pg_reload_conf()",
                **{name: "off"},
            )
    if values.get("idle_in_transaction_session_timeout") == "0":
        yield case.note(
            "idle_in_transaction_session_timeout is not set: a client that hangs inside a "
            "transaction holds up the clean-up for as long as it lives",
            'set it for the users of applications, as in: ALTER ROLE "'
            f"{case.identity.user}\" SET idle_in_transaction_session_timeout = '10min'; it must be "
            "longer than any job takes in hold()",
            idle_in_transaction_session_timeout_ms=0,
        )


def timeouts(values: Mapping[str, str], case: Case) -> Iterator[Finding]:
    statement = int(values.get("statement_timeout") or 0) / 1000
    patience = case.dialect.lock_timeout
    reset = f'ALTER ROLE "{case.identity.user}" SET'
    if 0 < statement <= patience:
        yield case.warning(
            f"statement_timeout is {duration(statement)}: a statement that waits for a lock is "
            f"cancelled before RowMQ's lock_timeout of {duration(patience)} is over",
            f"raise it for this user, as in: {reset} statement_timeout = "
            f"'{round(2 * patience)}s', or connect with a lock_timeout below it",
            statement_timeout_ms=round(statement * 1000),
        )
    lock = int(values.get("lock_timeout") or 0) / 1000
    if 0 < lock < 1:
        yield case.note(
            f"lock_timeout is {duration(lock)}: publishes to a busy key may be refused and tried "
            f"again",
            f"give it at least a second for this user: {reset} lock_timeout = '1s'",
            lock_timeout_ms=round(lock * 1000),
        )
    idle = int(values.get("idle_in_transaction_session_timeout") or 0) / 1000
    if 0 < idle < SHORT_IDLE_SECONDS:
        yield case.note(
            f"idle_in_transaction_session_timeout is {duration(idle)}: a job in hold(), or work "
            f"in mq.transaction(), that computes for longer loses its connection",
            f"raise it above the longest job that is held: {reset} "
            "idle_in_transaction_session_timeout = '10min'",
            idle_in_transaction_session_timeout_ms=round(idle * 1000),
        )


def modes(values: Mapping[str, str], case: Case) -> Iterator[Finding]:
    reset = f'ALTER ROLE "{case.identity.user}" RESET'
    if values.get("default_transaction_read_only") == "on":
        yield case.problem(
            "default_transaction_read_only is on: nothing can be published or settled",
            f"{reset} default_transaction_read_only, and see that ALTER DATABASE or the "
            "configuration does not set it",
            default_transaction_read_only="on",
        )
    isolation = values.get("default_transaction_isolation", "read committed")
    if isolation != "read committed":
        yield case.note(
            f"default_transaction_isolation is {isolation}: RowMQ's own transactions are at READ "
            f"COMMITTED, but statements that are one by themselves, and those in your own "
            f"transactions, may have to be repeated",
            f"{reset} default_transaction_isolation, and ask for a higher level where it is needed",
            default_transaction_isolation=isolation,
        )


def judge_capacity(capacity: Capacity, case: Case) -> Iterator[Finding]:
    found = [*connections(capacity.connections, capacity.connections_max, case)]
    for table in capacity.unvacuumed:
        yield case.problem(
            f"autovacuum is turned off for {table}",
            f"ALTER TABLE {case.dialect.qualifier(case.dialect.schema)}{table} "
            f"RESET (autovacuum_enabled)",
            table=table,
        )
    age = max(capacity.xid_age, capacity.multixact_age)
    if age > case.thresholds.transaction_ids:
        tell = case.problem if age > XIDS_PROBLEM else case.warning
        yield tell(
            f"the oldest transaction id is {age:,} transactions old; at 2,147,483,648 the "
            f"database stops to accept writes",
            "end what holds up VACUUM (see the check transactions), then run VACUUM (FREEZE) on "
            "this database, as its owner",
            transaction_id_age=capacity.xid_age,
            multixact_age=capacity.multixact_age,
        )
    else:
        found.append(
            case.ok(
                f"the oldest transaction id is {age:,} transactions old",
                transaction_id_age=capacity.xid_age,
                multixact_age=capacity.multixact_age,
            )
        )
    yield from found


def connections(used: int, most: int, case: Case) -> Iterator[Finding]:
    details = {"connections": used, "connections_max": most}
    if used > case.thresholds.connections * most:
        yield case.warning(
            f"{used} of {count(most, 'connection')} are in use",
            "lower pool_size in the applications, put a pooler in between, or raise "
            "max_connections",
            **details,
        )
    else:
        yield case.ok(f"{used} of {count(most, 'connection')} are in use", **details)


# --- MySQL and MariaDB ----------------------------------------------------------------------------


def judge_mysql_settings(values: Mapping[str, str], case: Case) -> Iterator[Finding]:
    found = [*mysql_durability(values, case), *mysql_modes(values, case)]
    yield from found or [case.ok("the settings suit", **values)]
    used, most = int(values.get("threads_connected") or 0), int(values.get("max_connections") or 0)
    if most:
        yield from connections(used, most, case)


def mysql_durability(values: Mapping[str, str], case: Case) -> Iterator[Finding]:
    flush = values.get("innodb_flush_log_at_trx_commit", "1")
    if flush != "1":
        yield case.warning(
            f"innodb_flush_log_at_trx_commit is {flush}: a crash loses what was committed in the "
            f"last second, so a message that was published, or acked, may not have been",
            "SET GLOBAL innodb_flush_log_at_trx_commit = 1, and the same in the configuration",
            innodb_flush_log_at_trx_commit=flush,
        )
    if values.get("innodb_doublewrite", "ON").upper() in ("OFF", "0"):
        yield case.warning(
            "innodb_doublewrite is off: a crash of the machine may leave half-written pages",
            "turn it on in the configuration, unless the file system writes pages whole, as ZFS "
            "does",
            innodb_doublewrite="OFF",
        )
    binlog = values.get("log_bin", "OFF").upper() in ("ON", "1")
    if binlog and values.get("sync_binlog", "1") == "0":
        yield case.note(
            "sync_binlog is 0: after a crash the binary log, and so the replicas, may lack what "
            "was committed last",
            "SET GLOBAL sync_binlog = 1, and the same in the configuration",
            sync_binlog="0",
        )


def mysql_modes(values: Mapping[str, str], case: Case) -> Iterator[Finding]:
    binlog = values.get("log_bin", "OFF").upper() in ("ON", "1")
    if binlog and values.get("binlog_format", "ROW").upper() == "STATEMENT":
        yield case.problem(
            "binlog_format is STATEMENT: InnoDB then refuses every write at READ COMMITTED, where "
            "RowMQ works",
            "SET GLOBAL binlog_format = 'ROW', the same in the configuration, and connect anew",
            binlog_format="STATEMENT",
        )
    for name in ("read_only", "super_read_only", "innodb_read_only"):
        if values.get(name, "OFF").upper() not in ("OFF", "0"):
            yield case.problem(
                f"{name} is {values[name]}: nothing can be published or settled",
                f"connect to the primary; or, if this is it, SET GLOBAL {name} = OFF",
                **{name: values[name]},
            )
    wait = int(values.get("wait_timeout") or 28_800)
    if wait < SHORT_IDLE_SECONDS:
        yield case.note(
            f"wait_timeout is {count(wait, 'second')}: connections of the pool that rest for so "
            f"long are closed by the server and have to be made again",
            "SET GLOBAL wait_timeout = 600 or more",
            wait_timeout=wait,
        )


def judge_packet(packet_and_payload: tuple[int, int | None], case: Case) -> Iterator[Finding]:
    packet, configured = packet_and_payload
    payload = max(configured or 0, PAYLOAD_BYTES_DEFAULT)
    details = {"max_allowed_packet": packet, "largest_payload_allowed": payload}
    if packet < payload + PACKET_ROOM_BYTES:
        yield case.warning(
            f"max_allowed_packet is {size(packet)}, and payloads of {size(payload)} are allowed: "
            f"large ones will raise StatementTooLarge",
            f"SET GLOBAL max_allowed_packet = {packet_for(payload)}, and the same in the "
            "configuration; or allow smaller payloads (max_payload_bytes)",
            **details,
        )
    elif packet < 2 * payload + PACKET_ROOM_BYTES:
        yield case.note(
            f"max_allowed_packet is {size(packet)}: binary payloads near the {size(payload)} that "
            f"are allowed may not fit, since quoting can double them",
            f"SET GLOBAL max_allowed_packet = {packet_for(payload)}, and the same in the "
            "configuration",
            **details,
        )
    else:
        yield case.ok(f"max_allowed_packet of {size(packet)} holds every payload", **details)


def packet_for(payload: int) -> int:
    """A size that holds a payload in whatever way it is quoted: servers want multiples of 1024."""
    return -(-(2 * payload + PACKET_ROOM_BYTES) // 1024) * 1024


def judge_engines(tables: Sequence[MySQLTable], case: Case) -> Iterator[Finding]:
    healthy = True
    for table in tables:
        if table.engine.lower() != "innodb":
            healthy = False
            yield case.problem(
                f"the engine of {table.table} is {table.engine or 'unknown'}: only InnoDB has "
                f"transactions and locks on rows",
                f"ALTER TABLE {table.table} ENGINE = InnoDB",
                table=table.table,
                engine=table.engine,
            )
        texts = [c for c in table.text_columns if not table.table.endswith("migrations")]
        if texts:
            healthy = False
            yield case.problem(
                f"columns of {table.table} have a character set ({', '.join(texts)}): names would "
                f"be compared by a collation and no longer byte by byte",
                "make them as they stand in what this prints: rowmq sql mysql",
                table=table.table,
                columns=texts,
            )
    if healthy:
        yield case.ok("all tables are InnoDB's, and compare names byte by byte")
