"""A static model: a text's embedding is the mean of one vector for each token, without a transformer."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from emberge import CheckpointError, Similarity, TokenisedText
from emberge.contracts import Embedded
from emberge.model_folder import Checkpoint, copy_template
from torch import Tensor, nn

from emberge_encoder.stock_modules import load_stock_module, run_modules, save_stock_module
from emberge_encoder.text.text_model import refuse_media

# The name of the vectors in a folder of sentence-transformers.
TABLE_TENSOR = "embedding.weight"


class StaticModules(nn.Module):
    """The vectors of all tokens, and the modules after their mean: all weights of a static model."""

    def __init__(self, table: nn.EmbeddingBag, tail: Sequence[nn.Module]) -> None:
        super().__init__()
        self.table = table
        self.tail = nn.ModuleList(tail)


class StaticEncoder:
    """An encoder (see `Encoder`) of a SentenceTransformers folder that begins with a StaticEmbedding.

    Such a model is as in model2vec (Tulkens and van Dongen, 2024). No special tokens are added to a text, and
    a text without tokens gets a vector of zeros.
    """

    reads_queries_apart = False
    similarity = Similarity()

    def __init__(self, folder: Path, prompts: Mapping[str, str], max_length: int | None) -> None:
        first, *self._after = Checkpoint(folder).modules
        self.folder = folder
        self.prompts = prompts
        self._max_length = max_length
        self._trunk = first.path
        embedding = load_stock_module(folder, first)
        tail = [load_stock_module(folder, module) for module in self._after]
        self._tokenizer = embedding.tokenizer
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        embedding.embedding.float()
        self._modules = StaticModules(embedding.embedding, tail)
        self._ignored_id = self._find_ignored_token()

    def _find_ignored_token(self) -> int | None:
        """Return the id of the unknown token if its vector is zero and the mean is scaled to length one.

        Such a token changes no embedding. It is left out, so that no training gives it a vector: model2vec
        reads texts without it.
        """
        model = json.loads(self._tokenizer.to_str())["model"]
        token = model.get("unk_token")
        unknown: int | None = (
            model.get("unk_id") if token is None else self._tokenizer.token_to_id(token)
        )
        scaled = {entry.kind for entry in self._after} - {"Dropout"} == {"Normalize"}
        if unknown is None or not scaled or self._modules.table.weight[unknown : unknown + 1].any():
            return None
        return unknown

    @property
    def module(self) -> nn.Module:
        return self._modules

    @property
    def dimension(self) -> int:
        sizes: list[Any] = [getattr(module, "out_features", None) for module in self._modules.tail]
        known_sizes = [size for size in sizes if size is not None]
        return int(known_sizes[-1] if known_sizes else self._modules.table.embedding_dim)

    @property
    def tokenizer_fingerprint(self) -> str:
        parts = ["static", self._tokenizer.to_str(), str(self._max_length), str(self._ignored_id)]
        return hashlib.sha256("\x1f".join(parts).encode()).hexdigest()

    def tokenise(
        self, texts: Sequence[str], *, prompt: str, max_length: int | None, queries: bool = False
    ) -> list[TokenisedText]:
        refuse_media(texts, self.folder)
        limit = max_length or self._max_length
        prompted_texts = [prompt + text for text in texts]
        encodings = self._tokenizer.encode_batch(prompted_texts, add_special_tokens=False)
        # The mean is over all tokens, so that a prompt's are not set apart.
        return [
            TokenisedText([id_ for id_ in encoding.ids[:limit] if id_ != self._ignored_id])
            for encoding in encodings
        ]

    def collate(self, texts: Sequence[TokenisedText]) -> Mapping[str, Tensor]:
        lengths = [len(text.ids) for text in texts]
        ids = np.concatenate([np.asarray(text.ids, np.int64) for text in texts])
        offsets = np.concatenate([[0], np.cumsum(lengths)[:-1]])
        return {"input_ids": torch.from_numpy(ids), "offsets": torch.from_numpy(offsets)}

    def __call__(self, features: Mapping[str, Tensor], layers: Sequence[float] = ()) -> Embedded:
        if layers:
            raise CheckpointError(
                f"{self.folder}: a static model has no layers, and a loss reads some; take another loss"
            )
        means = self._modules.table(features["input_ids"], features["offsets"])
        return Embedded(run_modules(list(self._modules.tail), {"sentence_embedding": means}))

    def states(self, features: Mapping[str, Tensor]) -> Tensor:
        raise CheckpointError(
            f"{self.folder}: a static model has no hidden states; take a transformer"
        )

    def stored_names(self) -> Mapping[str, str]:
        names = {"table.weight": TABLE_TENSOR}
        for number, (entry, module) in enumerate(zip(self._after, self._modules.tail, strict=True)):
            parameter_names = [name for name, _ in module.named_parameters()]
            names |= {f"tail.{number}.{name}": f"{entry.path}.{name}" for name in parameter_names}
        return names

    def save(self, folder: Path) -> None:
        from safetensors.torch import save_file

        if folder.resolve() == self.folder.resolve():
            raise CheckpointError(f"{folder}: the model came from here; save it elsewhere")
        copy_template(Checkpoint(self.folder), folder, dtype="float32")
        table = self._modules.table.weight.detach().contiguous()
        save_file(
            {TABLE_TENSOR: table}, folder / self._trunk / "model.safetensors", {"format": "pt"}
        )
        for entry, module in zip(self._after, self._modules.tail, strict=True):
            if module.state_dict():
                save_stock_module(module, folder / entry.path)
