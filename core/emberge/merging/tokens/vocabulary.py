"""The vocabulary of a merge of models whose tokenizers differ: by a policy, or supplied by a step.

The folder of a supplied vocabulary has a tokenizer, a safetensors file for each model with the tensors whose
rows are tokens (by canonical names), and `vocabulary.json`: `{"size": rows, "models": {fingerprint: file}}`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from emberge.contracts import NumberRange
from emberge.errors import CheckpointError
from emberge.model_folder import read_json
from emberge.tensor_files import read_header
from emberge.tensor_names import Names, is_vocabulary


@dataclass(frozen=True, kw_only=True)
class VocabularyPolicy:
    """A policy for matching rows of embeddings and heads of models whose tokenizers differ.

    `token_aware` changes no id: rows whose token is the same in all models are merged, the row of a token
    that some models lack is the weighted mean of the other models' rows (or the only model's row), and two
    tokens with one id are refused. `union` matches rows by the tokens' text and appends tokens that the first
    model lacks; all tokenizers must use one algorithm. `mean` merges rows by their number, whatever their
    tokens are.
    """

    policy: Literal["token_aware", "mean", "union"] = "token_aware"
    """The rule by which rows are matched."""
    keep: dict[str, str] = field(default_factory=dict)
    """Map of a token to the model whose row it gets if models clash: `{"[MASK]": text}`."""
    pad_to: Annotated[int, NumberRange(least=1, most=2**20)] = 64
    """The number of rows of a union is padded to a multiple of this."""


@dataclass(frozen=True)
class SuppliedVocabulary:
    """A vocabulary that replaces the models' own; `folder` is None until its step has run."""

    folder: Path | None = None
    FILE: ClassVar[str] = "vocabulary.json"

    @property
    def _content(self) -> Mapping[str, Any]:
        return dict(read_json(self.folder / self.FILE)) if self.folder is not None else {}

    @property
    def key(self) -> str:
        """A hash that identifies the vocabulary's content."""
        if self.folder is None:
            return ""
        facts = [(p.name, p.stat().st_size) for p in sorted(self.folder.glob("*.safetensors"))]
        return hashlib.sha256(json.dumps([self._content, facts]).encode()).hexdigest()

    def decides_shape(self, name: str) -> bool:
        """Return whether the shape of a tensor is unknown until the vocabulary exists."""
        return self.folder is None and is_vocabulary(name)

    def apply_to(self, names: Names, model: str, fingerprint: str) -> Names:
        """Return a model's tensors, with its own vocabulary replaced by this vocabulary.

        Raises:
            CheckpointError: if the vocabulary was made without this model.
        """
        if self.folder is None:
            return names
        file = self._content["models"].get(fingerprint)
        if file is None:
            raise CheckpointError(
                f"{self.folder / self.FILE}: holds nothing for '{model}' as it is now; name it among the "
                "models that the vocabulary is made of"
            )
        supplied, _ = read_header(self.folder / file)
        kept_specs = {n: s for n, s in names.specs.items() if n not in supplied}
        supplied_specs = {
            n: spec.renamed(names.specs[n].name if n in names.specs else spec.name)
            for n, spec in supplied.items()
        }
        ordered_specs = {n: supplied_specs.get(n) or kept_specs[n] for n in names.specs}
        return replace(names, specs={**ordered_specs, **supplied_specs})

    def write_size(self, trunk: Path) -> None:
        """Write the number of tokens into the config.json in `trunk`."""
        path = trunk / "config.json"
        if not path.is_file():
            return
        config: dict[str, Any] = read_json(path)
        inner = config.get("text_config")
        part = inner if isinstance(inner, dict) and "vocab_size" in inner else config
        part["vocab_size"] = self._content["size"]
        path.write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
