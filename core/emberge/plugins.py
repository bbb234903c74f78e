"""The plugins of a process: found, blocked or refused, their components collected, events announced.

pluggy's own entry-point loader silently skips a second plugin of the same name, and one failing import keeps
it from loading other plugins. Therefore entry points are loaded here. A plugin's code may raise any exception
and call `sys.exit`; both become a PluginError that names the plugin.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import os
import sys
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.metadata import EntryPoint, distributions
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import pluggy

from emberge import contracts, hookspecs
from emberge.architectures import add_architecture
from emberge.component_parts import walk_parts
from emberge.errors import PluginError, suggest
from emberge.plugin_verbs import Verb

GROUP = "emberge"
BLOCK = "EMBERGE_BLOCK"

# Kind of component: (the hook that registers it, the names of the contracts it may follow).
KINDS: dict[str, tuple[str, tuple[str, ...]]] = {
    "step": ("register_steps", ("Step",)),
    "sampler": ("register_samplers", ("Sampler",)),
    "loss": ("register_losses", ("Loss", "TokenLoss")),
    "backbone": ("register_backbones", ("Backbone",)),
    "merge transform": ("register_merge_transforms", ("MergeTransform",)),
    "merge strategy": ("register_merge_strategies", ("MergeStrategy", "ChainSpec")),
    "evaluator": ("register_evaluators", ("Evaluator",)),
    "reader": ("register_readers", ("Reader",)),
    "launcher": ("register_launchers", ("Launcher",)),
}
# Words for kinds of component in messages, where they differ from the kind's own name.
_WORDS_BY_KINDS = {
    ("merge transform", "merge strategy"): "merge strategy",
    ("step",): "kind of step",
}


def find_contracts(kind: str) -> tuple[type, ...]:
    """Return the contracts that a kind of component may follow, and import them: `--help` needs none."""
    return tuple(getattr(contracts, name) for name in KINDS[kind][1])


@dataclass(frozen=True)
class PluginSource:
    """The origin of a plugin: its name, distribution and version, and of a bare file its content."""

    name: str
    distribution: str
    version: str
    content: str = ""
    """SHA-256 in hex of a bare file or registered modules; empty for an installed plugin with a version."""


@dataclass(frozen=True)
class Component:
    """Component that a plugin adds: its kind, its name, and its class or where to import it from."""

    kind: str
    name: str
    source: PluginSource
    type_or_place: Any
    """A dataclass type, a ChainSpec, or the place `module:Name` of either."""

    @property
    def plugin(self) -> str:
        """Name of the plugin."""
        return self.source.name

    @property
    def full_name(self) -> str:
        """`plugin:name`, which always works in a recipe."""
        return f"{self.source.name}:{self.name}"

    @cached_property
    def type(self) -> Any:
        """The dataclass type or ChainSpec, imported when it is first asked for.

        Raises:
            PluginError: if the type cannot be imported, or breaks its contract.
        """
        if not isinstance(self.type_or_place, str):
            return self.type_or_place
        module, _, name = self.type_or_place.partition(":")
        try:
            type_ = getattr(importlib.import_module(module), name)
        except (Exception, SystemExit) as error:
            raise PluginError(_describe_failed_import(self.source, error)) from error
        _require_contract(self.source, self.kind, self.name, type_)
        return type_

    @property
    def doc(self) -> str:
        """The component's documentation, dedented; a class that is not imported yet stays so."""
        if isinstance(self.type_or_place, str) and "type" not in vars(self):
            doc = _read_class_doc(*self.type_or_place.split(":"))
            if doc is not None:
                return doc
        text = self.type.doc if isinstance(self.type, contracts.ChainSpec) else self.type.__doc__
        return inspect.cleandoc(text or "")

    @property
    def summary(self) -> str:
        """First line of the documentation."""
        return self.doc.partition("\n")[0]


def _read_class_doc(module: str, name: str) -> str | None:
    """Return the docstring of a class from its module's source; None if it is not written there."""
    import ast

    try:
        spec = find_spec(module)
        source = Path(spec.origin).read_bytes() if spec is not None and spec.origin else b""
        statements = ast.parse(source).body
    # A package around it cannot be imported, or it is no Python source; importing it then says so.
    except (ImportError, OSError, SyntaxError, ValueError):
        return None
    classes = (one for one in statements if isinstance(one, ast.ClassDef) and one.name == name)
    return next((ast.get_docstring(one) for one in classes), None)


def _add_content(components: list[Component]) -> list[Component]:
    """Return the components with their modules' SHA-256; that of a notebook's cells is new each time."""
    content = hashlib.sha256()
    for place in (component.type_or_place for component in components):
        module = place.partition(":")[0] if isinstance(place, str) else place.__module__
        try:
            file = getattr(sys.modules.get(module), "__file__", None)
            file = file or getattr(find_spec(module), "origin", None) or ""
            content.update(Path(file).read_bytes())
        except (ImportError, OSError, ValueError):
            content.update(os.urandom(32))
    return [replace(c, source=replace(c.source, content=content.hexdigest())) for c in components]


class Plugins:
    """All plugins of a process: their components by kind and name, and their hooks."""

    def __init__(self, blocked: tuple[str, ...] = ()) -> None:
        self.manager = pluggy.PluginManager(GROUP)
        self.manager.add_hookspecs(hookspecs)
        self.hook: Any = self.manager.hook
        """Hooks that return a value: `plugins.hook.locate_model(...)`."""
        self.components: list[Component] = []
        self.verbs: dict[str, Verb] = {}
        self.files: tuple[Path, ...] = ()
        self.blocked = blocked
        self.blocked_hint = f"; {BLOCK} leaves out {', '.join(blocked)}" if blocked else ""
        """End of a message about a missing component: the names of blocked plugins; "" if none is blocked."""
        self._dropped: set[int] = set()

    def register(
        self,
        module: object,
        name: str,
        distribution: str = "",
        version: str = "",
        content: str = "",
    ) -> None:
        """Register a plugin object under a name; `content` is the SHA-256 of a bare file.

        Without `version` and `content`, as in a notebook, the content is that of its components' modules.

        Raises:
            PluginError: if the name is taken, a hook is misspelt, or a component breaks its contract.
        """
        source = PluginSource(name, distribution, version, content)
        if self.manager.has_plugin(name):
            raise PluginError(
                f"two plugins are named '{name}' (the second from {distribution or 'a file'}); "
                f"rename one, or block both with {BLOCK}={name}"
            )
        try:
            self.manager.register(module, name)
            self.manager.check_pending()
        except pluggy.PluginValidationError as error:
            raise PluginError(_describe_hook_error(source, error)) from error
        _refuse_unmarked(module, source)
        added: list[Component] = []
        for kind, (hook, _) in KINDS.items():
            for component, type_ in _call_register_hook(module, source, hook).items():
                _require_contract(source, kind, component, type_)
                added.append(Component(kind, component, source, type_))
        self.components += added if version or content else _add_content(added)
        architectures = _call_register_hook(module, source, "register_architectures")
        for model_type, architecture in architectures.items():
            add_architecture(name, model_type, architecture)
        for verb_name, verb in _call_register_hook(module, source, "register_verbs").items():
            if verb_name in self.verbs or not isinstance(verb, Verb):
                reason = "is another plugin's too" if verb_name in self.verbs else "must be a Verb"
                raise PluginError(f"verb '{verb_name}' of plugin '{name}' {reason}")
            self.verbs[verb_name] = verb

    def load_file(self, file: Path) -> None:
        """Load a plugin from a bare file, under the file's name without `.py`.

        Raises:
            PluginError: if there is no such file, it cannot be imported, or it is no sound plugin.
        """
        module, content = _import_file(file)
        self.register(module, file.stem, f"file {file.name}", content=content)
        self.files = (*self.files, file)

    def of(self, *kinds: str) -> dict[str, list[Component]]:
        """Map each bare name to the components of these kinds with that name; several are a clash."""
        by_name: dict[str, list[Component]] = {}
        for component in self.components:
            if component.kind in kinds:
                by_name.setdefault(component.name, []).append(component)
        return by_name

    def find(self, name: str, *kinds: str) -> Component:
        """Find the component called `name` or `plugin:name`.

        Raises:
            PluginError: if there is no such component (with a suggestion) or more than one.
        """
        word = _WORDS_BY_KINDS.get(kinds, " or ".join(kinds))
        by_name = self.of(*kinds)
        plugin, colon, bare = name.rpartition(":")
        matches = [
            c for c in by_name.get(bare if colon else name, []) if not colon or c.plugin == plugin
        ]
        if len(matches) == 1:
            return matches[0]
        if matches:
            plugins = " and from ".join(f"'{c.plugin}'" for c in matches)
            names = " or ".join(c.full_name for c in matches)
            raise PluginError(f"{word} '{name}' comes from {plugins}; write {names}")
        known_names = [*by_name, *(c.full_name for cs in by_name.values() for c in cs)]
        hint = suggest(name, known_names) or (
            f"; known: {', '.join(sorted(by_name))}" if by_name else ""
        )
        raise PluginError(f"there is no {word} '{name}'{hint}{self.blocked_hint}")

    def build_every(self, kind: str) -> list[Any]:
        """Return each component of a kind, with its default options, in the order of loading."""
        return [component.type() for component in self.components if component.kind == kind]

    def find_component(self, type_: Any) -> Component:
        """Return the component whose type this is.

        Raises:
            PluginError: if no plugin added the component.
        """
        place = f"{getattr(type_, '__module__', '')}:{getattr(type_, '__qualname__', '')}"
        for component in self.components:
            # A component that is not imported yet is known by its place alone.
            added = component.type_or_place
            if added == place or vars(component).get("type", added) is type_:
                return component
        raise PluginError(f"{getattr(type_, '__name__', type_)} was added by no plugin")

    def map_revisions(self, value: Any) -> dict[Component, int]:
        """Map the components that a value consists of to their revisions.

        These are the value itself and all components in its options, in order.
        """
        revisions: dict[Component, int] = {}
        for type_ in dict.fromkeys(type(part) for _, part in walk_parts(value)):
            try:
                revisions[self.find_component(type_)] = getattr(type_, "revision", 1)
            except PluginError:
                continue  # a part of a component's options
        return revisions

    def announce(self, event: contracts.Event) -> None:
        """Announce an event to every listener; drop a failing listener with a warning and go on."""
        for implementation in reversed(self.hook.hear_event.get_hookimpls()):
            if id(implementation.plugin) in self._dropped:
                continue
            try:
                implementation.function(event)
            except (Exception, SystemExit) as error:
                self._dropped.add(id(implementation.plugin))
                name = implementation.plugin_name
                warnings.warn(
                    f"plugin '{name}' failed at {type(event).__name__} ({error!r}) and gets no more events",
                    RuntimeWarning,
                    stacklevel=2,
                )


def load_plugins(files: Iterable[Path] = (), *, block: Iterable[str] | None = None) -> Plugins:
    """Load every installed plugin that is not blocked, and bare files given by path.

    `block` defaults to the names in the environment variable EMBERGE_BLOCK, separated by commas; `*`
    blocks all.

    Raises:
        PluginError: if a plugin cannot be loaded; names the plugin, its distribution, and how to block it.
    """
    words = os.environ.get(BLOCK, "").split(",") if block is None else block
    plugins = Plugins(tuple(word.strip() for word in words if word.strip()))
    for source, entry in _find_entry_points():
        if entry.name in plugins.blocked or "*" in plugins.blocked:
            continue
        try:
            module = entry.load()
        except (Exception, SystemExit) as error:
            raise PluginError(_describe_failed_import(source, error)) from error
        plugins.register(module, entry.name, source.distribution, source.version)
    for file in files:
        plugins.load_file(Path(file))
    return plugins


def _call_register_hook(module: object, source: PluginSource, hook: str) -> Mapping[str, Any]:
    """Call a plugin's hook and return the added types by name; empty for a plugin without the hook."""
    function = getattr(module, hook, None)
    if function is None or not hasattr(function, "emberge_impl"):
        return {}
    try:
        added = function()
    except (Exception, SystemExit) as error:
        raise PluginError(_describe_failed_import(source, error)) from error
    if not isinstance(added, Mapping):
        raise PluginError(
            f"{hook} of plugin '{source.name}' must return a mapping of names to what it adds"
        )
    return added


def _find_entry_points() -> list[tuple[PluginSource, EntryPoint]]:
    plugin_by_entry: dict[tuple[str, str, str], tuple[PluginSource, EntryPoint]] = {}
    for distribution in distributions():
        entries = [entry for entry in distribution.entry_points if entry.group == GROUP]
        if not entries:
            continue
        metadata = distribution.metadata  # read and parsed at each access
        name, version = metadata["Name"], metadata["Version"]
        for entry in entries:
            source = PluginSource(entry.name, name, version)
            plugin_by_entry.setdefault((name, entry.name, entry.value), (source, entry))
    return [plugin_by_entry[key] for key in sorted(plugin_by_entry)]


def _import_file(path: Path) -> tuple[ModuleType, str]:
    """Import a plugin file; return its module and the SHA-256 of its source."""
    if not path.is_file():
        raise PluginError(f"{path}: there is no such plugin file")
    if path.suffix != ".py":
        raise PluginError(f"{path}: a plugin is a Python file, and its name ends with .py")
    # The module gets a unique name, so that a file called json.py does not replace the library's module.
    name, content = f"emberge_plugin_file_{path.stem}", path.read_bytes()
    module = sys.modules[name] = ModuleType(name)
    module.__file__ = os.fspath(path)
    try:
        # Python's cache of compiled files would take a file that was edited within a second for the old one.
        exec(compile(content, path, "exec", dont_inherit=True), vars(module))
    except SyntaxError as error:
        del sys.modules[name]
        raise PluginError(f"{error.filename}:{error.lineno}: {error.msg}") from error
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise PluginError(f"{path}: the plugin cannot be imported: {error!r}") from error
    return module, hashlib.sha256(content).hexdigest()


def _describe_failed_import(source: PluginSource, error: BaseException) -> str:
    """Describe a plugin that failed to import: its name, its distribution, and how to block it."""
    if not source.version:
        return f"plugin '{source.name}' ({source.distribution}) cannot be imported: {error!r}"
    return (
        f"plugin '{source.name}' of {source.distribution} {source.version} cannot be imported: "
        f"{error!r}; update or uninstall {source.distribution}, "
        f"or leave it out with {BLOCK}={source.name}"
    )


def _describe_hook_error(source: PluginSource, error: pluggy.PluginValidationError) -> str:
    """Describe a misspelt hook, or another mismatch between a plugin and its hooks."""
    hooks = [name for name in vars(hookspecs) if hasattr(getattr(hookspecs, name), "emberge_spec")]
    for name in dir(error.plugin):
        is_hook = hasattr(getattr(error.plugin, name, None), "emberge_impl")
        if is_hook and name not in hooks:
            return f"plugin '{source.name}' has an unknown hook '{name}'{suggest(name, hooks)}"
    text = str(error).replace("\n", " ")
    return f"plugin '{source.name}' does not fit its hooks: {text}"


def _refuse_unmarked(module: object, source: PluginSource) -> None:
    """Refuse a function with a hook's name but without `@hookimpl`, which would be ignored silently."""
    for name, spec in vars(hookspecs).items():
        function = getattr(module, name, None) if hasattr(spec, "emberge_spec") else None
        if inspect.isfunction(function) and not hasattr(function, "emberge_impl"):
            raise PluginError(f"{name} of plugin '{source.name}' is not marked; write @hookimpl")


def _require_contract(source: PluginSource, kind: str, name: str, type_: Any) -> None:
    """Refuse a component that follows no contract of its kind; of a place, only its form is checked."""
    label = f"{kind} '{name}' of plugin '{source.name}'"
    if not isinstance(name, str) or not name.isidentifier():
        raise PluginError(f"{label}: a name is letters, digits and underscores")
    if isinstance(type_, str):
        module, _, attribute = type_.partition(":")
        if not all(map(str.isidentifier, [attribute, *module.split(".")])):
            raise PluginError(f"{label}: its place is written 'module:Name', not '{type_}'")
    elif isinstance(type_, contracts.ChainSpec):
        if kind != "merge strategy":
            raise PluginError(f"{label}: only a merge strategy may be a chain")
    else:
        followed = tuple(c for c in find_contracts(kind) if c is not contracts.ChainSpec)
        _require_class(label, type_, followed)
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
