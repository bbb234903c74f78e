"""Checks of a template: files that a result needs to be opened, and sizes that its tensors must have.

A result gets its config, modules and tokenizer from the template. Faults there would only appear when the
result is opened, so they are found from configs and headers before anything is merged. A missing key counts
as the default value of the class of the `model_type`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from emberge.model_folder.checkpoint import Checkpoint
from emberge.model_folder.folder_files import read_object_if_any
from emberge.model_folder.model_config import LAYER_COUNTS, declared_defaults, trunk_config
from emberge.model_folder.st_layout import ModuleFolder, read_settings, read_trunk_settings
from emberge.model_folder.tokenizers import tokenizer_faults
from emberge.tensor_names import Names, layer_number

# Modules that may have neither files nor, as packages lose empty folders, a folder.
_KINDS_WITHOUT_FILES = frozenset({"Normalize"})
_LIBRARIES = ("sentence_transformers.", "pylate.")
_TRANSFORMERS = ("Transformer", "MLMTransformer", "CLIPModel")
# Keys that configs have for the width of the rows of the input embedding.
_WIDTHS = (
    *("hidden_size", "embedding_size", "d_model", "n_embd", "dim", "emb_dim", "d_embed"),
    *("word_embed_proj_dim", "hidden_dim", "embedding_dim"),
)
# Classes whose layers share weights, so that there are fewer tensors than layers.
_SHARED_LAYERS = frozenset({"albert"})


def template_faults(
    template: Checkpoint, *, config: bool = True, code: bool = True
) -> Iterator[str]:
    """Yield each fault of a model's files that prevents opening the model or a result with these files.

    Each fault names file and remedy. Without `config`, the result gets another config. Without `code`,
    modules that need code from the folder are skipped, as no result copies them.

    Raises:
        CheckpointError: if files cannot be read.
    """
    for module in template.modules:
        if not module.type.startswith(_LIBRARIES):
            if code:
                yield (
                    f"{template.folder / 'modules.json'}: module '{module.type}' is code of "
                    "its own, which no result takes over; take a model of plain modules"
                )
        elif fault := _find_missing(template.folder, module):
            yield f"{template.folder / 'modules.json'}: {fault}; get the whole model"
    if config and _requires_config(template):
        yield from _check_config(template)
    yield from tokenizer_faults(template.tokenizer_folder)
    read_settings(template.folder)
    read_trunk_settings(template.trunk)


def _requires_config(template: Checkpoint) -> bool:
    """Return whether the template's trunk is opened by a transformers class, which needs a config."""
    if not template.modules:
        return True
    return template.modules[0].kind in _TRANSFORMERS


def _check_config(template: Checkpoint) -> Iterator[str]:
    path = template.folder / template.in_trunk("config.json")
    if not template.config and not path.is_file():
        yield (
            f"{template.folder}: has no {template.in_trunk('config.json')}, without which nothing opens the "
            "model; get the whole model"
        )
        return
    kind = template.config.get("model_type")
    if not isinstance(kind, str) or not kind:
        yield f"{path}: has no model_type, so nothing opens the model; get the file again"


def _find_missing(folder: Path, module: ModuleFolder) -> str | None:
    """Return a message about the missing part of a module's folder; None if the folder is complete."""
    if not module.path or module.kind in _KINDS_WITHOUT_FILES:
        return None
    module_folder = folder / module.path
    if not module_folder.is_dir():
        return f"the folder '{module.path}' of module {module.kind} is missing"
    if module.kind in ("Pooling", "Dense") and not read_object_if_any(
        module_folder / "config.json"
    ):
        return f"module {module.kind} has no {module.path}/config.json"
    return None


def size_faults(template: Checkpoint, names: Names, *, vocabulary: bool = True) -> Iterator[str]:
    """Yield a fault for each size in a template's config that differs from its tensors'.

    Without `vocabulary`, sizes of the vocabulary are not checked, as the result gets another vocabulary.
    """
    trunk_settings = trunk_config(template.config)
    config = {**declared_defaults(trunk_settings.get("model_type")), **trunk_settings}
    path = template.folder / template.in_trunk("config.json")
    words = names.embedding()
    if words is not None and len(words.shape) == 2:
        rows, width = words.shape
        size, multiple = config.get("vocab_size"), config.get("pad_vocab_size_multiple") or 1
        # Some classes round the number of rows up.
        if (
            vocabulary
            and isinstance(size, int)
            and rows not in (size, -(-size // multiple) * multiple)
        ):
            yield (
                f"{path}: vocab_size is {size:,}, and '{words.name}' has {rows:,} rows; "
                "get the config of these weights"
            )
        widths = {key: config[key] for key in _WIDTHS if isinstance(config.get(key), int)}
        if widths and width not in widths.values():
            shown = ", ".join(f"{key} is {value:,}" for key, value in list(widths.items())[:2])
            yield (
                f"{path}: {shown}, and the rows of '{words.name}' have {width:,} numbers; "
                "get the config of these weights"
            )
    yield from _check_layers(path, config, names)


def _check_layers(path: Path, config: Mapping[str, Any], names: Names) -> Iterator[str]:
    key = next((key for key in LAYER_COUNTS if isinstance(config.get(key), int)), None)
    if key is None or str(config.get("model_type")) in _SHARED_LAYERS:
        return
    layer_numbers = {layer_number(name) for name in names.specs} - {None}
    # A class may store more, as for predicting several tokens.
    if layer_numbers and len(layer_numbers) < config[key]:
        yield (
            f"{path}: {key} is {config[key]:,}, and the weights have {len(layer_numbers):,} layers; "
            "get the whole model, or the config of these weights"
        )
