"""Check of a training before the run: its model, losses, guides and data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from emberge import DatasetInfo, EmbergeError, Expected, PerDataset, Preflight, Problem, Sampler
from emberge.contracts import describe_kinds, list_losses
from emberge.data import CheckedData, check_datasets
from emberge.model_folder import TextLimit
from emberge.training import (
    find_embedding_problems,
    find_loss_problems,
    find_prediction_problems,
    resolve_negatives,
)
from emberge_encoder import is_static_result

from emberge_train.losses.guided_loss import GuidedLoss, find_guide, list_guided_losses
from emberge_train.train_options import TrainOptions


@dataclass(frozen=True)
class TrainingCheck:
    """Check of the step `train`, from configs, headers and first rows of data."""

    step: TrainOptions
    context: Preflight

    def find_problems(self) -> Iterator[Problem]:
        """Yield the step's problems, and announce its result."""
        step, context = self.step, self.context
        kept = step.keep_last
        if step.max_steps and step.save_steps:
            kept = min(kept, max(1, step.max_steps // step.save_steps))
        context.expect(Expected(kept, is_static=is_static_result(step.model, context)))
        yield from self._find_model_problems()
        if not step.sampler or type(step.sampler[-1]).batches is Sampler.batches:
            only = f"{type(step.sampler[-1]).__name__} only selects; " if step.sampler else ""
            yield context.problem(
                f"{only}end the chain with a sampler that groups, such as batch_shuffle", "sampler"
            )
        for loss in list_guided_losses(list_losses(step.loss)):
            for message in self._find_guide_problems(loss):
                yield context.problem(message, "loss")
        checked = check_datasets(context, step.data)
        yield from checked.problems
        yield from self._find_data_problems(checked)
        try:
            resolve_negatives(step.negatives, step.backbone.kind)
        except EmbergeError as error:
            yield context.problem(str(error), "negatives")

    def _find_model_problems(self) -> Iterator[Problem]:
        step, context = self.step, self.context
        folder = context.whole_model(step.model)
        if step.model.adapter or context.adapter(step.model):
            yield context.problem(
                "training starts from a whole model, not an adapter; merge it first", "model"
            )
        elif folder is not None:
            facts = step.backbone.describe(folder)
            for message in facts.problems or facts.training_problems:
                yield context.problem(message, "backbone")
            for message in find_embedding_problems(step.loss, facts):
                yield context.problem(message, "loss")
            for message in TextLimit.read(folder).describe_problems(*step.lengths):
                yield context.problem(message, "max_length")
            for message in facts.warnings:
                yield context.warning(message, "backbone")
            if facts.changes:
                context.note("not native", facts.changes)

    def _find_guide_problems(self, loss: GuidedLoss) -> Iterator[str]:
        name, trained, guide = f"loss {type(loss).__name__}", self.step.backbone, loss.guide
        if guide is None:
            if loss.lacks_guide:
                yield f"{name} needs a guide; name its model: guide: {{model: …}}"
            return
        backbone = guide.choose_backbone(trained)
        if backbone.kind != "vector":
            yield (
                f"{name}: a guide gives one vector a text, and {type(backbone).__name__} gives "
                f"{describe_kinds({backbone.kind})}; name a guide of vectors, with its backbone: "
                "guide: {model: …, backbone: text_encoder}"
            )
            return
        folder, model = self.context.model(guide.model), self.context.model(self.step.model)
        if folder is None:
            return
        facts = backbone.describe(folder)
        for message in facts.problems or TextLimit.read(folder).describe_problems(guide.max_length):
            yield f"guide: {message}"
        if not loss.compares_with_guide or model is None:
            return
        width, guide_width = trained.describe(model).dimension, facts.dimension
        if None not in (width, guide_width) and width != guide_width:
            yield (
                f"{name}: its guide has embeddings of {guide_width} numbers and {self.step.model} of "
                f"{width}; name a guide of the same size, or end a transformer in a linear layer of that "
                f"size: backbone: {{text_encoder: {{dense: {guide_width}}}}}"
            )

    def _find_data_problems(self, checked: CheckedData) -> Iterator[Problem]:
        step, context = self.step, self.context
        if not step.data:
            yield context.problem("there is no data to train on", "data")
        for first_rows in checked.first_rows:
            scored = first_rows.example.positive_scores is not None
            for message in find_loss_problems(step.loss, first_rows.info, scored=scored):
                yield context.problem(message, "loss")
            try:
                find_guide(step.loss.of(first_rows.info.name, first_rows.info.task) or ())
            except ValueError as error:
                yield context.problem(f"dataset '{first_rows.info.name}': {error}", "loss")
            yield from self._find_reading_problems(first_rows.info)
        yield from self._find_name_problems(checked)

    def _find_reading_problems(self, info: DatasetInfo) -> Iterator[Problem]:
        """Yield problems of the model with a dataset's media, or with the prediction of its tokens."""
        step, folder = self.step, self.context.model(self.step.model)
        if folder is None:
            return
        if info.media is not None:
            for message in step.backbone.check_media(folder, info.media):
                yield self.context.problem(f"dataset '{info.name}': {message}", "data")
        if info.task == "text":
            losses = step.loss.of(info.name, info.task) or ()
            for message in find_prediction_problems(losses, step.backbone, folder):
                yield self.context.problem(message, "backbone")

    def _find_name_problems(self, checked: CheckedData) -> Iterator[Problem]:
        """Yield problems of options with the datasets, if all datasets can be read before the run."""
        step, context = self.step, self.context
        are_present = all(entry.path is None or context.data(entry.path) for entry in step.data)
        if not are_present or checked.problems:
            return
        infos = [first_rows.info for first_rows in checked.first_rows]
        names = [info.name for info in infos]
        for sampler in step.sampler:
            unknown = (message for _, message in PerDataset.find_all_unknown(sampler, names))
            for message in (*sampler.check_data(infos), *unknown):
                yield context.problem(message, "sampler")
        for option, message in PerDataset.find_all_unknown(step, names):
            yield context.problem(message, option)
