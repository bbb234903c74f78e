"""Encoder of emberge behind mteb's model interface."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from emberge import MediaKind

from emberge_mteb.task_media import read_batch_inputs

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Matrix = NDArray[np.float32]

Embed: TypeAlias = "Callable[[Sequence[str], str], Matrix]"

SIMILARITIES = ("cosine", "dot", "euclidean")  # what mteb ranks by
_LEAST_LENGTH = 1e-30  # below it a row is one of zeros, which stays so
_REMEMBERED = 256 << 20  # bytes of embeddings kept for texts that come again


@dataclass(frozen=True)
class Prompts:
    """Choice of a prompt by task and side: `template` if set, else the model's `own`, else `default`."""

    template: str | None = None
    own: Mapping[str, str] = field(default_factory=dict)
    default: str = ""

    def text(self, task: str, kind: str, side: str | None, asked: Mapping[str, str]) -> str:
        """Return the prompt of one side ("query", "document", or None where both are alike) of a task.

        `asked` has the texts that replace `{instruction}` and `{prompt}` in the template. A model's own
        prompts are looked up in mteb's order: task and side, task, kind and side, kind, side.
        """
        if self.template is not None:
            return "" if side == "document" else _fill_template(self.template, asked)
        names = [f"{task}-{side}", task, f"{kind}-{side}", kind, side or ""]
        if side == "document":
            names.append("passage")
        return next((self.own[name] for name in names if name in self.own), self.default)


def _fill_template(template: str, asked: Mapping[str, str]) -> str:
    for name, value in asked.items():
        template = template.replace(f"{{{name}}}", value)
    return template


class TaskTexts:
    """Inputs of a task's queries and documents as texts, as mteb joins titles and texts, and their prompts.

    Images and clips are kept as files below `media` until the next task, without duplicates.
    """

    def __init__(self, prompts: Prompts, media: Path) -> None:
        self.asked: Mapping[str, str] = {}
        self._prompts = prompts
        self._media = media

    def prepare(self, asked: Mapping[str, str]) -> None:
        """Set the next task's `instruction` and `prompt`."""
        if asked is not self.asked:  # another task
            shutil.rmtree(self._media, ignore_errors=True)
        self.asked = asked

    def read(self, batches: Any) -> list[str]:
        """Return the texts of the batches of one of mteb's loaders, in order."""
        from emberge.media import MediaFolder

        folder = MediaFolder(self._media)
        return [text for batch in batches for text in read_batch_inputs(batch, folder)]

    def prompt(self, side: str | None, task_metadata: Any) -> str:
        """Return the prompt of a side, or of both where they are alike (None)."""
        return self._prompts.text(task_metadata.name, task_metadata.type, side, self.asked)


class MtebModel:
    """Implementation of mteb's `EncoderProtocol` with an embedding function.

    A text that is repeated with the same prompt, in one task or in the next, is embedded once. With a size,
    embeddings are cut to it and scaled to length one (Kusupati et al., 2022, arXiv:2205.13147).

    `kinds` are the kinds of media that the model reads. The function `embed` takes texts and a prompt and
    returns embeddings [texts, dimension].
    """

    def __init__(
        self,
        embed: Embed,
        texts: TaskTexts,
        *,
        name: str,
        fingerprint: str,
        similarity: str = "cosine",
        kinds: Sequence[MediaKind] = (),
    ) -> None:
        self._embed = embed
        self._texts = texts
        self.compared_by = similarity
        self._rows: dict[tuple[str, str], Matrix] = {}
        self._size: int | None = None
        self.mteb_model_meta = build_model_meta(name, fingerprint, kinds)

    def prepare(self, asked: Mapping[str, str], size: int | None = None) -> None:
        """Set the next task's `instruction` and `prompt`, and the size of embeddings that is scored.

        If a task is scored at several sizes, all its embeddings are kept for the next size.
        """
        if asked is not self._texts.asked and size is not None:
            self._forget()
        self._texts.prepare(asked)
        self._size = size

    def encode(
        self, inputs: Any, *, task_metadata: Any, prompt_type: Any = None, **_: Any
    ) -> Matrix:
        """Return embeddings [inputs, dimension] of a loader's batches, in order, cut to the task's size."""
        side = None if prompt_type is None else str(getattr(prompt_type, "value", prompt_type))
        prompt = self._texts.prompt(side, task_metadata)
        rows = self._embed_new(self._texts.read(inputs), prompt)
        if self._size is None:
            return rows
        import numpy as np

        cut = rows[:, : self._size]
        lengths = np.linalg.norm(cut, axis=1, keepdims=True)
        units: Matrix = cut / np.maximum(lengths, np.float32(_LEAST_LENGTH))
        return units

    def _embed_new(self, texts: Sequence[str], prompt: str) -> Matrix:
        """Return embeddings; texts that were embedded with this prompt are remembered."""
        import numpy as np

        if self._size is None:
            self._forget()
        new_texts = [text for text in dict.fromkeys(texts) if (prompt, text) not in self._rows]
        if new_texts:
            rows = np.asarray(self._embed(new_texts, prompt), dtype=np.float32)
            self._rows.update(zip(((prompt, text) for text in new_texts), rows, strict=True))
        return np.stack([self._rows[prompt, text] for text in texts])

    def _forget(self) -> None:
        """Forget all embeddings if they are too many to be kept for other tasks."""
        if sum(row.nbytes for row in self._rows.values()) > _REMEMBERED:
            self._rows.clear()

    def similarity(self, embeddings1: Any, embeddings2: Any) -> Any:
        """Return similarities of all pairs, by the similarity function that the model's config names."""
        from mteb.models.model_meta import ScoringFunction
        from mteb.similarity_functions import select_similarity

        return select_similarity(embeddings1, embeddings2, ScoringFunction(self.compared_by))

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> Any:
        """Return similarities row by row."""
        from mteb.models.model_meta import ScoringFunction
        from mteb.similarity_functions import select_pairwise_similarity

        function = ScoringFunction(self.compared_by)
        return select_pairwise_similarity(embeddings1, embeddings2, function)


def build_model_meta(name: str, fingerprint: str, kinds: Sequence[MediaKind] = ()) -> Any:
    """Return mteb's facts of a model, which reads texts and these kinds of media."""
    from mteb.models.model_meta import ModelMeta

    return ModelMeta.create_empty(
        {
            "name": f"emberge/{name}",
            "revision": fingerprint,
            "modalities": ["text", *kinds],
        }
    )
