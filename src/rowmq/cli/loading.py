"""Finds the app that `module:name` stands for."""

import importlib
import inspect
import sys
from collections.abc import Callable
from difflib import get_close_matches
from typing import Any

import click

import rowmq
from rowmq.cli.showing import visible

__all__ = ["load_app"]

DEFAULT_NAME = "app"


def load_app(target: str) -> rowmq.App:
    """The app of `module:name`, where a module in the current directory counts; `app`, if no name
    is given. A function is called for it.
    """
    module_name, _, name = target.partition(":")
    if not module_name or (module_name.startswith(".") and "/" not in module_name):
        raise click.UsageError("an app is named by its module and name, as in shop.tasks:app")
    if module_name.endswith(".py") or "/" in module_name:
        right = module_name.removesuffix(".py").strip("./").replace("/", ".")
        raise click.UsageError(f"an app is named by its module: {right}:{name or DEFAULT_NAME}")
    if "" not in sys.path:
        sys.path.insert(0, "")
    found = attribute_of(imported(module_name), name or DEFAULT_NAME)
    if inspect.isfunction(found):
        found = made_by(found, target)
    if not isinstance(found, rowmq.App):
        raise click.UsageError(
            f"{visible(target)} is a {type(found).__name__}, and not a rowmq.App"
        )
    return found


def made_by(factory: Callable[..., Any], target: str) -> Any:
    """What a function makes that takes no arguments and is no handler."""
    module = vars(sys.modules[factory.__module__])
    apps = [value for value in module.values() if isinstance(value, rowmq.App)]
    if any(handler.function is factory for app in apps for handler in app.handlers):
        raise click.UsageError(
            f"{visible(target)} is a handler: name the app that it was declared with"
        )
    needed = [
        parameter
        for parameter in inspect.signature(factory).parameters.values()
        if parameter.default is parameter.empty
    ]
    if needed:
        raise click.UsageError(f"{visible(target)} takes arguments, so it can make no app here")
    return factory()


def imported(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise  # the module is there, and misses another
        raise click.UsageError(
            f"there is no module {visible(name)} in this directory, nor installed; run this where "
            f"{visible(name.partition('.')[0])}.py is"
        ) from error


def attribute_of(module: Any, name: str) -> Any:
    found = module
    for part in name.split("."):
        if not hasattr(found, part):
            apps = [key for key, value in vars(module).items() if isinstance(value, rowmq.App)]
            near = get_close_matches(name, vars(module), n=1)
            hint = ", ".join(apps) or ", ".join(near)
            raise click.UsageError(
                f"module {visible(module.__name__)} has no {visible(name)}"
                + (f"; it has: {visible(hint)}" if hint else ", nor any rowmq.App")
            )
        found = getattr(found, part)
    return found
