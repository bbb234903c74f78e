"""An encoder of text: a transformers trunk, stock SentenceTransformers modules after it, a tokenizer."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from emberge import CheckpointError, Embedded, TokenisedText
from torch import Tensor, nn

from emberge_standard.backbones.layout import (
    POOLING,
    Layout,
    ModuleEntry,
    carry_files,
    write_json,
    write_layout,
)
from emberge_standard.backbones.weights import refuse_pickles, save_trunk

# A tokenizer that names no limit says 1e30.
NO_LIMIT = 1_000_000


class Chain(nn.Module):
    """The trunk and the modules after it: all weights of an encoder."""

    def __init__(self, trunk: nn.Module, tail: Sequence[nn.Module]) -> None:
        super().__init__()
        self.trunk = trunk
        self.tail = nn.ModuleList(tail)


class TextModel:
    """Fills the Encoder contract for text. `config` is the trunk's config.json as it will be saved."""

    def __init__(
        self, layout: Layout, config: Mapping[str, Any], trunk: Any, tokenizer: Any
    ) -> None:
        self.layout = layout
        self._config = dict(config)
        self._tokenizer = tokenizer
        self._width = int(trunk.config.get_text_config().hidden_size)
        self._chain = Chain(trunk, [_tail_module(layout, m, self._width) for m in layout.modules])
        self._prompt_lengths: dict[str, int] = {}
        self._fingerprint: str | None = None

    @property
    def module(self) -> nn.Module:
        return self._chain

    def stored_names(self) -> Mapping[str, str]:
        trunk: nn.Module = self._chain.trunk
        names = {f"trunk.{name}": name for name, _ in trunk.named_parameters()}
        for i, (entry, module) in enumerate(
            zip(self.layout.modules, self._chain.tail, strict=True)
        ):
            inside = [name for name, _ in module.named_parameters()]
            names |= {f"tail.{i}.{name}": f"{entry.path}.{name}" for name in inside}
        return names

    @property
    def dimension(self) -> int:
        for module in reversed(self._chain.tail):
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
            self._fingerprint = hashlib.sha256("\x1f".join(parts).encode()).hexdigest()
        return self._fingerprint

    def tokenise(
        self, texts: Sequence[str], *, prompt: str, max_length: int | None
    ) -> list[TokenisedText]:
        if not texts:
            return []
        length = self._prompt_length(prompt) if prompt else 0
        # A tokenizer without special tokens makes nothing of an empty text; a model needs one token.
        nothing = [self._pad]
        return [
            TokenisedText(ids or nothing, min(length, len(ids)))
            for ids in self._ids([prompt + text for text in texts], max_length)
        ]

    def _ids(self, texts: list[str], max_length: int | None) -> list[list[int]]:
        limit = max_length or self.layout.max_length
        ids: list[list[int]] = self._tokenizer(
            texts,
            truncation=limit is not None,
            max_length=limit,
            padding=False,
            return_attention_mask=False,
            return_token_type_ids=False,
        )["input_ids"]
        return ids

    def _prompt_length(self, prompt: str) -> int:
        if prompt not in self._prompt_lengths:
            (ids,) = self._ids([prompt], None)
            special = bool(ids) and ids[-1] in self._tokenizer.all_special_ids
            self._prompt_lengths[prompt] = len(ids) - special
        return self._prompt_lengths[prompt]

    @property
    def _pad(self) -> int:
        pad = self._tokenizer.pad_token_id
        return int(pad if pad is not None else self._tokenizer.eos_token_id or 0)

    def collate(self, texts: Sequence[TokenisedText]) -> Mapping[str, Tensor]:
        lengths = [len(text.ids) for text in texts]
        longest = max(lengths)
        ids = np.full((len(texts), longest), self._pad, np.int64)
        left = getattr(self._tokenizer, "padding_side", "right") == "left"
        for row, text in enumerate(texts):
            ids[row, longest - lengths[row] if left else 0 :][: lengths[row]] = text.ids
        features = {"input_ids": torch.from_numpy(ids)}
        if min(lengths) < longest:
            place = np.arange(longest)[None]
            size = np.asarray(lengths)[:, None]
            mask = place >= longest - size if left else place < size
            features["attention_mask"] = torch.from_numpy(mask.astype(np.int64))
        if not self.layout.include_prompt and any(text.prompt_length for text in texts):
            features["prompt_length"] = torch.tensor([text.prompt_length for text in texts])
        return features

    def __call__(self, features: Mapping[str, Tensor], layers: Sequence[float] = ()) -> Embedded:
        inputs = {
            name: features[name] for name in ("input_ids", "attention_mask") if name in features
        }
        with _Inputs(self._chain.trunk, layers) as taps:
            states = self._chain.trunk(**inputs)[0]
        pooled = {
            layer: self._pool(taps.state(layer, states), features, self._poolings)
            for layer in layers
        }
        return Embedded(self._pool(states, features, list(self._chain.tail)), pooled)

    @property
    def _poolings(self) -> list[nn.Module]:
        kinds = [m.kind for m in self.layout.modules]
        return [m for m, kind in zip(self._chain.tail, kinds, strict=True) if kind == "Pooling"]

    def _pool(
        self, states: Tensor, features: Mapping[str, Tensor], modules: Sequence[nn.Module]
    ) -> Tensor:
        lengths = features.get("prompt_length")
        if lengths is None:
            return _through(modules, states, features.get("attention_mask"), None)
        # The stock pooling leaves out one prompt length a call.
        mask = features.get("attention_mask", torch.ones_like(features["input_ids"]))
        parts: dict[int, Tensor] = {}
        for length in sorted(set(lengths.tolist())):
            rows = (lengths == length).nonzero()[:, 0]
            out = _through(modules, states[rows], mask[rows], length)
            parts |= dict(zip(rows.tolist(), out, strict=True))
        return torch.stack([parts[row] for row in range(len(states))])

    def save(self, folder: Path) -> None:
        if folder.resolve() == self.layout.folder.resolve():
            raise CheckpointError(f"{folder}: the model came from here; save it elsewhere")
        carry_files(self.layout, folder)
        trunk = folder / self.layout.trunk
        trunk.mkdir(parents=True, exist_ok=True)
        model: Any = self._chain.trunk
        write_json(trunk / "config.json", self._config | _dtype_entry(self._config, model.dtype))
        write_layout(self.layout, folder, self._width)
        save_trunk(model, self.layout.trunk_folder, trunk)
        for entry, module in zip(self.layout.modules, self._chain.tail, strict=True):
            if module.state_dict():
                _save_module(module, folder / entry.path)


def _dtype_entry(config: Mapping[str, Any], dtype: torch.dtype) -> dict[str, str]:
    # Loaders take the weights' dtype from here; both spellings are in use.
    name = "torch_dtype" if "torch_dtype" in config else "dtype"
    return {name: str(dtype).removeprefix("torch.")}


def _save_module(module: Any, folder: Path) -> None:
    from safetensors.torch import save_file

    folder.mkdir(exist_ok=True)
    if not (folder / "config.json").is_file():
        module.save(str(folder))
    state = {name: tensor.contiguous() for name, tensor in module.state_dict().items()}
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})


def _through(
    modules: Sequence[nn.Module], states: Tensor, mask: Tensor | None, prompt: int | None
) -> Tensor:
    features: dict[str, Any] = {"token_embeddings": states}
    if mask is not None:
        features["attention_mask"] = mask
    if prompt is not None:
        features["prompt_length"] = prompt
    for module in modules:
        features = module(features)
    embedding: Tensor = features["sentence_embedding"]
    return embedding


class _Inputs:
    """Catches the input of the blocks that intermediate layers ask for, and of those alone."""

    def __init__(self, trunk: Any, layers: Sequence[float]) -> None:
        self._blocks: Sequence[nn.Module] = list(_blocks(trunk)) if layers else []
        self._wanted = {self._index(layer) for layer in layers}
        self._states: dict[int, Tensor] = {}
        self._hooks: list[Any] = []

    def _index(self, layer: float) -> int:
        count = len(self._blocks)
        return min(int(layer * (count + 1)), count)

    def __enter__(self) -> _Inputs:
        for index in self._wanted - {len(self._blocks)}:
            self._hooks.append(
                self._blocks[index].register_forward_pre_hook(
                    lambda _, args, kwargs, index=index: self._keep(index, args, kwargs),
                    with_kwargs=True,
                )
            )
        return self

    def _keep(self, index: int, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        self._states[index] = args[0] if args else kwargs["hidden_states"]

    def __exit__(self, *_: object) -> None:
        for hook in self._hooks:
            hook.remove()

    def state(self, layer: float, final: Tensor) -> Tensor:
        """Hidden state floor(layer · (L + 1)): 0 is the embeddings, L the final one."""
        return self._states.get(self._index(layer), final)


def _blocks(trunk: Any) -> nn.ModuleList:
    count = trunk.config.get_text_config().num_hidden_layers
    for module in trunk.modules():
        if isinstance(module, nn.ModuleList) and len(module) == count:
            return module
    raise CheckpointError(f"{type(trunk).__name__}: its {count} layers were not found")


def _tail_module(layout: Layout, entry: ModuleEntry, width: int) -> nn.Module:
    from sentence_transformers.sentence_transformer import modules as stock

    made: nn.Module
    if entry.kind == "Pooling":
        modes = [POOLING[word][0] for word in layout.pooling]
        made = stock.Pooling(width, pooling_mode=modes, include_prompt=layout.include_prompt)
        return made
    if entry.kind == "Normalize":
        return stock.Normalize()  # type: ignore[no-any-return]
    kind = getattr(stock, entry.kind, None)
    if kind is None:
        raise CheckpointError(
            f"{layout.folder}/modules.json: no stock module '{entry.kind}' is known"
        )
    folder = layout.folder / entry.path
    if list(folder.glob("*.bin")):
        refuse_pickles(folder)
    try:
        made = kind.load(str(layout.folder), subfolder=entry.path)
    except (OSError, ValueError, TypeError, KeyError, RuntimeError, json.JSONDecodeError) as error:
        raise CheckpointError(f"{folder}: cannot be loaded: {error}") from error
    return made


def with_limits(layout: Layout, tokenizer: Any, positions: int | None) -> Layout:
    """The layout with the length that the tokenizer and the positions allow, where none is given."""
    limits = [n for n in (tokenizer.model_max_length, positions) if n and n < NO_LIMIT]
    if layout.max_length is not None or not limits:
        return layout
    return dataclasses.replace(layout, max_length=min(limits))
