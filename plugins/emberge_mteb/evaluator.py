"""The `mteb` evaluator: models are scored on mteb's own tasks and on the user's evaluation sets."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from emberge import (
    Backbone,
    CheckpointError,
    Count,
    DataError,
    Evaluator,
    Model,
    Preflight,
    Problem,
    TaskInfo,
    TaskScore,
    TextLength,
    Workspace,
    component,
)
from emberge.contracts import TextRole, describe_kinds
from emberge.model_folder import TextLimit
from emberge.wording import join_some

from emberge_mteb.task_options import TaskOptions


@dataclass(frozen=True, kw_only=True)
class Mteb(TaskOptions, Evaluator):
    """Scores by mteb's own evaluators (Muennighoff et al., 2023, arXiv:2210.07316).

    `tasks` and `benchmark` name mteb's own tasks, whose data comes from the hub. For tasks in many languages,
    `languages` (such as "eng") are the languages to keep. `only` lists the tasks of the benchmark to score,
    in that order; a name that the benchmark does not have in this mteb release is an error. `data` are
    evaluation sets of catalogues, in folders with BEIR's layout, or files of rows: your own questions, each
    with the text that answers it. They are run as mteb tasks: retrieval (nDCG@10), reranking (MAP), sts
    (Spearman of the cosine), classification (accuracy by mteb's protocol: ten logistic regressions on 8 texts
    a label), clustering (V-measure) and pair classification (average precision of the cosine).

    Tasks with images or sound, such as those of MIEB (Xiao et al., 2025, arXiv:2504.10471) and MAEB, need a
    model that reads them; so do catalogue sets whose texts have images or clips. Kinds of tasks are the
    columns of BidirLM's tables: for MIEB(lite) seven kinds, with both kinds of retrieval as one, and in
    addition visual STS, which those tables omit.

    By default a model's own prompts are used, if it has any. `prompt` is a text to put before queries instead
    (before all texts if both sides are alike); in it `{instruction}` is the task's instruction and `{prompt}`
    a local set's own prompt. `in_domain_of` is training data, such as a catalogue with `only`. In domain
    are then local sets with the name of one of its training sets and the tasks of the same sources that it
    names (`ind_tasks`). All others count as out of domain, or as elsewhere where their catalogue says so.
    Without the option, the catalogue of a local set states its domain, whatever the models were trained on.

    With `dims` the model is scored at each of these sizes from one encoding: embeddings are truncated to that
    many numbers, then scaled to length one, as `matryoshka` trains them (Kusupati et al., 2022,
    arXiv:2205.13147).
    A step `evaluate` shows the sizes of a model side by side. All embeddings of a task stay in memory until
    its last size is scored.

    Models of the backbones `splade` and `multi_vector` are scored on retrieval and reranking tasks by their
    own similarity: the dot product of sparse vectors, or late interaction (MaxSim). Documents are embedded in
    blocks while queries are scored, and no index is kept. A reranker (`cross_encoder`) is scored alone where
    a task gives each query's candidates.

    Example:
        scores:
          evaluate:
            models: [./base, ./merged]
            evaluators: {mteb: {tasks: [STS12, NFCorpus]}}
    """

    backbone: Backbone = component("text_encoder")
    """Backbone that loads the checkpoint."""
    prompt: str | None = None
    max_length: TextLength | None = None
    """Largest number of tokens of a text; by default the model's own limit."""
    token_budget: Count | None = None
    """Number of padded tokens encoded at once; by default it fits the device."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """Dtype of the model's computation."""
    dims: tuple[Count, ...] = ()
    """Sizes of embeddings to score, such as `[768, 256]`; by default only the full size."""

    def check(self, context: Preflight) -> Iterator[Problem]:
        if len(set(self.dims)) < len(self.dims):
            yield context.problem(f"dims are different sizes, not {list(self.dims)}", "dims")
        yield from self.check_tasks(context)

    def check_model(self, checkpoint: Path | None, context: Preflight) -> Iterator[str]:
        tasks = self.preview(context) or ()
        yield from _find_kind_problems(self.backbone, tasks, has_sizes=bool(self.dims))
        if checkpoint is None:
            return
        facts = self.backbone.describe(checkpoint)
        yield from facts.problems
        if not facts.problems:
            yield from TextLimit.read(checkpoint).describe_problems(self.max_length)
            yield from self._check_widths(facts.dimension)

    def _check_widths(self, dimension: int | None) -> Iterator[str]:
        oversized = [size for size in self.dims if dimension is not None and size > dimension]
        if oversized:
            yield (
                f"its embeddings have {dimension} numbers, so they cannot be scored at "
                f"{', '.join(map(str, oversized))}; take that out of the evaluator's dims"
            )

    def preview(self, context: Preflight) -> Sequence[TaskInfo] | None:
        tasks = self.preview_tasks(context)
        return None if tasks is None else self._at_sizes(tasks)

    def plan(self, workspace: Workspace) -> Sequence[TaskInfo]:
        sources = self.list_sources(workspace, self._scored_with)
        return self._at_sizes([source.describe(self.max_length) for source in sources])

    @property
    def _scored_with(self) -> str:
        """Options, in addition to the task, that change scores."""
        return repr((self.backbone, self.prompt, self.max_length, self.dtype))

    def _at_sizes(self, tasks: Sequence[TaskInfo]) -> list[TaskInfo]:
        """Return each task at each size of `dims` in turn, or the tasks as they are."""
        return [task.at_size(size) for task in tasks for size in self.dims] or list(tasks)

    def evaluate(
        self, model: Model, tasks: Sequence[TaskInfo], workspace: Workspace
    ) -> Iterator[TaskScore]:
        from emberge_mteb.models import ModelOptions, load_model
        from emberge_mteb.scoring import score_task, silence_mteb

        self._require_scorable(model, tasks, workspace)
        options = ModelOptions(
            self.backbone, self.prompt, self.max_length, self.token_budget, self.dtype
        )
        sources = {
            source.info.name: source for source in self.list_sources(workspace, self._scored_with)
        }
        with tempfile.TemporaryDirectory(prefix="emberge-mteb-") as media:
            with silence_mteb():
                scored_model = load_model(model, options, Path(media) / "task", workspace)
            for number, task in enumerate(tasks, 1):
                source = sources[task.name]
                with workspace.part("task", number, len(tasks), task.label):
                    with silence_mteb():
                        mteb_task = source.make()
                        scored_model.prepare(task.name, source.placeholders, task.size)
                    score, units, result = score_task(mteb_task, scored_model)
                if not math.isfinite(score):
                    workspace.warn(
                        f"{model.name} on {task.label}: mteb gives no defined {task.metric} "
                        "(all similarities are equal); counted as 0"
                    )
                    score = 0.0
                yield TaskScore(task, score, units, result)

    def _require_scorable(
        self, model: Model, tasks: Sequence[TaskInfo], workspace: Workspace
    ) -> None:
        """Refuse a model that cannot be scored on the tasks, and warn of what is odd about it."""
        for message in _find_kind_problems(self.backbone, tasks, has_sizes=bool(self.dims)):
            raise DataError(f"{model.name}: {message}")
        facts = self.backbone.describe(model.folder)
        for message in (*facts.problems, *self._check_widths(facts.dimension)):
            raise CheckpointError(f"{model.name}: {message}")
        for warning in facts.warnings:
            workspace.warn(warning)

    def texts(self, task: TaskInfo, workspace: Workspace) -> Iterator[tuple[TextRole, str]]:
        for source in self.list_sources(workspace, scored_with=None):
            if source.info.name == task.name:
                yield from source.texts()


def _find_kind_problems(
    backbone: Backbone, tasks: Sequence[TaskInfo], *, has_sizes: bool
) -> Iterator[str]:
    """Yield reasons why models of a backbone's kind cannot be scored on some of the tasks.

    `has_sizes` is whether embeddings are cut to several sizes.
    """
    kind = backbone.kind
    if kind == "vector":
        return
    kind_of_task = {task.name: task.kind for task in tasks}
    searched = [name for name, task in kind_of_task.items() if task.endswith("retrieval")]
    # Texts of other tasks are neither queries nor documents.
    others = join_some(
        [n for n, task in kind_of_task.items() if not task.endswith(("retrieval", "reranking"))]
    )
    if kind == "pair_score" and searched:
        yield (
            f"is a reranker, which scores pairs of texts and cannot search (in {join_some(searched)}); score "
            "it on reranking tasks"
        )
    if kind == "pair_score" and others:
        yield f"is a reranker, and no query comes with candidates in {others}; take reranking tasks"
    if kind in ("sparse", "token_vectors") and others:
        yield (
            f"gives {describe_kinds({kind})}, and one vector a text is needed for {others}; take retrieval "
            "and reranking tasks"
        )
    if has_sizes:
        yield (
            f"dims is about vectors of whole texts, and models of {type(backbone).__name__} give none; leave "
            "it out"
        )
