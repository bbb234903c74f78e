"""Keys and types that classes of transformers and SentenceTransformers take, read from their source.

Importing them costs seconds of CPU. Both libraries refuse a value of a type that a config's class does not
declare, and SentenceTransformers a key that a module's class does not take: a result with such a config could
not be opened. Values without a declared type and unknown keys of transformers are not checked.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from emberge.model_folder.classic_names import POOLING

__all__ = ["field_faults", "module_faults"]

_TYPES: Mapping[str, tuple[type, ...]] = {
    "int": (int,),
    "float": (float,),
    "str": (str,),
    "bool": (bool,),
    **dict.fromkeys(("list", "tuple", "Sequence"), (list,)),
    **dict.fromkeys(("dict", "Mapping", "PreTrainedConfig", "RopeParameters"), (dict,)),
}
_NAMES = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}
_NAMES |= {list: "a list", dict: "an object", type(None): "null"}


class _Options(NamedTuple):
    """Options of a module's class: JSON types by name, () where not known, and the names of required ones."""

    types: Mapping[str, tuple[type, ...]]
    required: Mapping[str, set[str]]


def field_faults(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield keys of a config.json whose values transformers' class of its `model_type` does not take."""
    kind = config.get("model_type")
    for name, types in _declared_types(kind).items() if isinstance(kind, str) else ():
        if name in config:
            yield from _type_faults(name, config[name], types, str(kind))


def module_faults(kind: str, config: Mapping[str, Any]) -> Iterator[str]:
    """Yield keys and values of a module's config that SentenceTransformers' class `kind` does not take."""
    options = _module_options(kind)
    if options is None:
        return
    for name, value in config.items():
        if name not in options.types:
            yield f"'{name}' is no option of {kind}"
        elif options.types[name]:
            yield from _type_faults(name, value, options.types[name], kind)
    for name, names in options.required.items():
        if not names & set(config):
            yield f"{name} is missing, which {kind} needs"


def _type_faults(name: str, value: Any, types: tuple[type, ...], kind: str) -> Iterator[str]:
    # A whole number is read as one with a fraction, and truth is no number.
    if not (type(value) in types or (type(value) is int and float in types)):
        given = _NAMES.get(type(value), type(value).__name__)
        yield f"{name} is {given}, and {kind} takes {_words(types)}"


def _words(types: tuple[type, ...]) -> str:
    return " or ".join(dict.fromkeys(_NAMES[one] for one in types))


@functools.cache
def _declared_types(kind: str) -> dict[str, tuple[type, ...]]:
    """Return the JSON types of the fields that the config class of a `model_type` declares itself."""
    source = _source(kind)
    if source is None:
        return {}
    classes = (one for one in ast.parse(source).body if isinstance(one, ast.ClassDef))
    fields = next((one.body for one in classes if _model_type(one) == kind), [])
    found: dict[str, tuple[type, ...]] = {}
    for field in fields:
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            types = _types(field.annotation)
            if types:
                found[field.target.id] = types
    return found


@functools.cache
def _module_options(kind: str) -> _Options | None:
    """Return the options of a module's class; None for a class that filters a config's keys itself."""
    classes = (
        node
        for path in _library_files("sentence_transformers", f"*/modules/{_snake_case(kind)}.py")
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef) and node.name == kind
    )
    found = next(classes, None)
    functions = {f.name: f for f in found.body if isinstance(f, ast.FunctionDef)} if found else {}
    if "__init__" not in functions or "load" in functions or functions["__init__"].args.kwarg:
        return None
    taken = functions["__init__"].args
    options = {
        argument.arg: _types(argument.annotation) if argument.annotation is not None else ()
        for argument in [*taken.args[1:], *taken.kwonlyargs]
    }
    required = {a.arg: {a.arg} for a in taken.args[1 : len(taken.args) - len(taken.defaults)]}
    for line in found.body if found else ():
        if isinstance(line, ast.Assign) and ast.unparse(line.targets[0]) == "config_key_renames":
            renames: dict[str, str] = ast.literal_eval(line.value)
            for old, new in renames.items():
                options[old] = options[new]
                required.get(new, set()).add(old)
    if kind == "Pooling":
        options |= {flag: () for _, flag in POOLING.values()}
    return _Options(options, required)


def _snake_case(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


def _source(kind: str) -> str | None:
    """Return the source of the module that defines the config class; None where there is none."""
    name = kind.replace("-", "_")
    if not name.isidentifier():
        return None
    paths = _library_files("transformers", f"models/{name}/configuration_{name}.py")
    return next((path.read_text(encoding="utf-8") for path in paths), None)


def _library_files(library: str, pattern: str) -> Iterator[Path]:
    """Yield files of an installed library, found without importing it."""
    spec = importlib.util.find_spec(library)
    for root in (spec.submodule_search_locations or ()) if spec is not None else ():
        yield from sorted(Path(root).glob(pattern))


def _model_type(node: ast.ClassDef) -> str | None:
    for line in node.body:
        if isinstance(line, ast.Assign) and ast.unparse(line.targets[0]) == "model_type":
            return ast.unparse(line.value).strip("'")
    return None


def _types(annotation: ast.expr) -> tuple[type, ...]:
    """Return the JSON types that an annotation allows, none where it has a part that is not known."""
    if isinstance(annotation, ast.BinOp) and isinstance(annotation.op, ast.BitOr):
        left, right = _types(annotation.left), _types(annotation.right)
        return (*left, *right) if left and right else ()
    if isinstance(annotation, ast.Subscript):
        return _types(annotation.value)
    if isinstance(annotation, ast.Constant) and annotation.value is None:
        return (type(None),)
    return _TYPES.get(ast.unparse(annotation), ())
