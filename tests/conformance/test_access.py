"""Tokens and the audit trail, on every database."""

from datetime import timedelta
from typing import Any

import pytest

from rowmq import Ending, Role, errors
from rowmq.store.access import Access, Grant
from rowmq.store.statement import Statement
from tests.databases import Database
from tests.flavours import plain
from tests.plans import reads_of

pytestmark = pytest.mark.parametrize("flavour", ["async"], indirect=True)


@pytest.fixture
def access(mq: Any) -> Any:
    return mq.access


NAME = 'Ann\'s "token" %_\\ ☃'


async def test_a_token_is_found_by_its_secret_and_by_nothing_else(
    access: Any, database: Database
) -> None:
    assert not await access.has_tokens()
    secret = await access.create_token(
        NAME, roles=["read", Role.CONSUME], topics=["orders*", "a'b"], queues=[]
    )
    assert await access.has_tokens()
    found = await access.check_token(secret)
    assert (found.name, found.roles) == (NAME, {Role.READ, Role.CONSUME})
    assert (found.topics, found.queues, found.live) == (("orders*", "a'b"), (), True)
    assert (found.expires_at, found.used_at, found.revoked_at) == (None, None, None)
    for wrong in (secret[:-1], secret + "x", secret.upper(), "", NAME, "\0", "\ud800"):
        assert await access.check_token(wrong) is None
    (row,) = database.execute("SELECT * FROM rowmq_tokens")
    stored = b"|".join(v if isinstance(v, bytes) else str(v).encode() for v in row)
    assert secret.encode() not in stored
    assert secret.removeprefix("rowmq_").encode() not in stored


async def test_a_use_is_noted_once_a_minute(access: Any, database: Database) -> None:
    secret = await access.create_token("t")
    for _ in range(3):
        await access.check_token(secret)
    (token,) = await access.tokens()
    first = token.used_at
    assert first >= token.created_at
    for back, is_later in ((59, False), (62, True)):
        database.execute(f"UPDATE rowmq_tokens SET used_at = used_at - {back} * 1000000")
        before = (await access.tokens())[0].used_at
        await access.check_token(secret)
        assert ((await access.tokens())[0].used_at > before) is is_later


async def test_a_token_ends_by_time_or_when_it_is_revoked(access: Any, database: Database) -> None:
    secrets = [
        await access.create_token("late", expires_in=timedelta(hours=1)),
        await access.create_token("gone"),
        await access.create_token("here"),
    ]
    found = await access.check_token(secrets[0])
    lives = found.expires_at - found.created_at
    assert timedelta(hours=1) <= lives < timedelta(hours=1, seconds=1)
    database.execute("UPDATE rowmq_tokens SET expires_at = created_at WHERE name = 'late'")
    assert await access.revoke_token("gone")
    assert not await access.revoke_token("gone")
    assert not await access.revoke_token("nobody")
    live = [await access.check_token(secret) is not None for secret in secrets]
    assert live == [False, False, True]
    tokens = await access.tokens()
    assert [(token.name, token.live) for token in tokens] == [
        ("here", True), ("gone", False), ("late", False)
    ]  # fmt: skip
    await access.create_token("soon over")
    assert await access.revoke_token("soon over")
    assert [token.name for token in await access.tokens()] == ["here", "soon over", "gone", "late"]
    assert tokens[1].revoked_at is not None
    assert await access.token(tokens[1].id) == tokens[1]
    assert await access.token(10**9) is None
    assert await access.has_tokens()


async def test_a_name_is_one_token_until_that_has_ended(access: Any, database: Database) -> None:
    first = await access.create_token("t")
    with pytest.raises(errors.TokenTaken, match="'t'"):
        await access.create_token("t")
    await access.create_token("T")  # names are told apart to the byte
    await access.create_token("t ")
    assert await access.check_token(first) is not None
    await access.revoke_token("t")
    second = await access.create_token("t", expires_in=60)
    database.execute("UPDATE rowmq_tokens SET expires_at = 1 WHERE expires_at IS NOT NULL")
    third = await access.create_token("t")
    assert [await access.check_token(s) is not None for s in (first, second, third)] == [
        False, False, True
    ]  # fmt: skip


async def test_a_token_that_is_made_twice_by_a_lost_answer_is_one(mq: Any) -> None:
    grant = access_grant("t", "a" * 64)
    operations: Access = plain(mq)._store.access
    for _ in range(2):
        await mq._run(lambda: operations.create(grant))
    with pytest.raises(errors.TokenTaken):
        await mq._run(lambda: operations.create(access_grant("t", "b" * 64)))
    assert len(await mq.access.tokens()) == 1


def access_grant(name: str, secret_hash: str) -> Grant:
    return Grant(name, secret_hash, frozenset({Role.READ}), ("*",), ("*",), None)


async def test_a_token_of_a_transaction_that_is_rolled_back_is_none(mq: Any) -> None:
    with pytest.raises(ZeroDivisionError):
        async with mq.transaction() as tx:
            secret = await mq.access.create_token("t", connection=tx)
            raise ZeroDivisionError
    assert await mq.access.check_token(secret) is None
    assert not await mq.access.has_tokens()


async def test_the_trail_is_written_concluded_and_read(access: Any) -> None:
    first = await access.record("topic.seek", who=NAME, target="orders", ending=Ending.BEGUN)
    second = await access.record("topic.purge", who="bob", remote="::1", details={"n": [1, None]})
    third = await access.record("topic.seek", who="bob", ending=Ending.REFUSED)
    await access.conclude(first, Ending.DONE, details={"moved": 3})
    found = await access.audit()
    assert [entry.id for entry in found] == [third, second, first]
    done = found[-1]
    assert (done.who, done.action, done.target) == (NAME, "topic.seek", "orders")
    assert (done.ending, done.details, done.remote) == (Ending.DONE, {"moved": 3}, "")
    assert (found[1].ending, found[1].details, found[1].remote) == (
        Ending.DONE, {"n": [1, None]}, "::1"
    )  # fmt: skip
    assert found[0].at >= found[1].at >= found[2].at
    await access.conclude(second, Ending.FAILED, target="billing")
    for chosen, ids in [
        ({"limit": 2}, [third, second]),
        ({"before": third}, [second, first]),
        ({"who": "bob"}, [third, second]),
        ({"action": "topic.seek"}, [third, first]),
        ({"who": "bob", "action": "topic.seek", "before": 10**12}, [third]),
        ({"who": "BOB"}, []),
        ({"who": "%"}, []),
    ]:
        assert [entry.id for entry in await access.audit(**chosen)] == ids, chosen
    assert (await access.audit(before=third, limit=1))[0].target == "billing"


async def test_the_trail_takes_whatever_names_there_are(access: Any) -> None:
    odd = "a\0\ud800\x1b\u202e'\"\\%☃" + "é" * 5_000
    await access.record(odd, who=odd, target=odd, remote=odd, details={odd: {odd: [odd, 2**70]}})
    (entry,) = await access.audit()
    for text in (entry.who, entry.action, entry.target, entry.remote):
        assert text.startswith("a\ufffd?\x1b\u202e'\"\\%☃é")
        assert text.endswith("…")
    assert len(entry.who.encode()) <= 200
    await access.record("x", who="y", details={"much": ["é" * 10_000] * 10})
    assert "too_long" in (await access.audit())[0].details
    for wrong in ({"limit": 0}, {"limit": 1_001}, {"before": -1}, {"before": "1"}):
        with pytest.raises(errors.InvalidOption):
            await access.audit(**wrong)
    with pytest.raises(errors.InvalidOption):
        await access.record("", who="x")


async def test_old_entries_are_pruned_and_no_others(access: Any, database: Database) -> None:
    for n in range(4):
        await access.record("x.y", who=str(n))
    database.execute("UPDATE rowmq_audit SET at = 1 WHERE who < '3'")
    assert await access.prune_audit(older_than=timedelta(days=1)) == 3
    assert [entry.who for entry in await access.audit()] == ["3"]
    assert await access.prune_audit(older_than=timedelta(days=1)) == 0


ROWS = 20_000


async def test_no_page_of_a_long_trail_reads_more_than_it_shows(
    mq: Any, database: Database
) -> None:
    fill(database)
    statements: list[Statement] = []
    plain(mq)._driver.observers.append(statements.append)
    for chosen in (
        {},
        {"before": ROWS // 2},
        {"who": "rare"},
        {"action": "rare"},
        {"who": "w1", "action": "rare"},
        {"who": "nobody"},
    ):
        await mq.access.audit(**chosen)
    await mq.access.prune_audit(older_than=timedelta(days=36_500))
    found = [s for s in statements if s.name.startswith("access.")]
    assert {s.name for s in found} == {"access.audit", "access.oldest"}
    read = reads_of(database, found)
    assert max(read.values()) <= ROWS / 8, read


def fill(database: Database) -> None:
    """A trail that is long, by many, of few actions."""
    who = "CASE WHEN n % 10000 = 0 THEN 'rare' ELSE CONCAT('w', n % 7) END"
    action = "CASE WHEN n % 9999 = 0 THEN 'rare' ELSE 'topic.seek' END"
    if database.dialect == "sqlite":
        who = who.replace("CONCAT('w', n % 7)", "'w' || (n % 7)")
    insert = "INSERT INTO rowmq_audit (at, ending, who, action, target, remote, details) "
    select = f"SELECT n, 1, {who}, {action}, 't', 'r', '{{}}' FROM "
    digits = f"(SELECT 0 d{''.join(f' UNION SELECT {n}' for n in range(1, 10))})"
    if database.dialect == "mysql":
        crossed = " CROSS JOIN ".join(f"{digits} d{place}" for place in range(4))
        number = "1 + d0.d + 10 * d1.d + 100 * d2.d + 1000 * d3.d"
        rows = f"(SELECT {number} AS n FROM {crossed} UNION ALL "
        rows += f"SELECT 10000 + {number} FROM {crossed}) s ORDER BY n"
        database.execute(insert + select + rows)
    else:
        series = (
            f"WITH RECURSIVE s(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < {ROWS}) "
        )
        database.execute(series + insert + select + "s")
    database.analyze()
    assert database.execute("SELECT COUNT(*) FROM rowmq_audit") == [(ROWS,)]
