"""Defaults of transformers' config classes by their source, as an import costs seconds; labels."""

from __future__ import annotations

import ast
import functools
import importlib.util
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any


def declared_defaults(kind: Any) -> Mapping[str, Any]:
    """Return the plain default values of the transformers config class of a `model_type`."""
    return _read_defaults(kind) if isinstance(kind, str) else {}


def label_faults(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield a fault if a key of `id2label` is not a number."""
    labels = config.get("id2label")
    for key in labels if isinstance(labels, dict) else ():
        if not str(key).isdecimal():
            yield f"id2label has the key '{key}', which is no number of an output; get the file again"


@functools.cache
def _read_defaults(kind: str) -> Mapping[str, Any]:
    source = _read_source(kind.replace("-", "_"))
    classes = (one for one in ast.parse(source).body if isinstance(one, ast.ClassDef))
    body = next((one.body for one in classes if _read_model_type(one) == kind), [])
    return {
        field.target.id: field.value.value
        for field in body
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(field.value, ast.Constant)
    }


def _read_source(name: str) -> str:
    """Return the source of the module that defines a config class; "" if there is none."""
    spec = importlib.util.find_spec("transformers") if name.isidentifier() else None
    for root in (spec.submodule_search_locations or ()) if spec is not None else ():
        path = Path(root) / f"models/{name}/configuration_{name}.py"
        if path.is_file():
            return path.read_text(encoding="utf-8")
    return ""


def _read_model_type(node: ast.ClassDef) -> str | None:
    for line in node.body:
        if isinstance(line, ast.Assign) and ast.unparse(line.targets[0]) == "model_type":
            return ast.unparse(line.value).strip("'")
    return None
