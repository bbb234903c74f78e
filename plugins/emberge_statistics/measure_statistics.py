"""The `measure_statistics` step: statistics of models, measured once for later merges."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from emberge import (
    ALL_KINDS,
    Artifact,
    ArtifactKind,
    Backbone,
    DataEntry,
    Dataset,
    EmbergeError,
    Loss,
    Model,
    ModelRef,
    PerDataset,
    Preflight,
    Problem,
    Sampler,
    Step,
    WholeNumber,
    Workspace,
    component,
)
from emberge.contracts import Figure, HeatMap
from emberge.training import TextOptions, find_embedding_problems, find_loss_problems

if TYPE_CHECKING:
    from emberge.training import FitJob


@dataclass(frozen=True, kw_only=True)
class MeasureStatistics(TextOptions, Step):
    """Statistics of models, measured once and kept in a file that merges can name.

    `fisher` is the diagonal Fisher information: the mean over batches of the squared gradient of the loss,
    one number for each parameter of the model (for the strategy `fisher`; Matena and Raffel, 2022,
    arXiv:2111.09832). `gram` are the Gram matrices of the inputs of each linear layer, and the counts of
    tokens (for `regmean`; Jin et al., 2023, arXiv:2212.09849). Both are measured on `data`, in the batches of
    the `sampler`, without dropout; each model has its own step and file. `delta_norms` are the norms ‖theta −
    theta₀‖ over all parameters of each layer, from weights alone (for `layer_softmax`; CoDiEmb, 2025,
    arXiv:2508.11442, eq. 11), in one file.

    The file, `statistics.safetensors`, states what was measured, on which data (names, numbers of rows and
    hashes, never a text), with which seed and versions, and of which models. A merge of other models refuses
    the file. It can be shared without the data.

    Example:
        fisher:
          measure_statistics:
            models: {a: ./a, b: ./b}
            measure: fisher
            data: ./pairs.jsonl
    """

    produces: ClassVar[ArtifactKind] = "statistics"
    embedding_kinds = ALL_KINDS

    models: dict[str, ModelRef] | tuple[ModelRef, ...]
    """The models, or each under the name of the model or group whose weights its norms decide."""
    measure: Literal["delta_norms", "fisher", "gram"] = "delta_norms"
    """Kind of numbers."""
    base: ModelRef | None = None
    """Model that the others were trained from, for `delta_norms`."""
    data: tuple[DataEntry, ...] = ()
    """Data to measure `fisher` and `gram` on, ideally the data that the model was trained on."""
    sampler: tuple[Sampler, ...] = component("batch_shuffle", batch_size=8, tail="keep")
    """Chain that cuts the data into batches."""
    loss: PerDataset[tuple[Loss, ...]] = component("infonce")
    """Loss of the Fisher information, as for training."""
    backbone: Backbone = component("text_encoder")
    """Backbone that loads the checkpoint."""
    seed: WholeNumber | None = None
    """Seed of the batches; by default the recipe's."""

    @property
    def _models_by_label(self) -> dict[str, ModelRef]:
        """Models by label; unnamed models by their references."""
        if isinstance(self.models, dict):
            return self.models
        return label_models(self.models)

    def expand(self) -> Mapping[str, Step]:
        """Return a step for each model, unless one file compares them all with a base."""
        models = self._models_by_label
        if self.measure == "delta_norms" or len(models) < 2:
            return {"": self}
        return {
            label: dataclasses.replace(self, models={label: model})
            for label, model in models.items()
        }

    def check(self, context: Preflight) -> Iterator[Problem]:
        if not self.models:
            yield context.problem("there are no models to measure", "models")
        for label, model in self._models_by_label.items():
            if "/" in label:
                yield context.problem(f"'{label}' has a slash; name it without", "models")
            context.whole_model(model)
        if self.measure != "delta_norms":
            yield from self._check_models(context)
        elif self.base is None:
            yield context.problem("delta_norms need a base; name it under 'base'", "measure")
        elif self.data:
            yield context.problem(
                "delta_norms come from weights alone; leave the data out, or set measure: fisher or gram",
                "data",
            )

    def _check_models(self, context: Preflight) -> Iterator[Problem]:
        if self.base is not None:
            yield context.problem(f"{self.measure} has no base; leave it out", "base")
        for model in self._models_by_label.values():
            folder = context.model(model)
            if folder is None:
                continue
            facts = self.backbone.describe(folder)
            for message in facts.problems:
                yield context.problem(message, "models")
            if self.measure == "fisher":
                for message in find_embedding_problems(self.loss, facts):
                    yield context.problem(message, "loss")
        if self.data:
            yield from self._check_data(context)
        else:
            yield context.problem(f"{self.measure} is measured on data; name them", "data")

    def _check_data(self, context: Preflight) -> Iterator[Problem]:
        from emberge.data import check_datasets

        checked = check_datasets(context, self.data)
        yield from checked.problems
        for first_rows in checked.first_rows if self.measure == "fisher" else ():
            scored = first_rows.example.positive_scores is not None
            for message in find_loss_problems(self.loss, first_rows.info, scored=scored):
                yield context.problem(message, "loss")

    def run(self, workspace: Workspace) -> Artifact:
        models = {
            name: model
            for label, reference in self._models_by_label.items()
            for name, model in number_models(label, workspace.models(reference)).items()
        }
        if self.measure == "delta_norms":
            return self._measure_norms(workspace, models)
        return self._measure_models(workspace, models)

    def _measure_norms(self, workspace: Workspace, models: Mapping[str, Model]) -> Artifact:
        from emberge.merging import Statistics

        from emberge_statistics.weight_sums import measure_delta_norms

        if self.base is None:
            raise EmbergeError("delta_norms need a base; name it under 'base'")
        base = workspace.model(self.base)
        norms: dict[str, dict[str, float]] = {}
        for number, (label, model) in enumerate(models.items()):
            workspace.progress(number, len(models), "models", label)
            for layer, norm in measure_delta_norms(base, model, workspace.machine).items():
                norms.setdefault(layer, {})[label] = norm
        facts = _collect_facts(workspace)
        content = {label: model.fingerprint for label, model in models.items()}
        norm_statistics = Statistics(norms, base.fingerprint, content, self.measure, facts)
        norm_statistics.write(workspace.folder)
        figure = _build_norm_figure(norms, tuple(models), base.name)
        named = (self.base, *self._models_by_label.values())
        return self._build_artifact(named, {"delta_norms": norms}, figures=(figure,))

    def _measure_models(self, workspace: Workspace, models: Mapping[str, Model]) -> Artifact:
        from emberge.data import load_step_datasets
        from emberge.merging import Statistics

        from emberge_statistics.gram_and_fisher import measure_on_data

        datasets = load_step_datasets(workspace, self.data)
        parts: list[Path] = []
        facts = _collect_facts(workspace)
        for number, (label, model) in enumerate(models.items()):
            work = workspace.work / f"measured-{number}"
            with (
                workspace.part("model", number + 1, len(models), label),
                workspace.whole_model(model) as folder,
            ):
                statistics_files, known_facts = measure_on_data(
                    "gram" if self.measure == "gram" else "fisher",
                    self._build_job(workspace, folder, datasets),
                    work,
                    label=label,
                    store=workspace.store,
                    machine=workspace.machine,
                    progress=workspace.progress,
                )
            parts += statistics_files
            facts |= known_facts
        content = {label: model.fingerprint for label, model in models.items()}
        joint_statistics = Statistics({}, models=content, measure=self.measure, facts=facts)
        joint_statistics.write_joined(workspace.folder, parts)
        measured_facts = {k: facts[k] for k in ("batches", "seed")} | {
            "data": json.loads(facts["data"])
        }
        return self._build_artifact(
            tuple(self._models_by_label.values()), {"on": measured_facts, "models": content}
        )

    def _build_job(self, workspace: Workspace, folder: Path, datasets: Sequence[Dataset]) -> FitJob:
        from emberge.training import FitJob, FitOptions

        return FitJob(
            backbone=self.backbone,
            checkpoint=folder,
            datasets=datasets,
            sampler=[one.resolved(workspace.data) for one in self.sampler],
            losses=self.loss,
            options=FitOptions.of(self, dropout=False, precision="float32"),
            seed=workspace.seed,
        )

    def _build_artifact(
        self, named: tuple[ModelRef, ...], details: dict[str, Any], figures: tuple[Figure, ...] = ()
    ) -> Artifact:
        parents = tuple(dict.fromkeys(reference.text for reference in named))
        details = {"measure": self.measure, **details}
        return Artifact(kind="statistics", parents=parents, details=details, figures=figures)


def _build_norm_figure(
    norms: Mapping[str, Mapping[str, float]], models: Sequence[str], base: str
) -> Figure:
    """Return the norms as a heat map of layers by models (figure 4 of CoDiEmb, arXiv:2508.11442)."""
    return Figure(
        title="How far each layer has moved",
        caption=f"Norm of each model's change from {base} over all parameters of a layer.",
        heat_map=HeatMap(
            rows=list(norms),
            columns=list(models),
            values=[[by_model[name] for name in models] for by_model in norms.values()],
        ),
    )


def _collect_facts(workspace: Workspace) -> dict[str, str]:
    """Return the facts on the origin of a file: the step's fingerprint, seed and versions."""
    return {"made": json.dumps(dict(workspace.provenance), default=str)}


def label_models(models: Sequence[ModelRef]) -> dict[str, ModelRef]:
    """Return the models by the last part of their reference, or by number if these parts are not unique."""
    words = [re.sub(r"[^\w.=,-]+", "-", m.text.strip("./$").rpartition("/")[2]) for m in models]
    are_unique = len(set(words)) == len(words) and all(words)
    return {
        word if are_unique else str(number): model
        for number, (word, model) in enumerate(zip(words, models, strict=True))
    }


def number_models(label: str, models: Sequence[Model]) -> dict[str, Model]:
    """Return one model under its label, or each of several (`$run.checkpoints`) under label and number."""
    if len(models) == 1:
        return {label: models[0]}
    return {f"{label}-{number}": model for number, model in enumerate(models)}
