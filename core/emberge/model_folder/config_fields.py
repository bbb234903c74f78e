"""Checks of configs against the keys and types in the source of transformers and SentenceTransformers.

Importing both libraries costs seconds of CPU. Both refuse a value whose type differs from the declaration in
the config's class, and SentenceTransformers refuses keys that a module's class does not accept: a result with
such a config could not be opened. Values without a declared type and unknown keys of transformers are not
checked.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from emberge.model_folder.classic_names import POOLING

_TYPES: Mapping[str, _Types] = {
    "int": (int,),
    "float": (float,),
    "str": (str,),
    "bool": (bool,),
    **dict.fromkeys(("list", "tuple", "Sequence"), (list,)),
    **dict.fromkeys(("dict", "Mapping", "PreTrainedConfig", "RopeParameters"), (dict,)),
}
_DTYPE = re.compile(r"(torch\.)?(auto|half|double|float|b?float(16|32|64)|float8_\w+)")
_TYPE_NAMES = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}
_TYPE_NAMES |= {list: "a list", dict: "an object", type(None): "null"}


@dataclass(frozen=True)
class _ListOf:
    """The type of a list, by the types of its items."""

    items: _Types


_Types = tuple[type | _ListOf, ...]


class _Options(NamedTuple):
    """The options of a module's class: JSON types by name (() if unknown), and the required names."""

    types: Mapping[str, _Types]
    required: Mapping[str, set[str]]


def field_faults(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield a fault for each key of a config.json whose value its transformers class does not accept."""
    kind = config.get("model_type")
    for name, types in _read_declared_types(kind).items() if isinstance(kind, str) else ():
        if name in config and not _is_of_types(config[name], types):
            yield _type_fault(name, config[name], types, str(kind))
    for name in ("dtype", "torch_dtype"):
        if config.get(name) is not None and not _DTYPE.fullmatch(str(config[name])):
            yield f"{name} is no type of numbers such as float32"
    yield from label_faults(config)
    is_decoder = config.get("is_decoder") or config.get("is_encoder_decoder")
    if config.get("add_cross_attention") and not is_decoder:
        yield "add_cross_attention asks for layers that only a decoder has"


def label_faults(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield a fault if a key of `id2label` is not a number."""
    labels = config.get("id2label")
    keys = [str(key) for key in labels] if isinstance(labels, dict) else []
    if wrong := [key for key in keys if not key.isdecimal()]:
        yield f"id2label has the key '{wrong[0]}', which is no number of an output"


def declared_defaults(kind: Any) -> Mapping[str, Any]:
    """Return the plain default values of the transformers config class of a `model_type`."""
    return {
        field.target.id: field.value.value
        for field in (_list_declared_fields(kind) if isinstance(kind, str) else ())
        if isinstance(field.target, ast.Name) and isinstance(field.value, ast.Constant)
    }


def module_faults(kind: str, config: Mapping[str, Any]) -> Iterator[str]:
    """Yield a fault for each key or value of a module's config that its class `kind` does not accept."""
    options = _read_module_options(kind)
    if options is None:
        return
    for name, value in config.items():
        if name not in options.types:
            yield f"'{name}' is no option of {kind}"
        elif options.types[name] and not _is_of_types(value, options.types[name]):
            yield _type_fault(name, value, options.types[name], kind)
    for name, names in options.required.items():
        if not names & set(config):
            yield f"{name} is missing, which {kind} needs"


def _is_of_types(value: Any, types: _Types) -> bool:
    # Truth is no number.
    return any(
        isinstance(value, list) and all(_is_of_types(item, type_.items) for item in value)
        if isinstance(type_, _ListOf)
        else type(value) is type_
        for type_ in types
    )


def _type_fault(name: str, value: Any, types: _Types, kind: str) -> str:
    type_name = _TYPE_NAMES.get(type(value), type(value).__name__)
    return f"{name} is {type_name}, and {kind} takes {_name_types(types)}"


def _name_types(types: _Types) -> str:
    return " or ".join(
        dict.fromkeys(_TYPE_NAMES[list if isinstance(one, _ListOf) else one] for one in types)
    )


@functools.cache
def _read_declared_types(kind: str) -> dict[str, _Types]:
    """Return the JSON types of the fields declared in the config class of a `model_type`."""
    types_by_field: dict[str, _Types] = {}
    for field in _list_declared_fields(kind):
        types = _read_json_types(field.annotation)
        if types and isinstance(field.target, ast.Name):
            types_by_field[field.target.id] = types
    return types_by_field


@functools.cache
def _list_declared_fields(kind: str) -> Sequence[ast.AnnAssign]:
    """Return the fields declared in the config class of a `model_type`, without inherited ones."""
    source = _read_source(kind)
    tree = ast.parse(source).body if source is not None else []
    classes = (one for one in tree if isinstance(one, ast.ClassDef))
    body = next((one.body for one in classes if _read_model_type(one) == kind), [])
    return [one for one in body if isinstance(one, ast.AnnAssign)]


@functools.cache
def _read_module_options(kind: str) -> _Options | None:
    """Return the options of a module's class; None if the class accepts unknown keys and ignores them."""
    classes = (
        node
        for path in _find_library_files(
            "sentence_transformers", f"*/modules/{_convert_to_snake_case(kind)}.py"
        )
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef) and node.name == kind
    )
    class_node = next(classes, None)
    functions = (
        {f.name: f for f in class_node.body if isinstance(f, ast.FunctionDef)} if class_node else {}
    )
    if "__init__" not in functions or functions["__init__"].args.kwarg:
        return None
    if "load" in functions and kind != "Transformer":
        return None
    arguments = functions["__init__"].args
    options = {
        argument.arg: _read_argument_types(argument)
        for argument in [*arguments.args[1:], *arguments.kwonlyargs]
    }
    required = {
        a.arg: {a.arg} for a in arguments.args[1 : len(arguments.args) - len(arguments.defaults)]
    }
    for line in class_node.body if class_node else ():
        if isinstance(line, ast.Assign) and ast.unparse(line.targets[0]) == "config_key_renames":
            renames: dict[str, str] = ast.literal_eval(line.value)
            for old, new in renames.items():
                options[old] = options[new]
                required.get(new, set()).add(old)
    if kind == "Transformer":  # its folder is not an option, and older files have other names
        options |= dict.fromkeys(("model_args", "tokenizer_args", "config_args"), (dict,))
        del options["model_name_or_path"]
        required.clear()
    if kind == "Pooling":
        options |= {flag: () for _, flag in POOLING.values()}
    return _Options(options, required)


def _read_argument_types(argument: ast.arg) -> _Types:
    types = _read_json_types(argument.annotation) if argument.annotation is not None else ()
    # A whole number is taken as one with a fraction, unlike by the classes of transformers.
    return (*types, int) if float in types else types


def _convert_to_snake_case(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


def _read_source(kind: str) -> str | None:
    """Return the source of the module that defines the config class; None if there is none."""
    name = kind.replace("-", "_")
    if not name.isidentifier():
        return None
    paths = _find_library_files("transformers", f"models/{name}/configuration_{name}.py")
    return next((path.read_text(encoding="utf-8") for path in paths), None)


def _find_library_files(library: str, pattern: str) -> Iterator[Path]:
    """Yield files of an installed library, found without importing it."""
    spec = importlib.util.find_spec(library)
    for root in (spec.submodule_search_locations or ()) if spec is not None else ():
        yield from sorted(Path(root).glob(pattern))


def _read_model_type(node: ast.ClassDef) -> str | None:
    for line in node.body:
        if isinstance(line, ast.Assign) and ast.unparse(line.targets[0]) == "model_type":
            return ast.unparse(line.value).strip("'")
    return None


def _read_json_types(annotation: ast.expr) -> _Types:
    """Return the JSON types that an annotation allows; none if a part of it is unknown."""
    if isinstance(annotation, ast.BinOp) and isinstance(annotation.op, ast.BitOr):
        left, right = _read_json_types(annotation.left), _read_json_types(annotation.right)
        return (*left, *right) if left and right else ()
    if isinstance(annotation, ast.Subscript):
        outer, inner = _read_json_types(annotation.value), _read_json_types(annotation.slice)
        return (_ListOf(inner),) if outer == (list,) and inner else outer
    if isinstance(annotation, ast.Constant) and annotation.value is None:
        return (type(None),)
    return _TYPES.get(ast.unparse(annotation), ())
