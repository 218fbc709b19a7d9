"""Shows a msgspec struct in the reference as the call that makes it, like a dataclass.

msgspec makes the constructor when the class is created, and the reference is made from the source.
"""

from collections.abc import Iterator
from typing import Any

import griffe

STRUCT = "msgspec.Struct"
SELF = griffe.Parameter("self", kind=griffe.ParameterKind.positional_or_keyword)


class Structs(griffe.Extension):
    """Gives every struct the `__init__` that msgspec will."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        for struct in structs(pkg):
            family = [*reversed(struct.mro()), struct]
            fields = {name: field for cls in family for name, field in fields_of(cls)}
            ordered = sorted(fields.values(), key=is_keyword_only)
            init = griffe.Function(
                "__init__", parameters=griffe.Parameters(SELF, *ordered), returns="None"
            )
            struct.set_member("__init__", init)


def structs(parent: griffe.Module | griffe.Class) -> Iterator[griffe.Class]:
    for member in parent.members.values():
        if isinstance(member, griffe.Class) and is_struct(member):
            yield member
        if isinstance(member, griffe.Module | griffe.Class):
            yield from structs(member)


def is_struct(cls: griffe.Class) -> bool:
    return any(
        isinstance(base, griffe.Expr) and base.canonical_path == STRUCT
        for ancestor in [cls, *cls.mro()]
        for base in ancestor.bases
    )


def fields_of(cls: griffe.Class) -> Iterator[tuple[str, griffe.Parameter]]:
    kind = griffe.ParameterKind.positional_or_keyword
    if str(cls.keywords.get("kw_only")) == "True":
        kind = griffe.ParameterKind.keyword_only
    for name, field in cls.members.items():
        if isinstance(field, griffe.Attribute) and "property" not in field.labels:
            yield (
                name,
                griffe.Parameter(name, annotation=field.annotation, kind=kind, default=field.value),
            )


def is_keyword_only(field: griffe.Parameter) -> bool:
    return field.kind is griffe.ParameterKind.keyword_only
