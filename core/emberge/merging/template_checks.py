"""Checks of a template: files that a result needs to be opened, and sizes that its tensors must have.

A result gets its config, modules and tokenizer from the template. Faults there would only appear when the
result is opened, so they are found from configs and headers before anything is merged. A missing key counts
as the default value of the class of the `model_type`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from emberge.model_folder import (
    Checkpoint,
    ModuleFolder,
    TextLimit,
    TokenizerFiles,
    TrunkConfig,
    find_class_code,
    read_object_if_any,
    read_settings,
    read_trunk_settings,
)
from emberge.tensor_names import TensorNames, find_layer
from emberge.wording import join_some

_LIBRARIES = ("sentence_transformers.", "pylate.")
# First modules that a class of transformers opens.
_TRANSFORMERS = ("Transformer", "MLMTransformer", "CLIPModel")
# Classes whose layers share weights, so that there are fewer tensors than layers.
_SHARED_LAYERS = frozenset({"albert"})


def describe_template_problems(
    template: Checkpoint, *, config: bool = True, code: bool = True
) -> Iterator[str]:
    """Yield each problem of a model's files that prevents opening the model or a result with these files.

    Each names file and remedy. Without `config`, the result gets another config. Without `code`,
    modules that need code from the folder are skipped, as no result copies them.

    Raises:
        CheckpointError: if files cannot be read.
    """
    path = template.folder / "modules.json"
    for module in template.modules:
        if not module.type.startswith(_LIBRARIES):
            if code:
                yield (
                    f"{path}: module '{module.type}' is code of its own, which no result takes over; take a "
                    "model of plain modules"
                )
        elif problem := _find_missing(template.folder, module):
            yield f"{path}: {problem}; get the whole model"
    needs_config = config and (not template.modules or template.modules[0].kind in _TRANSFORMERS)
    if needs_config and not template.config.get("model_type"):
        yield _explain_config(template)
    yield from TokenizerFiles(template.tokenizer_folder).describe_problems()
    read_settings(template.folder)  # both raise that a file is damaged
    read_trunk_settings(template.trunk)


def _explain_config(template: Checkpoint) -> str:
    """Return the problem of a config that is missing or states no `model_type`."""
    name = template.locate_in_trunk("config.json")
    if not template.config and not (template.folder / name).is_file():
        return f"{template.folder}: has no {name}, without which nothing opens the model; get the whole model"
    return f"{template.folder / name}: has no model_type, so nothing opens the model; get the file again"


def _find_missing(folder: Path, module: ModuleFolder) -> str | None:
    """Return a message about the missing part of a module's folder; None if the folder is complete."""
    # Packages lose empty folders, such as that of a Normalize.
    if not module.path or module.kind == "Normalize":
        return None
    module_folder = folder / module.path
    if not module_folder.is_dir():
        return f"the folder '{module.path}' of module {module.kind} is missing"
    config = read_object_if_any(module_folder / "config.json")
    if module.kind in ("Pooling", "Dense") and not config:
        return f"module {module.kind} has no {module.path}/config.json"
    return None


def describe_size_problems(
    template: Checkpoint, names: TensorNames, *, vocabulary: bool = True
) -> Iterator[str]:
    """Yield a problem if a template's config has another vocabulary or more layers than its tensors.

    Without `vocabulary`, its size is not checked, as the result gets another vocabulary.
    """
    trunk = TrunkConfig(template.config)
    config = trunk.values
    path = template.folder / template.locate_in_trunk("config.json")
    words, size = names.find_embedding(), config.get("vocab_size")
    if vocabulary and words is not None and isinstance(size, int):
        multiple = config.get("pad_vocab_size_multiple") or 1  # some classes round up
        if words.shape[0] not in (size, -(-size // multiple) * multiple):
            yield (
                f"{path}: vocab_size is {size:,}, and '{words.name}' has {words.shape[0]:,} rows; "
                "get the config of these weights"
            )
    layers, model_type = trunk.layer_count, trunk.stated.get("model_type")
    labels = {find_layer(name) for name in names.specs}
    stored_layers = {label for label in labels if label.startswith("layers.")}
    # A class may store more, as for predicting several tokens.
    if (
        layers
        and stored_layers
        and len(stored_layers) < layers
        and model_type not in _SHARED_LAYERS
    ):
        yield (
            f"{path}: has {layers:,} layers, and the weights have {len(stored_layers):,}; get the whole "
            "model, or the config of these weights"
        )


def describe_omissions(template: Checkpoint) -> Iterator[str]:
    """Yield a warning for each thing that no result gets: missing tokenizer, own code, excessive length."""
    reads_text = bool(template.modules) or "model_type" in template.config
    if reads_text and not template.has_tokenizer:
        yield (
            f"'{template.folder.name}' has no tokenizer, and so the result will have none; "
            "name a model that has one with 'tokenizer'"
        )
    limit = TextLimit.of(template)
    if template.modules and limit.is_overstated:
        yield (
            f"'{template.folder.name}' says texts of {limit.stated:,} tokens, and has positions for "
            f"{limit.positions:,}; the result says {limit.positions:,}"
        )
    names = [
        name
        for name in ("config.json", "tokenizer_config.json")
        if read_object_if_any(template.trunk / name).get("auto_map")
    ]
    if names and find_class_code(template.config) is None:
        yield (
            f"'{template.folder.name}' names code of its own (auto_map in {join_some(names)}), which no "
            "result takes over: the result is loaded by transformers' own class of its model_type"
        )
