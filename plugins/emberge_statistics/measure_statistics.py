"""The `measure_statistics` step: numbers of models, measured once for merges to come."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from emberge import (
    Artifact,
    ArtifactKind,
    Backbone,
    DataEntry,
    Dataset,
    EmbergeError,
    Loss,
    Model,
    ModelRef,
    Negatives,
    PerDataset,
    Preflight,
    Problem,
    Sampler,
    Step,
    Workspace,
    component,
)
from emberge.engine import FitOptions

from emberge_statistics.labels import found_under, labelled
from emberge_statistics.stored_tensors import part_writer, stored_tensors

if TYPE_CHECKING:
    from emberge_statistics.fisher_information import Measured

__all__ = ["MeasureStatistics"]

# Options that say which texts are taken, as training has them.
SHARED = (
    "epochs max_steps max_length query_length document_length query_prompt document_prompt "
    "positives hard_negatives fill negatives token_budget kept_tokens"
)


@dataclass(frozen=True, kw_only=True)
class MeasureStatistics(Step):
    """Measure models once and keep the numbers in a statistics file that merges can name.

    `fisher` is the diagonal Fisher information, the mean over batches of the squared gradient of the loss,
    one number for each of the model's (for the strategy `fisher`; Matena and Raffel, 2022,
    arXiv:2111.09832). `gram` are the Gram matrices of what each linear layer is fed, and the counts of tokens
    (for `regmean`; Jin et al., 2023, arXiv:2212.09849). Both are measured on `data`, in batches as the
    `sampler` groups them, without dropout, and each model becomes a step and a file of its own.
    `delta_norms` are the norms ‖theta − theta₀‖ over all parameters of each layer, from weights alone (for
    `layer_softmax`; CoDiEmb, 2025, arXiv:2508.11442, eq. 11), in one file.

    The file, `statistics.safetensors`, says what was measured, on which data (names, numbers of rows and
    hashes, never a text), with which seed and versions, and of which models: a merge refuses it for others.
    It can be shared without the data.

    Example:
        fisher:
          measure_statistics:
            models: {a: ./a, b: ./b}
            measure: fisher
            data: ./pairs.jsonl
    """

    produces: ClassVar[ArtifactKind] = "statistics"

    models: dict[str, ModelRef] | tuple[ModelRef, ...]
    """The models, or each under the name of the model or group whose weights its norms decide."""
    measure: Literal["delta_norms", "fisher", "gram"] = "delta_norms"
    """What is measured."""
    base: ModelRef | None = None
    """What the models were trained from, for `delta_norms`."""
    data: tuple[DataEntry, ...] = ()
    """What `fisher` and `gram` are measured on: best what the model was trained on."""
    sampler: tuple[Sampler, ...] = component("batch_shuffle", batch_size=8, tail="keep")
    """How the data are cut into batches."""
    loss: PerDataset[tuple[Loss, ...]] = component("infonce")
    """The loss of the Fisher information, as for training."""
    backbone: Backbone = component("text_encoder")
    """How a checkpoint becomes an encoder."""
    seed: int | None = None
    """Of the batches; the recipe's by default."""
    epochs: float | None = None
    """How often the data are gone through; a fraction is the first batches."""
    max_steps: int | None = None
    """How many batches instead."""
    max_length: PerDataset[int | None] = field(default_factory=PerDataset)
    """Tokens of a text at most, by task or dataset; the model's own limit by default."""
    query_length: PerDataset[int | None] = field(default_factory=PerDataset)
    """As `max_length`, of queries."""
    document_length: PerDataset[int | None] = field(default_factory=PerDataset)
    """As `max_length`, of documents."""
    query_prompt: PerDataset[str] = field(default_factory=PerDataset)
    """Text before anchors, by task or dataset, as for training."""
    document_prompt: PerDataset[str] = field(default_factory=PerDataset)
    """Text before positives and negatives, by task or dataset, as for training."""
    positives: int = 1
    """Positives taken of a row."""
    hard_negatives: int = 7
    """Hard negatives taken of a row at most."""
    fill: Literal["repeat", "mask"] = "repeat"
    """What stands where a row has fewer texts: its own again, or nothing."""
    negatives: PerDataset[Negatives] = field(default_factory=PerDataset)
    """Whether other rows' texts are negatives too, by task or dataset, as for training."""
    token_budget: int | None = None
    """Padded size of a chunk in tokens; by default it follows the machine."""
    kept_tokens: int | None = None
    """Tokens whose activations are kept for the backward pass; by default as many as fit."""

    def __post_init__(self) -> None:
        if self.epochs is not None and self.max_steps is not None:
            raise ValueError("give epochs or max_steps, not both")
        self._options()

    def _options(self) -> FitOptions:
        given = {name: getattr(self, name) for name in SHARED.split()}
        return FitOptions(**given, dropout=False, precision="float32")

    @property
    def _models(self) -> dict[str, ModelRef]:
        """The models by label; unnamed ones by what they are called."""
        if isinstance(self.models, dict):
            return self.models
        return labelled(self.models)

    def expand(self) -> Mapping[str, Step]:
        """A step for each model, unless one file compares them all with a base."""
        models = self._models
        if self.measure == "delta_norms" or len(models) < 2:
            return {"": self}
        return {
            label: dataclasses.replace(self, models={label: model})
            for label, model in models.items()
        }

    def check(self, context: Preflight) -> Iterator[Problem]:
        from emberge.engine import whole_problems

        if not self.models:
            yield context.problem("there are no models to measure", "models")
        for label, model in self._models.items():
            if "/" in label:
                yield context.problem(f"'{label}' holds a slash; name it without", "models")
            adapted = whole_problems(context.model(model), context.adapter(model))
            for problem in adapted:
                yield context.problem(str(problem), "models")
        if self.measure != "delta_norms":
            yield from self._check_measured(context)
        elif self.base is None:
            yield context.problem("delta_norms need a base; name it under 'base'", "measure")
        elif self.data:
            yield context.problem(
                "delta_norms come from weights alone; leave the data out, or set measure: fisher or gram",
                "data",
            )

    def _check_measured(self, context: Preflight) -> Iterator[Problem]:
        if self.base is not None:
            yield context.problem(f"{self.measure} has no base; leave it out", "base")
        for model in self._models.values():
            folder = context.model(model)
            for message in self.backbone.check(folder) if folder is not None else ():
                yield context.problem(message, "models")
        if self.data:
            yield from self._check_data(context)
        else:
            yield context.problem(f"{self.measure} is measured on data; name them", "data")

    def _check_data(self, context: Preflight) -> Iterator[Problem]:
        from emberge.engine import check_entries

        for sampler in self.sampler:
            yield from sampler.check(context)
        checked = check_entries(
            self.data, readers=context.readers, resolve=context.data, network=context.deep
        )
        for problem in checked.problems:
            yield dataclasses.replace(problem, where=problem.where or context.where("data"))
        for head in checked.heads:
            context.note(head.title, head.lines)
            if self.measure == "gram" or head.example.positive_scores is not None:
                continue
            for loss in self.loss.of(head.info.name, head.info.task) or ():
                if "positive_score" in loss.needs:
                    yield context.problem(
                        f"loss {type(loss).__name__} needs scores, which dataset '{head.info.name}' has "
                        "not; choose another under by_task",
                        "loss",
                    )

    def run(self, workspace: Workspace) -> Artifact:
        models = {
            name: model
            for label, reference in self._models.items()
            for name, model in found_under(label, workspace.models(reference)).items()
        }
        if self.measure == "delta_norms":
            return self._norms(workspace, models)
        return self._measured(workspace, models)

    def _norms(self, workspace: Workspace, models: Mapping[str, Model]) -> Artifact:
        from emberge.engine import Statistics, write_statistics

        from emberge_statistics.delta_norms import delta_norms

        if self.base is None:
            raise EmbergeError("delta_norms need a base; name it under 'base'")
        base = workspace.model(self.base)
        norms: dict[str, dict[str, float]] = {}
        for number, (label, model) in enumerate(models.items()):
            workspace.progress(number, len(models), "models", label)
            for layer, norm in delta_norms(base, model).items():
                norms.setdefault(layer, {})[label] = norm
        facts = _facts(workspace)
        content = {label: model.fingerprint for label, model in models.items()}
        written = Statistics(norms, base.fingerprint, content, self.measure, facts)
        write_statistics(workspace.folder, written)
        return self._artifact((self.base, *self._models.values()), {"delta_norms": norms})

    def _measured(self, workspace: Workspace, models: Mapping[str, Model]) -> Artifact:
        from emberge.engine import Statistics, join_statistics, load_datasets, whole_model

        rehearsal = workspace.rehearsal
        datasets = load_datasets(
            self.data,
            readers=workspace.readers,
            resolve=workspace.data,
            limit=rehearsal.rows if rehearsal else None,
            store=workspace.store,
            warn=workspace.warn,
        )
        parts: list[Path] = []
        facts = _facts(workspace)
        for number, (label, model) in enumerate(models.items()):
            work = workspace.work / f"measured-{number}"
            with whole_model(model, work, workspace.machine) as folder:
                found = self._one(workspace, label, folder, datasets, work)
            parts += found.parts
            facts |= found.facts
        content = {label: model.fingerprint for label, model in models.items()}
        told = Statistics({}, models=content, measure=self.measure, facts=facts)
        join_statistics(workspace.folder, parts, told.metadata)
        measured = {k: facts[k] for k in ("batches", "seed")} | {"data": json.loads(facts["data"])}
        return self._artifact(tuple(self._models.values()), {"on": measured, "models": content})

    def _one(
        self,
        workspace: Workspace,
        label: str,
        folder: Path,
        datasets: Sequence[Dataset],
        work: Path,
    ) -> Measured:
        from emberge_statistics.fisher_information import Measurement, measure_model

        what = Measurement(
            measure=self.measure,  # type: ignore[arg-type]
            backbone=self.backbone,
            checkpoint=folder,
            stored=stored_tensors(folder),
            datasets=datasets,
            sampler=[one.resolved(workspace.data) for one in self.sampler],
            losses=self.loss,
            options=self._options(),
            seed=workspace.seed if self.seed is None else self.seed,
            device=workspace.machine.devices[0],
            memory=workspace.machine.memory,
        )
        return measure_model(
            what,
            work,
            write=part_writer(work, label, self.measure),
            store=workspace.store,
            progress=workspace.progress,
            rehearsal=workspace.rehearsal,
        )

    def _artifact(self, named: tuple[ModelRef, ...], details: dict[str, Any]) -> Artifact:
        parents = tuple(dict.fromkeys(reference.text for reference in named))
        return Artifact(
            kind="statistics", parents=parents, details={"measure": self.measure, **details}
        )


def _facts(workspace: Workspace) -> dict[str, str]:
    """What a file says of its making: the step's fingerprint, seed and versions."""
    return {"made": json.dumps(dict(workspace.provenance), default=str)}
