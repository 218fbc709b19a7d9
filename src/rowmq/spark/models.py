"""From a model to its form in Spark: pydantic models, dataclasses, TypedDicts, NamedTuples and the
structs of msgspec, with whatever may stand in them.

msgspec tells what a type is made of. What pydantic alone knows is looked up in the model's fields.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from enum import Enum
from functools import lru_cache
from ipaddress import (
    IPv4Address,
    IPv4Interface,
    IPv4Network,
    IPv6Address,
    IPv6Interface,
    IPv6Network,
)
from operator import attrgetter, methodcaller
from pathlib import PurePath
from typing import Any, NamedTuple, NoReturn, TypeVar

import msgspec
from msgspec import inspect

from rowmq.codec import is_pydantic_model
from rowmq.errors import InvalidOption
from rowmq.spark import forms
from rowmq.spark.forms import Entries, Field, Form, Inside, Items, Record

__all__ = ["form_of_model"]

T = TypeVar("T")


class At(NamedTuple):
    """Where in a model a type stands: for messages, and to see that it does not contain itself."""

    path: str
    inside: tuple[Any, ...] = ()
    pydantic: bool = False

    def part(self, name: str) -> "At":
        return self._replace(path=f"{self.path}.{name}")

    def items(self) -> "At":
        return self._replace(path=f"{self.path}[]")


def form_of_model(model: Any) -> Record:
    """The form of a whole model. `InvalidOption` if it is none, or if a part has no such form."""
    if not isinstance(model, Hashable):
        raise InvalidOption(f"{model!r} is no model, nor any other type")
    return known_form(model)


@lru_cache(maxsize=256)
def known_form(model: Any) -> Record:
    at = At(getattr(model, "__name__", str(model)))
    info = info_of(model, at)
    found = form_of(info, at) if isinstance(info, (*OBJECTS, inspect.CustomType)) else None
    if not isinstance(found, Record):
        raise InvalidOption(
            f"{at.path} is no model: give a pydantic model, a dataclass, a TypedDict, a NamedTuple "
            f"or a msgspec.Struct"
        )
    if not is_pydantic_model(model):
        understood(msgspec.json.Decoder, model, at)  # it knows of more that cannot be read
    return found


def info_of(type: Any, at: At) -> inspect.Type:
    """What a type is made of."""
    return understood(inspect.type_info, type, at)


def understood(function: Callable[[Any], T], type: Any, at: At) -> T:
    try:
        return function(type)
    except Exception as error:
        raise InvalidOption(f"{at.path}: cannot be read from JSON: {error}") from error


def refuse(at: At, what: str) -> NoReturn:
    raise InvalidOption(
        f"{at.path}: {what} has no form in Spark. Give it a type, or read with a model that leaves "
        f"it out"
    )


def form_of(info: inspect.Type, at: At) -> Form:
    """The form of a type that is not None."""
    if type(info) in LEAVES:
        return LEAVES[type(info)]
    for kind, find in COMPOUND.items():
        if isinstance(info, kind):
            return find(info, at)
    refuse(at, type(info).__name__.removesuffix("Type").lower())


def part_of(info: inspect.Type, at: At) -> tuple[Form, bool]:
    """The form of a type, and whether it may be None."""
    if isinstance(info, inspect.UnionType):
        kinds = [kind for kind in info.types if not isinstance(kind, inspect.NoneType)]
        return form_of_union(kinds, at), len(kinds) < len(info.types)
    if isinstance(info, inspect.LiteralType):
        return form_of_values([value for value in info.values if value is not None], at), (
            None in info.values
        )
    return form_of(info, at), False


def form_of_union(kinds: Sequence[inspect.Type], at: At) -> Form:
    found = {part_of(kind, at)[0] for kind in kinds}
    if len(found) == 1:
        return found.pop()
    if found == {forms.INTEGER, forms.FLOAT}:
        return forms.FLOAT
    refuse(at, "a choice of types")


def form_of_values(values: Sequence[Any], at: At) -> Form:
    """What holds the values of a Literal or an Enum."""
    kinds = {type(value) for value in values}
    for kind, found in ((bool, forms.BOOLEAN), (str, forms.TEXT), (int, forms.INTEGER)):
        if kinds == {kind}:
            return found
    refuse(at, "a choice of values that are not all text or all whole numbers")


def form_of_enum(info: inspect.EnumType, at: At) -> Form:
    return Inside(form_of_values([member.value for member in info.cls], at), value_of)


def value_of(member: Any) -> Any:
    """The value of a member of an Enum; pydantic may have taken it out already."""
    return member.value if isinstance(member, Enum) else member


def form_of_items(info: inspect.CollectionType, at: At) -> Form:
    form, nullable = part_of(info.item_type, at.items())
    return Items(form, nullable=nullable)


def form_of_tuple(info: inspect.TupleType, at: At) -> Form:
    """A tuple of so many items: the same as a list if they are all alike."""
    if not info.item_types or any(kind != info.item_types[0] for kind in info.item_types):
        refuse(at, "a tuple of different types")
    return form_of_items(inspect.VarTupleType(info.item_types[0]), at)


def form_of_dict(info: inspect.DictType, at: At) -> Form:
    key, _ = part_of(info.key_type, at)
    if isinstance(key, Record | Items | Entries):
        refuse(at, "a dict whose keys are no plain values")
    form, nullable = part_of(info.value_type, at.items())
    return Entries(key, form, nullable=nullable)


def form_of_datetime(info: inspect.DateTimeType, at: At) -> Form:  # noqa: ARG001 - as the others
    return forms.LOCAL_TIME if info.tz is False else forms.MOMENT


def form_of_class(info: inspect.CustomType, at: At) -> Form:
    """A class that msgspec does not know, and pydantic may."""
    if is_pydantic_model(info.cls):
        return form_of_pydantic(info.cls, at)
    if at.pydantic and isinstance(info.cls, type):
        for kind in info.cls.__mro__:
            if kind.__module__.partition(".")[0] == "pydantic" and kind.__name__ in PYDANTIC:
                return PYDANTIC[kind.__name__]
        if issubclass(info.cls, WRITTEN_AS_TEXT):
            return forms.WORDS
    refuse(at, getattr(info.cls, "__name__", str(info.cls)))


def form_of_pydantic(model: Any, at: At) -> Form:
    """A model of pydantic's, by the names that it is dumped with."""
    at = enter(model, at)._replace(pydantic=True)
    if getattr(model, "__pydantic_root_model__", False):
        form, _ = part_of(info_of(model.model_fields["root"].annotation, at), at)
        return Inside(form, attrgetter("root"))
    fields = []
    for name, field in model.model_fields.items():
        if not field.exclude:
            here = at.part(name)
            form, nullable = part_of(info_of(field.annotation, here), here)
            written = field.serialization_alias or name
            fields.append(Field(written, form, nullable, attrgetter(name)))
    return record(fields, at)


def form_of_object(info: Any, at: At) -> Form:
    """An object of msgspec's world, by the names that it writes."""
    at = enter(info.cls, at)
    fields = [tag_of(info, at)] if getattr(info, "tag", None) is not None else []
    for part in in_order(info):
        form, nullable = part_of(part.type, at.part(part.name))
        if may_be_absent(part):
            form, nullable = Inside(form, unless_unset), True
        fields.append(Field(part.encode_name, form, nullable, getter(info, part.name)))
    return record(fields, at)


def in_order(info: Any) -> Sequence[inspect.Field]:
    """The fields as they were declared, which msgspec does not keep to for a TypedDict."""
    if not isinstance(info, inspect.TypedDictType):
        return tuple(info.fields)
    declared = list(info.cls.__annotations__)
    return sorted(info.fields, key=lambda part: declared.index(part.name))


def may_be_absent(part: inspect.Field) -> bool:
    """Whether a part can be left out without anything standing for it."""
    defaults = (part.default, part.default_factory)
    return not part.required and all(default is msgspec.NODEFAULT for default in defaults)


def unless_unset(value: Any) -> Any:
    return None if value is msgspec.UNSET else value


def getter(info: Any, name: str) -> Callable[[Any], Any]:
    if isinstance(info, inspect.TypedDictType):
        return methodcaller("get", name)
    return attrgetter(name)


def tag_of(info: inspect.StructType, at: At) -> Field:
    """What msgspec writes beside the fields, to tell one struct from others."""
    tag = info.tag
    return Field(str(info.tag_field), form_of_values([tag], at), nullable=False, get=lambda _: tag)


def enter(model: Any, at: At) -> At:
    if model in at.inside:
        refuse(at, f"a {model.__name__} inside itself")
    return at._replace(inside=(*at.inside, model))


def record(fields: Sequence[Field], at: At) -> Record:
    if not fields:
        refuse(at, "a model without fields")
    return Record(fields)


OBJECTS = (
    inspect.DataclassType,
    inspect.NamedTupleType,
    inspect.StructType,
    inspect.TypedDictType,
)

LEAVES: Mapping[type[inspect.Type], Form] = {
    inspect.BoolType: forms.BOOLEAN,
    inspect.ByteArrayType: forms.BYTES,
    inspect.BytesType: forms.BYTES,
    inspect.DateType: forms.DATE,
    inspect.DecimalType: forms.DECIMAL,
    inspect.FloatType: forms.FLOAT,
    inspect.IntType: forms.INTEGER,
    inspect.MemoryViewType: forms.BYTES,
    inspect.StrType: forms.TEXT,
    inspect.TimeDeltaType: forms.WRITTEN,
    inspect.TimeType: forms.WRITTEN,
    inspect.UUIDType: forms.WORDS,
}

COMPOUND: Mapping[Any, Callable[[Any, At], Form]] = {
    inspect.CollectionType: form_of_items,
    inspect.CustomType: form_of_class,
    inspect.DateTimeType: form_of_datetime,
    inspect.DictType: form_of_dict,
    inspect.EnumType: form_of_enum,
    inspect.TupleType: form_of_tuple,
    **dict.fromkeys(OBJECTS, form_of_object),
}

PYDANTIC: Mapping[str, Form] = {
    "AnyUrl": forms.WORDS,
    "AwareDatetime": forms.MOMENT,
    "ByteSize": forms.INTEGER,
    "EmailStr": forms.WORDS,
    "FutureDate": forms.DATE,
    "FutureDatetime": forms.MOMENT,
    "NaiveDatetime": forms.LOCAL_TIME,
    "NameEmail": forms.WORDS,
    "PastDate": forms.DATE,
    "PastDatetime": forms.MOMENT,
    "_BaseMultiHostUrl": forms.WORDS,
    "_BaseUrl": forms.WORDS,
}
"""Classes of pydantic's own, whose values are plain ones, or are written as text."""

WRITTEN_AS_TEXT = (
    IPv4Address,
    IPv4Interface,
    IPv4Network,
    IPv6Address,
    IPv6Interface,
    IPv6Network,
    PurePath,
)
"""Classes that pydantic writes as text, and msgspec does not know."""
