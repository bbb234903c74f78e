"""The `rotate` step: a model whose vectors are turned so that they can be cut or stored as bits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from emberge import (
    Artifact,
    Backbone,
    Count,
    DataEntry,
    DataError,
    EmbergeError,
    Expected,
    ModelRef,
    Preflight,
    Problem,
    Requires,
    Step,
    TextLength,
    Workspace,
    component,
)
from emberge.contracts import ParameterCount, describe_kinds
from emberge.numerics import spread_places
from emberge.wording import count_noun

if TYPE_CHECKING:
    import numpy as np
    from emberge import Dataset
    from numpy.typing import NDArray

# Of the texts, one in so many is not fitted on, and measured.
_HELD_OUT = 10
# Texts at most whose neighbours are measured, of each kind.
_MEASURED = 1000


@dataclass(frozen=True, kw_only=True)
class Rotate(Step):
    """Turn a model's vectors so that they can be cut short, or stored as bits, without a training.

    The rotation is computed in closed form from the vectors of documents: the passages of pairs, and single
    texts. It is a stock Dense after the model's pooling, so every cosine of whole vectors is as it was.
    `by: pca` turns them to their principal axes: of all prefixes of a size, theirs keeps most of the vectors.
    `by: itq` brings all numbers near to their signs, for vectors stored as bits (iterative quantisation: Gong
    et al., 2013, doi 10.1109/TPAMI.2012.193); cut such a model by `dims`, as its prefixes are no better than
    others. Both serve the kind of text that they were fitted on.

    The artifact and the report have, for several sizes, as numbers and as bits, the share of each text's ten
    nearest texts that stay: before and after, of texts of the fit, of a tenth that is held out, and of
    `other_data`.

    Merge first, and rotate the result: rotated models have spaces of their own. An index of the model from
    before is rewritten by a step `translate` between the two, with `kind: added_layer`.

    Example:
        short:
          rotate:
            model: ./boom
            data: {path: ./passages.jsonl, task: text}
            dims: 128
    """

    produces = "model"
    loads = ("torch", "transformers")

    model: ModelRef
    """The model whose vectors are turned."""
    data: tuple[DataEntry, ...]
    """Texts to fit on: files, catalogues or steps that make data."""
    by: Literal["pca", "itq"] = "pca"
    """Rotation for prefixes (`pca`) or for bits (`itq`)."""
    dims: Count | None = None
    """Size of the result's vectors; by default all numbers are kept, and any prefix can be taken later."""
    other_data: tuple[DataEntry, ...] = ()
    """Texts of another collection, on which the rotation is measured too."""
    most_texts: Count = 20_000
    """Number of texts that are embedded at most, spread evenly over the data."""
    rounds: Annotated[Count, Requires("by", value="itq")] = 50
    """Number of rounds of `itq`."""
    max_length: TextLength | None = None
    """Tokens of a text at most; by default the model's own limit."""
    backbone: Backbone = component("text_encoder")
    """Backbone of the model."""

    def __post_init__(self) -> None:
        if not self.data:
            raise ValueError("'data' names no texts")

    def check(self, context: Preflight) -> Iterator[Problem]:
        from emberge.data import check_datasets

        yield from check_datasets(context, (*self.data, *self.other_data), show=False).problems
        expected = Artifact(kind="model", parents=(self.model.text,))
        folder = context.whole_model(self.model)
        if folder is None:
            context.expect(Expected(expected))
            return
        problems = [*_find_problems(folder, self.backbone, self.dims)]
        yield from (context.problem(message, option) for message, option in problems)
        if not problems:
            context.expect(Expected(expected, parameters=self._count_parameters(folder)))

    def _count_parameters(self, folder: Path) -> ParameterCount | None:
        from emberge.model_folder import Checkpoint, count_parameters

        checkpoint, size = Checkpoint(folder), self.backbone.describe(folder).dimension
        if size is None or not checkpoint.has_weights:
            return None
        counts, added = count_parameters(checkpoint), size * (self.dims or size)
        return ParameterCount(counts.total + added, counts.active + added, counts.computed + added)

    def run(self, workspace: Workspace) -> Artifact:
        import numpy as np
        from emberge.merging import build_result
        from emberge.model_folder import Checkpoint, add_linear_layer

        model = workspace.model(self.model)
        with workspace.whole_model(model) as folder:
            for message, _ in _find_problems(folder, self.backbone, self.dims):
                raise DataError(message)
            sets = self._embed(folder, model.fingerprint, workspace)
            matrix = self._fit(sets["fitted"], workspace)
            details = self._describe(sets, matrix)
            turned = np.ascontiguousarray(matrix.T, np.float32)
            checkpoint = Checkpoint(folder)
            build_result(
                workspace,
                checkpoint.specs.values(),
                template=checkpoint,
                key=[model.fingerprint],
                complete=lambda out: add_linear_layer(out, turned, workspace.provenance),
            )
        return Artifact(
            kind="model",
            size=model.size,
            parents=(self.model.text,),
            details={"made_by": "rotating the vectors of", **model.as_base(self.model), **details},
        )

    def _embed(
        self, folder: Path, fingerprint: str, workspace: Workspace
    ) -> dict[str, NDArray[np.float32]]:
        """Return vectors [n, d], as they are compared, of texts of the fit, of held out and of other ones.

        Raises:
            DataError: if the data has no texts.
        """
        import numpy as np
        from emberge.data import DistinctTexts, step_datasets
        from emberge.encoding import EmbeddingStore
        from emberge.numerics import unit_rows

        encoder = self.backbone.load(folder, device=workspace.machine.device, dtype="float32")
        store = EmbeddingStore(
            workspace.store,
            encoder,
            model=f"{fingerprint} {self.backbone!r}",
            name=str(self.model),
            progress=workspace.progress,
        )
        prompt = encoder.prompts.get("document", encoder.prompts.get("passage", ""))

        def embed(entries: Sequence[DataEntry], option: str) -> NDArray[np.float32]:
            documents = _list_documents(step_datasets(workspace, entries))
            texts = DistinctTexts(documents, workspace.work)
            if not len(texts):
                raise DataError(f"{option}: has no texts; give some of the collection's kind")
            sample = [texts[place] for place in spread_places(len(texts), self.most_texts)]
            rows = store.embed(sample, prompt=prompt, max_length=self.max_length)[:]
            return np.asarray(unit_rows(rows), np.float32) if encoder.similarity.unit else rows

        rows = embed(self.data, "data")
        is_held_out = np.arange(len(rows)) % _HELD_OUT == _HELD_OUT - 1
        sets = {"fitted": rows[~is_held_out], "held out": rows[is_held_out]}
        if self.other_data:
            sets["other data"] = embed(self.other_data, "other_data")
        return sets

    def _fit(self, rows: NDArray[np.float32], workspace: Workspace) -> NDArray[np.float64]:
        """Return the rotation [d, dims].

        Raises:
            DataError: if there are too few texts, or all have the same vector.
        """
        from emberge_smaller.rotations import fit_rotation

        size = self.dims or rows.shape[1]
        if len(rows) < rows.shape[1]:
            raise DataError(
                f"data: {count_noun(len(rows), 'distinct text')} to fit on, and a rotation of vectors of "
                f"{rows.shape[1]:,} numbers needs as many or more; give more texts"
            )
        if (rows == rows[0]).all():
            raise DataError(
                f"{self.model}: gives all texts the same vector, which no rotation makes better; make the "
                "model again, or give different texts"
            )

        def progress(done: int, total: int) -> None:
            workspace.progress(done, total, "rounds")

        return fit_rotation(rows, size, self.by, rounds=self.rounds, progress=progress)

    def _describe(
        self, sets: dict[str, NDArray[np.float32]], matrix: NDArray[np.float64]
    ) -> dict[str, Any]:
        """Return the artifact's details: the facts of the rotation, and what it keeps."""
        from emberge_smaller.rotations import draw_kept, measure_neighbours

        kept = {
            texts: measure_neighbours(rows[spread_places(len(rows), _MEASURED)], matrix)
            for texts, rows in sets.items()
            if len(rows) > 1
        }
        rotation = {
            "by": self.by,
            "dimension": len(matrix),
            "size": matrix.shape[1],
            "texts": {texts: len(rows) for texts, rows in sets.items()},
            "kept": {texts: [asdict(one) for one in measures] for texts, measures in kept.items()},
        }
        figures = [draw_kept(measures, texts) for texts, measures in kept.items()]
        return {"rotation": rotation, "figures": figures}


def _find_problems(folder: Path, backbone: Backbone, dims: int | None) -> Iterator[tuple[str, str]]:
    """Yield the message and the option of each reason why a model's vectors cannot be turned."""
    from emberge.model_folder import require_routable

    facts = backbone.describe(folder)
    yield from ((message, "model") for message in facts.problems)
    if facts.problems:
        return
    try:
        require_routable(folder)
    except EmbergeError as error:
        yield str(error), "model"
    kind = facts.similarity.kind
    if kind != "vector":
        yield (
            f"{folder}: gives {describe_kinds({kind})}, and only one vector a text is turned",
            "model",
        )
    elif None not in (dims, facts.dimension) and dims > facts.dimension:  # type: ignore[operator]
        yield (
            f"the model's vectors have {facts.dimension:,} numbers, so no {dims:,} can be kept; lower dims",
            "dims",
        )


def _list_documents(datasets: Sequence[Dataset]) -> Iterator[str]:
    """Yield the texts that an index would have: single texts, and the passages of pairs."""
    for dataset in datasets:
        for row in range(len(dataset)):
            example = dataset[row]
            yield from (*example.positives, *example.negatives) or (example.anchor,)
