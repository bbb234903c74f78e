"""Types that a config class of transformers takes, read from its source: importing it costs a second of CPU.

transformers refuses a config whose value has another type than its class declares, so a result with such a
config could not be opened. Classes that declare no types, and keys that they do not know, are not checked.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

__all__ = ["field_faults"]

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


def field_faults(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield keys of a config.json whose values transformers' class of its `model_type` does not take."""
    kind = config.get("model_type")
    for name, types in _declared_types(kind).items() if isinstance(kind, str) else ():
        value = config.get(name)
        # A whole number is read as one with a fraction, and truth is no number.
        if name in config and not (type(value) in types or (type(value) is int and float in types)):
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


def _source(kind: str) -> str | None:
    """Return the source of the module that defines the config class; None where there is none."""
    spec = importlib.util.find_spec("transformers")
    name = kind.replace("-", "_")
    if spec is None or not name.isidentifier():
        return None
    for root in spec.submodule_search_locations or ():
        path = Path(root) / "models" / name / f"configuration_{name}.py"
        if path.is_file():
            return path.read_text(encoding="utf-8")
    return None


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
