"""What a model is in Spark, and what its values are."""

import datetime as dt
import enum
from collections.abc import Iterator
from dataclasses import dataclass, make_dataclass
from decimal import Decimal
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any, Generic, Literal, NamedTuple, TypedDict, TypeVar

import msgspec
import pydantic
import pytest
from pyspark.sql import types

from rowmq.errors import InvalidOption
from rowmq.spark.models import form_of_model
from tests.unit.spark import shapes

T = TypeVar("T")


def fields(schema: types.DataType) -> Iterator[tuple[str, str, bool]]:
    """Names, types and whether they may be null, without what DDL cannot say of lists and maps."""
    assert isinstance(schema, types.StructType)
    for field in schema:
        yield field.name, field.dataType.simpleString(), field.nullable


def schema_of(model: Any) -> types.StructType:
    return form_of_model(model).spark


def model_of(kind: Any) -> Any:
    return make_dataclass("Order", [("part", kind)])


def test_every_kind_of_type_has_its_form() -> None:
    found = list(fields(schema_of(shapes.Everything)))
    assert {name: kind for name, kind, _ in found} == shapes.SCHEMA
    assert [name for name, *_ in found] == list(shapes.SCHEMA)


def test_what_may_be_none_or_left_out_is_nullable_and_nothing_else() -> None:
    schema = schema_of(shapes.Everything)
    assert [field.name for field in schema if field.nullable] == ["kind", "nested", "maybe"]
    assert [nullable for *_, nullable in fields(schema["place"].dataType)] == [False, True]
    assert [nullable for *_, nullable in fields(schema["note"].dataType)] == [False, True]


def test_values_are_what_they_were() -> None:
    form = form_of_model(shapes.Everything)
    (row,) = form.array([shapes.everything()]).to_pylist(maps_as_pydicts="strict")
    assert row == shapes.ROW


def test_lists_and_maps_say_whether_they_hold_nulls() -> None:
    schema = schema_of(shapes.Everything)
    many, tags, prices = (schema[name].dataType for name in ("many", "tags", "prices"))
    assert isinstance(many, types.ArrayType)
    assert many.containsNull
    assert isinstance(tags, types.ArrayType)
    assert not tags.containsNull
    assert isinstance(prices, types.MapType)
    assert not prices.valueContainsNull


def test_a_model_that_is_missing_is_null_and_so_are_its_parts() -> None:
    form = form_of_model(shapes.Everything)
    found = form.array([None, shapes.everything(), None])
    assert found.is_valid().to_pylist() == [False, True, False]
    assert found.to_pylist(maps_as_pydicts="strict")[1] == shapes.ROW


def test_a_pydantic_model_has_the_names_that_it_is_written_with() -> None:
    assert list(fields(schema_of(shapes.Customer))) == [
        ("id", "string", False),
        ("name", "string", False),
        ("born", "date", True),
        ("home", "struct<street:string,zip:bigint>", True),
        ("others", "array<struct<street:string,zip:bigint>>", False),
        ("colour", "string", False),
        ("since", "timestamp", False),
        ("page", "string", True),
    ]


def test_a_pydantic_model_has_its_values() -> None:
    since = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    text = """{"id": "00000000-0000-0000-0000-000000000007", "name": "Ann", "home": {"street": "s",
        "zip": 8000}, "since": "2026-01-01T01:00:00+01:00", "page": "https://example.org"}"""
    customer = shapes.Customer.model_validate_json(text)
    assert form_of_model(shapes.Customer).array([customer]).to_pylist() == [
        {
            "id": "00000000-0000-0000-0000-000000000007",
            "name": "Ann",
            "born": None,
            "home": {"street": "s", "zip": 8000},
            "others": [],
            "colour": "red",
            "since": since,
            "page": "https://example.org/",
        }
    ]


def test_what_only_pydantic_knows_is_read_inside_its_models() -> None:
    class Host(pydantic.BaseModel):
        address: IPv4Address
        folder: Path
        size: pydantic.ByteSize
        local: pydantic.NaiveDatetime
        database: pydantic.PostgresDsn

    text = """{"address": "127.0.0.1", "folder": "/a", "size": "1kB",
        "local": "2026-01-01T00:00:00", "database": "postgresql://h/d"}"""
    assert form_of_model(Host).array([Host.model_validate_json(text)]).to_pylist() == [
        {
            "address": "127.0.0.1",
            "folder": "/a",
            "size": 1000,
            "local": dt.datetime(2026, 1, 1),  # noqa: DTZ001 - it has no time zone
            "database": "postgresql://h/d",
        }
    ]


def test_a_root_model_is_what_it_holds() -> None:
    class Tags(pydantic.RootModel[list[str]]):
        pass

    class Page(pydantic.BaseModel):
        tags: Tags

    assert schema_of(Page).simpleString() == "struct<tags:array<string>>"
    page = Page.model_validate({"tags": ["a"]})
    assert form_of_model(Page).array([page]).to_pylist() == [{"tags": ["a"]}]


def test_models_of_both_worlds_stand_in_each_other() -> None:
    @dataclass
    class Outer:
        customer: shapes.Address | None

    class Inner(pydantic.BaseModel):
        line: shapes.Place

    assert schema_of(Outer).simpleString() == "struct<customer:struct<street:string,zip:bigint>>"
    assert schema_of(Inner).simpleString() == "struct<line:struct<x:bigint,label:string>>"


def test_a_tag_is_a_column_since_it_is_written() -> None:
    assert list(fields(schema_of(shapes.Tagged))) == [
        ("kind", "string", False),
        ("number", "bigint", False),
        ("note", "string", True),
    ]
    found = form_of_model(shapes.Tagged).array([shapes.Tagged(1), shapes.Tagged(2, note="n")])
    assert found.to_pylist() == [
        {"kind": "order", "number": 1, "note": None},
        {"kind": "order", "number": 2, "note": "n"},
    ]


def test_a_generic_model_has_the_types_that_it_was_given() -> None:
    class Page(msgspec.Struct, Generic[T]):
        items: list[T]

    assert schema_of(Page[int]).simpleString() == "struct<items:array<bigint>>"


class Tree(msgspec.Struct):
    children: list["Tree"]


class Branch(pydantic.BaseModel):
    trunk: "Branch | None" = None


class Mixed(enum.Enum):
    ONE = 1
    TWO = "two"


class Empty(msgspec.Struct):
    pass


class Dog(msgspec.Struct, tag=True):
    name: str


class Cat(msgspec.Struct, tag=True):
    name: str


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        (Any, "Order.part: any"),
        (complex, "Order.part: complex"),
        (object, "Order.part: object"),
        (int | str, "Order.part: a choice of types"),
        (Dog | Cat, "Order.part: a choice of types"),
        (list[dict[str, Any]], "Order.part[][]: any"),
        (tuple[int, str], "Order.part: a tuple of different types"),
        (Literal[1, "a"], "Order.part: a choice of values"),
        (IPv4Address, "Order.part: IPv4Address"),
        (Tree, "Order.part.children[]: a Tree inside itself"),
        (Branch, "Order.part.trunk: a Branch inside itself"),
        (Empty, "Order.part: a model without fields"),
        (list, "Order.part[]: any"),
        (msgspec.Raw, "Order.part: raw"),
        (None, "Order.part: none"),
    ],
)
def test_what_has_no_form_is_named(kind: Any, path: str) -> None:
    with pytest.raises(InvalidOption) as caught:
        form_of_model(model_of(kind))
    assert str(caught.value).startswith(path), caught.value
    assert "has no form in Spark" in str(caught.value)


def test_a_secret_has_no_form_since_it_is_never_written() -> None:
    class User(pydantic.BaseModel):
        password: pydantic.SecretStr

    with pytest.raises(InvalidOption, match=r"User\.password: SecretStr"):
        form_of_model(User)


@pytest.mark.parametrize(
    "model", [int, str, list[int], dict[str, int], Any, None, 3, "Order", {"a": int}]
)
def test_what_is_no_model_is_refused(model: Any) -> None:
    with pytest.raises(InvalidOption):
        form_of_model(model)


def test_a_type_that_cannot_be_read_from_json_is_refused() -> None:
    class Odd(NamedTuple):
        part: dict[str, int] | shapes.Line

    class Odder(pydantic.BaseModel):
        part: Mixed

    with pytest.raises(InvalidOption, match="Odd: cannot be read from JSON"):
        form_of_model(Odd)
    with pytest.raises(InvalidOption, match=r"Odder\.part: cannot be read from JSON"):
        form_of_model(Odder)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (int, 2**63),
        (Decimal, Decimal("1e-19")),
        (Decimal, Decimal("1e30")),
        (int | float, 2**53 + 1),
        (dt.datetime, dt.datetime(2026, 1, 1)),  # noqa: DTZ001 - that is the point
    ],
)
def test_a_value_that_spark_cannot_hold_is_told_of_by_its_field(kind: Any, value: Any) -> None:
    model = model_of(kind)
    with pytest.raises(ValueError, match="part: "):
        form_of_model(model).array([model(value)])


def test_typed_dicts_may_lack_what_is_not_required() -> None:
    class Partial(TypedDict, total=False):
        a: int

    assert form_of_model(Partial).array([{}, {"a": 1}]).to_pylist() == [{"a": None}, {"a": 1}]
