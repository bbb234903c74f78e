"""Passport (space.json) of an embedding space: fingerprints of all that decides embeddings, and canaries."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from emberge import CheckpointError
from emberge.files import read_regular
from emberge.model_folder import (
    Layout,
    content_fingerprints,
    is_static_model,
    read_modules,
    read_object,
    read_settings,
    read_static_dimension,
)
from emberge.results import write_with_record

from emberge_index.space.canaries import CANARIES, LONG_CANARIES, prompts_of

if TYPE_CHECKING:
    from emberge_index.space.canaries import Canaries


PASSPORT = "space.json"
_RANGES = "ranges.npz"
"""File beside the passport with the ranges of int8, which a step `export` writes."""
_FORMAT = 1
# Bytes of a file of ranges, at most.
_LONGEST = 4 << 20
# Names of the hidden size in configs: BERT's and most others', T5's, DistilBERT's, GPT-2's.
_SIZES = ("hidden_size", "d_model", "dim", "n_embd")


@dataclass(frozen=True)
class Passport:
    """Facts of an embedding space: models with equal facts have equal embeddings of documents.

    `weights` is a hash of all tensors by name, `tokenizer` a hash of the tokenizer's files. `pooling` names
    all modules after the transformer, and of a static model all modules. `prompts` are the texts before
    queries and before documents. `canaries` are vectors of the canary texts, and may be missing. `ranges` is
    the SHA-256 of the ranges of int8 beside the passport, if there are any.
    """

    weights: str
    tokenizer: str
    pooling: str
    prompts: tuple[str, str]
    dimension: int | None
    normalised: bool
    max_length: int | None
    similarity: str
    canaries: Canaries = field(default_factory=dict, compare=False)
    ranges: str | None = field(default=None, compare=False)

    def differences(self, other: Passport) -> dict[str, tuple[Any, Any]]:
        """Map the name of each differing fact, except the query prompt, to the values in both passports."""
        names = ("weights", "tokenizer", "pooling", "normalised", "max_length")
        pairs = {name: (getattr(self, name), getattr(other, name)) for name in names}
        pairs["document prompt"] = (self.prompts[1], other.prompts[1])
        return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}

    @property
    def fingerprint(self) -> str:
        """Hash of all facts that decide the vectors of documents."""
        facts = (self.weights, self.tokenizer, self.pooling, self.prompts[1], self.max_length)
        return hashlib.sha256(repr(facts).encode()).hexdigest()


def passport_of(folder: Path) -> Passport:
    """Return the current passport of a model's folder, read from its files, without canary vectors.

    Raises:
        CheckpointError: if the folder has no model that embeds texts.
    """
    facts = _read_static_facts(folder) if is_static_model(folder) else _read_layout_facts(folder)
    weights, tokenizer = content_fingerprints(folder)
    return Passport(
        weights=weights,
        tokenizer=tokenizer,
        pooling=facts.pooling,
        prompts=prompts_of(facts.prompts),
        dimension=facts.dimension,
        normalised=facts.normalised,
        max_length=facts.max_length,
        similarity=str(read_settings(folder).get("similarity_fn_name") or "cosine"),
        ranges=_hash_ranges(folder / _RANGES),
    )


class _ChainFacts(NamedTuple):
    """Facts of a folder's modules."""

    pooling: str
    dimension: int | None
    normalised: bool
    prompts: Mapping[str, str]
    max_length: int | None = None


def _read_layout_facts(folder: Path) -> _ChainFacts:
    layout = Layout.read(folder)
    chain = [module.kind for module in layout.modules]
    prompt = "" if layout.include_prompt else " without the prompt"
    return _ChainFacts(
        f"{'+'.join(layout.pooling)}{prompt}, {' '.join(chain) or 'no modules'}",
        _find_dimension(layout),
        "Normalize" in chain,
        layout.prompts,
        layout.max_length,
    )


def _read_static_facts(folder: Path) -> _ChainFacts:
    """Return the facts of a static model, which reads whole texts and takes the mean of their tokens."""
    chain = [module.kind for module in read_modules(folder)]
    return _ChainFacts(
        f"mean, {' '.join(chain)}",
        read_static_dimension(folder),
        "Normalize" in chain,
        read_settings(folder).get("prompts") or {},
    )


def _hash_ranges(path: Path) -> str | None:
    if not path.is_file():
        return None
    return hashlib.sha256(read_regular(path, limit=_LONGEST)).hexdigest()


def result_passport(folder: Path) -> Mapping[str, str]:
    """Return the passport of a step's encoder by its file name; it is read without loading the model.

    The result is empty for an adapter, a trunk alone, or a folder without an encoder of texts.
    """
    if not has_space(folder):
        return {}
    try:
        return {PASSPORT: passport_text(passport_of(folder))}
    except CheckpointError:
        return {}


def has_space(folder: Path) -> bool:
    """Return whether a folder has an encoder of texts: neither an adapter nor a trunk alone."""
    if (folder / "adapter_config.json").is_file():
        return False
    try:
        return is_static_model(folder) or not Layout.read(folder).bare
    except CheckpointError:
        return False


def _find_dimension(layout: Layout) -> int | None:
    """Return the last Dense's output size, or the hidden size per pooling mode; None if unknown."""
    config = read_object(layout.trunk_folder / "config.json")
    text_config = config.get("text_config")
    settings = {**config, **(text_config if isinstance(text_config, dict) else {})}
    size = next((settings[name] for name in _SIZES if isinstance(settings.get(name), int)), None)
    for module in layout.modules:
        if module.kind == "Pooling" and size is not None:
            size *= max(1, len(layout.pooling))
        elif module.kind == "Dense":
            size = read_object(layout.folder / module.path / "config.json").get("out_features")
    return size if isinstance(size, int) else None


def write_passport(folder: Path, passport: Passport) -> Path:
    """Write a passport into a model's folder and return its file."""
    write_with_record(folder.resolve(), PASSPORT, passport_text(passport))
    return folder / PASSPORT


def passport_text(passport: Passport) -> str:
    """Return the text of a passport's file."""
    content: dict[str, Any] = {
        "format": _FORMAT,
        "fingerprint": passport.fingerprint,
        "weights": passport.weights,
        "tokenizer": passport.tokenizer,
        "pooling": passport.pooling,
        "prompts": {"query": passport.prompts[0], "document": passport.prompts[1]},
        "dimension": passport.dimension,
        "normalised": passport.normalised,
        "max_length": passport.max_length,
        "similarity": passport.similarity,
    }
    if passport.ranges is not None:
        content["int8"] = {"ranges": _RANGES, "sha256": passport.ranges}
    if passport.canaries:
        content["canaries"] = {
            "texts": CANARIES,
            "long_texts": LONG_CANARIES,
            "float16": {side: _pack_rows(rows) for side, rows in passport.canaries.items()},
        }
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def read_passport(path: Path) -> Passport:
    """Return the passport in a model's folder, or in a file stored next to an index.

    Raises:
        CheckpointError: if the file is missing or is not a passport.
    """
    file = path / PASSPORT if path.is_dir() else path
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        return Passport(
            weights=str(content["weights"]),
            tokenizer=str(content["tokenizer"]),
            pooling=str(content["pooling"]),
            prompts=(str(content["prompts"]["query"]), str(content["prompts"]["document"])),
            dimension=content["dimension"],
            normalised=bool(content["normalised"]),
            max_length=content["max_length"],
            similarity=str(content["similarity"]),
            canaries=_read_canaries(content.get("canaries")),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"{file}: this is no passport of a space ({error!r}); `emberge space MODEL` writes one"
        ) from error


def _pack_rows(rows: Any) -> str:
    return base64.b64encode(rows.astype("<f2").tobytes()).decode()


def _read_canaries(stored: Any) -> Canaries:
    """Return the canaries in a passport; none if it has none, or those of other texts, which say nothing."""
    import numpy as np

    if stored is None:
        return {}
    texts = (list(stored["texts"]), list(stored["long_texts"]))
    if texts != (list(CANARIES), list(LONG_CANARIES)):
        return {}
    canaries = {}
    for side, text in stored["float16"].items():
        rows = np.frombuffer(base64.b64decode(text), "<f2").astype(np.float32)
        count = len(LONG_CANARIES if side.startswith("long ") else CANARIES)
        canaries[side] = rows.reshape(count, -1)
    widths = {rows.shape[1] for rows in canaries.values()}
    if len(widths) != 1 or 0 in widths:
        raise ValueError(f"canaries with vectors of {sorted(widths)} numbers")
    if not all(np.isfinite(rows).all() for rows in canaries.values()):
        raise ValueError("canaries with numbers that are not finite")
    return canaries
