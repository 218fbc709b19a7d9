"""Names and passwords of any characters log in, as they are; and show in nothing that is said."""

from urllib.parse import quote, urlsplit

import pytest

from rowmq import errors
from tests import flavours
from tests.databases import Database

PASSWORDS = ["pässwörd", "😀", "a b'c\"d\\", "%41:/@?#[]", "line\nbreak", "%s {0} `x`", "x" * 60]

MAKERS = ["postgres", "mariadb"]
"""Those whose account may make others."""


def make_account(database: Database, name: str, password: str) -> None:
    quoted = password.replace("'", "''")
    if database.dialect == "postgres":
        database.execute(f"CREATE ROLE \"{name}\" LOGIN SUPERUSER PASSWORD '{quoted}'")
    else:
        quoted = quoted.replace("\\", "\\\\")
        database.execute(f"CREATE USER `{name}`@'127.0.0.1' IDENTIFIED BY '{quoted}'")
        database.execute(f"GRANT ALL ON *.* TO `{name}`@'127.0.0.1'")


def drop_account(database: Database, name: str) -> None:
    if database.dialect == "postgres":
        database.execute(f'DROP ROLE IF EXISTS "{name}"')
    else:
        database.execute(f"DROP USER IF EXISTS `{name}`@'127.0.0.1'")


@pytest.mark.parametrize("database", MAKERS, indirect=True)
@pytest.mark.parametrize("password", PASSWORDS)
async def test_an_account_of_any_characters_logs_in(
    database: Database, flavour: str, password: str
) -> None:
    name = "r %ö'wmq"
    parts = urlsplit(database.url)
    where = f"{parts.hostname}:{parts.port}{parts.path}"
    try:
        make_account(database, name, password)
        url = f"{parts.scheme}://{quote(name)}:{quote(password, safe='')}@{where}"
        async with await flavours.connect(flavour, url, notify=False) as mq:
            await mq.publish("t", 1, id="one")
            assert [message.id for message in await mq.read("t")] == ["one"]
        wrong = f"{parts.scheme}://{quote(name)}:{quote(password[::-1], safe='')}zz@{where}"
        with pytest.raises(errors.AuthenticationFailed) as caught:
            await flavours.connect(flavour, wrong, notify=False)
        assert password[::-1] not in str(caught.value)
    finally:
        drop_account(database, name)
