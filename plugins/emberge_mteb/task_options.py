"""Tasks of the `mteb` evaluator: their options, and what can be scored: local sets and mteb's own tasks."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import Any

from emberge import DataEntry, DataError, Preflight, Problem, TaskInfo, Workspace
from emberge.contracts import Split, TextRole
from emberge.wording import count_noun
from emberge_data import EvalSet, check_eval_sets, list_eval_texts, pick_eval_sets

from emberge_mteb.local_sets import EvalEntry, LocalSet, list_local_sets


@dataclass(frozen=True)
class TaskSource:
    """Task that can be scored: its facts, and a function that returns a new, loaded task object."""

    info: TaskInfo
    make: Callable[[], Any]
    """Function that returns the mteb task."""
    texts: Callable[[], Iterator[tuple[TextRole, str]]]
    """Function that returns the texts of the task's test data."""
    placeholders: Mapping[str, str]
    """Texts for `{instruction}` and `{prompt}`."""
    is_local: bool = True
    """True for data of the user's own, which is read without a download."""

    def describe(self, max_length: int | None) -> TaskInfo:
        """Return the facts, with a note on the numbers of queries and documents, and on cut texts."""
        note = self.info.note
        if not note and self.info.kind == "retrieval" and self.is_local:
            counts = Counter(role for role, _ in self.texts())
            note = " among ".join(count_noun(counts[role], role) for role in ("query", "document"))
        cut = f"texts cut after {max_length:,} tokens" if max_length else ""
        return replace(self.info, note=", ".join(filter(None, (note, cut))))


@dataclass(frozen=True, kw_only=True)
class TaskOptions:
    """Choice of tasks: by name, by benchmark, and from data of the user's own."""

    tasks: tuple[str, ...] = ()
    benchmark: str | None = None
    only: tuple[str, ...] = ()
    data: tuple[EvalEntry, ...] = ()
    languages: tuple[str, ...] = ()
    in_domain_of: tuple[DataEntry, ...] = ()

    def check_tasks(self, context: Preflight) -> Iterator[Problem]:
        """Yield problems of the names of tasks, of evaluation sets, and of catalogues of training data."""
        if not (self.tasks or self.benchmark or self.data):
            yield context.problem("there is nothing to score on: give tasks, benchmark or data")
        if self.only and not self.benchmark:
            yield context.problem("only picks tasks of a benchmark; name it", "only")
        for entry in self.data:
            for message in check_eval_sets(context, entry, entry.split)[1]:
                yield context.problem(message, "data")
        tasks = self.preview_tasks(context)
        yield from self._check_names(context, tasks)
        names = Counter(task.name for task in tasks or ())
        for name, count in names.items():
            if count > 1:
                yield context.problem(f"task '{name}' is named {count} times; once is enough")

    def _check_names(self, context: Preflight, known: list[TaskInfo] | None) -> Iterator[Problem]:
        """Yield problems of the names of mteb's tasks, in the options and in catalogues of training data."""
        option = "only" if self.only else "tasks" if self.tasks else "benchmark"
        try:
            if tasks := self._load_hub_tasks():
                message = f"the data of {count_noun(len(tasks), 'task')} of mteb is downloaded when"
                yield Problem(f"{message} the run starts", context.where(option), "unseen")
        except DataError as error:
            yield context.problem(str(error), option)
        try:
            self._read_domains(context.data, known)
        except DataError as error:
            yield context.problem(str(error), "in_domain_of")

    def preview_tasks(self, context: Preflight) -> list[TaskInfo] | None:
        """Return the tasks known before a run; None if they are unknown or there are problems."""
        tasks: list[TaskInfo] = []
        try:
            for entry in self.data:
                sets = pick_eval_sets(
                    entry, readers=context.readers, resolve=context.data, split=entry.split
                )
                if not sets:
                    return None
                tasks += [_describe_set(one, entry.split) for one in sets]
            return tasks + [_describe_task(task) for task in self._load_hub_tasks()]
        except DataError:
            return None

    def list_sources(self, workspace: Workspace, scored_with: str | None) -> list[TaskSource]:
        """Return every task; `scored_with` are the options of the model that change scores.

        If it is None, tasks have no fingerprints, for which local sets would be read.

        Raises:
            DataError: if data cannot be used, or two tasks have the same name.
        """
        sources = [
            _build_local_source(one, scored_with, workspace)
            for one in list_local_sets(self.data, workspace.data, workspace.readers)
        ]
        sources += [_build_hub_source(task, scored_with) for task in self._load_hub_tasks()]
        if self.in_domain_of:
            names = self._read_domains(workspace.data, [source.info for source in sources])
            sources = [replace(one, info=_set_domain(one.info, names)) for one in sources]
        for name, count in Counter(source.info.name for source in sources).items():
            if count > 1:
                raise DataError(f"task '{name}' is named {count} times; once is enough")
        return sources

    def _load_hub_tasks(self) -> list[Any]:
        if not (self.tasks or self.benchmark):
            return []
        from emberge_mteb.hub_tasks import build_hub_tasks

        return build_hub_tasks(self.tasks, self.benchmark, self.languages, self.only)

    def _read_domains(
        self, resolve: Callable[[Any], Any], known: Sequence[TaskInfo] | None
    ) -> Collection[str]:
        """Return the names of the training data's sets and of tasks in their domain, `known` or mteb's."""
        from emberge_mteb import hub_tasks

        sets = hub_tasks.list_training_sets(self.in_domain_of, resolve)
        names = {task for one in sets for task in one.ind_tasks or ()}
        if self.tasks or self.benchmark:
            hub_tasks.list_in_domain_tasks(self.in_domain_of, resolve)
        if known is not None:
            known_names = {task.name.removesuffix("-dev") for task in known}
            hub_tasks.require_known_tasks(sorted(names - known_names))
        return names | {one.name for one in sets if one.name is not None}


def _set_domain(task: TaskInfo, in_domain: Collection[str]) -> TaskInfo:
    """Return the task in the domain of the training data if that has its name; else out of it."""
    if task.name.removesuffix("-dev") in in_domain:
        return replace(task, domain="in")
    return replace(task, domain="elsewhere" if task.domain == "elsewhere" else "out")


def _describe_set(eval_set: EvalSet, split: Split) -> TaskInfo:
    from emberge_mteb.local_tasks import choose_main_metric

    return TaskInfo(
        name=eval_set.name if split == "test" else f"{eval_set.name}-{split}",
        kind=eval_set.task,
        metric=choose_main_metric(eval_set),
        languages=(eval_set.language,),
        domain=eval_set.domain,
        split=split,
    )


def _describe_task(task: Any) -> TaskInfo:
    from emberge_mteb.hub_tasks import find_split, name_kind

    return TaskInfo(
        name=task.metadata.name,
        kind=name_kind(task),
        metric=task.metadata.main_score,
        languages=tuple(task.languages),
        split=find_split(task),
    )


def _build_local_source(
    local: LocalSet, scored_with: str | None, workspace: Workspace
) -> TaskSource:
    from emberge_mteb.local_tasks import build_local_task

    fingerprint = ""
    if scored_with is not None:
        fingerprint = _hash_task(local.compute_fingerprint(workspace.readers), scored_with)
    split = local.entry.split
    info = _describe_set(local.eval_set, split)

    def make() -> Any:
        named = replace(local.eval_set, name=info.name)
        data = local.load(workspace.readers)
        return build_local_task(named, data, split=split, revision=fingerprint)

    return TaskSource(
        replace(info, note=local.note, fingerprint=fingerprint),
        make,
        lambda: list_eval_texts(local.load(workspace.readers)),
        {"instruction": local.eval_set.instruction, "prompt": local.eval_set.prompt},
    )


def _build_hub_source(task: Any, scored_with: str | None) -> TaskSource:
    from emberge_mteb.hub_tasks import copy_task, find_instruction, load_task, read_task_texts

    def make() -> Any:
        new_task = copy_task(task)
        load_task(new_task)
        return new_task

    revision = dict(task.metadata.dataset).get("revision")
    data = f"{task.metadata.name} {revision} {task.hf_subsets} {task.eval_splits}"
    fingerprint = "" if scored_with is None else _hash_task(data, scored_with)
    return TaskSource(
        replace(_describe_task(task), fingerprint=fingerprint),
        make,
        lambda: read_task_texts(make()),
        {"instruction": find_instruction(task)},
        is_local=False,
    )


def _hash_task(data: str, scored_with: str) -> str:
    """Return a hash of the data, of every option that changes a score on it, and of mteb's version."""
    parts: Sequence[str] = (data, scored_with, version("mteb"))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()
