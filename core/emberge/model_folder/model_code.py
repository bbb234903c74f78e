"""Code that configs of model folders name (`auto_map`): never taken over, but for two mixtures of experts.

A config may name classes in files beside the weights or in another model, and whoever loads it with
`trust_remote_code=True` runs them. A result loads without, so the names are left out of what is copied. The
two exceptions have no class in transformers: an architecture that an installed plugin added, whose file comes
from the plugin and not from a parent, and Nomic's mixture of experts, whose code is its authors'.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from emberge.architectures import find_source
from emberge.errors import CheckpointError
from emberge.files import write_json
from emberge.model_folder.checkpoint import Checkpoint
from emberge.model_folder.file_table import FOLDERS
from emberge.model_folder.json_files import read_json, read_object_if_any
from emberge.model_folder.model_files import copy_file

# Keys that name code, or that trust it, and the type of their values.
_KEYS: Mapping[str, type] = {"auto_map": dict, "custom_pipelines": dict, "trust_remote_code": bool}
# Mixtures of experts that transformers has no class for, and the model on the hub with their code.
_ON_HUB = {"nomic_bert": "nomic-ai/nomic-bert-2048"}
# Long files of a tokenizer, from which no library reads such keys.
_OF_WORDS = ("tokenizer.json", "vocab.json", "added_tokens.json", "special_tokens_map.json")


@dataclass(frozen=True, slots=True)
class ClassCode:
    """Code of a class that transformers lacks: its name in `auto_map`, and its file if it is a plugin's."""

    name: str
    file: Path | None = None


def code_of_class(config: Mapping[str, Any]) -> ClassCode | None:
    """Return the code that a config's class may be loaded with; None for none, or one of a stranger."""
    mapped = config.get("auto_map")
    if not isinstance(mapped, dict) or not isinstance(mapped.get("AutoModel"), str):
        return None
    kind = str(config.get("model_type"))
    file = find_source(kind)
    places = {f"{file.stem}." if file else f"{_ON_HUB.get(kind)}--"}
    if file is None and not (kind in _ON_HUB and config.get("num_experts")):
        return None
    ours = all(isinstance(v, str) and v.startswith(tuple(places)) for v in mapped.values())
    return ClassCode(mapped["AutoModel"], file) if ours else None


def named_code(checkpoint: Checkpoint) -> list[str]:
    """Return the modules that a model's configs name as its code, by file or by model on the hub."""
    found: dict[str, None] = {}
    for name in ("config.json", "tokenizer_config.json"):
        mapped = read_object_if_any(checkpoint.trunk / name).get("auto_map")
        for value in mapped.values() if isinstance(mapped, dict) else ():
            for one in value if isinstance(value, list) else [value]:
                if isinstance(one, str) and (module := _module_of(one)):
                    found[module] = None
    return list(found)


def drop_code(template: Checkpoint, out: Path) -> None:
    """Take the names of code out of the JSON files in `out`, a copy of the template's folder.

    A class of `code_of_class` keeps its names, and gets the plugin's file.
    """
    trunk = out / template.trunk.relative_to(template.folder)
    kept = code_of_class(read_object_if_any(trunk / "config.json"))
    for path in _configs(template, out):
        if kept is not None and path == trunk / "config.json":
            continue
        try:
            content = read_json(path)
        except CheckpointError:
            continue  # no library reads it either
        if (new := _without_code(content)) != content:
            write_json(path, new, durable=False)
    if kept is not None and kept.file is not None:
        copy_file(kept.file, trunk / kept.file.name, kept.file.parent)


def _configs(template: Checkpoint, out: Path) -> Iterator[Path]:
    trunk = template.trunk.relative_to(template.folder).as_posix()
    places = dict.fromkeys(
        out / name for name in ("", trunk, *(m.path for m in template.chain), *FOLDERS)
    )
    for place in places:
        for path in sorted(place.glob("*.json")):
            if path.name not in _OF_WORDS and not path.name.endswith(".index.json"):
                yield path


def _without_code(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_code(one) for one in value]
    if not isinstance(value, dict):
        return value
    kept = {k: v for k, v in value.items() if not (k in _KEYS and isinstance(v, _KEYS[k]))}
    return {key: _without_code(inner) for key, inner in kept.items()}


def _module_of(name: str) -> str | None:
    """Return `FILE.py` of `FILE.Class`, or `MODEL--FILE` of `MODEL--FILE.Class`."""
    elsewhere, _, inside = name.rpartition("--")
    module = inside.rpartition(".")[0]
    if not re.fullmatch(r"\w+", module):
        return None
    return f"{elsewhere}--{module}" if elsewhere else f"{module}.py"
