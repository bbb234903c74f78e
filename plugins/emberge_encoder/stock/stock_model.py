"""Encoder around a whole model of sentence-transformers, whose own modules tokenise, compute and save."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from emberge import CheckpointError, EmbeddingKind, EncoderFacts, Similarity, TokenisedText
from emberge.contracts import Embedded
from emberge.model_folder import TextLimit
from torch import Tensor, nn

from emberge_encoder.text.text_model import refuse_media

Side = Literal["query", "document"]
# Texts of a chunk that are read as queries, among the features of a batch.
_QUERIES_FEATURE = "is_query"
# Features of the model's output that are the embeddings.
_OUTPUT_BY_KIND: Mapping[EmbeddingKind, str] = {
    "sparse": "sentence_embedding",
    "token_vectors": "token_embeddings",
    "pair_score": "scores",
}
# Settings of the first module that decide the ids of a text.
_READING_SETTINGS = (
    "max_seq_length",
    "query_length",
    "document_length",
    "query_expansion",
    "do_lower_case",
)


class StockModel:
    """Encoder of a sentence-transformers model, which reads queries and documents as the library does.

    `model` is a SparseEncoder or a MultiVectorEncoder.
    """

    def __init__(
        self,
        model: Any,
        folder: Path,
        facts: EncoderFacts,
        limit: TextLimit,
        max_length: int | None,
    ) -> None:
        self.folder = folder
        self._model = model
        self._facts = facts
        self._limit = limit
        self._max_length = max_length
        self._tokenizer = model.tokenizer
        # LogitScore takes the last token of a row; else padding after a text changes no vector.
        self._pads_left = any(type(module).__name__ == "LogitScore" for module in model.modules())
        # Modules that change their input in place where they are not trained.
        self._in_place = [m for m in model.modules() if type(m).__name__ == "SpladePooling"]

    @property
    def module(self) -> nn.Module:
        module: nn.Module = self._model
        return module

    @property
    def similarity(self) -> Similarity:
        return self._facts.similarity

    @property
    def dimension(self) -> int:
        # Before the first text the library gives the size of a token's state.
        assert self._facts.dimension is not None
        return self._facts.dimension

    @property
    def prompts(self) -> Mapping[str, str]:
        prompts: Mapping[str, str] = self._model.prompts
        return prompts

    @property
    def tokenizer_fingerprint(self) -> str:
        backend = self._tokenizer.backend_tokenizer
        backend.no_truncation()
        backend.no_padding()
        first = self._model[0]
        settings = [type(first).__name__]
        settings += [repr(getattr(first, name, None)) for name in _READING_SETTINGS]
        parts = [type(self).__name__, backend.to_str(), repr(settings), str(self._max_length)]
        return hashlib.sha256("\x1f".join(parts).encode()).hexdigest()

    @property
    def reads_queries_apart(self) -> bool:
        return self.similarity.kind != "pair_score"

    def tokenise(
        self, texts: Sequence[str], *, prompt: str, max_length: int | None, queries: bool = False
    ) -> list[TokenisedText]:
        return self._tokenise(texts, prompt, max_length, "query" if queries else "document")

    def _tokenise(
        self, texts: Sequence[Any], prompt: str, max_length: int | None, side: Side
    ) -> list[TokenisedText]:
        if not texts:
            return []
        refuse_media(
            [part for text in texts for part in ((text,) if isinstance(text, str) else text)],
            self.folder,
        )
        limit = max_length or self._max_length
        lengths = {} if limit is None else {"max_length": limit}
        features = self._model.preprocess(list(texts), prompt=prompt or None, task=side, **lengths)
        ids, mask = features["input_ids"].numpy(), features["attention_mask"].numpy().astype(bool)
        expanded = features.get("query_expansion_positions")
        if expanded is not None:
            mask |= expanded.numpy()
        types = features.get("token_type_ids")
        rows = zip(ids, mask, [None] * len(ids) if types is None else types.numpy(), strict=True)
        return [
            TokenisedText(
                row[kept],
                types=None if of_row is None or not of_row.any() else of_row[kept],
                is_query=side == "query",
            )
            for row, kept, of_row in rows
        ]

    def collate(self, texts: Sequence[TokenisedText]) -> Mapping[str, Tensor]:
        lengths = np.fromiter((len(text.ids) for text in texts), np.int64, len(texts))
        longest = int(lengths.max())
        self._limit.require(longest)
        ids = np.full((len(texts), longest), self._tokenizer.pad_token_id or 0, np.int64)
        types = np.zeros_like(ids)
        positions = np.arange(longest)[None]
        start = longest - lengths[:, None] if self._pads_left else 0
        mask = (positions >= start) & (positions < start + lengths[:, None])
        for row, text in enumerate(texts):
            ids[row, mask[row]] = text.ids
            if text.types is not None:
                types[row, mask[row]] = text.types
        features = {
            "input_ids": torch.from_numpy(ids),
            "attention_mask": torch.from_numpy(mask.astype(np.int64)),
            _QUERIES_FEATURE: torch.tensor([text.is_query for text in texts]),
        }
        if "token_type_ids" in self._tokenizer.model_input_names:
            features["token_type_ids"] = torch.from_numpy(types)
        return features

    def __call__(self, features: Mapping[str, Tensor], layers: Sequence[float] = ()) -> Embedded:
        if layers:
            raise CheckpointError(
                f"{self.folder}: {type(self._model).__name__} gives no embeddings of intermediate layers; "
                "take a loss of final embeddings"
            )
        for module in self._in_place:  # they look at their own switch, which is off without dropout
            module.training = torch.is_grad_enabled()
        is_query = features[_QUERIES_FEATURE]
        parts: list[tuple[Tensor, Tensor]] = []
        for side, rows in (("query", is_query), ("document", ~is_query)):
            row_numbers = rows.nonzero()[:, 0]
            if len(row_numbers):
                parts.append((row_numbers, self._compute(features, row_numbers, side)))
        if len(parts) == 1:
            return Embedded(parts[0][1])
        order = torch.cat([row_numbers for row_numbers, _ in parts]).argsort()
        return Embedded(torch.cat([values for _, values in parts])[order])

    def _compute(self, features: Mapping[str, Tensor], row_numbers: Tensor, side: str) -> Tensor:
        """Return the embeddings of one side's texts, each row as long as the batch's."""
        inputs: dict[str, Any] = {
            name: values[row_numbers]
            for name, values in features.items()
            if name != _QUERIES_FEATURE
        }
        expansion = self._model[0].__dict__.get("_query_expansion") if side == "query" else None
        if expansion is not None:
            inputs |= self._mark_expansion(inputs["input_ids"], inputs["attention_mask"], expansion)
        inputs["modality"] = "text"
        output = self._model(inputs, task=side)
        embeddings: Tensor = output[_OUTPUT_BY_KIND[self.similarity.kind]]
        if self.similarity.kind == "token_vectors":
            mask: Tensor = output["attention_mask"]
            embeddings = embeddings * mask[..., None].to(embeddings.dtype)
        return embeddings

    def _mark_expansion(
        self, ids: Tensor, mask: Tensor, expansion: Mapping[str, Any]
    ) -> dict[str, Tensor]:
        """Return the masks of queries that end in expansion tokens, as the library's tokenisation has them.

        Expansion tokens are the last of a query, after its special token.
        """
        token = expansion["token"]
        expanding = (
            self._tokenizer.convert_tokens_to_ids(token)
            if token is not None
            else next(
                id_
                for id_ in (self._tokenizer.mask_token_id, self._tokenizer.eos_token_id)
                if id_ is not None
            )
        )
        is_other = (ids != expanding) & mask.bool()
        positions = torch.arange(ids.shape[1], device=ids.device)
        last = (positions * is_other).amax(1, keepdim=True)
        expanded = (positions > last) & mask.bool() & (positions < expansion["length"])
        attended = mask if expansion["attend"] else mask * ~expanded
        return {"query_expansion_positions": expanded, "attention_mask": attended}

    def states(self, features: Mapping[str, Tensor]) -> Tensor:
        raise CheckpointError(
            f"{self.folder}: {type(self._model).__name__} gives no hidden states; take text_encoder"
        )

    def stored_names(self) -> Mapping[str, str]:
        names: dict[str, str] = {}
        for name, _ in self._model.named_parameters():
            number, _, inner = name.partition(".")
            module = self._model[int(number)]
            if hasattr(module, "auto_model"):
                names[name] = inner.removeprefix("model.").removeprefix("auto_model.")
            else:
                names[name] = f"{number}_{type(module).__name__}.{inner}"
        return names

    def save(self, folder: Path) -> None:
        if folder.resolve() == self.folder.resolve():
            raise CheckpointError(f"{folder}: the model came from here; save it elsewhere")
        self._model.save_pretrained(str(folder), create_model_card=False, safe_serialization=True)


class PairModel(StockModel):
    """Encoder of a model that reads a query and a document together (see `PairEncoder`)."""

    def tokenise_pairs(
        self,
        queries: Sequence[str],
        documents: Sequence[str],
        *,
        prompt: str,
        max_length: int | None,
    ) -> list[TokenisedText]:
        pairs = list(zip(queries, documents, strict=True))
        return self._tokenise(pairs, prompt, max_length, "document")
