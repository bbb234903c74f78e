"""One vocabulary for all models of a merge, with each model's embeddings for it, as a step made them.

Its folder has a tokenizer, a safetensors file a model with the tensors whose rows are tokens, by their
canonical names, and `vocabulary.json`: `{"size": rows, "models": {fingerprint: file}}`, both null where
there is a tokenizer alone.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from emberge.errors import CheckpointError
from emberge.model_folder import Names, is_vocabulary, read_json
from emberge.tensor_files import read_header

__all__ = ["SuppliedVocabulary"]


@dataclass(frozen=True)
class SuppliedVocabulary:
    """A vocabulary that takes the place of the models' own; `folder` is None while it is yet to be made."""

    folder: Path | None = None
    FILE: ClassVar[str] = "vocabulary.json"

    @property
    def _content(self) -> Mapping[str, Any]:
        return dict(read_json(self.folder / self.FILE)) if self.folder is not None else {}

    @property
    def key(self) -> str:
        """A hash that identifies its content."""
        if self.folder is None:
            return ""
        facts = [(p.name, p.stat().st_size) for p in sorted(self.folder.glob("*.safetensors"))]
        return hashlib.sha256(json.dumps([self._content, facts]).encode()).hexdigest()

    def decides_shape(self, name: str) -> bool:
        """Return whether the shape of a tensor is unknown until the vocabulary is made."""
        return self.folder is None and is_vocabulary(name)

    def applied(self, names: Names, model: str, fingerprint: str) -> Names:
        """Return a model's tensors with those of the vocabulary in place of its own.

        Raises:
            CheckpointError: when the vocabulary was made without this model.
        """
        if self.folder is None or self._content["models"] is None:
            return names
        file = self._content["models"].get(fingerprint)
        if file is None:
            raise CheckpointError(
                f"{self.folder / self.FILE}: holds nothing for '{model}' as it is now; name it among the "
                "models that the vocabulary is made of"
            )
        found, _ = read_header(self.folder / file)
        own = {n: s for n, s in names.specs.items() if n not in found}
        new = {
            n: spec.renamed(names.specs[n].name if n in names.specs else spec.name)
            for n, spec in found.items()
        }
        ordered = {n: new.get(n) or own[n] for n in names.specs}
        return replace(names, specs={**ordered, **new})

    def write_size(self, trunk: Path) -> None:
        """Give the config.json in `trunk` the number of tokens."""
        path = trunk / "config.json"
        size = self._content.get("size")
        if size is None or not path.is_file():
            return
        config: dict[str, Any] = read_json(path)
        inner = config.get("text_config")
        place = inner if isinstance(inner, dict) and "vocab_size" in inner else config
        place["vocab_size"] = size
        path.write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
