"""Transactions that are open for long: whatever was deleted since they began stays where it is, and
a queue's tables, which live from deleting, get slower by the minute.
"""

from collections.abc import Iterator, Sequence

from rowmq.doctor.case import Case
from rowmq.doctor.wording import count, duration, shortened
from rowmq.message import Finding
from rowmq.store.doctor_facts import Transaction
from rowmq.store.doctor_postgres import Activity, PreparedTransaction, Slot

__all__ = [
    "judge_activity",
    "judge_history",
    "judge_mysql_activity",
    "judge_prepared",
    "judge_slots",
    "judge_write_lock",
]

SLOT_XIDS = 1_000_000
"""How old, in transactions, the oldest row may be that a replication slot keeps."""


def judge_activity(found: Activity, case: Case) -> Iterator[Finding]:
    for transaction in found.transactions:
        yield long_transaction(
            transaction,
            case,
            key="pid",
            effect="VACUUM cannot clean up",
            advice=(
                f"end it where it runs, or here: SELECT pg_terminate_backend({transaction.id}); "
                f"so that it does not come back, commit before waiting for anything, and set "
                f"idle_in_transaction_session_timeout for {transaction.user or 'its user'}"
            ),
        )
    if found.hidden:
        yield case.note(
            f"{count(found.hidden, 'session')} of other users cannot be looked at",
            f'let this user see them: GRANT pg_read_all_stats TO "{found.user}"',
            sessions=found.hidden,
        )
    elif not found.transactions:
        yield none_long(case)


def judge_mysql_activity(found: Sequence[Transaction], case: Case) -> Iterator[Finding]:
    for transaction in found:
        ending = (
            f"KILL {transaction.id}"
            if transaction.id
            else "XA RECOVER shows its name, XA ROLLBACK or XA COMMIT ends it"
        )
        yield long_transaction(
            transaction,
            case,
            key="thread_id",
            effect="the purge cannot clean up",
            advice=(
                f"end it where it runs, or here: {ending}; so that it does not come back, commit "
                f"before waiting for anything"
            ),
        )
    if not found:
        yield none_long(case)


def none_long(case: Case) -> Finding:
    limit = duration(case.thresholds.seconds("long_transaction"))
    return case.ok(f"no other transaction has been open for more than {limit}")


def long_transaction(
    transaction: Transaction, case: Case, *, key: str, effect: str, advice: str
) -> Finding:
    """What to say of one; `key` is what the database calls the number of its connection."""
    held = transaction.holds_back
    who = f"user {transaction.user!r} ({key} {transaction.id})"
    summary = f"a transaction of {who} has been open for {duration(transaction.seconds)}"
    what = f"{effect} what was deleted since" if held else "it holds its locks until it ends"
    serious = transaction.seconds >= 10 * case.thresholds.seconds("long_transaction")
    tell = case.problem if serious and held else case.warning
    return tell(
        f"{summary}: {what}",
        advice,
        **{key: transaction.id},
        user=transaction.user,
        application=transaction.application,
        state=transaction.state,
        age_seconds=round(transaction.seconds, 3),
        statement=shortened(transaction.statement, mysql=case.dialect.name == "mysql"),
        holds_back=held,
    )


def judge_prepared(found: Sequence[PreparedTransaction], case: Case) -> Iterator[Finding]:
    for prepared in found:
        quoted = prepared.name.replace("'", "''")
        yield case.problem(
            f"the prepared transaction {prepared.name!r} of {prepared.owner} has been left open "
            f"for {duration(prepared.seconds)}: it survives restarts, and VACUUM cannot clean up",
            f"ask its transaction manager, then COMMIT PREPARED '{quoted}' or ROLLBACK PREPARED "
            f"'{quoted}', as its owner or a superuser",
            name=prepared.name,
            user=prepared.owner,
            age_seconds=round(prepared.seconds, 3),
        )
    if not found:
        yield case.ok("no prepared transaction is left open")


def judge_slots(found: Sequence[Slot], case: Case) -> Iterator[Finding]:
    old = [slot for slot in found if slot.xid_age > SLOT_XIDS]
    for slot in old:
        details = {"name": slot.name, "active": slot.active, "age_transactions": slot.xid_age}
        if slot.kind == "standby":
            yield case.warning(
                f"the standby {slot.name!r} keeps rows from being cleaned up that were deleted "
                f"{slot.xid_age:,} transactions ago",
                "end the long query on the standby, or turn hot_standby_feedback off there",
                **details,
            )
        else:
            quoted = slot.name.replace("'", "''")
            used = "is used" if slot.active else "is used by nobody"
            yield case.warning(
                f"the replication slot {slot.name!r} {used} and keeps rows and log that are "
                f"{slot.xid_age:,} transactions old",
                f"start or mend its consumer, or drop it: "
                f"SELECT pg_drop_replication_slot('{quoted}')",
                **details,
            )
    if not old:
        yield case.ok("no replication slot or standby keeps old rows", slots=len(found))


def judge_history(length: int, case: Case) -> Iterator[Finding]:
    if length > case.thresholds.history:
        yield case.warning(
            f"{length:,} old versions of rows wait to be purged",
            "end the long transactions named here; if there are none, raise innodb_purge_threads, "
            "or set innodb_max_purge_lag",
            history_length=length,
        )
    else:
        yield case.ok(
            f"{count(length, 'old version')} of rows wait to be purged", history_length=length
        )


def judge_write_lock(free: bool, case: Case) -> Iterator[Finding]:
    tried = duration(case.thresholds.seconds("write_lock"))
    if free:
        yield case.ok("the write lock is free")
    else:
        yield case.warning(
            f"another process has held the write lock of the file for more than {tried}",
            f"find it with: lsof '{case.identity.database}'; let it commit before it waits for "
            f"anything, since nobody else can write meanwhile",
            tried_seconds=case.thresholds.seconds("write_lock"),
        )
