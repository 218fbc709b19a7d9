"""Models of every kind, for tests: each is also what producers publish and workers read."""

import enum
import uuid
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Annotated, Literal, NamedTuple, NewType, NotRequired, TypedDict

import msgspec
import pydantic

Sku = NewType("Sku", str)


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Size(enum.IntEnum):
    SMALL = 1
    LARGE = 2


class Place(NamedTuple):
    x: int
    label: str | None


class Note(TypedDict):
    text: str
    author: NotRequired[str]


class Line(msgspec.Struct, rename="camel", omit_defaults=True):
    sku_code: Sku
    unit_price: Decimal = Decimal("1.5")


@dataclass
class Everything:
    number: int
    ratio: float
    yes: bool
    text: str
    data: bytes
    moment: datetime
    clock: Annotated[datetime, msgspec.Meta(tz=False)]
    day: date
    hour: time
    span: timedelta
    amount: Decimal
    key: uuid.UUID
    colour: Colour
    size: Size
    kind: Literal["a", "b", None]  # noqa: PYI061 - it is written that way, too
    either: int | float
    line: Line
    place: Place
    note: Note
    lines: list[Line]
    tags: set[str]
    pair: tuple[int, int]
    many: tuple[float | None, ...]
    prices: dict[str, Decimal]
    nested: dict[str, list[Note | None]] | None = None
    maybe: Line | None = None
    positive: Annotated[int, msgspec.Meta(gt=0)] = 7
    later: list[int] = field(default_factory=list)


LINE = "struct<skuCode:string,unitPrice:decimal(38,18)>"
NOTE = "struct<text:string,author:string>"

SCHEMA = {
    "number": "bigint",
    "ratio": "double",
    "yes": "boolean",
    "text": "string",
    "data": "binary",
    "moment": "timestamp",
    "clock": "timestamp_ntz",
    "day": "date",
    "hour": "string",
    "span": "string",
    "amount": "decimal(38,18)",
    "key": "string",
    "colour": "string",
    "size": "bigint",
    "kind": "string",
    "either": "double",
    "line": LINE,
    "place": "struct<x:bigint,label:string>",
    "note": NOTE,
    "lines": f"array<{LINE}>",
    "tags": "array<string>",
    "pair": "array<bigint>",
    "many": "array<double>",
    "prices": "map<string,decimal(38,18)>",
    "nested": f"map<string,array<{NOTE}>>",
    "maybe": LINE,
    "positive": "bigint",
    "later": "array<bigint>",
}
"""What `Everything` is in Spark."""


def everything() -> Everything:
    return Everything(
        number=2**63 - 1,
        ratio=0.1,
        yes=True,
        text="Ünïcode \U0001f600 \0 'quoted'",
        data=b"\x00\xff",
        moment=datetime(2026, 3, 4, 5, 6, 7, 89, tzinfo=UTC),
        clock=datetime(2026, 3, 4, 5, 6, 7),  # noqa: DTZ001 - that is what it is about
        day=date(1969, 12, 31),
        hour=time(1, 2, 3),
        span=timedelta(days=1, seconds=1),
        amount=Decimal("-12345678901234567890.123456789012345678"),
        key=uuid.UUID(int=7),
        colour=Colour.BLUE,
        size=Size.LARGE,
        kind=None,
        either=3,
        line=Line(Sku("a")),
        place=Place(1, None),
        note={"text": "hello"},
        lines=[Line(Sku("b"), Decimal(2)), Line(Sku("c"))],
        tags={"only"},
        pair=(1, 2),
        many=(0.5, None),
        prices={"EUR": Decimal("0.01"), "": Decimal(0)},
        nested={"k": [{"text": "t", "author": "a"}, None], "empty": []},
    )


ROW = {
    "number": 2**63 - 1,
    "ratio": 0.1,
    "yes": True,
    "text": "Ünïcode \U0001f600 \0 'quoted'",
    "data": b"\x00\xff",
    "moment": datetime(2026, 3, 4, 5, 6, 7, 89, tzinfo=UTC),
    "clock": datetime(2026, 3, 4, 5, 6, 7),  # noqa: DTZ001 - see above
    "day": date(1969, 12, 31),
    "hour": "01:02:03",
    "span": "P1DT1S",
    "amount": Decimal("-12345678901234567890.123456789012345678"),
    "key": "00000000-0000-0000-0000-000000000007",
    "colour": "blue",
    "size": 2,
    "kind": None,
    "either": 3.0,
    "line": {"skuCode": "a", "unitPrice": Decimal("1.5")},
    "place": {"x": 1, "label": None},
    "note": {"text": "hello", "author": None},
    "lines": [
        {"skuCode": "b", "unitPrice": Decimal(2)},
        {"skuCode": "c", "unitPrice": Decimal("1.5")},
    ],
    "tags": ["only"],
    "pair": [1, 2],
    "many": [0.5, None],
    "prices": {"EUR": Decimal("0.01"), "": Decimal(0)},
    "nested": {"k": [{"text": "t", "author": "a"}, None], "empty": []},
    "maybe": None,
    "positive": 7,
    "later": [],
}
"""What `everything()` is in Spark."""


class Address(pydantic.BaseModel):
    street: str
    zip_code: int = pydantic.Field(alias="zip")


class Customer(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(use_enum_values=True)

    id: uuid.UUID
    name: Annotated[str, pydantic.Field(min_length=1)]
    born: date | None = None
    home: Address | None = None
    others: list[Address] = []
    colour: Colour = Colour.RED
    since: pydantic.AwareDatetime
    page: pydantic.HttpUrl | None = None
    secret: int = pydantic.Field(default=1, exclude=True)


class Tagged(msgspec.Struct, tag="order", tag_field="kind"):
    number: int
    note: str | msgspec.UnsetType = msgspec.UNSET
