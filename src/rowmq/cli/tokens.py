"""`rowmq tokens`: who may use the dashboard and the HTTP API."""

import getpass
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import click

import rowmq
from rowmq.cli import options
from rowmq.cli.commands import Section
from rowmq.cli.failing import unknown
from rowmq.cli.options import Database, confirm
from rowmq.cli.showing import Cell, emit, err, marked, out, table, visible
from rowmq.cli.values import DURATION
from rowmq.quoting import within
from rowmq.rights import EVERYTHING

__all__ = ["somebody", "tokens"]


@click.group(cls=Section)
def tokens() -> None:
    """List, create or revoke tokens of the dashboard and the HTTP API.

    For example:
      rowmq tokens create ann --role admin
      rowmq tokens create shop --role produce --topic 'orders*' --expires-in 90d
      rowmq tokens revoke shop
    """


@tokens.command()
@options.database
@options.as_json
def ls(database: Database, *, as_json: bool) -> None:
    """List all tokens, without their secrets.

    Those that have ended come after the others, since the audit trail names them.

    For example:
      rowmq tokens ls
    """
    with database.open() as mq:
        found = mq.access.tokens()
    if as_json:
        emit([token_fields(token) for token in found])
        return
    rows = [
        (t.name, ", ".join(sorted(t.roles)), scope(t.topics), scope(t.queues), t.used_at, ending(t))
        for t in found
    ]
    columns = ("token", "roles", "topics", "queues", "used", "ends")
    table(columns, rows, empty="there are no tokens yet: rowmq tokens create NAME makes one")


def scope(names: tuple[str, ...]) -> str:
    return "all" if "*" in names else ", ".join(names) or "none"


def ending(token: rowmq.TokenInfo) -> Cell:
    """Until when it may be used."""
    if token.revoked_at is not None:
        return marked("revoked")
    if not token.live:
        return marked("expired")
    return token.expires_at or "never"


def token_fields(token: rowmq.TokenInfo) -> dict[str, Any]:
    return {
        "id": token.id,
        "token": token.name,
        "roles": sorted(token.roles),
        "topics": token.topics,
        "queues": token.queues,
        "live": token.live,
        "created_at": token.created_at,
        "expires_at": token.expires_at,
        "used_at": token.used_at,
        "revoked_at": token.revoked_at,
    }


@tokens.command()
@click.argument("name")
@click.option(
    "--role",
    "roles",
    type=click.Choice([role.value for role in rowmq.Role]),
    multiple=True,
    default=[rowmq.Role.READ.value],
    show_default=True,
    help="What it is for; several times for several. Admin is all of them, and more.",
)
@click.option(
    "--topic",
    "topics",
    multiple=True,
    metavar="NAME",
    help="Only these topics: names, or prefixes that end in *.",
)
@click.option(
    "--queue",
    "queues",
    multiple=True,
    metavar="NAME",
    help="Only these queues. With topics alone, none; without both options, everything.",
)
@click.option("--expires-in", type=DURATION, metavar="DURATION", help="As in 90d. Else never.")
@options.database
@options.as_json
def create(
    database: Database,
    name: str,
    *,
    roles: tuple[str, ...],
    topics: tuple[str, ...],
    queues: tuple[str, ...],
    expires_in: timedelta | None,
    as_json: bool,
) -> None:
    """Make a token, and print its secret.

    The database keeps a hash of it only: nobody can show it again. Until there is a first token,
    the dashboard and the HTTP API need none on this machine; from then on everybody needs one.

    For example:
      rowmq tokens create ann --role admin
      rowmq tokens create shop --role produce --role consume --topic 'orders*' --queue emails
    """
    if not topics and not queues:
        topics = queues = EVERYTHING
    with database.open(create=True) as mq:
        is_first = not mq.access.has_tokens()
        given = {"roles": sorted(set(roles)), "topics": topics, "queues": queues}
        with mq.transaction() as tx:  # there is no token that the trail does not know of
            secret = mq.access.create_token(
                name, roles=roles, topics=topics, queues=queues, expires_in=expires_in,
                connection=tx,
            )  # fmt: skip
            record(mq, tx, "token.create", name, given)
    if as_json:
        emit({"token": name, "secret": secret, **given})
    else:
        out().print(secret, soft_wrap=True)
        err().print(("this is shown once: keep it where secrets are kept", "dim"))
    if is_first:
        err().print(told_of_first(roles), soft_wrap=True)


def told_of_first(roles: tuple[str, ...]) -> str:
    """What the first token changes, for everybody."""
    closed = (
        "this is the first token: from now on the dashboard and the HTTP API are closed to whoever "
        "has none, also on this machine"
    )
    if rowmq.Role.ADMIN.value in roles:
        return closed
    return (
        f"{closed}; and no token is for admin yet, so nobody can steer anything there: "
        "rowmq tokens create NAME --role admin makes one"
    )


@tokens.command()
@click.argument("name")
@options.database
@options.yes
@options.as_json
def revoke(database: Database, name: str, *, yes: bool, as_json: bool) -> None:
    """Have a token be good for nothing from now on.

    Sessions that were begun with it end, too.

    For example:
      rowmq tokens revoke shop
    """
    with database.open() as mq:
        confirm(f"Whoever uses token {name!r} will be refused.", yes=yes)
        with mq.transaction() as tx:
            is_revoked = mq.access.revoke_token(name, connection=tx)
            if is_revoked:
                record(mq, tx, "token.revoke", name)
        if not is_revoked:
            known = (token.name for token in mq.access.tokens() if token.live)
            missing = f"there is no token {name!r} to revoke"
            raise unknown(missing, name, known, listed_by="rowmq tokens")
    if as_json:
        emit({"token": name, "revoked": True})
    else:
        out().print(f"revoked {visible(name)}")


def record(
    mq: rowmq.RowMQ,
    tx: rowmq.Transaction,
    action: str,
    name: str,
    details: Mapping[str, Any] | None = None,
) -> None:
    """Write into the trail what is done to a token, with that itself."""
    mq.access.record(action, who=somebody(), target=within(name), details=details, connection=tx)


def somebody() -> str:
    """Whoever runs this command, for the audit trail."""
    try:
        return f"(command line) {getpass.getuser()}"
    except (KeyError, OSError):  # a user without a name, as in some containers
        return "(command line)"
