"""Check of a training before the run: its model, losses, guides and data, and a preview of its steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, cast

from emberge import (
    Artifact,
    DatasetInfo,
    EmbergeError,
    Expected,
    Negatives,
    PerDataset,
    Pool,
    Preflight,
    Problem,
    Sampler,
)
from emberge.contracts import cuts_windows, describe_kinds
from emberge.data import CheckedData, check_datasets, count_datasets, expand
from emberge.model_folder import TextLimit
from emberge.training import (
    BatchPlan,
    choose_negatives,
    find_embedding_problems,
    find_loss_problems,
    find_prediction_problems,
    list_losses,
    select_rows,
    steps_to_keep,
)

from emberge_train.losses.guided_loss import GuidedLoss, find_guide, list_guided_losses
from emberge_train.train_options import TrainOptions

if TYPE_CHECKING:
    from collections.abc import Callable

    from emberge import DataRef

# Bytes of data above which rows are not counted, so that a check takes only seconds.
COUNTED_BYTES = 16_000_000


@dataclass(frozen=True)
class TrainingPreview:
    """Rows that a training will use from its data, and its number of steps.

    `rows` are the numbers of rows of the `datasets` that the training will use, and `kept` is the largest
    number of checkpoints that it will keep. Windows of single texts are not counted, as that needs the
    model's tokenizer. With a dataset that is cut into windows, `steps` is unknown, and all its texts are
    assumed to be used.
    """

    datasets: tuple[DatasetInfo, ...] = ()
    rows: Mapping[str, int] = field(default_factory=dict)
    steps: int | None = None
    kept: int = 0

    @property
    def lines(self) -> list[str]:
        """Preview as lines for the terminal; none if the data could not be counted."""
        if not self.datasets:
            return []
        used = {info: self.rows.get(info.name, 0) for info in self.datasets}
        lines = [
            f"{info.name}: {rows:,} rows" + (f" of {info.size:,}" if rows != info.size else "")
            for info, rows in used.items()
        ]
        rows, total = sum(used.values()), sum(info.size for info in used)
        if rows != total and len(used) > 1:
            lines.append(f"{rows / total:.3g} of all rows ({rows:,} of {total:,})")
        if self.steps is None:
            return [*lines, "as many steps as the windows of the texts fill batches"]
        return [*lines, f"{self.steps:,} steps"]


@dataclass(frozen=True)
class TrainingCheck:
    """Check of the step `train`, from configs, headers and first rows of data."""

    step: TrainOptions
    context: Preflight

    def find_problems(self) -> Iterator[Problem]:
        """Yield the step's problems, and announce its result."""
        step, context = self.step, self.context
        self._expect_result(TrainingPreview())
        yield from self._find_model_problems()
        if not step.sampler or type(step.sampler[-1]).batches is Sampler.batches:
            only = f"{type(step.sampler[-1]).__name__} only selects; " if step.sampler else ""
            yield context.problem(
                f"{only}end the chain with a sampler that groups, such as batch_shuffle", "sampler"
            )
            return
        for loss in list_guided_losses(list_losses(step.loss)):
            for message in self._find_guide_problems(loss):
                yield context.problem(message, "loss")
        if step.evaluate is not None:
            yield from step.evaluate.check(context)
        checked = check_datasets(context, step.data)
        problems = [*checked.problems, *self._find_data_problems(checked)]
        yield from problems
        if not any(problem.severity == "error" for problem in problems):
            yield from self._preview()

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
            for message in TextLimit.read(folder).problems(*step.lengths):
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
        for message in facts.problems or TextLimit.read(folder).problems(guide.max_length):
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
        for head in checked.heads:
            scored = head.example.positive_scores is not None
            for message in find_loss_problems(step.loss, head.info, scored=scored):
                yield context.problem(message, "loss")
            try:
                find_guide(step.loss.of(head.info.name, head.info.task) or ())
            except ValueError as error:
                yield context.problem(f"dataset '{head.info.name}': {error}", "loss")
            yield from self._find_reading_problems(head.info)
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
        infos = [head.info for head in checked.heads]
        for sampler in step.sampler:
            for message in sampler.check_data(infos):
                yield context.problem(message, "sampler")
        for option, message in PerDataset.find_all_unknown(step, [info.name for info in infos]):
            yield context.problem(message, option)

    def _preview(self) -> Iterator[Problem]:
        """Count rows and steps, if the data is here and small; yield problems of the samplers."""
        step, context = self.step, self.context
        try:
            negatives = choose_negatives(step.negatives, step.backbone.kind)
        except EmbergeError as error:
            yield context.problem(str(error), "negatives")
            return
        try:
            sampler = self._resolve_samplers()
            if sampler is None:
                return
            preview = preview_training(step, sampler, negatives, context)
        except EmbergeError as error:
            yield from (context.problem(line, "sampler") for line in str(error).splitlines())
            return
        if preview.lines:
            context.note("training", preview.lines)
        self._expect_result(preview)

    def _resolve_samplers(self) -> Sequence[Sampler] | None:
        """Return the samplers with the files that they read; None if a file does not exist yet.

        Raises:
            EmbergeError: if a file lacks the content that a sampler's options ask for.
        """
        files = {file for sampler in self.step.sampler for file in sampler.files()}
        paths = {file: path for file in files if (path := self.context.data(file)) is not None}
        if len(paths) < len(files):
            return None
        return [sampler.resolved(paths.__getitem__) for sampler in self.step.sampler]

    def _expect_result(self, preview: TrainingPreview) -> None:
        """Announce the artifact that the training is expected to leave."""
        datasets = {
            info.name: {"task": info.task, "rows": preview.rows.get(info.name, 0), "of": info.size}
            for info in preview.datasets
        }
        details = {"datasets": datasets}
        artifact = Artifact(kind="model", parents=(self.step.model.text,), details=details)
        self.context.expect(Expected(artifact, preview.kept))


def preview_training(
    step: TrainOptions,
    sampler: Sequence[Sampler],
    negatives: PerDataset[Negatives],
    context: Preflight,
) -> TrainingPreview:
    """Return the rows of each dataset that the training will use, and the number of steps.

    Data that are not on this machine yet, or that are too large to be counted quickly, are not counted.

    Raises:
        DataError: if data cannot be read, or do not fill a batch.
    """
    entries = step.data
    are_present = all(entry.path is not None and context.data(entry.path) for entry in entries)
    locate = cast("Callable[[DataRef], Path]", context.data)  # what is present has a path
    if not are_present or not _can_be_counted(step, context, locate):
        return TrainingPreview(kept=step.keep_last)
    infos = tuple(count_datasets(entries, readers=context.readers, resolve=locate))
    pool: Pool = {info: range(info.size) for info in infos}
    seed = step.seed or 0
    texts = {
        info: rows
        for info, rows in pool.items()
        if cuts_windows(step.loss.of(info.name, info.task) or (), info)
    }
    if texts:
        pairs = {info: rows for info, rows in pool.items() if info not in texts}
        selected = {**select_rows(sampler, pairs, seed), **texts}
        return TrainingPreview(infos, _count_rows(selected), kept=step.keep_last)
    plan = BatchPlan(
        pool,
        sampler,
        seed=seed,
        epochs=step.epochs or 1.0,
        max_steps=step.max_steps,
        negatives=negatives,
    )
    kept = min(len(steps_to_keep(plan, step)), step.keep_last)
    return TrainingPreview(infos, _count_rows(plan.pool), plan.steps, kept)


def _count_rows(pool: Pool) -> dict[str, int]:
    return {info.name: len(rows) for info, rows in pool.items()}


def _can_be_counted(
    step: TrainOptions, context: Preflight, locate: Callable[[DataRef], Path]
) -> bool:
    """Return whether every file exists and all together are small enough to be counted."""
    found = (expand(entry, readers=context.readers, resolve=locate) for entry in step.data)
    files = {source.path for sources in found for source in sources}
    if any(file is None or not file.is_file() for file in files):
        return False
    return sum(file.stat().st_size for file in files if file is not None) <= COUNTED_BYTES
