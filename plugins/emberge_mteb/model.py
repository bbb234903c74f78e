"""Encoder of emberge behind mteb's model interface."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from emberge import DataError, MediaKind
from emberge.contracts import Side, StoredForm
from emberge.numerics import unit_rows

from emberge_mteb.task_media import read_batch_inputs

if TYPE_CHECKING:
    import numpy as np
    from emberge.encoding import Int8Ranges
    from numpy.typing import NDArray

    Matrix = NDArray[np.float32]

Embed: TypeAlias = "Callable[[Sequence[str], str], Matrix]"

SIMILARITIES = ("cosine", "dot", "euclidean")  # what mteb ranks by
_PAIRS = ("STS", "PairClassification")  # mteb's tasks of cosines of pairs
_SAMPLE = 10_000  # vectors that ranges are taken from
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


class MtebModel:
    """Implementation of mteb's `EncoderProtocol` with an embedding function.

    A text that is repeated with the same prompt, in one task or in the next, is embedded once. With a form,
    embeddings are cut to its size and scaled to length one (Kusupati et al., 2022, arXiv:2205.13147), then
    encoded and decoded in its precision; the ranges of int8 are those of the first texts of a task.

    Images and clips of a batch are kept as files below `media` until the next task, without duplicates;
    `kinds` are the kinds of media that the model reads.

    A function of `embed` takes texts and a prompt and returns embeddings [texts, dimension]. The one for None
    embeds all texts, except those of a side ("query" or "document") that has a function of its own. After
    texts were embedded, `count` is called with their number, repeated texts included.
    """

    def __init__(
        self,
        embed: Mapping[Side | None, Embed],
        *,
        name: str,
        fingerprint: str,
        dimension: int,
        prompts: Prompts,
        similarity: str = "cosine",
        count: Callable[[int], None],
        media: Path,
        kinds: Sequence[MediaKind] = (),
    ) -> None:
        self._embed = embed
        self.dimension = dimension
        self._prompts = prompts
        self.compared_by = similarity
        self._count = count
        self._rows: dict[tuple[Side | None, str, str], Matrix] = {}
        self._asked: Mapping[str, str] = {}
        self._form: StoredForm | None = None
        self._ranges: Int8Ranges | None = None
        self._media = media
        self.mteb_model_meta = build_model_meta(name, fingerprint, kinds)

    def prepare(self, asked: Mapping[str, str], form: StoredForm | None = None) -> None:
        """Set the next task's `instruction` and `prompt`, and the form of embeddings that is scored.

        If a task is scored in several forms, all its embeddings are kept for the next form.
        """
        if asked is not self._asked:  # another task
            shutil.rmtree(self._media, ignore_errors=True)
            if form is not None:
                self._forget()
        self._asked, self._form, self._ranges = asked, form, None

    def encode(
        self, inputs: Any, *, task_metadata: Any, prompt_type: Any = None, **_: Any
    ) -> Matrix:
        """Return embeddings [inputs, dimension] of a loader's batches, in order, in the task's form."""
        rows = self.whole(inputs, task_metadata=task_metadata, prompt_type=prompt_type)
        if self._form is None:
            return rows
        rows = cut_rows(rows, self._form.size)
        if self._form.precision == "float32":
            return rows
        rows = self._store(self._form, rows)
        is_of_pairs = task_metadata.type in _PAIRS and self._form.precision == "binary"
        return _pad_signs(rows) if is_of_pairs else rows

    def _store(self, form: StoredForm, rows: Matrix) -> Matrix:
        """Return vectors as they come back from a store in the form's precision."""
        import numpy as np
        from emberge.encoding import QuantisedVectors

        if form.needs_ranges and self._ranges is None:
            self._ranges, _ = sample_ranges(rows, self.mteb_model_meta.name)
        return QuantisedVectors.store(form, rows, self._ranges).values().astype(np.float32)

    @property
    def stored(self) -> dict[str, int]:
        """The bytes of a vector in the task's form."""
        return {} if self._form is None else {"bytes": self._form.count_bytes(self.dimension)}

    def whole(self, inputs: Any, *, task_metadata: Any, prompt_type: Any = None) -> Matrix:
        """Return embeddings [inputs, dimension] of a loader's batches, in order and whole."""
        from emberge.media import MediaFolder

        folder = MediaFolder(self._media)
        texts = [text for batch in inputs for text in read_batch_inputs(batch, folder)]
        side = None if prompt_type is None else str(getattr(prompt_type, "value", prompt_type))
        prompt = self._prompts.text(task_metadata.name, task_metadata.type, side, self._asked)
        known_sides: dict[str | None, Side | None] = {one: one for one in self._embed}
        return self._embed_new(texts, prompt, known_sides.get(side))

    def _embed_new(self, texts: Sequence[str], prompt: str, side: Side | None) -> Matrix:
        """Return embeddings by the function of a side; texts that it has embedded are remembered.

        Raises:
            DataError: if no function embeds texts of no side.
        """
        import numpy as np

        if side not in self._embed:
            raise DataError(
                f"{self.mteb_model_meta.name}: has routes for queries and documents and no default_route, "
                "and the task has neither; score it on retrieval and reranking alone"
            )

        if self._form is None:
            self._forget()
        new_texts = [
            text for text in dict.fromkeys(texts) if (side, prompt, text) not in self._rows
        ]
        if new_texts:
            rows = np.asarray(self._embed[side](new_texts, prompt), dtype=np.float32)
            self._rows.update(zip(((side, prompt, text) for text in new_texts), rows, strict=True))
        self._count(len(texts))
        return np.stack([self._rows[side, prompt, text] for text in texts])

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


def sample_ranges(rows: Matrix, name: str) -> tuple[Int8Ranges, dict[str, Any]]:
    """Return the ranges of a sample of vectors [n, d], and the sample's size and ranges as JSON.

    Raises:
        DataError: if there are too few vectors.
    """
    import numpy as np
    from emberge.encoding import Int8Ranges

    size = min(len(rows), _SAMPLE)
    sample = np.random.default_rng(0).choice(len(rows), size, replace=False)
    try:
        ranges = Int8Ranges.of(rows[np.sort(sample)])
    except ValueError as error:
        raise DataError(f"{name}: int8 cannot be calibrated: {error}") from error
    facts = {"vectors": size, "low": ranges.low.tolist(), "high": ranges.high.tolist()}
    return ranges, {"calibration": facts}


def _pad_signs(rows: Matrix) -> Matrix:
    """Return signs with ones after them up to 4, 16, 64, … columns.

    The cosines keep their order, and are sums of powers of two: pairs of one Hamming distance are equal in
    any order of summation, and not by chance above or below each other.
    """
    import numpy as np

    width = 4
    while width < rows.shape[1]:
        width *= 4
    return np.pad(rows, ((0, 0), (0, width - rows.shape[1])), constant_values=1)


def cut_rows(rows: Matrix, size: int | None) -> Matrix:
    """Return the first `size` numbers of each row, scaled to length one, or the rows as they are."""
    return rows if size is None else unit_rows(rows[:, :size])
