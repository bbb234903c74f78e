"""A static model in the layout of model2vec, written and then read by its files alone."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from emberge import CheckpointError
from emberge.files import write_json
from emberge.model_folder import find_unknown_token, read_modules, read_settings
from numpy.typing import NDArray

# Modules after the vectors' mean that model2vec has too.
_AFTER = ("Normalize", "Dropout")


def list_static_problems(folder: Path) -> Iterator[str]:
    """Yield reasons why model2vec cannot do what a static model in `folder` does, from its configs alone."""
    for module in read_modules(folder)[1:]:
        if module.kind not in _AFTER:
            yield (
                f"{folder}: module '{module.kind}' comes after the mean of tokens' vectors, and model2vec "
                "has no such module; serve the folder by sentence-transformers"
            )


def list_static_warnings(folder: Path) -> Iterator[str]:
    """Yield what a user of the exported model has to do that model2vec does not."""
    prompts = {
        name: text for name, text in (read_settings(folder).get("prompts") or {}).items() if text
    }
    if prompts:
        yield (
            f"model2vec puts no prompt before a text, and the model has some ({', '.join(prompts)}); write "
            "them before the texts yourself"
        )


class StaticExporting:
    """Exporter of one static model's folder to the layout of model2vec (Tulkens and van Dongen, 2024).

    A text's embedding is the mean of the vectors of its tokens without the unknown one, scaled to length one
    if the model has a Normalize. No special tokens are added, and texts of any length are read whole.
    """

    def __init__(self, folder: Path) -> None:
        from sentence_transformers import SentenceTransformer

        self.folder = folder
        self.model: Any = SentenceTransformer(
            str(folder), device="cpu", local_files_only=True, trust_remote_code=False
        ).eval()
        self.model.prompts, self.model.default_prompt_name = {}, None

    def write(self, name: str, path: Path) -> int:
        """Write the folder of `path`, the file of the vectors, and return that file's size in bytes.

        Raises:
            CheckpointError: if the unknown token has a vector: model2vec leaves that token out, so that texts
                with unknown words would get other embeddings.
        """
        from safetensors.numpy import save_file

        module = self.model[0]
        table = module.embedding.weight.detach().float().numpy()
        tokenizer: dict[str, Any] = json.loads(module.tokenizer.to_str())
        unknown = find_unknown_token(tokenizer)
        if unknown is not None and table[unknown : unknown + 1].any():
            raise CheckpointError(
                f"{self.folder}: the unknown token has a vector, and {name} leaves that token out, so that "
                "texts with unknown words would get other embeddings; begin at a step static_model and train "
                "by emberge, which leave it zero, or serve the folder by sentence-transformers"
            )
        path.parent.mkdir(parents=True, exist_ok=True)
        tokenizer["truncation"] = tokenizer["padding"] = None
        tensors: dict[str, NDArray[Any]] = {"embeddings": table}
        config: dict[str, Any] = {
            "model_type": "model2vec",
            "architectures": ["StaticModel"],
            "hidden_dim": table.shape[1],
            "normalize": any(one.kind == "Normalize" for one in read_modules(self.folder)),
            "max_length": None,
            "embedding_dtype": "float32",
        }
        if len(table) != module.tokenizer.get_vocab_size(with_added_tokens=True):
            # Ids with gaps: without a map from id to row, model2vec wants as many rows as tokens.
            tensors["mapping"] = np.arange(len(table))
            config["vocabulary_quantization"] = len(table)
        save_file(tensors, path)
        write_json(path.parent / "config.json", config, durable=False)
        write_json(path.parent / "tokenizer.json", tokenizer, durable=False)
        return path.stat().st_size

    @contextlib.contextmanager
    def load(self, path: Path) -> Iterator[ExportedTable]:
        """Yield the exported model in the folder of `path`, for the `with` block."""
        yield ExportedTable(path.parent)


class ExportedTable:
    """A model of a folder in model2vec's layout, computed by numpy from its files as model2vec does."""

    def __init__(self, folder: Path) -> None:
        from safetensors.numpy import load_file
        from tokenizers import Tokenizer

        tensors = load_file(folder / "model.safetensors")
        self._table = tensors["embeddings"]
        if "mapping" in tensors:
            self._table = self._table[tensors["mapping"]]
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._unknown = find_unknown_token(json.loads(self._tokenizer.to_str()))
        self._normalises = json.loads((folder / "config.json").read_text("utf-8"))["normalize"]

    def encode_document(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return embeddings float32 [n, d]; those of texts without known tokens are zeros."""
        rows = np.zeros((len(texts), self._table.shape[1]), np.float32)
        encodings = self._tokenizer.encode_batch(list(texts), add_special_tokens=False)
        for row, encoding in zip(rows, encodings, strict=True):
            if ids := [one for one in encoding.ids if one != self._unknown]:
                row[:] = self._table[ids].mean(axis=0)
        if self._normalises:
            rows /= np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
        return rows

    encode_query = encode_document
