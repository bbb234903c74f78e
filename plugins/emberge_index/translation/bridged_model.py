"""The new model with a stock `Dense` after it, whose vectors fit those of the old one."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from emberge import CheckpointError

from emberge_index.translation.translation_file import Translation


def bridge_problem(folder: Path) -> str | None:
    """Return the reason why modules cannot be put after a model; None where they can."""
    from emberge.model_folder import Layout

    try:
        layout = Layout.read(folder)
    except CheckpointError as error:
        return str(error)
    if layout.bare:
        return f"{folder}: has no modules.json, to which a Dense is added; save it as a SentenceTransformer"
    return None


def write_bridged(
    model: Path,
    out: Path,
    translation: Translation,
    prompt: str | None,
    provenance: Mapping[str, Any],
) -> None:
    """Copy a model with `Dense`, and `Normalize` where the old vectors have length 1, after its modules.

    `prompt` is the text before queries, where it is not the model's own. Weights of the trunk stay as they
    are, and the result loads in plain SentenceTransformers without remote code.
    """
    from emberge.model_folder import Layout, ModuleFolder, copy_model

    header = translation.header
    copy_model(model, out)
    layout = Layout.read(out)
    first = 1 + len(layout.modules)
    added = [ModuleFolder("Dense", f"{first}_Dense")]
    if header.target.normalised:
        added.append(ModuleFolder("Normalize", f"{first + 1}_Normalize"))
    prompts = layout.prompts if prompt is None else {**layout.prompts, "query": prompt}
    changed = dataclasses.replace(layout, modules=(*layout.modules, *added), prompts=prompts)
    changed.write(out, header.source.dimension)
    _write_dense(out / added[0].path, translation, provenance)


def _write_dense(folder: Path, translation: Translation, provenance: Mapping[str, Any]) -> None:
    import numpy as np
    from emberge.files import write_text
    from safetensors.numpy import save_file

    matrix, offset = translation.fitted.matrix, translation.fitted.offset
    config = {
        "in_features": matrix.shape[0],
        "out_features": matrix.shape[1],
        "bias": True,
        "activation_function": "torch.nn.modules.linear.Identity",
    }
    folder.mkdir(exist_ok=True)
    write_text(folder / "config.json", json.dumps(config, indent=2) + "\n", durable=False)
    weights = {
        "linear.weight": np.ascontiguousarray(matrix.T, np.float32),
        "linear.bias": offset.astype(np.float32),
    }
    known = {
        "format": "pt",
        "emberge": json.dumps(provenance, default=str),
        "translation": json.dumps(dataclasses.asdict(translation.header)),
    }
    save_file(weights, folder / "model.safetensors", metadata=known)


def write_router(queries: Path, documents: Path, out: Path, prompts: Mapping[str, str]) -> None:
    """Write one SentenceTransformer whose `encode_query` and `encode_document` are those of two models."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Router

    sides = [
        list(
            SentenceTransformer(
                str(folder), device="cpu", local_files_only=True, trust_remote_code=False
            )
        )
        for folder in (queries, documents)
    ]
    router = Router.for_query_document(query_modules=sides[0], document_modules=sides[1])
    both = SentenceTransformer(modules=[router], device="cpu", prompts=dict(prompts))
    both.save_pretrained(str(out), create_model_card=False)
