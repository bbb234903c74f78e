"""Heads of language models, which are loaded, trained and saved with their transformer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from emberge import CheckpointError, TokenisedText, make_seed
from emberge.contracts import LinearHead
from emberge.wording import join_some
from numpy.typing import NDArray
from torch import Tensor, nn

from emberge_encoder.text.packed_rows import collate_rows
from emberge_encoder.text.text_model import ModelParts, TextModel
from emberge_encoder.text.trunk_weights import build_config, load_weights


class PredictingModel(TextModel):
    """An encoder that can also predict tokens (see `TokenPredictor`), with the trunk of `language_model`.

    The model is saved with the head, under the names that transformers gives it.
    """

    has_auxiliary = False

    def __init__(self, parts: ModelParts, *, language_model: Any) -> None:
        super().__init__(parts)
        self._language_model = language_model
        rows = int(language_model.config.get_text_config().vocab_size)
        self._mask_id = find_mask_id(self.layout.folder, self._tokenizer, rows)
        self._special = np.unique(np.asarray(self._tokenizer.all_special_ids, np.int64))
        self._head: nn.Sequential = _build_head(language_model)
        self._modules.add_module("head", self._head)
        self._config["architectures"] = [type(language_model).__name__]

    @property
    def mask_id(self) -> int | None:
        return self._mask_id

    @property
    def vocabulary(self) -> int:
        rows = int(self._language_model.config.get_text_config().vocab_size)
        return min(rows, len(self._tokenizer))

    @property
    def max_length(self) -> int | None:
        return self.layout.max_length

    def states_and_auxiliary(self, features: Mapping[str, Tensor]) -> tuple[Tensor, None]:
        return self.states(features), None

    def pack(self, rows: Sequence[Sequence[TokenisedText]]) -> Mapping[str, Tensor]:
        return collate_rows(rows, self._pad_id)

    def special(self, ids: NDArray[np.int64]) -> NDArray[np.bool_]:
        return np.isin(ids, self._special)

    @property
    def logits(self) -> Callable[[Tensor], Tensor]:
        last_part = self._head[-1]
        if not isinstance(last_part, nn.Linear):
            return self._head
        return LinearHead(self._head[:-1], last_part.weight, last_part.bias)

    def stored_names(self) -> Mapping[str, str]:
        # A weight that the head shares has the trunk's name.
        module_names = {name for name, _ in self._modules.named_parameters()}
        parameter_names = {
            f"head.{number}.{name}": f"{part}.{name}"
            for number, part in enumerate(_list_head_names(self._language_model))
            for name, _ in self._language_model.get_submodule(part).named_parameters()
        }
        of_head = {name: stored for name, stored in parameter_names.items() if name in module_names}
        return {**super().stored_names(), **of_head}

    def _select_saved_model(self) -> Any:
        return self._language_model


def load_language_model(
    folder: Path, config: Mapping[str, Any], dtype: str, *, fresh_head: bool
) -> Any:
    """Return the language model of a config and the weights in `folder`, with its head.

    With `fresh_head`, missing weights of the head are drawn as transformers draws them; the draw is always
    the same.

    Raises:
        CheckpointError: if weights cannot be loaded, or the head is missing or unsupported.
    """
    with torch.random.fork_rng():
        torch.manual_seed(make_seed("head"))
        model, report = load_weights(find_model_loader(folder, config), folder, config, dtype)
    prefix = f"{model.base_model_prefix}."
    missing = sorted(name for name in report["missing_keys"] if not name.startswith(prefix))
    if missing and not fresh_head:
        raise CheckpointError(
            f"{folder}: has no head that predicts tokens: it lacks {join_some(missing, 1)}; start from a "
            "checkpoint with its language model's head, or train a new one with "
            "backbone: {text_encoder: {fresh_head: true}}"
        )
    if not _is_head_whole(model):
        raise CheckpointError(
            f"{folder}: {type(model).__name__} makes its logits by more than its head "
            f"({join_some(_list_head_names(model))}); this backbone cannot train it"
        )
    return model


def find_mask_id(folder: Path, tokenizer: Any, vocabulary: int) -> int | None:
    """Return the id of the tokenizer's mask token; None without one.

    Raises:
        CheckpointError: if the embeddings have no row for it.
    """
    if tokenizer.mask_token is None:
        return None
    mask_id = int(tokenizer.mask_token_id)
    if mask_id >= vocabulary:
        raise CheckpointError(
            f"{folder}: the mask token '{tokenizer.mask_token}' has the id {mask_id}, and the model has "
            f"embeddings of {vocabulary} tokens only; name another, or give the model a row for it"
        )
    return mask_id


def find_model_loader(folder: Path, config: Mapping[str, Any]) -> Any:
    """Return transformers' loader class for the language model, a masked one if it exists."""
    from transformers import (
        MODEL_FOR_CAUSAL_LM_MAPPING,
        MODEL_FOR_MASKED_LM_MAPPING,
        AutoModelForCausalLM,
        AutoModelForMaskedLM,
    )

    kind = type(build_config(folder, config))
    if config.get("is_encoder_decoder"):
        raise CheckpointError(
            f"{folder}: an encoder-decoder's head reads its decoder, not its encoder"
        )
    if kind in MODEL_FOR_MASKED_LM_MAPPING:
        return AutoModelForMaskedLM
    if kind in MODEL_FOR_CAUSAL_LM_MAPPING:
        return AutoModelForCausalLM
    name = config.get("model_type")
    raise CheckpointError(f"{folder}: there is no language model of the type '{name}'")


def _list_head_names(model: Any) -> list[str]:
    """Return the names of a language model's parts other than its trunk, in order."""
    return [name for name, _ in model.named_children() if name != model.base_model_prefix]


def _build_head(model: Any) -> nn.Sequential:
    """Join a language model's parts other than its trunk into one module."""
    return nn.Sequential(*[model.get_submodule(name) for name in _list_head_names(model)])


def _is_head_whole(model: Any) -> bool:
    """Return whether the head's parts, run in sequence, reproduce the model's logits."""
    device = next(model.parameters()).device
    ids = torch.arange(1, 5, device=device)[None] % model.config.get_text_config().vocab_size
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            expected_logits = model(input_ids=ids).logits
            logits = _build_head(model)(model.base_model(input_ids=ids)[0])
    except (NotImplementedError, RuntimeError, TypeError):
        return False
    finally:
        model.train(training)
    # Equal bits, as both are the same products in the same order; a cap or a factor changes the last digits.
    return torch.equal(logits, expected_logits)
