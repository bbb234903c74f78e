"""The `mteb` evaluator: its tasks, their data, and the model as mteb calls it."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

from emberge import (
    Backbone,
    Count,
    DataEntry,
    DataError,
    Evaluator,
    Model,
    Preflight,
    Problem,
    RecipeError,
    TaskInfo,
    TaskScore,
    TextLength,
    Workspace,
    component,
)
from emberge.contracts import Side
from emberge.model_folder import TextLimit
from emberge_data import EvalSet, check_eval_sets, eval_texts

from emberge_mteb.hub_tasks import check_domains, in_domain_tasks, show_domains
from emberge_mteb.kind_search import find_untrained, kind_faults
from emberge_mteb.loading import ModelLoader
from emberge_mteb.local_sets import EvalEntry, LocalSet, Split, local_sets, pick_sets
from emberge_mteb.task_media import (
    find_first_tasks,
    find_missing_packages,
    find_unread_media,
)


@dataclass(frozen=True)
class _Source:
    """Task that can be scored: its facts, and a function that returns a new, loaded task object."""

    info: TaskInfo
    make: Callable[[], Any]
    """Function that returns the mteb task."""
    texts: Callable[[], Iterator[tuple[Side, str]]]
    """Function that returns the texts of the task's test data."""
    asked: Mapping[str, str]
    """Texts for `{instruction}` and `{prompt}`."""


@dataclass(frozen=True, kw_only=True)
class Mteb(Evaluator):
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
    a local set's own prompt. `in_domain_of` is training data whose catalogue names the mteb tasks of the same
    sources (`ind_tasks`). All other mteb tasks then count as out of domain. For local sets the catalogue
    states the domain.

    With `dims` the model is scored at each of these sizes from one encoding: embeddings are cut to that many
    numbers, then scaled to length one, as `matryoshka` trains them (Kusupati et al., 2022, arXiv:2205.13147).
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

    tasks: tuple[str, ...] = ()
    benchmark: str | None = None
    only: tuple[str, ...] = ()
    data: tuple[EvalEntry, ...] = ()
    languages: tuple[str, ...] = ()
    in_domain_of: tuple[DataEntry, ...] = ()
    backbone: Backbone | None = component("text_encoder")
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
        if not (self.tasks or self.benchmark or self.data):
            yield context.problem("there is nothing to score on: give tasks, benchmark or data")
        if self.only and not self.benchmark:
            yield context.problem("only picks tasks of a benchmark; name it", "only")
        for option in ("tasks", "only"):
            names = [f"mteb task '{name}'" for name in getattr(self, option)]
            yield from _check_repeats(names, partial(context.problem, option=option))
        if self.dims and (min(self.dims) < 1 or len(set(self.dims)) < len(self.dims)):
            fault = f"dims are different sizes from 1 on, not {list(self.dims)}"
            yield context.problem(fault, "dims")
        yield from check_domains(self.in_domain_of, context)
        yield from self._check_data(context)
        if self.tasks or self.benchmark:
            yield from self._check_named(context)

    def _check_data(self, context: Preflight) -> Iterator[Problem]:
        known_sets: list[str] = []
        for entry in self.data:
            for limit in (entry.limit_queries, entry.limit_corpus):
                if limit is not None and limit < 1:
                    yield context.problem(f"a limit of {limit} leaves nothing to score", "data")
            sets, faults = check_eval_sets(context, entry, entry.split)
            known_sets += [
                f"evaluation set '{_build_local_name(one.name, entry.split)}'" for one in sets
            ]
            yield from (context.problem(fault, "data") for fault in faults)
        yield from _check_repeats(known_sets, lambda text: context.problem(text, "data"))

    def _check_named(self, context: Preflight) -> Iterator[Problem]:
        from emberge_mteb.hub_tasks import cached, find_unknown, hub_tasks

        faults = list(find_unknown(self.tasks))
        yield from (context.problem(fault, "tasks") for fault in faults)
        if faults:
            return
        option = "only" if self.only else "tasks" if self.tasks else "benchmark"
        try:
            tasks = hub_tasks(self.tasks, self.benchmark, self.languages, self.only)
        except DataError as error:
            yield context.problem(str(error), option)
            return
        yield from (context.problem(fault, option) for fault in find_missing_packages(tasks))
        show_domains(self.in_domain_of, [task.metadata.name for task in tasks], context)
        uncached = [task.metadata.name for task in tasks if not cached(task)]
        if uncached:
            name_list = ", ".join(uncached[:5]) + (" …" if len(uncached) > 5 else "")
            message = (
                f"the data of {len(uncached)} mteb tasks ({name_list}) is not on this machine; "
                "the run will need a network"
            )
            yield Problem(message, context.where(option), "unseen")

    def plan(self, workspace: Workspace) -> Sequence[TaskInfo]:
        return self._at_sizes([source.info for source in self._list_sources(workspace)])

    def check_model(self, checkpoint: Path, context: Preflight) -> Iterator[str]:
        if self.backbone is None:
            return
        facts = self.backbone.describe(checkpoint)
        if facts.problems:
            return  # they may be mended by the training that is evaluated, such as a missing pooling
        yield from TextLimit.read(checkpoint).problems(self.max_length)
        yield from self._check_widths(facts.dimension)
        if self.tasks or self.benchmark:
            yield from self._check_media(self.backbone, checkpoint)

    def check_kind(self, context: Preflight, checkpoint: Path | None) -> Iterator[str]:
        yield from self._find_kind_faults(self.preview(context) or ())
        if self.backbone is not None and checkpoint is not None:
            yield from find_untrained(self.backbone, checkpoint)

    def _find_kind_faults(self, tasks: Sequence[TaskInfo]) -> Iterator[str]:
        """Yield reasons why models of the backbone's kind cannot be scored with these tasks and options."""
        if self.backbone is None or self.backbone.kind == "vector":
            return
        yield from kind_faults(self.backbone.kind, tasks)
        if self.dims:
            yield (
                f"dims is about vectors of whole texts, and models of {type(self.backbone).__name__} give "
                "none; leave it out"
            )

    def _check_media(self, backbone: Backbone, checkpoint: Path) -> Iterator[str]:
        """Yield a problem for each kind of media in mteb's tasks that the model does not read."""
        from emberge_mteb.hub_tasks import hub_tasks

        try:
            tasks = hub_tasks(self.tasks, self.benchmark, self.languages, self.only)
        except DataError:
            return  # `check` reports it
        for kind, name in find_first_tasks(tasks).items():
            yield from find_unread_media(backbone, checkpoint, [kind], f"mteb task '{name}'")

    def _check_widths(self, dimension: int | None) -> Iterator[str]:
        oversized = [size for size in self.dims if dimension is not None and size > dimension]
        if oversized:
            yield (
                f"its embeddings have {dimension} numbers, so they cannot be scored at "
                f"{', '.join(map(str, oversized))}; take that out of the evaluator's dims"
            )

    def _at_sizes(self, tasks: Sequence[TaskInfo]) -> list[TaskInfo]:
        """Return each task at each size of `dims` in turn, or the tasks as they are."""
        return [task.at_size(size) for task in tasks for size in self.dims] or list(tasks)

    def preview(self, context: Preflight) -> Sequence[TaskInfo] | None:
        tasks: list[TaskInfo] = []
        try:
            for entry in self.data:
                sets = pick_sets(entry, context.data, context.readers)
                if not sets:
                    return None
                tasks += [_build_local_info(one, entry.split) for one in sets]
            if self.tasks or self.benchmark:
                from emberge_mteb.hub_tasks import hub_tasks

                named_tasks = hub_tasks(self.tasks, self.benchmark, self.languages, self.only)
                tasks += [_build_named_info(task) for task in named_tasks]
        except DataError:
            return None
        return self._at_sizes(tasks)

    def evaluate(
        self, model: Model, tasks: Sequence[TaskInfo], workspace: Workspace
    ) -> Iterator[TaskScore]:
        import tempfile

        from emberge_mteb.scoring import score_task, silence_mteb

        if self.backbone is None:
            raise RecipeError("evaluator 'mteb' needs a backbone, such as text_encoder")
        sources = {source.info.name: source for source in self._list_sources(workspace)}
        for fault in self._find_kind_faults(tasks):
            raise DataError(f"{model.name}: {fault}")
        with tempfile.TemporaryDirectory(prefix="emberge-mteb-") as media:
            loader = ModelLoader(
                model=model,
                backbone=self.backbone,
                workspace=workspace,
                media=Path(media) / "task",
                prompt=self.prompt,
                max_length=self.max_length,
                token_budget=self.token_budget,
                dtype=self.dtype,
            )
            with silence_mteb():
                encoder = loader.load()
                for fault in self._check_widths(encoder.dimension):
                    raise RecipeError(f"{model.name}: {fault}")
                scored_model = loader.wrap(encoder)
            for number, task in enumerate(tasks, 1):
                source = sources[task.plain_name]
                with workspace.part("task", number, len(tasks), task.name):
                    with silence_mteb():
                        mteb_task = source.make()
                        scored_model.prepare(source.asked, task.size)
                    score, units, tied, result = score_task(mteb_task, scored_model)
                if not math.isfinite(score):
                    workspace.warn(
                        f"{model.name} on {task.name}: mteb gives no defined {task.metric} "
                        "(all similarities are equal); counted as 0"
                    )
                    score = 0.0
                yield TaskScore(task, score, units, result, tied, f"mteb {version('mteb')}")

    def texts(self, task: TaskInfo, workspace: Workspace) -> Iterator[tuple[Side, str]]:
        sources = {source.info.name: source for source in self._list_sources(workspace)}
        return sources[task.plain_name].texts()

    def _list_sources(self, workspace: Workspace) -> list[_Source]:
        local = list(local_sets(self.data, workspace.data, workspace.readers))
        sources = [self._build_local_source(one, workspace) for one in local]
        if self.tasks or self.benchmark:
            from emberge_mteb.hub_tasks import hub_tasks

            named_tasks = hub_tasks(self.tasks, self.benchmark, self.languages, self.only)
            in_domain = in_domain_tasks(self.in_domain_of, workspace.data)
            sources += [self._build_named_source(task, in_domain) for task in named_tasks]
        for problem in _check_repeats([f"task '{s.info.name}'" for s in sources], DataError):
            raise problem
        return sources

    def _build_local_source(self, local: LocalSet, workspace: Workspace) -> _Source:
        from emberge_mteb.local_tasks import local_task

        fingerprint = self._hash_task(local.fingerprint)
        info = _build_local_info(local.set, local.split)

        def make() -> Any:
            named = replace(local.set, name=info.name)
            data = local.load(workspace.readers)
            return local_task(named, data, split=local.split, revision=fingerprint)

        info = replace(info, note=local.limits.note, fingerprint=fingerprint)
        asked = {"instruction": local.set.instruction, "prompt": local.set.prompt}
        return _Source(info, make, lambda: eval_texts(local.load(workspace.readers)), asked)

    def _build_named_source(self, task: Any, in_domain: Collection[str]) -> _Source:
        from emberge_mteb.hub_tasks import instruction_of, load_task, read_task_texts

        def make() -> Any:
            load_task(task)
            return task

        def texts() -> Iterator[tuple[Side, str]]:
            load_task(task)
            return read_task_texts(task)

        metadata = task.metadata
        domain: Literal["in", "out"] | None = None
        if self.in_domain_of:
            domain = "in" if metadata.name in in_domain else "out"
        revision = dict(metadata.dataset).get("revision")
        identity = f"{metadata.name} {revision} {task.hf_subsets} {task.eval_splits}"
        info = replace(
            _build_named_info(task),
            domain=domain,
            fingerprint=self._hash_task(identity),
        )
        return _Source(info, make, texts, {"instruction": instruction_of(task)})

    def _hash_task(self, data: str) -> str:
        """Return a hash of the data, of every option that changes a score on it, and of mteb's version."""
        options = repr((self.backbone, self.prompt, self.max_length, self.dtype))
        parts = (data, options, version("mteb"))
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _build_local_name(name: str, split: str) -> str:
    return name if split == "test" else f"{name}-{split}"


def _build_local_info(eval_set: EvalSet, split: Split) -> TaskInfo:
    from emberge_mteb.local_tasks import choose_main_metric

    return TaskInfo(
        name=_build_local_name(eval_set.name, split),
        kind=eval_set.task,
        metric=choose_main_metric(eval_set),
        languages=(eval_set.language,),
        domain=eval_set.domain,
        split=split,
    )


def _build_named_info(task: Any) -> TaskInfo:
    from emberge_mteb.hub_tasks import kind_of, split_of

    return TaskInfo(
        name=task.metadata.name,
        kind=kind_of(task),
        metric=task.metadata.main_score,
        languages=tuple(task.languages),
        split=split_of(task),
    )


def _check_repeats(names: Sequence[str], problem: Callable[[str], Any]) -> Iterator[Any]:
    for name, count in Counter(names).items():
        if count > 1:
            yield problem(f"{name} is named {count} times; once is enough")
