"""Base class of the steps that fit a map between the vectors of two models."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from emberge import (
    Backbone,
    DataEntry,
    DataError,
    EmbergeError,
    ModelRef,
    Preflight,
    Problem,
    Step,
    TextLength,
    Workspace,
    component,
)

from emberge_index.translation.added_layer import read_added_layer, require_same
from emberge_index.translation.folds import few_texts, fit_folds, folds_of, keep_map
from emberge_index.translation.maps import Kind
from emberge_index.translation.probes import (
    PROMPTS,
    EmbeddedProbes,
    Probes,
    Side,
    embed,
    own_prompt,
)
from emberge_index.translation.translation_file import SpaceOf, Translation, TranslationHeader

if TYPE_CHECKING:
    import numpy as np
    from emberge.data import CheckedData
    from emberge.encoding import Vectors
    from numpy.typing import NDArray

    from emberge_index.translation.folds import FittedFolds


# Vectors from which the usual distance is learnt.
SAMPLE = 4096
# Usual distance of vectors that differ only by rounding; a model's usual distance is about its dimension.
ALIKE = 1e-6


@dataclass(frozen=True, eq=False)
class Fit:
    """Translation with the texts of its fit and their out-of-fold vectors."""

    translation: Translation
    folds: FittedFolds
    probes: Probes
    old: EmbeddedProbes
    new: EmbeddedProbes
    backwards: bool = False
    """Direction of the map: True from the new model's vectors to the old one's."""


@dataclass(frozen=True, kw_only=True)
class TwoModels(Step):
    """Step that embeds texts by an old and a new model and fits a map between their vectors."""

    loads: ClassVar[tuple[str, ...]] = ("torch", "transformers")

    old: ModelRef
    """Model that embedded the vectors of the index."""
    new: ModelRef
    """Model that replaces the old one."""
    data: tuple[DataEntry, ...]
    """Texts to fit on: files, catalogues, hub datasets or earlier steps. Passages of pairs and single texts
    are documents, anchors of pairs are queries."""
    backbone: Backbone = component("text_encoder")
    """Backbone that loads both checkpoints."""
    max_length: TextLength | None = None
    """Largest number of tokens of a text; by default each model's own limit."""
    old_prompt: str | None = None
    """Prompt of the old model before each text of the fit; by default its own prompt for the side."""
    new_prompt: str | None = None
    """Prompt of the new model before each text of the fit; by default its own prompt for the side."""

    @property
    def side(self) -> Side:
        """Side of a search whose vectors the map is fitted on."""
        raise NotImplementedError

    @property
    def form(self) -> tuple[Kind, float | Literal["auto"], int]:
        """Kind, ridge and rank of the map."""
        raise NotImplementedError

    @property
    def backwards(self) -> bool:
        """Direction of the map: True from the new model's vectors to the old one's."""
        return False

    def check(self, context: Preflight) -> Iterator[Problem]:
        from emberge.data import check_datasets

        checked = check_datasets(context, self.data)
        yield from checked.problems
        if not self.data:
            yield context.problem("data names no texts", "data")
        folders = {}
        for option in ("old", "new"):
            folders[option] = context.model(getattr(self, option))
            yield from self._check_model(context, option, folders[option])
        yield from self._check_count(context, checked, folders)
        yield from self._check_map(context, folders["old"], folders["new"])

    def _check_model(
        self, context: Preflight, option: str, folder: Path | None
    ) -> Iterator[Problem]:
        reference = getattr(self, option)
        yield from model_problems(context, option, reference, self.backbone)
        if folder is None:
            return
        mixed_up = _find_wrong_prompt(folder, getattr(self, f"{option}_prompt"), self.side)
        if mixed_up is not None:
            yield context.problem(f"{reference}: {mixed_up}", f"{option}_prompt")

    def _check_map(
        self, context: Preflight, old: Path | None, new: Path | None
    ) -> Iterator[Problem]:
        """Yield a problem if the models' folders lack the map that they should have."""
        if self.form[0] != "added_layer" or old is None or new is None:
            return
        try:
            read_added_layer(old, new)
        except EmbergeError as error:
            yield context.problem(str(error), "kind")

    def _check_count(
        self, context: Preflight, checked: CheckedData, folders: Mapping[str, Path | None]
    ) -> Iterator[Problem]:
        """Yield a problem if the texts are known to be too few for the size of the vectors."""
        counts = [head.texts for head in checked.heads]
        folder = folders["new" if self.backwards else "old"]
        width = _find_width(folder) if folder is not None else None
        if width is None or not counts or None in counts:
            return
        kind, ridge, _ = self.form
        problem = few_texts(sum(count or 0 for count in counts), width, kind, ridge)
        if problem is not None:
            yield context.problem(problem, "data")

    def fit(self, workspace: Workspace) -> Fit:
        """Embed the data's texts by both models and fit the map.

        Raises:
            DataError: if there are too few texts, or no map of the kind fits the vectors.
        """
        probes = self.probes(workspace)
        kind, ridge, rank = self.form
        embedded = []
        for number, option in enumerate(("old", "new"), 1):
            prompts_by_side: dict[Side, str | None] = dict.fromkeys(PROMPTS)
            prompts_by_side[self.side] = getattr(self, f"{option}_prompt")
            with workspace.part("part", number, 3, f"vectors by {getattr(self, option)}"):
                embedded.append(
                    embed(
                        getattr(self, option),
                        probes,
                        workspace,
                        backbone=self.backbone,
                        max_length=self.max_length,
                        prompts=prompts_by_side,
                    )
                )
        old, new = embedded
        first, second = (new, old) if self.backwards else (old, new)
        source, target = first.of(self.side), second.of(self.side)
        problem = _check_dimensions(kind, source.dimension, target.dimension)
        problem = problem or few_texts(len(source), source.dimension, kind, ridge)
        if problem is not None:
            raise DataError(problem)
        with workspace.part("part", 3, 3, "fit"):
            folds = self._fit_folds(source, target, folds_of(probes.of(self.side)), workspace)
        header = TranslationHeader(
            kind,
            self.side,
            _describe_space(first, self.side),
            _describe_space(second, self.side),
            len(source),
            folds.ridge,
            rank if kind == "low_rank" else None,
        )
        return Fit(
            _build_translation(header, folds, source), folds, probes, old, new, self.backwards
        )

    def _fit_folds(
        self, source: Vectors, target: Vectors, folds: NDArray[np.int64], workspace: Workspace
    ) -> FittedFolds:
        kind, ridge, rank = self.form
        if kind == "added_layer":
            with ExitStack() as opened:
                models = [workspace.model(reference) for reference in (self.old, self.new)]
                folders = [opened.enter_context(workspace.whole_model(model)) for model in models]
                known = read_added_layer(*folders)
            require_same(known, source, target, f"{self.old} and {self.new}")
            return keep_map(known, source)
        return fit_folds(
            source,
            target,
            folds,
            kind,
            ridge=ridge,
            rank=rank,
            progress=lambda done, total: workspace.progress(done, total, "ridges"),
        )

    def probes(self, workspace: Workspace) -> Probes:
        """Return the texts of the data."""
        from emberge.data import step_datasets

        from emberge_index.translation.probes import probes_of

        sets = step_datasets(workspace, self.data)
        return probes_of(sets, workspace.work)


def model_problems(
    context: Preflight, option: str, reference: ModelRef, backbone: Backbone
) -> Iterator[Problem]:
    """Yield a problem for each reason why the model of an option cannot embed texts."""
    folder = context.whole_model(reference)
    for message in () if folder is None else backbone.describe(folder).problems:
        yield context.problem(f"{reference}: {message}", option)


def _find_wrong_prompt(folder: Path, prompt: str | None, side: Side) -> str | None:
    """Return a problem if the model uses the prompt for the other side; else None."""
    from emberge.model_folder import read_settings

    model_prompts = {
        name: text
        for name, text in (read_settings(folder).get("prompts") or {}).items()
        if isinstance(text, str)
    }
    other_side: Side = "queries" if side == "documents" else "documents"
    if (
        not prompt
        or prompt != own_prompt(model_prompts, other_side)
        or prompt == own_prompt(model_prompts, side)
    ):
        return None
    return (
        f"the prompt {prompt!r} is the model's own for {other_side}, but the map is fitted on {side}; "
        f"leave it out for {own_prompt(model_prompts, side)!r}, or fit on {other_side}"
    )


def _find_width(folder: Path) -> int | None:
    """Return the size of a model's vectors from its files; None if they do not state it."""
    from emberge.model_folder import Checkpoint

    checkpoint = Checkpoint(folder)
    if any(
        module.kind not in ("Transformer", "Pooling", "Normalize") for module in checkpoint.modules
    ):
        return None
    width = checkpoint.config.get("hidden_size")
    return width if isinstance(width, int) else None


def _check_dimensions(kind: Kind, source: int, target: int) -> str | None:
    sizes = f"vectors of {source:,} and {target:,} numbers"
    if kind == "shift" and source != target:
        return f"a shift cannot lead between {sizes}; use kind: affine"
    if kind == "orthogonal" and source > target:
        return f"an orthogonal map cannot keep lengths between {sizes}; use kind: affine"
    return None


def _describe_space(model: EmbeddedProbes, side: Side) -> SpaceOf:
    from emberge_index.translation.translation_file import are_unit

    vectors = model.of(side)
    return SpaceOf(
        model.name,
        model.fingerprint,
        model.prompts[side],
        vectors.dimension,
        are_unit(vectors[: min(SAMPLE, len(vectors))]),
    )


def _build_translation(header: TranslationHeader, folds: FittedFolds, source: Any) -> Translation:
    """Return the translation, with the mean and the whitening axes of the source's vectors."""
    import numpy as np

    from emberge_index.translation.translation_file import mahalanobis

    sample = np.asarray(source[: min(SAMPLE, len(source))], np.float64)
    half_sample = sample[::2]
    mean = half_sample.mean(0)
    values, axes = np.linalg.eigh((half_sample - mean).T @ (half_sample - mean) / len(half_sample))
    scaled = (axes / np.sqrt(values.clip(0) + 0.1 * values.mean() + 1e-12)).astype(np.float32)
    usual_distance = mahalanobis(sample[1::2], mean, scaled)
    if usual_distance < ALIKE:
        raise DataError(
            f"{header.source.name} gives all texts the same vector, which can be mapped to nothing; "
            "make the model again, or give different texts"
        )
    return Translation(header, folds.fitted, mean, scaled, usual_distance)


def write_details(folder: Path, details: Mapping[str, Any], table: Sequence[str]) -> None:
    """Write the measures as JSON and as a Markdown table."""
    from emberge.files import write_text

    write_text(folder / "measures.json", json.dumps(details, indent=1, ensure_ascii=False) + "\n")
    write_text(folder / "measures.md", "\n".join(table) + "\n")
