"""Cross-encoders, which read two texts together and embed none, by the files of their folders."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from emberge.model_folder import read_modules, read_object, read_settings

_CLASSIFIER = "ForSequenceClassification"
# A class of transformers has so many outputs unless its config names them.
_DEFAULT_OUTPUTS = 2


@dataclass(frozen=True, slots=True)
class CrossEncoderFacts:
    """Facts of a folder that may be a cross-encoder; `outputs` is the number of its scores or classes.

    It `is_one` if sentence-transformers' CrossEncoder saved it, or if it is a bare folder of a
    sequence-classification class of transformers.
    """

    folder: Path
    is_one: bool
    outputs: int

    @classmethod
    def read(cls, folder: Path) -> CrossEncoderFacts:
        """Return the facts of a model folder, from its configs alone.

        Raises:
            CheckpointError: if a file cannot be read.
        """
        path = folder / "config.json"
        config = read_object(path) if path.is_file() else {}
        names, labels = config.get("architectures"), config.get("id2label")
        first = str(next(iter(names), "")) if isinstance(names, list) else ""
        classifies = first.endswith(_CLASSIFIER)
        is_saved = read_settings(folder).get("model_type") == "CrossEncoder"
        outputs = len(labels) if isinstance(labels, dict) and labels else _DEFAULT_OUTPUTS
        is_one = is_saved if read_modules(folder) else classifies
        return cls(folder, is_one, outputs if classifies else 1)

    @property
    def noun(self) -> str:
        """Phrase for its kind: a reranker or a classifier."""
        if self.outputs != 1:
            return f"a classifier with {self.outputs} outputs, which embeds no text"
        return "a reranker (cross-encoder), which scores pairs of texts and embeds none"

    @property
    def remedy(self) -> str:
        """Advice for whoever wants an embedder."""
        encoder = "take the encoder that it came from"
        if self.outputs != 1:
            return encoder
        return (
            f"{encoder}; evaluate and train take rerankers with backbone: cross_encoder, and score_pairs as "
            "its teacher"
        )

    @property
    def problems(self) -> list[str]:
        """Reasons why it cannot score pairs."""
        if self.outputs == 1:
            return []
        return [
            f"{self.folder / 'config.json'}: the model has {self.outputs} outputs, which are classes; a "
            "cross-encoder that scores pairs has one (id2label), so choose such a model, or the encoder that "
            "it came from"
        ]
