"""How a model reaches the executors.

Those import it, if it stands in a module that they have. A model of a script or a notebook has no
such module, so it travels as a whole, with some things that Spark's pickler does not know of
classes: what msgspec remembers of one has to stay behind, a struct of msgspec's has to be defined
anew, and what dataclasses compare by identity must be the same thing there.
"""

import dataclasses
import io
import pickle
from functools import lru_cache
from types import FunctionType
from typing import Any

import msgspec
from pyspark import cloudpickle

from rowmq.errors import InvalidOption

__all__ = ["pack", "unpack"]

REMEMBERED = "__msgspec_cache__"
METHODS = (FunctionType, property, classmethod, staticmethod)
SETTINGS = ("array_like", "forbid_unknown_fields", "frozen", "omit_defaults", "tag", "tag_field")


class Packer(cloudpickle.CloudPickler):
    def reducer_override(self, obj: Any) -> Any:
        if obj is dataclasses.MISSING:
            return getattr, (dataclasses, "MISSING")
        if isinstance(obj, msgspec.Meta):
            return define_meta, (dict(obj.__rich_repr__()),)  # what it was made of, by name
        if isinstance(obj, type) and REMEMBERED in vars(obj):
            delattr(obj, REMEMBERED)  # msgspec makes it again when it needs it
        if isinstance(obj, type) and issubclass(obj, msgspec.Struct) and not is_importable(obj):
            return define_struct, (obj.__name__, *definition_of(obj))
        return super().reducer_override(obj)  # type: ignore[no-untyped-call]


def pack(model: Any) -> bytes:
    """A model as bytes. `InvalidOption` if it can only be imported."""
    file = io.BytesIO()
    try:
        Packer(file).dump(model)  # type: ignore[no-untyped-call]
    except Exception as error:
        raise InvalidOption(
            f"{model} cannot be sent to the executors ({error}): define it in a module that they "
            f"can import"
        ) from error
    return file.getvalue()


@lru_cache(maxsize=64)
def unpack(packed: bytes) -> Any:
    """The model of bytes that `pack` made; always the same one for the same bytes."""
    return pickle.loads(packed)  # noqa: S301 - Spark runs the code of its users


def is_importable(kind: type) -> bool:
    """Whether a class is found where it says that it is, and not in a program that was started."""
    try:
        pickle.dumps(kind)
    except (pickle.PicklingError, AttributeError):
        return False
    return kind.__module__ != "__main__"


def define_meta(settings: dict[str, Any]) -> msgspec.Meta:
    return msgspec.Meta(**settings)


Part = tuple[str, Any, Any, Any]


def definition_of(struct: Any) -> tuple[list[Part], dict[str, Any], dict[str, Any]]:
    """The fields, settings and methods of a struct."""
    fields = msgspec.structs.fields(struct)
    parts = [(field.name, field.type, field.default, field.default_factory) for field in fields]
    settings = {name: getattr(struct.__struct_config__, name) for name in SETTINGS}
    settings["rename"] = {field.name: field.encode_name for field in fields}
    methods = {
        name: value
        for kind in reversed(struct.__mro__)
        if isinstance(kind, type(msgspec.Struct))
        for name, value in vars(kind).items()
        if isinstance(value, METHODS)
    }
    return parts, settings, methods


def define_struct(
    name: str, parts: list[Part], settings: dict[str, Any], methods: dict[str, Any]
) -> type[msgspec.Struct]:
    """A struct as it was defined; by keyword, since fields of its bases may come first."""
    field: Any = msgspec.field  # its types do not say that it takes what it gives out
    fields = [
        (part, kind, field(default=default, default_factory=factory))
        for part, kind, default, factory in parts
    ]
    return msgspec.defstruct(
        name, fields, module=__name__, namespace=methods, kw_only=True, **settings
    )
