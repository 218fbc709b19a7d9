"""Receipts of deliveries, as text: a claim, and a seal that only this site can make.

    t1.<group>.<subscriber>.<partition>.<epoch>.<offset>.<attempt>.<reopened>.<attempts_max>.<seal>

The seal is of the site's secret, of the database, and of the token that the delivery was given to:
so a receipt can neither be guessed, nor used by somebody else or where its numbers mean something
else, and any process that has the same secret and database knows it.
"""

import hashlib
import hmac
import re
from typing import NamedTuple

from rowmq.errors import InvalidInput
from rowmq.quoting import quoted
from rowmq.subscriber.receipts import Claim

__all__ = ["Owner", "Seal"]

MARK = "t1"

NUMBER = r"(-?[0-9]{1,19})"
FORM = re.compile(r"\.".join([MARK, *[NUMBER] * len(Claim._fields), "([0-9a-f]{32})"]))


class Owner(NamedTuple):
    """To whom a delivery was given: the token that was shown."""

    token_id: int | None
    name: str
    digest: str


class Seal:
    """Makes receipts, and knows its own."""

    def __init__(self, secret: str) -> None:
        self._key = hashlib.sha256(f"receipts of deliveries:{secret}".encode()).digest()
        self.database: int | None = None
        """What tells the database from others; it must be known before there is any receipt."""

    def receipt(self, claim: Claim, owner: Owner) -> str:
        """The receipt of a claim."""
        body = f"{MARK}.{'.'.join(map(str, claim))}"
        return f"{body}.{self._of(body, owner)}"

    def claim(self, receipt: str, owner: Owner) -> Claim | None:
        """The claim of a receipt; None if it was not this site that gave it, or not to this owner.
        `InvalidInput` if it is no receipt at all.
        """
        match = FORM.fullmatch(receipt)
        if match is None:
            raise InvalidInput(
                f"this is no receipt of a delivery: {quoted(receipt)}; a poll of this group gives "
                f"one with each, and it is handed back as it was"
            )
        body, _, seal = receipt.rpartition(".")
        if not hmac.compare_digest(seal, self._of(body, owner)):
            return None
        return Claim(*map(int, match.groups()[:-1]))

    def _of(self, body: str, owner: Owner) -> str:
        assert self.database is not None  # noqa: S101 - whoever asks has seen to it
        whose = f"{self.database}:{owner.digest}:{owner.token_id}:{owner.name}"
        told = f"{whose}:{body}".encode(errors="surrogatepass")
        return hmac.new(self._key, told, hashlib.sha256).hexdigest()[:32]
