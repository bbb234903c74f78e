"""The `geometry` step: token geometry of models side by side, and their drift from a parent."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from emberge import (
    Artifact,
    Count,
    DataEntry,
    DataError,
    ModelRef,
    Preflight,
    Problem,
    RecipeError,
    Step,
    StepRef,
    Workspace,
)
from emberge.files import write_text

from emberge_codiemb.geometry.geometry_result import (
    Drifted,
    Geometry,
    MeasuredModel,
    figures_of,
    table_of,
)
from emberge_codiemb.geometry.measure_model import (
    GeometryOptions,
    MeasureModel,
    few_texts,
    read_models,
)
from emberge_codiemb.geometry.printed_geometry import PrintedGeometry
from emberge_codiemb.geometry.token_geometry import linear_cka, shared_neighbours

FILE, TABLE = "geometry.json", "geometry.md"


@dataclass(frozen=True, kw_only=True)
class Drift:
    """Drift of embeddings from those of a parent model, on a probe set.

    Drift is measured by the linear CKA of both models' embeddings (Kornblith et al., 2019, arXiv:1905.00414),
    and by the share of each text's nearest `neighbours`, by cosine, that are the same in both models.
    """

    parent: ModelRef
    """Model from which the other models were trained."""
    data: tuple[DataEntry, ...]
    """The probe set: all texts of these data sets together, each embedded with its prompt."""
    neighbours: Count = 10
    """Number of nearest texts of each text that are compared."""

    def __post_init__(self) -> None:
        if self.neighbours < 1:
            raise ValueError(f"neighbours must be at least 1, not {self.neighbours}")


@dataclass(frozen=True, kw_only=True)
class GeometryStep(GeometryOptions, Step):
    """Geometry of several models' hidden token states, and drift of their embeddings from a parent's.

    X are the last hidden states of a text, with one row for each token. Four measures of X are given as the
    mean and the median over the texts of a data set (CoDiEmb, arXiv:2508.11442, Table 4): the mean cosine of
    two tokens (`token_similarity`), the number of singular values (`rank`), the largest singular value
    divided by the smallest (`condition_number`), and the entropy of the squared singular values
    (`svd_entropy`, in nats). Singular values are computed in float64; `tolerance` sets the smallest size that
    counts, and is stated with the results. Texts of one token are not measured, and their number is stated.
    Texts have prompts as in a training, and the prompts' tokens count.

    Every model is measured in a separate step, `id.model=name`; launchers may run these steps in parallel.
    The result is `geometry.json`, with a table in `geometry.md`; differences are from the first model. A
    report shows both. With `printed`, a paper's table stands first in `geometry.md`, in the paper's layout.

    Example:
        geometry:
          geometry:
            models: {before: ./base, after: ./trained}
            data: ./pairs.jsonl
            drift: {parent: ./base, data: ./pairs.jsonl}
    """

    produces = "file"

    models: dict[str, ModelRef] | tuple[ModelRef, ...]
    """The models, or a map from their names in tables to the models."""
    drift: Drift | None = None
    """Drift from a parent on a probe set."""
    printed: PrintedGeometry | None = None
    """A paper's numbers, which are shown beside those of this run."""
    _parts: Mapping[str, StepRef] = field(default_factory=dict)
    """Steps that measure models, by reference of the model."""

    @property
    def _named(self) -> Sequence[tuple[str | None, ModelRef]]:
        """Models by their names in the recipe."""
        if isinstance(self.models, dict):
            return [*self.models.items()]
        return [(None, model) for model in self.models]

    @property
    def _measured(self) -> dict[str, ModelRef]:
        """Models that the partial steps measure, including the parent, by reference."""
        models_by_text = {model.text: model for _, model in self._named}
        return models_by_text | ({self.drift.parent.text: self.drift.parent} if self.drift else {})

    def expand(self) -> Mapping[str, Step]:
        """Return a step for every model and for the parent, which only embeds the probe set."""
        shared_options = {
            name: getattr(self, name) for name in GeometryOptions.__dataclass_fields__
        }
        if self.drift is not None:
            shared_options |= {"probe": self.drift.data, "neighbours": self.drift.neighbours}
        named_texts = {model.text for _, model in self._named}
        names = ModelRef.part_names(self._measured.values())
        steps = {
            names[text]: MeasureModel(
                **{**shared_options, "data": self.data if text in named_texts else ()}, model=model
            )
            for text, model in self._measured.items()
        }
        return steps or {"": self}

    def gather(self, parts: Mapping[str, StepRef]) -> Step:
        names = ModelRef.part_names(self._measured.values())
        return replace(self, _parts={text: parts[name] for text, name in names.items()})

    def check(self, context: Preflight) -> Iterator[Problem]:
        if not self.models:
            yield context.problem("there are no models to measure", "models")
        for text, count in Counter(model.text for _, model in self._named).items():
            if count > 1:
                yield context.problem(f"model '{text}' is named {count} times", "models")
        if not self.data and self.drift is None:
            yield context.problem("there is nothing to measure on; name data, or a drift", "data")
        if self.printed is not None:
            names = [label or model.text for label, model in self._named]
            for fault in self.printed.find_faults(names):
                yield context.problem(fault, "printed")
        yield from _check_data(self.data, "data", context)[0]
        if self.drift is not None:
            yield from self._check_probe(self.drift, context)
            yield from self._check_dimensions(self.drift.parent, context)

    def _check_probe(self, drift: Drift, context: Preflight) -> Iterator[Problem]:
        rows = drift.neighbours + 1
        problems, texts = _check_data(drift.data, "drift.data", context, max(100, rows))
        yield from problems
        if texts is not None and 0 < texts <= drift.neighbours:
            yield context.problem(few_texts(texts, drift.neighbours), "drift.neighbours")

    def _check_dimensions(self, parent: ModelRef, context: Preflight) -> Iterator[Problem]:
        dimension = self._read_dimension(parent, context)
        for _, model in self._named:
            model_dimension = self._read_dimension(model, context)
            if dimension and model_dimension and model_dimension != dimension:
                message = _explain_dimensions(parent.text, dimension, model.text, model_dimension)
                yield context.problem(message, "drift.parent")

    def _read_dimension(self, model: ModelRef, context: Preflight) -> int | None:
        folder = context.model(model)
        return None if folder is None else self.backbone.describe(folder).dimension

    def run(self, workspace: Workspace) -> Artifact:
        measured = [*self._read(workspace)]
        folders = [folder for folder, _ in measured]
        models = _rename_models([model for _, model in measured])
        result = Geometry(models, self._how)
        if self.drift is not None:
            result = self._add_drift(self.drift, result, folders, workspace)
        table = f"{self._draw_printed(result)}{table_of(result)}"
        (workspace.folder / TABLE).write_text(table, encoding="utf-8")
        content = result.plain()
        text = json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False)
        write_text(workspace.folder / FILE, text)
        return Artifact(
            kind="file",
            parents=tuple(model.fingerprint for model in models),
            details={
                "file": FILE,
                "table": TABLE,
                "measured": content["measured"],
                "models": {entry["name"]: entry["average"] for entry in content["models"]},
                "drift": content["drift"],
                "figures": figures_of(result),
            },
        )

    def _draw_printed(self, result: Geometry) -> str:
        """Return the paper's table as Markdown; empty if none is given.

        Raises:
            RecipeError: if the number of data sets is not that of the printed numbers.
        """
        if self.printed is None:
            return ""
        names = [model.name for model in result.models]
        for fault in self.printed.find_faults(names, len(result.sets)):
            raise RecipeError(f"geometry: {fault}")
        return self.printed.table(result.models, result.sets) + "\n"

    @property
    def _how(self) -> dict[str, Any]:
        return {
            "singular_values": "float64",
            "tolerance": self.tolerance,
            "epsilon": self.measure.epsilon,
            "entropy_of": self.entropy_of,
            "special_tokens": self.special_tokens,
        }

    def _read(self, workspace: Workspace) -> Iterator[tuple[Path, MeasuredModel]]:
        """Yield each measured model under its name in the recipe, with the folder of its partial step."""
        for label, reference in self._named:
            folder, _ = workspace.artifact(self._parts[reference.text])
            models = read_models(folder)
            for number, model in enumerate(models):
                name = label if len(models) == 1 else f"{label or model.name}.{number + 1}"
                yield folder, replace(model, name=name or model.name)

    def _add_drift(
        self, drift: Drift, result: Geometry, folders: Sequence[Path], workspace: Workspace
    ) -> Geometry:
        import numpy as np

        folder, _ = workspace.artifact(self._parts[drift.parent.text])
        parents = read_models(folder)
        if len(parents) > 1:
            raise DataError(
                f"the parent '{drift.parent}' is {len(parents)} models; name one of them"
            )
        parent_vectors = np.load(folder / str(parents[0].probe))
        count = drift.neighbours
        drift_by_model = {}
        for done_count, (model, model_folder) in enumerate(
            zip(result.models, folders, strict=True)
        ):
            workspace.progress(done_count, len(folders), "models", f"drift of {model.name}")
            model_vectors = np.load(model_folder / str(model.probe))
            sizes = parent_vectors.shape[1], model_vectors.shape[1]
            if sizes[0] != sizes[1]:
                raise DataError(
                    _explain_dimensions(drift.parent.text, sizes[0], model.name, sizes[1])
                )
            cka = linear_cka(parent_vectors, model_vectors)
            share = shared_neighbours(parent_vectors, model_vectors, count)
            drift_by_model[model.name] = Drifted(None if math.isnan(cka) else cka, share)
        names = [label for label, model in self._named if model.text == drift.parent.text]
        name = names[0] if names and names[0] else parents[0].name
        probe = {"parent": name, "texts": len(parent_vectors), "neighbours": count}
        return replace(result, drift=drift_by_model, probe=probe)


def _explain_dimensions(parent: str, dimension: int, model: str, model_dimension: int) -> str:
    return (
        f"'{parent}' has embeddings of {dimension} numbers and '{model}' of {model_dimension}, so it is no "
        "parent of that one; leave one of them out"
    )


def _check_data(
    data: Sequence[DataEntry], option: str, context: Preflight, limit_rows: int = 100
) -> tuple[list[Problem], int | None]:
    """Return problems of the data's first rows, and an upper limit on the texts; None if unknown."""
    from emberge.data import check_datasets

    checked = check_datasets(context, data, option, limit_rows=limit_rows)
    problems = [*checked.problems]
    to_come = any(entry.path and context.data(entry.path) is None for entry in data)
    counts = [head.texts for head in checked.heads if head.texts is not None]
    if problems or to_come or len(counts) < len(checked.heads):
        return problems, None
    return problems, sum(counts)


def _rename_models(models: Sequence[MeasuredModel]) -> tuple[MeasuredModel, ...]:
    """Return models by distinct name: repeated names get a number."""
    models_by_name: dict[str, MeasuredModel] = {}
    for model in models:
        name, number = model.name, 2
        while name in models_by_name:
            name, number = f"{model.name} ({number})", number + 1
        models_by_name[name] = replace(model, name=name)
    return tuple(models_by_name.values())
