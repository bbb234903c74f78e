"""The way of a text to the transformer, as sentence_bert_config.json has it since release 6."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from emberge import CheckpointError
from emberge.model_folder import Layout, read_trunk_settings

__all__ = ["message_of", "refuse_modalities"]

_FORWARD = {"method": "forward", "method_output_name": "last_hidden_state"}
# Options of a chat template that are the tokenizer's.
_SIZES = ("padding", "truncation", "max_length", "return_tensors")


def message_of(layout: Layout) -> Mapping[str, Any] | None:
    """Return how messages reach the transformer in a folder whose texts are messages; else None."""
    settings = {} if layout.bare else read_trunk_settings(layout.trunk_folder)
    return (settings.get("modality_config") or {}).get("message")


def refuse_modalities(layout: Layout, kinds: Sequence[str] = ()) -> None:
    """Refuse a folder whose inputs do not reach the transformer as messages or texts.

    `kinds` are the media that the model reads; a processor of another one is in the way.

    Raises:
        CheckpointError: with the key of sentence_bert_config.json that is in the way.
    """
    path = f"{layout.trunk_folder}: sentence_bert_config.json"
    settings = read_trunk_settings(layout.trunk_folder)
    modalities = settings.get("modality_config") or {"text": _FORWARD}
    beside = sorted(set(modalities) - {"text", "message"})
    if "message" in modalities and beside and not kinds:
        raise CheckpointError(
            f"{path} has every text formatted by the chat template of a processor of {beside[0]}, and "
            "text_encoder has a tokenizer alone; to train it on plain text, take 'message' out of "
            "modality_config, which changes its embeddings"
        )
    read = ["message" if "message" in modalities else "text", *kinds]
    output = settings.get("module_output_name") or "token_embeddings"
    other = [kind for kind in read if _without_format(modalities.get(kind)) != _FORWARD]
    if other or output != "token_embeddings":
        kind = other[0] if other else read[0]
        way = modalities.get(kind)
        raise CheckpointError(
            f"{path} sends a {kind} through {way} to {output}, and text_encoder takes a transformer's "
            "last hidden state; use a model of text alone"
        )
    unknown = _unknown(settings.get("processing_kwargs") or {})
    if unknown is not None:
        raise CheckpointError(
            f"{path} gives the tokenizer '{unknown}' (processing_kwargs), which text_encoder does not; "
            "take it out, which may change the model's embeddings"
        )


def _without_format(way: Any) -> Any:
    return {k: v for k, v in way.items() if k != "format"} if isinstance(way, Mapping) else way


def _unknown(processing: Mapping[str, Mapping[str, Any]]) -> str | None:
    """Return the first option of the tokenizer's, also among those of the chat template."""
    own = [*(processing.get("text") or {}), *(processing.get("common") or {})]
    own += [name for name in processing.get("chat_template") or {} if name in _SIZES]
    return own[0] if own else None
