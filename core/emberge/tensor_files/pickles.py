"""Conversion of pickled weights to safetensors without running the pickle's code."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from emberge.errors import CheckpointError
from emberge.files import replace_file, require_space, write_json

_INDEX = ".index.json"
_STEMS = ("pytorch_model", "adapter_model")


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
    pickles = list(_find_pickles(folder))
    if not pickles:
        raise CheckpointError(f"{folder}: has no pickled weights (pytorch_model.bin) to convert")
    require_space(folder, sum(path.stat().st_size for path in pickles))
    safetensors_paths = [_convert_pickle(path) for path in pickles]
    indexes = {path.parent / f"{_find_stem(path)}.bin{_INDEX}" for path in pickles}
    return safetensors_paths + [_write_index(path) for path in sorted(indexes) if path.is_file()]


def _find_pickles(folder: Path) -> Iterator[Path]:
    """Yield the pickled weight files, in the folder and below it, that have no safetensors next to them."""
    for path in sorted(folder.rglob("*.bin")):
        is_hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
        is_weights = path.name.startswith(_STEMS) and path.is_file()  # a pipe would be waited for
        if is_weights and not is_hidden and not _is_converted(path):
            yield path


def _is_converted(path: Path) -> bool:
    stem = _rename_to_safetensors(f"{_find_stem(path)}.bin").removesuffix(".safetensors")
    return any(path.parent.glob(f"{stem}.safetensors")) or any(
        path.parent.glob(f"{stem}.safetensors{_INDEX}")
    )


def _find_stem(path: Path) -> str:
    return next(stem for stem in _STEMS if path.name.startswith(stem))


def _rename_to_safetensors(name: str) -> str:
    renamed = name.removesuffix(".bin") + ".safetensors"
    return renamed.replace("pytorch_model", "model", 1)


def _convert_pickle(path: Path) -> Path:
    tensors: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in _load_tensors(path).items():
        storage = tensor.untyped_storage().data_ptr()
        tensors[name] = (
            tensor.clone(memory_format=torch.contiguous_format)
            if storage in seen
            else tensor.contiguous()
        )
        seen.add(storage)
    target = path.with_name(_rename_to_safetensors(path.name))
    with replace_file(target) as side:
        save_file(tensors, side, metadata={"format": "pt"})
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
    stem = path.name.removesuffix(f".bin{_INDEX}").replace("pytorch_model", "model", 1)
    target = path.with_name(f"{stem}.safetensors{_INDEX}")
    write_json(target, {**content, "weight_map": names})
    return target
