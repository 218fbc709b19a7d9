"""Sessions, receipts and guesses, where several sites share a secret, a database or an address."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

import rowmq
from rowmq.web import Site, dashboard
from rowmq.web.sessions import FLASH_COOKIE, SESSION_COOKIE
from tests.databases import NAMES, Database
from tests.web.calling import Api
from tests.web.visiting import ELSEWHERE, Visitor, visiting

SECRET = "the same for all sites of a house"

everywhere = pytest.mark.parametrize("database", NAMES, indirect=True)

Make = Callable[..., Site]


@pytest.fixture
async def make() -> AsyncIterator[Make]:
    """Makes sites of databases, which share a secret."""
    made: list[Site] = []

    def site_of(database: Database, **settings: Any) -> Site:
        made.append(dashboard(database.url, **{"secret": SECRET, **settings}))
        return made[-1]

    yield site_of
    for site in made:
        await site.close()


def token_in(database: Database, name: str, **rights: Any) -> str:
    with rowmq.connect(database.url) as mq:
        return mq.access.create_token(name, **{"roles": ["admin"], **rights})


def take_over(visitor: Visitor, other: Visitor) -> None:
    """Use somebody else's cookie."""
    visitor.cookies.set(SESSION_COOKIE, other.cookies[SESSION_COOKIE])


async def test_a_session_of_another_shape_is_none(make: Make, database: Database) -> None:
    """As another release may have signed it, or will."""
    site = make(database)
    async with visiting(site, token=token_in(database, "ann")) as visitor:
        await visitor.get("/")
    async with visiting(site) as visitor:
        for value in ({"user": "ann"}, ["ann", 1], "ann", None):
            visitor.cookies.set(SESSION_COOKIE, site.sessions._signed("session", value))
            visitor.cookies.set(FLASH_COOKIE, site.sessions._signed("flash", value))
            assert (await visitor.get("/")).status_code == 303
            assert (await visitor.get("/login")).status_code == 200


# --- several databases, one secret ----------------------------------------------------------------


async def test_a_session_is_of_one_database_also_where_another_has_the_same_ids_and_names(
    make: Make, database: Database
) -> None:
    other = database.create()
    mine, theirs = token_in(database, "ann"), token_in(other, "ann")
    async with visiting(make(database)) as visitor, visiting(make(other)) as guest:
        await visitor.sign_in(mine)
        assert (await visitor.get("/tokens")).status_code == 200
        take_over(guest, visitor)
        assert (await guest.get("/tokens")).status_code == 303
        guest.cookies.clear()
        await guest.sign_in(theirs)
        assert (await guest.get("/tokens")).status_code == 200


async def test_the_forms_of_a_session_are_of_its_token_only(make: Make, database: Database) -> None:
    other = database.create()
    sites = [make(database), make(other)]
    tokens = [token_in(one, "ann") for one in (database, other)]
    found = []
    for site, token in zip(sites, tokens, strict=True):
        async with visiting(site) as visitor:
            await visitor.sign_in(token)
            session = site.sessions.of(as_request(visitor))
            assert session is not None
            found.append(session)
    first, second = found
    assert first.digest != second.digest
    session = type(first)(
        nonce=first.nonce, token_id=1, digest=second.digest, ends_at=first.ends_at
    )
    assert sites[1].sessions.csrf_of(session) != sites[0].sessions.csrf_of(first)


def as_request(visitor: Visitor) -> Any:
    return type("Request", (), {"cookies": dict(visitor.cookies)})


async def test_a_receipt_is_of_one_database_only(make: Make, database: Database) -> None:
    other = database.create()
    receipts = []
    for place in (database, other):
        token, site = token_in(place, "ann"), make(place)
        async with visiting(site, token=token) as client:
            api = Api(client, site)
            await api.publish("orders", 1, key="ann")
            receipts += [one["receipt"] for one in await api.poll("orders")]
            if place is other:
                path = "/topics/orders/groups/billing/ack"
                await api.refused(409, path, receipts=receipts[:1])
                assert (await api.post(path, receipts=receipts[1:]))["settled"] == 1
    assert receipts[0].rpartition(".")[0] == receipts[1].rpartition(".")[0]


# --- signing out ----------------------------------------------------------------------------------


@everywhere
async def test_who_signs_out_does_so_at_every_server_and_for_good(
    make: Make, database: Database
) -> None:
    token = token_in(database, "ann")
    sites = [make(database, remember_tokens_seconds=0) for _ in range(2)]
    async with visiting(sites[0]) as visitor, visiting(sites[1]) as elsewhere:
        await visitor.sign_in(token)
        take_over(elsewhere, visitor)
        assert (await elsewhere.get("/tokens")).status_code == 200
        csrf = await visitor.csrf("/tokens")
        assert (await visitor.post("/logout", data={"csrf": csrf})).status_code == 303
        assert (await elsewhere.get("/tokens")).status_code == 303
        async with visiting(make(database)) as later:  # it was started anew
            take_over(later, elsewhere)
            assert (await later.get("/tokens")).status_code == 303
        await visitor.sign_in(token)
        assert (await visitor.get("/tokens")).status_code == 200


@everywhere
async def test_sessions_that_would_be_over_by_now_are_forgotten(
    make: Make, database: Database
) -> None:
    token, site = token_in(database, "ann"), make(database)

    async def sign_in_and_out() -> None:
        async with visiting(site) as visitor:
            await visitor.sign_in(token)
            await visitor.post("/logout", data={"csrf": await visitor.csrf("/tokens")})

    for _ in range(3):
        await sign_in_and_out()
    count = "SELECT COUNT(*) FROM rowmq_ended_sessions"
    assert database.execute(count) == [(3,)]
    database.execute("UPDATE rowmq_ended_sessions SET ends_at = 1")
    await sign_in_and_out()
    assert database.execute(count) == [(1,)]


# --- guesses --------------------------------------------------------------------------------------


async def test_the_token_of_the_settings_is_guessed_no_faster_than_others(
    make: Make, database: Database
) -> None:
    right = "correct-horse-battery-staple"
    site = make(database, token=right, failures_per_minute=3)
    async with visiting(site, remote=ELSEWHERE) as guesser, visiting(site) as operator:
        assert (await status(operator, right)) == 200
        found = [await status(guesser, f"guess {n}") for n in range(5)]
        assert found == [401, 401, 401, 429, 429]
        site.keys.forget()
        assert (await status(operator, right)) == 200, "it was right before"
    anew = make(database, token=right, failures_per_minute=3)
    async with visiting(anew, remote=ELSEWHERE) as guesser:
        assert [await status(guesser, f"guess {n}") for n in range(3)] == [401] * 3
        assert await status(guesser, right) == 429, "nobody can tell by it that it is right"


async def test_guesses_at_one_moment_are_counted_as_those_one_by_one(
    make: Make, database: Database
) -> None:
    token_in(database, "ann")
    async with visiting(make(database), remote=ELSEWHERE) as guesser:
        asked = (status(guesser, f"guess {n}") for n in range(50))
        assert Counter(await asyncio.gather(*asked)) == {401: 10, 429: 40}


async def test_right_tokens_that_come_at_one_moment_are_all_let_in(
    make: Make, database: Database
) -> None:
    tokens = [token_in(database, f"t{n}") for n in range(15)]
    async with visiting(make(database, failures_per_minute=3), remote=ELSEWHERE) as visitor:
        asked = (status(visitor, token) for token in [*tokens, *tokens])
        assert Counter(await asyncio.gather(*asked)) == {200: 30}


async def test_a_database_that_cannot_be_asked_makes_nobody_a_guesser(
    make: Make, database: Database
) -> None:
    token, site = token_in(database, "ann"), make(database, failures_per_minute=2)
    async with visiting(site, remote=ELSEWHERE) as visitor:
        await site.connect()
        database.execute("ALTER TABLE rowmq_tokens RENAME TO gone")
        assert {await status(visitor, token) for _ in range(5)} == {503}
        database.execute("ALTER TABLE gone RENAME TO rowmq_tokens")
        assert await status(visitor, token) == 200


async def status(visitor: Visitor, token: str) -> int:
    """What is answered to who shows a token."""
    right = {"Authorization": f"Bearer {token}"}
    return (await visitor.get("/api/v1/topics", headers=right)).status_code
