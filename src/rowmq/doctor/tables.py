"""The tables: their version, columns and indexes, and what of them is dead or empty."""

from collections.abc import Iterator, Sequence

from rowmq.doctor.case import Case
from rowmq.doctor.wording import count, duration, size
from rowmq.errors import SchemaTooNew
from rowmq.message import Finding
from rowmq.store.doctor_facts import Catalogue, IndexState, SchemaState
from rowmq.store.doctor_mysql import MySQLTable
from rowmq.store.doctor_postgres import TableState
from rowmq.store.doctor_schema import Key

__all__ = [
    "judge_indexes",
    "judge_mysql_tables",
    "judge_postgres_tables",
    "judge_schema",
    "judge_tables",
]

DEAD_ROWS_MIN = 10_000
SIZE_MIN = 64 * 1024 * 1024


def judge_schema(state: SchemaState, case: Case) -> Iterator[Finding]:
    details = {"version": state.version, "wanted": state.latest, "prefix": case.dialect.prefix}
    if state.error is None:
        yield case.ok(f"the tables are at version {state.version}, as they should be", **details)
    elif isinstance(state.error, SchemaTooNew):
        yield case.problem(
            f"the tables are at version {state.version}, and this RowMQ knows only {state.latest}",
            "upgrade RowMQ here: pip install --upgrade rowmq",
            **details,
        )
    elif state.version == 0:
        yield case.problem(
            f"there are no tables with the prefix {case.dialect.prefix!r} here",
            "run: rowmq migrate; or, if they are elsewhere, give the right --prefix or --schema",
            **details,
        )
    else:
        yield case.problem(
            f"the tables are at version {state.version}, and this RowMQ works with {state.latest}",
            "run: rowmq migrate; rowmq migrate --dry-run shows what it will do",
            **details,
        )


def judge_tables(found: Catalogue, case: Case) -> Iterator[Finding]:
    complete = True
    for table, columns in found.blueprint.columns.items():
        there = found.columns.get(table)
        missing = [column for column in columns if column not in (there or ())]
        if not missing:
            continue
        complete = False
        what = "is missing" if there is None else f"lacks the column {', '.join(missing)}"
        yield case.problem(
            f"the table {table} {what}",
            "restore it from a backup, or make it as it stands in what this prints: rowmq sql "
            f"{ {'postgres': 'postgresql'}.get(case.dialect.name, case.dialect.name) }",
            table=table,
            missing=missing,
        )
    if complete:
        yield case.ok(f"{count(len(found.blueprint.columns), 'table')} with all their columns")


# --- indexes --------------------------------------------------------------------------------------


def judge_indexes(found: Catalogue, case: Case) -> Iterator[Finding]:
    checked, bad = 0, 0
    for key in found.blueprint.keys:
        if key.table not in found.columns or not can_be_lost(key, case):
            continue
        checked += 1
        on_table = [index for index in found.indexes if index.table == key.table]
        if not any(serves(index, key) for index in on_table):
            bad += 1
            yield lost_index(key, on_table, case)
    if not bad:
        yield case.ok(f"{count(checked, 'index', 'indexes')} as they should be", indexes=checked)


def can_be_lost(key: Key, case: Case) -> bool:
    """SQLite drops no index of a constraint, and lists none of some primary keys."""
    return case.dialect.name != "sqlite" or not key.statement.startswith("ALTER")


def serves(index: IndexState, key: Key) -> bool:
    """Whether an index does what a key is for."""
    return index.valid and index.columns == key.columns and (index.unique or not key.unique)


def lost_index(key: Key, on_table: Sequence[IndexState], case: Case) -> Finding:
    listed = ", ".join(key.columns)
    name = key.name or f"for {'UNIQUE ' if key.unique else ''}({listed})"
    same = next((index for index in on_table if index.name == key.name), None) or next(
        (index for index in on_table if not index.valid and index.columns == key.columns), None
    )
    if same is None:
        what = "is missing"
    elif not same.valid:
        what = "is not valid: its making was broken off, and nobody uses it"
    else:
        what = f"has other columns ({', '.join(same.columns)})"
    statements = repair(key, same, case)
    return case.problem(
        f"the index {name} of {key.table} {what}",
        "run: " + "; ".join(statements),
        table=key.table,
        index=key.name,
        columns=list(key.columns),
        statements=statements,
    )


def repair(key: Key, broken: IndexState | None, case: Case) -> list[str]:
    """What makes an index good, in the words of the migration. PostgreSQL can do it without holding
    up writes, though not inside a transaction.
    """
    making = " ".join(key.statement.split())
    postgres = case.dialect.name == "postgres"
    if postgres:
        making = making.replace(" INDEX ", " INDEX CONCURRENTLY ", 1)
    if broken is None:
        return [making]
    if case.dialect.name == "mysql":
        return [f"ALTER TABLE {key.table} DROP KEY {broken.name}", making]
    qualifier = case.dialect.qualifier(case.dialect.schema)
    dropping = f"DROP INDEX {'CONCURRENTLY ' if postgres else ''}{qualifier}{broken.name}"
    return [dropping, making]


# --- bloat ----------------------------------------------------------------------------------------


def judge_postgres_tables(tables: Sequence[TableState], case: Case) -> Iterator[Finding]:
    healthy = True
    for table in tables:
        share = table.dead / max(1, table.live + table.dead)
        if table.dead < DEAD_ROWS_MIN or share < case.thresholds.dead_rows:
            continue
        healthy = False
        yield case.warning(
            f"{share:.0%} of the rows of {table.table} are dead: {table.dead:,} beside "
            f"{table.live:,} live ones; it was vacuumed {vacuumed(table)}",
            vacuum_advice(table.table, case),
            table=table.table,
            live_rows=table.live,
            dead_rows=table.dead,
            total_bytes=table.total_bytes,
            index_bytes=table.index_bytes,
            vacuumed_seconds_ago=table.vacuumed_seconds,
        )
    if healthy:
        total = sum(table.total_bytes for table in tables)
        largest = {t.table: t.total_bytes for t in sorted(tables, key=lambda t: -t.total_bytes)[:3]}
        yield case.ok(
            f"the tables take {size(total)} with their indexes, and few rows are dead",
            total_bytes=total,
            dead_rows=sum(table.dead for table in tables),
            largest=largest,
        )


def vacuumed(table: TableState) -> str:
    ago = table.vacuumed_seconds
    return "never" if ago is None else f"{duration(ago)} ago"


def vacuum_advice(table: str, case: Case) -> str:
    name = case.dialect.qualifier(case.dialect.schema) + table
    return (
        f"see first what the check transactions says: while an old transaction is open, nothing "
        f"helps. Then run: VACUUM (ANALYZE) {name}; and, so that it is done in time: "
        f"ALTER TABLE {name} SET (autovacuum_vacuum_scale_factor = 0.0, "
        f"autovacuum_vacuum_threshold = 10000)"
    )


def judge_mysql_tables(tables: Sequence[MySQLTable], case: Case) -> Iterator[Finding]:
    healthy = True
    for table in tables:
        share = table.free_bytes / max(1, table.total_bytes + table.free_bytes)
        if table.free_bytes >= SIZE_MIN and share >= case.thresholds.free_space:
            healthy = False
            yield case.note(
                f"{size(table.free_bytes)} of {table.table} are empty, beside "
                f"{size(table.total_bytes)} in use",
                f"they will be used again; to give them back, when there is little to do: "
                f"OPTIMIZE TABLE {table.table}",
                table=table.table,
                free_bytes=table.free_bytes,
                total_bytes=table.total_bytes,
            )
    if healthy:
        total = sum(table.total_bytes for table in tables)
        yield case.ok(f"the tables take {size(total)} with their indexes", total_bytes=total)
