"""Folders of static models, whose first module is a StaticEmbedding: read without weights, and written."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from emberge import CheckpointError, ModelRef, Preflight
from emberge.files import write_json, write_text
from emberge.model_folder import Checkpoint, read_object
from emberge.tensor_files import build_header_texts
from emberge.wording import join_some

from emberge_encoder.layout import STOCK_PREFIX, require_stock_modules

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# Stock modules that may come after the mean of tokens' vectors.
_AFTER_STATIC = ("Normalize", "Dense", "LayerNorm", "Dropout")
# Names of the table of vectors: that of sentence-transformers, and that of model2vec.
_STATIC_TABLES = ("embedding.weight", "embeddings")


def is_static_model(folder: Path) -> bool:
    """Return whether a folder is a static model: its first module is a StaticEmbedding.

    Raises:
        CheckpointError: if modules.json cannot be read.
    """
    modules = Checkpoint(folder).modules
    return bool(modules) and modules[0].kind == "StaticEmbedding"


def is_static_result(reference: ModelRef, context: Preflight) -> bool:
    """Return whether a model is static, or is to be the result of a step that announces one."""
    folder, expected = context.model(reference), context.expected(reference)
    return is_static_model(folder) if folder is not None else bool(expected and expected.is_static)


def read_static_dimension(folder: Path) -> int | None:
    """Return the size of embeddings of a static model from its files; None if none has it.

    Raises:
        CheckpointError: if a file cannot be read.
    """
    checkpoint = Checkpoint(folder)
    first, *after = checkpoint.modules
    for module in reversed(after):
        if module.kind == "Dense":
            size = read_object(folder / module.path / "config.json").get("out_features")
            return size if type(size) is int else None
    specs = checkpoint.specs if checkpoint.has_weights else {}
    prefix = "" if checkpoint.folder_by_prefix[""] == first.path else f"{first.path}."
    tables = [spec for n, spec in specs.items() if n.removeprefix(prefix) in _STATIC_TABLES]
    return int(tables[0].shape[1]) if tables and len(tables[0].shape) == 2 else None


def refuse_broken_static(checkpoint: Path) -> None:
    """Refuse a static model with a module that needs tokens after the mean of its vectors.

    Raises:
        CheckpointError: if there is one.
    """
    require_stock_modules(checkpoint)
    for module in Checkpoint(checkpoint).modules[1:]:
        if module.kind not in _AFTER_STATIC:
            raise CheckpointError(
                f"{checkpoint}: module '{module.kind}' comes after a StaticEmbedding, which has an embedding "
                f"of each text already; only {join_some(_AFTER_STATIC)} may"
            )


def write_static_model(
    target: Path,
    vectors: NDArray[np.float32],
    tokenizer: str,
    prompts: Mapping[str, str],
    provenance: Mapping[str, Any],
) -> None:
    """Write a model that averages a text's tokens' vectors: a StaticEmbedding and a Normalize.

    `vectors` [n, d] has a row for each token id, and `tokenizer` is the content of tokenizer.json.
    """
    from safetensors.numpy import save_file

    entries = [
        {"idx": 0, "name": "0", "path": "", "type": f"{STOCK_PREFIX}StaticEmbedding"},
        {"idx": 1, "name": "1", "path": "1_Normalize", "type": f"{STOCK_PREFIX}Normalize"},
    ]
    write_json(target / "modules.json", entries, durable=False)
    settings = {
        "similarity_fn_name": "cosine",
        "prompts": dict(prompts),
        "default_prompt_name": None,
    }
    write_json(target / "config_sentence_transformers.json", settings, durable=False)
    (target / "1_Normalize").mkdir()
    write_text(target / "tokenizer.json", tokenizer, durable=False)
    # One entry alone, as safetensors writes several in an order of chance.
    metadata = build_header_texts({"emberge": provenance})
    save_file({"embedding.weight": vectors}, target / "model.safetensors", metadata)
