"""An encoder of text: a transformers trunk, stock SentenceTransformers modules after it, a tokenizer."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from emberge import CheckpointError, DataError, Similarity, TokenisedText, show_media
from emberge.contracts import Embedded, has_media
from emberge.model_folder import POOLING, Checkpoint, ModuleFolder, TextLimit, copy_template
from torch import Tensor, nn

from emberge_encoder.layout import Layout
from emberge_encoder.stock_modules import (
    begin_dense,
    load_stock_module,
    run_modules,
    save_stock_module,
)
from emberge_encoder.text.blocks import BlockInputs
from emberge_encoder.text.located_texts import LocatedText, locate_texts
from emberge_encoder.text.lora import LoraTrunk
from emberge_encoder.text.packed_rows import DOCUMENTS_FEATURE, compute_packed_states
from emberge_encoder.text.tokenizer import ChatFormat, count_prompt_tokens
from emberge_encoder.text.trunk_weights import save_trunk

# Features that the transformer reads.
_INPUT_NAMES = ("input_ids", "attention_mask", "token_type_ids")
# What transformers sets on the layers whose activations are computed again.
CHECKPOINTING_KEY = "gradient_checkpointing"


class EncoderModules(nn.Module):
    """The trunk (transformer) and the modules after it: all weights of an encoder."""

    def __init__(self, trunk: nn.Module, tail: Sequence[nn.Module]) -> None:
        super().__init__()
        self.trunk = trunk
        self.tail = nn.ModuleList(tail)


@dataclass(frozen=True, kw_only=True)
class ModelParts:
    """Parts of an encoder of text, and facts of how it is trained and saved.

    `config` is the trunk's config.json as it will be saved, `frozen` names the trunk's parts that are not
    trained, and `dense` is the size of a new linear layer's output.
    """

    layout: Layout
    config: Mapping[str, Any]
    trunk: Any
    tokenizer: Any
    adapter: LoraTrunk | None = None
    chat: ChatFormat | None = None
    frozen: tuple[str, ...] = ()
    dense: int | None = None


class TextModel:
    """An encoder of text (see `Encoder`)."""

    reads_queries_apart = False
    similarity = Similarity()

    def __init__(self, parts: ModelParts) -> None:
        layout, trunk = parts.layout, parts.trunk
        self.layout = layout
        self._frozen = parts.frozen
        self._chat = parts.chat
        self._adapter = parts.adapter
        self._config = dict(parts.config)
        self._tokenizer = parts.tokenizer
        text_config = trunk.config.get_text_config()
        self._width = int(text_config.hidden_size)
        self._embeds_types = (getattr(text_config, "type_vocab_size", None) or 0) > 1
        self._modules = EncoderModules(trunk, _load_tail(layout, self._width, parts.dense))
        # Modules beside an adapter are frozen with the transformer.
        self._modules.tail.requires_grad_(parts.adapter is None)
        self._recomputed = [m for m in trunk.modules() if getattr(m, CHECKPOINTING_KEY, False)]
        self._fingerprint: str | None = None
        self._limit = TextLimit.read(layout.trunk_folder)

    @property
    def module(self) -> nn.Module:
        return self._modules

    def stored_names(self) -> Mapping[str, str]:
        trunk: nn.Module = self._modules.trunk
        names = {
            f"trunk.{name}": name.replace(".base_layer.", ".")
            for name, _ in trunk.named_parameters()
            if ".lora_" not in name
        }
        for i, (entry, module) in enumerate(
            zip(self.layout.modules, self._modules.tail, strict=True)
        ):
            parameter_names = [name for name, _ in module.named_parameters()]
            names |= {f"tail.{i}.{name}": f"{entry.path}.{name}" for name in parameter_names}
        return names

    @property
    def dimension(self) -> int:
        for module in reversed(self._modules.tail):
            size = getattr(module, "get_embedding_dimension", None) or getattr(
                module, "get_sentence_embedding_dimension", None
            )
            if size is not None and size() is not None:
                return int(size())
        return self._width

    @property
    def prompts(self) -> Mapping[str, str]:
        return self.layout.prompts

    @property
    def tokenizer_fingerprint(self) -> str:
        if self._fingerprint is None:
            backend = getattr(self._tokenizer, "backend_tokenizer", None)
            if backend is not None:
                backend.no_truncation()
                backend.no_padding()
            text = backend.to_str() if backend is not None else repr(self._tokenizer.get_vocab())
            parts = [text, type(self._tokenizer).__name__, str(self.layout.max_length)]
            parts += [self._chat.key] if self._chat is not None else []
            self._fingerprint = hashlib.sha256("\x1f".join(parts).encode()).hexdigest()
        return self._fingerprint

    def tokenise(
        self, texts: Sequence[str], *, prompt: str, max_length: int | None, queries: bool = False
    ) -> list[TokenisedText]:
        if not texts:
            return []
        refuse_media(texts, self.layout.folder)
        # A tokenizer without special tokens gives an empty text no token, and a model needs one.
        empty = [self._pad_id]
        limit = max_length or self.layout.max_length
        if self._chat is not None:
            # sentence-transformers pools over the prompt of a message, whatever the pooling says.
            rows = self._chat.tokenise(texts, prompt, limit)
            return [TokenisedText(ids or empty) for ids in rows]
        prompted_texts = [prompt + text for text in texts]
        encoded = self._tokenizer(
            prompted_texts,
            truncation=limit is not None,
            max_length=limit,
            padding=False,
            return_attention_mask=False,
            return_token_type_ids=False,
        )
        lengths = count_prompt_tokens(self._tokenizer, encoded, prompted_texts, prompt)
        return [
            TokenisedText(ids or empty, length)
            for ids, length in zip(encoded["input_ids"], lengths, strict=True)
        ]

    def locate(
        self,
        texts: Sequence[str],
        seconds: Sequence[str] | None = None,
        *,
        max_length: int | None = None,
        stride: int | None = None,
    ) -> list[LocatedText]:
        limit = max_length or self.layout.max_length
        return locate_texts(
            self._tokenizer, texts, seconds, limit, stride, types=self._embeds_types
        )

    @property
    def _pad_id(self) -> int:
        pad = self._tokenizer.pad_token_id
        return int(pad if pad is not None else self._tokenizer.eos_token_id or 0)

    def collate(self, texts: Sequence[TokenisedText]) -> Mapping[str, Tensor]:
        lengths = [len(text.ids) for text in texts]
        longest = max(lengths)
        ids = np.full((len(texts), longest), self._pad_id, np.int64)
        self._limit.require(longest)
        # Padding after a text changes no vector, whatever the tokenizer's side: positions begin at the text.
        for row, text in enumerate(texts):
            ids[row, : lengths[row]] = text.ids
        features = {"input_ids": torch.from_numpy(ids)}
        if min(lengths) < longest:
            mask = np.arange(longest)[None] < np.asarray(lengths)[:, None]
            features["attention_mask"] = torch.from_numpy(mask.astype(np.int64))
        if any(text.types is not None for text in texts):
            types = np.zeros_like(ids)
            for row, text in enumerate(texts):
                types[row, : lengths[row]] = text.types or 0
            features["token_type_ids"] = torch.from_numpy(types)
        if not self.layout.include_prompt and any(text.prompt_length for text in texts):
            features["prompt_length"] = torch.tensor([text.prompt_length for text in texts])
        return features

    def __call__(self, features: Mapping[str, Tensor], layers: Sequence[float] = ()) -> Embedded:
        with BlockInputs(self._modules.trunk, layers) as inputs_of_blocks:
            states = self._compute_last_states(features)
        embeddings_by_layer = {
            layer: self._pool(
                inputs_of_blocks.find_state(layer, states), features, self._pooling_modules
            )
            for layer in layers
        }
        return Embedded(self._pool(states, features, list(self._modules.tail)), embeddings_by_layer)

    def states(self, features: Mapping[str, Tensor]) -> Tensor:
        return self._compute_last_states(features)

    def _compute_last_states(self, features: Mapping[str, Tensor]) -> Tensor:
        inputs = self._select_inputs(features)
        for layer in self._recomputed:
            # Layers look at their own switch, which is off for a training without dropout.
            layer.training = torch.is_grad_enabled()
        trunk: Any = self._modules.trunk
        if DOCUMENTS_FEATURE in features:
            return compute_packed_states(trunk, features)
        states: Tensor = trunk(**inputs)[0]
        return states

    def _select_inputs(self, features: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the features that the transformer reads."""
        return {name: features[name] for name in _INPUT_NAMES if name in features}

    @property
    def _pooling_modules(self) -> list[nn.Module]:
        kinds = [m.kind for m in self.layout.modules]
        return [m for m, kind in zip(self._modules.tail, kinds, strict=True) if kind == "Pooling"]

    def _pool(
        self, states: Tensor, features: Mapping[str, Tensor], modules: Sequence[nn.Module]
    ) -> Tensor:
        lengths = features.get("prompt_length")
        if lengths is None:
            return _pool_states(modules, states, features.get("attention_mask"), None)
        # The stock pooling leaves out one prompt length a call.
        mask = features.get("attention_mask", torch.ones_like(features["input_ids"]))
        parts: dict[int, Tensor] = {}
        for length in sorted(set(lengths.tolist())):
            rows = (lengths == length).nonzero()[:, 0]
            out = _pool_states(modules, states[rows], mask[rows], length)
            parts |= dict(zip(rows.tolist(), out, strict=True))
        return torch.stack([parts[row] for row in range(len(states))])

    def save(self, folder: Path) -> None:
        if folder.resolve() == self.layout.folder.resolve():
            raise CheckpointError(f"{folder}: the model came from here; save it elsewhere")
        if self._adapter is not None and not self._adapter.options.fold:
            self._adapter.save(folder, self.layout.folder)
            return
        model = self._select_saved_model()
        dtype = str(model.dtype).removeprefix("torch.")
        copy_template(Checkpoint(self.layout.folder), folder, dtype=dtype, config=self._config)
        self.layout.write(folder, self._width)
        source, target = self.layout.trunk_folder, folder / self.layout.trunk
        save_trunk(model, source, target, self._frozen)
        for entry, module in zip(self.layout.modules, self._modules.tail, strict=True):
            if module.state_dict():
                save_stock_module(module, folder / entry.path)

    def _select_saved_model(self) -> Any:
        """Return the transformers model whose weights are saved."""
        return self._adapter.fold_factors() if self._adapter else self._modules.trunk


def refuse_media(texts: Sequence[str], folder: Path) -> None:
    """Refuse texts that have images or clips, for a model that reads text alone.

    Raises:
        DataError: if they have; the message names the first image or clip.
    """
    mixed = next((text for text in texts if has_media(text)), None)
    if mixed is not None:
        raise DataError(
            f"{show_media(mixed)[:200]!r} has media, and the model in {folder} reads text alone; take a "
            "model that reads them, or leave the data set out"
        )


def _pool_states(
    modules: Sequence[nn.Module], states: Tensor, mask: Tensor | None, prompt: int | None
) -> Tensor:
    features: dict[str, Any] = {"token_embeddings": states}
    if mask is not None:
        features["attention_mask"] = mask
    if prompt is not None:
        features["prompt_length"] = prompt
    return run_modules(modules, features)


def _load_tail(layout: Layout, width: int, dense: int | None) -> list[nn.Module]:
    """Return the modules after the transformer; a new Dense layer, without files, gets `dense` outputs."""
    tail: list[nn.Module] = []
    size = width
    for entry in layout.modules:
        is_new = entry.kind == "Dense" and not (layout.folder / entry.path).is_dir()
        if is_new and dense is not None:
            module: nn.Module = begin_dense(size, dense)
        else:
            module = _load_module(layout, entry, width)
        if entry.kind == "Pooling":
            size *= max(1, len(layout.pooling))
        size = int(getattr(module, "out_features", size))
        tail.append(module)
    return tail


def _load_module(layout: Layout, entry: ModuleFolder, width: int) -> nn.Module:
    """Return a module with its weights; `width` is the size of the transformer's states."""
    module: nn.Module
    if entry.kind != "Pooling":
        module = load_stock_module(layout.folder, entry)
        return module
    from sentence_transformers.sentence_transformer import modules as stock

    modes = [POOLING[word][0] for word in layout.pooling]
    module = stock.Pooling(width, pooling_mode=modes, include_prompt=layout.include_prompt)
    return module
