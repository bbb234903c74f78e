"""Tasks of mteb by name, with hints for unknown names, and their texts."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

from emberge import DataEntry, DataError, DataRef, suggest
from emberge.contracts import TextRole
from emberge.data import load_catalogue, pick_training_sets
from emberge.wording import format_path

# Names of splits for choosing settings.
_DEVELOPMENT_SPLITS = frozenset({"dev", "development", "val", "valid", "validation"})

# One column of MIEB's table (Xiao et al., 2025, arXiv:2504.10471) for kinds that differ in languages alone.
_JOINT_KINDS = {
    "Any2AnyRetrieval": "any2any_retrieval",
    "Any2AnyMultilingualRetrieval": "any2any_retrieval",
    "VisualSTS(eng)": "visual_sts",
    "VisualSTS(multi)": "visual_sts",
}
# Attributes in which kinds of tasks name their columns of texts.
_COLUMN_ATTRIBUTES = (
    *("column_names", "input_column_name", "input1_column_name", "input2_column_name"),
    *("text_column_name", "human_summaries_column_name", "machine_summaries_column_name"),
)


def build_hub_tasks(
    names: Sequence[str], benchmark: str | None, languages: Sequence[str], only: Sequence[str] = ()
) -> list[Any]:
    """Return new task objects without data: the benchmark's tasks (or those in `only`), then the named tasks.

    Raises:
        DataError: if mteb does not know a name (the message has a suggestion), or a task has videos.
    """
    import mteb

    from emberge_mteb.scoring import silence_mteb

    with silence_mteb():
        tasks = _copy_benchmark_tasks(benchmark, only) if benchmark else []
        require_known_tasks(names)
        for name in names:
            try:
                tasks.append(mteb.get_task(name, languages=list(languages) or None))
            except ValueError as error:
                raise DataError(f"mteb task '{name}': {error}") from error
    for task in tasks:
        if "video" in task.modalities:
            raise DataError(
                f"mteb task '{task.metadata.name}' is about {', '.join(task.modalities)}; tasks of text, "
                "images and sound can be scored, so leave it out"
            )
    return tasks


def _find_benchmark(name: str) -> Any:
    import mteb

    try:
        return mteb.get_benchmark(name)
    except KeyError as error:
        hint = suggest(name, (benchmark.name for benchmark in mteb.get_benchmarks()))
        raise DataError(f"mteb has no benchmark '{name}'{hint}") from error


def _copy_benchmark_tasks(benchmark: str, only: Sequence[str]) -> list[Any]:
    tasks = {task.metadata.name: task for task in _find_benchmark(benchmark).tasks}
    for name in only:
        if name not in tasks:
            raise DataError(
                f"benchmark '{benchmark}' of mteb {version('mteb')} has no task '{name}'"
                + suggest(name, tasks)
            )
    return [copy_task(tasks[name]) for name in only or tasks]


def copy_task(task: Any) -> Any:
    """Return a copy of a task that has not run, with its own random state and, for an aggregate, parts."""
    new_task = copy.deepcopy(task)
    if parts := getattr(new_task, "tasks", None):  # mteb runs the parts that the metadata lists
        new_task.metadata = new_task.metadata.model_copy(update={"tasks": parts})
    return new_task


def require_known_tasks(names: Iterable[str]) -> None:
    """Refuse names of tasks that mteb does not have, each with a hint at a similar one.

    Raises:
        DataError: if there are such names.
    """
    import mteb

    problems = []
    for name in names:
        try:
            mteb.get_task(name)
        except KeyError:
            tasks = mteb.get_tasks(
                modalities=["text"], exclusive_modality_filter=True, exclude_superseded=False
            )
            hint = suggest(name, (task.metadata.name for task in tasks))
            problems.append(f"mteb has no task '{name}'{hint}")
    if problems:
        raise DataError("\n".join(problems))


def name_kind(task: Any) -> str:
    """Return the kind of task in emberge's words: PairClassification is pair_classification, STS is sts.

    Kinds that the benchmarks' papers report as one kind are one here: both kinds of retrieval, and both kinds
    of visual STS.
    """
    if joint_kind := _JOINT_KINDS.get(str(task.metadata.type)):
        return joint_kind
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", str(task.metadata.type)).lower()


def find_split(task: Any) -> Literal["test", "dev"]:
    """Return the part of the data, test or dev, on which mteb scores the task, by its splits' names."""
    return "dev" if set(task.eval_splits) <= _DEVELOPMENT_SPLITS else "test"


def find_instruction(task: Any) -> str:
    """Return the instruction of a task, in words."""
    prompt = task.metadata.prompt
    if isinstance(prompt, dict):
        prompt = prompt.get("query")
    return str(prompt or getattr(task, "abstask_prompt", ""))


def _list_repositories(task: Any) -> list[str]:
    """Return hub ids of a task's data; for an aggregate task, the ids of its parts."""
    parts = getattr(task, "tasks", None)
    if parts:
        return [path for part in parts for path in _list_repositories(part)]
    return [task.metadata.dataset["path"]]


def load_task(task: Any) -> None:
    """Load a task's data.

    Raises:
        DataError: if the data is not in the cache and cannot be downloaded.
    """
    from emberge_mteb.scoring import silence_mteb

    name = task.metadata.name
    try:
        with silence_mteb():
            for part in getattr(task, "tasks", None) or [task]:
                part.load_data()
                if hasattr(part, "convert_v1_dataset_format_to_v2"):
                    part.convert_v1_dataset_format_to_v2(None)
    except (OSError, ValueError, RuntimeError, ImportError) as error:
        first_line = str(error).strip().partition("\n")[0]
        paths = ", ".join(f"'{path}'" for path in dict.fromkeys(_list_repositories(task)))
        raise DataError(
            f"mteb task '{name}': its data {paths} could not be loaded from the hub or its cache "
            f"({type(error).__name__}: {first_line}); run once with a network, or leave the task out"
        ) from error


def list_training_sets(
    entries: Sequence[DataEntry], resolve: Callable[[DataRef], Path | None]
) -> list[DataEntry]:
    """Return the training sets that the entries mean, each with its name if it is known; read no rows.

    An entry that is a catalogue means its training sets, or those in `only`, and itself.

    Raises:
        DataError: if a catalogue cannot be read.
    """
    sets = []
    for entry in entries:
        path = resolve(entry.path) if entry.path is not None else None
        if path is not None and (path.is_dir() or path.suffix in (".yaml", ".yml")):
            sets += [entry, *pick_training_sets(load_catalogue(path), entry.only)]
            continue
        file_name = path and Path(path.name.removesuffix(".gz")).stem
        hub_name = entry.hub and entry.hub.rpartition("/")[2]
        sets.append(replace(entry, name=entry.name or file_name or hub_name))
    return sets


def list_in_domain_tasks(
    entries: Sequence[DataEntry], resolve: Callable[[DataRef], Path | None]
) -> tuple[str, ...]:
    """Return the evaluation tasks in the `ind_tasks` of the entries' sets, in order, without duplicates.

    Raises:
        DataError: if a catalogue cannot be read, or no entry declares its tasks.
    """
    sets = list_training_sets(entries, resolve)
    declared_tasks = [one.ind_tasks for one in sets if one.ind_tasks is not None]
    has_unseen_catalogue = any(e.path is not None and resolve(e.path) is None for e in entries)
    if entries and not declared_tasks and not has_unseen_catalogue:
        places = ", ".join(
            format_path(Path(e.path.text)) if e.path else str(e.hub) for e in entries
        )
        raise DataError(
            f"{places}: no training set says which tasks it makes in domain; give them as ind_tasks"
        )
    return tuple(dict.fromkeys(task for tasks in declared_tasks for task in tasks))


def read_task_texts(task: Any) -> Iterator[tuple[TextRole, str]]:
    """Yield the texts of a loaded task's evaluation splits; for an aggregate, its parts' texts."""
    for part in getattr(task, "tasks", None) or [task]:
        for split_rows in _yield_splits(part):
            if isinstance(split_rows, Mapping):
                yield from _read_search_texts(split_rows)
            else:
                yield from _read_rows(part, split_rows)


def _yield_splits(task: Any) -> Iterator[Any]:
    """Yield the data of each evaluation split, of every subset."""
    for subset in task.hf_subsets:
        splits = task.dataset.get(subset, task.dataset)
        yield from (splits[split] for split in task.eval_splits if split in splits)
        if splits is task.dataset:
            return  # one for all subsets


def _read_search_texts(split_rows: Mapping[str, Any]) -> Iterator[tuple[TextRole, str]]:
    for row in _drop_media(split_rows["queries"]):
        for text in _flatten_texts(row.get("text")):
            yield "query", text
    for row in _drop_media(split_rows["corpus"]):
        text = f"{row.get('title') or ''} {row.get('text') or ''}".strip()
        if text:
            yield "document", text


def _drop_media(rows: Any) -> Any:
    """Return rows without images and clips, which would otherwise be decoded."""
    return rows.remove_columns([name for name in ("image", "audio") if name in rows.column_names])


def _read_rows(task: Any, split_rows: Any) -> Iterator[tuple[TextRole, str]]:
    text_columns = [getattr(task, name) for name in _COLUMN_ATTRIBUTES if hasattr(task, name)]
    columns = [
        column
        for names in text_columns
        for column in ([names] if isinstance(names, str) else names)
    ]
    present_columns = [column for column in columns if column in split_rows.column_names]
    for column in present_columns or split_rows.column_names:
        yield from (
            ("query", text) for value in split_rows[column] for text in _flatten_texts(value)
        )


def _flatten_texts(value: Any) -> Iterator[str]:
    """Yield the texts in a text, a list of them, or the turns of a conversation."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from _flatten_texts(value.get("content"))
    elif isinstance(value, Iterable):
        for item in value:
            yield from _flatten_texts(item)
