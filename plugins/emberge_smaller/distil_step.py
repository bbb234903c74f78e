"""The `distil` step: a smaller model that learns from the embeddings of a teacher."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from emberge import (
    Artifact,
    Backbone,
    CheckpointError,
    DataEntry,
    EmbergeError,
    Loss,
    ModelRef,
    NonNegative,
    PerDataset,
    Preflight,
    Problem,
    Sampler,
    Step,
    WholeNumber,
    Workspace,
    component,
)
from emberge.contracts import TrainingDetails, list_losses
from emberge.files import fill_once
from emberge.model_folder import Checkpoint, TextLimit
from emberge.training import FitOptions
from emberge_train import Guide, give_guide, list_guided_losses

from emberge_smaller.cut_layers_step import LayerStack


@dataclass(frozen=True, kw_only=True)
class Student:
    """The model from which a student begins: a `model`, or some `layers` of the teacher.

    `model` may be any encoder, with its own tokenizer and size: a small model or a static model. `layers`
    are numbers of layers from 0, or how many to keep, spread evenly and with the last, as in the step
    `cut_layers`.
    """

    model: ModelRef | None = None
    layers: WholeNumber | tuple[WholeNumber, ...] | None = None

    def __post_init__(self) -> None:
        if (self.model is None) == (self.layers is None):
            raise ValueError("a student is either a 'model' or 'layers' of the teacher")

    def find_base(self, teacher: ModelRef) -> ModelRef:
        """Return the model that has the student's tokenizer, modules and size of embeddings."""
        return self.model if self.model is not None else teacher

    def find_problems(self, context: Preflight, teacher: ModelRef) -> Iterator[str]:
        """Yield a problem if the layers cannot be cut from the teacher."""
        folder = None if self.layers is None else context.whole_model(teacher)
        if self.layers is None or folder is None:
            return
        try:
            LayerStack(Checkpoint(folder)).choose_layers(self.layers)
        except EmbergeError as error:
            yield str(error)

    def __str__(self) -> str:
        return str(self.model) if self.model is not None else f"layers {self.layers}"

    def write_layers(self, workspace: Workspace, teacher: ModelRef) -> Path:
        """Write the teacher's chosen layers as a model into the store, once, and return its folder.

        Raises:
            CheckpointError: if layers cannot be cut, or the teacher is an adapter.
        """
        from emberge.ranks import join_ranks

        model = workspace.model(teacher)
        if model.adapter is not None:
            raise CheckpointError(f"{model.name}: is an adapter; merge it into its base first")
        stack = LayerStack(Checkpoint(model.folder))
        numbers = stack.choose_layers(self.layers or ())
        key = hashlib.sha256(f"{model.fingerprint} {list(numbers)}".encode()).hexdigest()[:32]
        folder = workspace.store / "students" / key

        def write() -> None:
            fill_once(
                folder,
                lambda new: stack.write(
                    numbers, workspace, content=model.fingerprint, out_folder=new
                ),
            )

        join_ranks(workspace.machine.device).run_on_first_rank(write)
        return folder


@dataclass(frozen=True, kw_only=True)
class Distil(FitOptions, Step):
    """Train a student to give texts the embeddings of its teacher, without labels, pairs or negatives.

    The texts are those of the data, queries and documents alike; files of single texts (`task: text`) are as
    good as pairs. The teacher embeds each text once. Its embeddings are kept on disk and found by later
    students with the same teacher and data. The training is that of the step `train`, at any number of ranks
    and with its options; the teacher is the guide of each loss that lacks one. The default loss is
    `embedding_distillation` (LEAF: Vujanic and Rueckstiess, 2025, arXiv:2509.12539). A student of some layers
    of its teacher that keeps the last one begins nearest to the teacher (step `cut_layers`).

    With `embedding_distillation` a student learns the teacher's space, so that its queries can search
    documents that the teacher embedded. If the size of its vectors differs from the teacher's, give a
    transformer a linear layer: `backbone: {text_encoder: {dense: …}}`.

    Example:
        small:
          distil:
            teacher: ./boom
            student: {layers: [1, 3, 5]}
            data: {path: ./texts.jsonl, task: text}
    """

    produces = "model"
    every_rank = True
    loads = ("torch",)

    teacher: ModelRef
    """The model whose embeddings are learned."""
    student: Student
    """Model from which the student begins: `{model: …}`, or of the teacher `{layers: [1, 3, 5]}` or
    `{layers: 3}`."""
    data: tuple[DataEntry, ...]
    """Files, catalogues or steps that make data; labels and scores are not read."""
    loss: PerDataset[tuple[Loss, ...]] = component("embedding_distillation")
    """A weighted sum of losses for every task or dataset, which get the teacher as their guide."""
    sampler: tuple[Sampler, ...] = component("batch_shuffle")
    """A chain that selects rows and, last, groups them into batches."""
    backbone: Backbone = component("text_encoder")
    """Backbone of the student."""
    teacher_backbone: Backbone = component("text_encoder")
    """Backbone of the teacher, which reads as many tokens of a text as `max_length` says by default."""
    learning_rate: NonNegative = 1e-4
    """The highest learning rate, reached at the end of the warm-up. For static models 3e-3 is usual."""
    seed: WholeNumber | None = None
    """Seed of batches, drawn texts and dropout; by default the recipe's."""

    def check(self, context: Preflight) -> Iterable[Problem]:
        for message in self.student.find_problems(context, self.teacher):
            yield context.problem(message, "student")
        yield from self._check_losses(context)
        if self.backbone.leaves_adapter:
            yield context.problem(
                "a student is a whole model, and lora leaves an adapter; take lora out, or fold it: "
                "lora: {fold: true}",
                "backbone",
            )
        problems_of_teacher = list(self._check_teacher(context))
        yield from problems_of_teacher
        if problems_of_teacher:
            return  # the training would report them again as those of its guide
        training = self._build_training(context.plugins, self.student.find_base(self.teacher))
        yield from training.check(context)

    def _check_losses(self, context: Preflight) -> Iterator[Problem]:
        """Yield a problem if no loss has the teacher as its guide."""
        guide = self._build_guide()
        losses = list_guided_losses(list_losses(_with_guide(self.loss, guide)))
        if not any(loss.guide == guide for loss in losses):
            yield context.problem(
                "no loss reads the teacher; take embedding_distillation or kl_distillation",
                "loss",
            )

    def _check_teacher(self, context: Preflight) -> Iterator[Problem]:
        folder = context.whole_model(self.teacher)
        if self.teacher.adapter is not None:
            yield context.problem(
                f"{self.teacher}: a teacher is a whole model; merge the adapter into its base first",
                "teacher",
            )
        if folder is not None:
            facts, longest = self.teacher_backbone.describe(folder), self.max_length.default
            for message in facts.problems or TextLimit.read(folder).describe_problems(longest):
                yield context.problem(f"{self.teacher}: {message}", "teacher")

    def _build_guide(self) -> Guide:
        """Return the teacher as the guide of losses."""
        return Guide(
            model=self.teacher,
            backbone=self.teacher_backbone,
            max_length=self.max_length.default,
            ahead=True,
        )

    def _build_training(self, plugins: Any, model: ModelRef) -> Step:
        """Return the step `train` of the student in the folder `model`, guided by the teacher.

        It gets this step's options of the same names; only `model` and `loss` differ.
        """
        losses = _with_guide(self.loss, self._build_guide())
        train = plugins.find("train", "step").type
        names = {option.name for option in dataclasses.fields(train)}
        shared = {
            o.name: getattr(self, o.name) for o in dataclasses.fields(self) if o.name in names
        }
        training: Step = train(**{**shared, "model": model, "loss": losses})
        return training

    def run(self, workspace: Workspace) -> Artifact:
        teacher = workspace.model(self.teacher)
        base_reference = self.student.find_base(self.teacher)
        base = workspace.model(base_reference)
        model = self.student.model
        if model is None:
            folder = self.student.write_layers(workspace, self.teacher)
            # A relative path without a dot would be the name of a model on a hub.
            model = ModelRef(str(folder.resolve()))
        artifact = self._build_training(workspace.plugins, model).run(workspace)
        assert isinstance(artifact.details, TrainingDetails)
        added = {"teacher": teacher.name, "student": str(self.student)}
        return dataclasses.replace(
            artifact,
            # The artifact has the base's reference; that of the teacher is its name, to be found by.
            parents=(base.name, *((self.teacher.text,) if self.teacher != base_reference else ())),
            details=dataclasses.replace(artifact.details, added=added),
            origin="changed",
            made_by="distilling",
            base=base.as_base(base_reference),
        )


def _with_guide(losses: PerDataset[tuple[Loss, ...]], guide: Guide) -> PerDataset[tuple[Loss, ...]]:
    """Return the losses by dataset; those that lack a guide get this one."""

    def guided(group: tuple[Loss, ...] | None) -> tuple[Loss, ...] | None:
        return None if group is None else tuple(give_guide(loss, guide) for loss in group)

    return PerDataset(
        default=guided(losses.default),
        by_task={task: guided(group) or () for task, group in losses.by_task.items()},
        by_dataset={name: guided(group) or () for name, group in losses.by_dataset.items()},
    )
