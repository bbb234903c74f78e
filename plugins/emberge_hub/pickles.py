"""The verb `safetensors`: converts pickled weights to safetensors without running the pickle's code."""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from emberge import CheckpointError, Plugins
from emberge.files import replace_file, require_space, write_json
from safetensors.torch import save_file
from torch import Tensor

_STEMS = ("pytorch_model", "adapter_model")


def run_verb(options: argparse.Namespace, plugins: Plugins) -> int:  # noqa: ARG001 - a verb's form
    """Convert the pickled weights in a folder, print the paths of the new files, and return the exit code."""
    for path in convert_pickles(options.folder):
        print(f"written: {path}")
    return 0


def convert_pickles(folder: Path) -> list[Path]:
    """Write safetensors next to every pickle of weights in a model's or adapter's folder and below it.

    Only tensors are read (torch's weights-only loading): code in a pickle is not run. Pickles are kept.
    Tensors that share memory, such as tied embeddings, are written in full under each name. If safetensors of
    the same weights exist already, nothing is done.

    Raises:
        CheckpointError: if there is no pickle, or a pickle contains more than tensors.
    """
    if not folder.is_dir():
        raise CheckpointError(f"{folder}: there is no such folder")
    pickles = [path for path in sorted(folder.rglob("*.bin")) if _is_unconverted(path, folder)]
    if not pickles:
        raise CheckpointError(f"{folder}: has no pickled weights (pytorch_model.bin) to convert")
    require_space(folder, sum(path.stat().st_size for path in pickles))
    converted = [_convert_pickle(path) for path in pickles]
    indexes = {path.parent / f"{stem}.bin.index.json" for path in pickles for stem in _STEMS}
    return converted + [_write_index(path) for path in sorted(indexes) if path.is_file()]


def _is_unconverted(path: Path, folder: Path) -> bool:
    """Return whether a file has pickled weights, and no safetensors of them are next to it."""
    is_hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
    stem = next((stem for stem in _STEMS if path.name.startswith(stem)), None)
    if stem is None or is_hidden or not path.is_file():  # a pipe would be waited for
        return False
    name = _rename_to_safetensors(f"{stem}.bin")
    return not any((path.parent / file).exists() for file in (name, f"{name}.index.json"))


def _rename_to_safetensors(name: str) -> str:
    return name.replace("pytorch_model", "model", 1).removesuffix(".bin") + ".safetensors"


def _convert_pickle(path: Path) -> Path:
    tensors: dict[str, Tensor] = {}
    storages: set[int] = set()
    for name, tensor in _load_tensors(path).items():
        storage = tensor.untyped_storage().data_ptr()
        is_shared = storage in storages
        tensors[name] = tensor.clone(memory_format=torch.contiguous_format) if is_shared else tensor
        storages.add(storage)
    target = path.with_name(_rename_to_safetensors(path.name))
    with replace_file(target) as side:
        save_file({n: t.contiguous() for n, t in tensors.items()}, side, metadata={"format": "pt"})
    return target


def _load_tensors(path: Path) -> Mapping[str, Tensor]:
    try:
        with warnings.catch_warnings():  # on pickles of other protocols, which load or are refused
            warnings.simplefilter("ignore", UserWarning)
            content: Any = torch.load(path, map_location="cpu", weights_only=True)
    except OSError:
        raise
    except Exception as error:  # a damaged one fails anywhere in the unpickler
        raise CheckpointError(
            f"{path}: has more than weights, or is damaged, and was not opened; "
            "ask its author for safetensors"
        ) from error
    if not isinstance(content, Mapping) or not all(
        isinstance(tensor, Tensor) for tensor in content.values()
    ):
        raise CheckpointError(f"{path}: has no mapping of names to tensors")
    return {str(name): tensor.detach() for name, tensor in content.items()}


def _write_index(path: Path) -> Path:
    """Write the index of shards with their new names, and return its path."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        names = {name: _rename_to_safetensors(file) for name, file in content["weight_map"].items()}
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise CheckpointError(f"{path}: is no index of shards ({error}); get it again") from None
    stem = path.name.removesuffix(".index.json")
    target = path.with_name(f"{_rename_to_safetensors(stem)}.index.json")
    write_json(target, {**content, "weight_map": names})
    return target
