"""A model of a script or a notebook reaches processes that do not have it."""

import subprocess
import sys
import threading
from typing import Any

import msgspec
import pytest

from rowmq.codec import Encoding, decode
from rowmq.errors import InvalidOption, PayloadMismatch
from rowmq.spark.carrying import pack, unpack
from rowmq.spark.models import form_of_model
from tests.unit.spark import shapes

SCRIPT = """
import enum, sys
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Annotated, NamedTuple, NotRequired, TypedDict

import msgspec
import pydantic

from rowmq.codec import Encoding, decode
from rowmq.spark.carrying import pack
from rowmq.spark.models import form_of_model

class Colour(enum.Enum):
    RED = "red"

class Line(msgspec.Struct, rename="camel", tag="line", forbid_unknown_fields=True):
    sku_code: Annotated[str, msgspec.Meta(min_length=1)]
    unit_price: Decimal = Decimal("1.5")
    tags: list[str] = []

    def __post_init__(self):
        if self.is_odd():
            raise ValueError("it is odd")

    def is_odd(self):
        return self.sku_code == "odd"

class Wide(Line, kw_only=True):
    width: int

@dataclass
class Order:
    number: int
    lines: list[Line] = field(default_factory=list)
    colour: Colour | None = None
    state: str = "new"

class Note(TypedDict):
    text: str
    author: NotRequired[str]

class Place(NamedTuple):
    x: int
    note: Note | None = None

@dataclass
class Account:
    number: int

class Customer(pydantic.BaseModel):
    name: str = pydantic.Field(alias="Name", min_length=1)
    account: Account

    @pydantic.field_validator("name")
    @classmethod
    def upper(cls, name: str) -> str:
        return name.upper()

for model, text in (
    (Line, b'{"type": "line", "skuCode": "a"}'),
    (Wide, b'{"type": "line", "skuCode": "a", "width": 3}'),
    (Order, b'{"number": 1, "lines": [{"type": "line", "skuCode": "a"}], "colour": "red"}'),
    (Note, b'{"text": "t"}'),
    (Place, b'[1, {"text": "t", "author": "a"}]'),
    (Customer, b'{"Name": "ann", "account": {"number": 1}}'),
):
    form_of_model(model).array([decode(text, Encoding.JSON, model)])  # msgspec remembers it now
    print(model.__name__, text.decode(), pack(model).hex(), sep="\\t")
"""


@pytest.fixture(scope="module")
def packed() -> dict[str, tuple[bytes, bytes]]:
    """By the name of each model of the script: a payload, and the model."""
    command = [sys.executable, "-c", SCRIPT]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    lines = [line.split("\t") for line in done.stdout.splitlines()]
    return {name: (text.encode(), bytes.fromhex(model)) for name, text, model in lines}


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("Line", {"type": "line", "skuCode": "a", "tags": []}),
        ("Wide", {"type": "line", "skuCode": "a", "tags": [], "width": 3}),
        ("Order", {"number": 1, "colour": "red", "state": "new"}),
        ("Note", {"text": "t", "author": None}),
        ("Place", {"x": 1, "note": {"text": "t", "author": "a"}}),
        ("Customer", {"Name": "ANN", "account": {"number": 1}}),
    ],
)
def test_a_model_without_a_module_reads_as_it_did(
    name: str, row: dict[str, Any], packed: dict[str, tuple[bytes, bytes]]
) -> None:
    text, model = packed[name]
    carried = unpack(model)
    (found,) = form_of_model(carried).array([decode(text, Encoding.JSON, carried)]).to_pylist()
    assert row.items() <= found.items()


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("Line", b'{"type": "line", "skuCode": ""}', "length >= 1"),
        ("Line", b'{"type": "other", "skuCode": "a"}', "Invalid value 'other'"),
        ("Line", b'{"type": "line", "skuCode": "a", "x": 1}', "unknown field `x`"),
        ("Line", b'{"type": "line", "skuCode": "odd"}', "it is odd"),
        ("Wide", b'{"type": "line", "skuCode": "odd", "width": 1}', "it is odd"),
        ("Order", b'{"lines": []}', "missing required field `number`"),
        ("Customer", b'{"Name": ""}', "at least 1 character"),
    ],
)
def test_a_model_without_a_module_refuses_what_it_did(
    name: str, text: bytes, reason: str, packed: dict[str, tuple[bytes, bytes]]
) -> None:
    carried = unpack(packed[name][1])
    with pytest.raises(PayloadMismatch, match=reason):
        decode(text, Encoding.JSON, carried)


@pytest.mark.parametrize("model", [shapes.Line, shapes.Everything, shapes.Customer, shapes.Place])
def test_a_model_that_can_be_imported_is_imported(model: type) -> None:
    assert unpack(pack(model)) is model


def test_what_cannot_be_carried_says_what_to_do() -> None:
    guard = threading.Lock()

    class Stuck(msgspec.Struct):
        number: int

        def __post_init__(self) -> None:
            guard.acquire()

    with pytest.raises(InvalidOption, match="define it in a module that they can import"):
        pack(Stuck)
