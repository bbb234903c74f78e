"""The checks of a plugin at its registration, and the messages about a plugin that fails them."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import pluggy

from emberge import contracts, hookspecs
from emberge.errors import PluginError, suggest

BLOCK = "EMBERGE_BLOCK"


@dataclass(frozen=True)
class PluginSource:
    """The origin of a plugin: its name, distribution and version, and of a bare file its content."""

    name: str
    distribution: str
    version: str
    content: str = ""
    """SHA-256 of a bare file in hex; empty for an installed plugin, which has a version."""


def describe_failed_import(source: PluginSource, error: BaseException) -> str:
    """Describe a plugin that failed to import: its name, its distribution, and how to block it."""
    if not source.version:
        return f"plugin '{source.name}' ({source.distribution}) cannot be imported: {error!r}"
    return (
        f"plugin '{source.name}' of {source.distribution} {source.version} cannot be imported: "
        f"{error!r}; update or uninstall {source.distribution}, "
        f"or leave it out with {BLOCK}={source.name}"
    )


def describe_hook_error(source: PluginSource, error: pluggy.PluginValidationError) -> str:
    """Describe a misspelt hook, or another mismatch between a plugin and its hooks."""
    hooks = [name for name in vars(hookspecs) if hasattr(getattr(hookspecs, name), "emberge_spec")]
    for name in dir(error.plugin):
        is_hook = hasattr(getattr(error.plugin, name, None), "emberge_impl")
        if is_hook and name not in hooks:
            return f"plugin '{source.name}' has an unknown hook '{name}'{suggest(name, hooks)}"
    text = str(error).replace("\n", " ")
    return f"plugin '{source.name}' does not fit its hooks: {text}"


def refuse_unmarked(module: object, source: PluginSource) -> None:
    """Refuse a function with a hook's name but without `@hookimpl`, which would be ignored silently.

    Raises:
        PluginError: if there is such a function; the message names it.
    """
    for name, spec in vars(hookspecs).items():
        function = getattr(module, name, None) if hasattr(spec, "emberge_spec") else None
        if inspect.isfunction(function) and not hasattr(function, "emberge_impl"):
            raise PluginError(f"{name} of plugin '{source.name}' is not marked; write @hookimpl")


def require_contract(
    source: PluginSource, kind: str, name: str, type_: Any, followed: tuple[type, ...]
) -> None:
    """Refuse a component that does not follow its contract; of a place, only its form is checked.

    Raises:
        PluginError: if the name or place is bad, the type follows none of the contracts, the dataclass is not
            frozen, or the docstring is missing.
    """
    label = f"{kind} '{name}' of plugin '{source.name}'"
    if not isinstance(name, str) or not name.isidentifier():
        raise PluginError(f"{label}: a name is letters, digits and underscores")
    if isinstance(type_, str):
        module, _, attribute = type_.partition(":")
        if not all(map(str.isidentifier, [attribute, *module.split(".")])):
            raise PluginError(f"{label}: its place is written 'module:Name', not '{type_}'")
    elif isinstance(type_, contracts.ChainSpec):
        if contracts.ChainSpec not in followed:
            raise PluginError(f"{label}: only a merge strategy may be a chain")
    else:
        _require_class(label, type_, tuple(c for c in followed if c is not contracts.ChainSpec))
        parameters = getattr(type_, "__dataclass_params__", None)
        is_frozen = parameters is not None and parameters.frozen
        if kind != "reader" and (not is_frozen or "__dataclass_fields__" not in vars(type_)):
            raise PluginError(f"{label} must be a @dataclass(frozen=True, kw_only=True)")


def _require_class(label: str, type_: Any, classes: tuple[type, ...]) -> None:
    if not (isinstance(type_, type) and issubclass(type_, classes)):
        class_names = " or ".join(c.__name__ for c in classes)
        raise PluginError(f"{label} must be a subclass of {class_names}")
    doc = vars(type_).get("__doc__") or ""
    if not doc.strip() or doc.startswith(f"{type_.__name__}("):  # the dataclass default
        raise PluginError(f"{label} needs a docstring: `emberge show` is made of it")
