"""Tasks of the hub by name: GLUE, XTREME, XTREME-R, and those of BidirLM's paper; see `hub_tasks.yaml`."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from emberge import suggest

from emberge_fine_tuned.options import TaskEntry, TaskRowSource

COLLECTIONS = {
    "glue": ("cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte"),
    "xtreme": ("xnli", "paws_x", "udpos", "pan_x"),
    "xtreme_r": ("xnli", "udpos", "pan_x", "xquad", "mlqa", "tydiqa"),
    "bidirlm": ("xnli", "paws_x", "math_shepherd", "code_complexity", "seahorse", "pan_x", "udpos"),
}


def list_hub_tasks(names: Sequence[str]) -> list[TaskEntry]:
    """Return the tasks for names of tasks and collections, each after the task that it starts from.

    Raises:
        ValueError: for a name that is neither a task nor a collection.
    """
    tasks = read_hub_tasks()
    task_names: dict[str, None] = {}
    for name in names:
        if name not in tasks and name not in COLLECTIONS:
            known_names = [*tasks, *COLLECTIONS]
            hint = suggest(name, known_names) or f"; there are {', '.join(known_names)}"
            raise ValueError(f"there is no task of the hub called '{name}'{hint}")
        for task_name in COLLECTIONS.get(name, (name,)):
            start = tasks[task_name].start
            task_names |= {task_name: None} if start is None else {start: None, task_name: None}
    return [tasks[name] for name in task_names]


@functools.cache
def read_hub_tasks() -> Mapping[str, TaskEntry]:
    """Return all tasks of the hub by name."""
    import yaml

    stated = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text("utf-8"))
    return {name: _build_task(name, s) for name, s in stated.items() if name[0] != "_"}


def _build_task(name: str, stated: Mapping[str, Any]) -> TaskEntry:
    options = dict(stated)
    rows: dict[str, Any] = {"hub": options.pop("hub"), "subset": options.pop("subset", None)}
    dev = options.pop("dev", {"split": "validation"})
    tests: dict[str, Any] = {**rows, "split": "test", **options.pop("tests", {})}
    for option in {"label", "labels"} & options.keys():
        options[option] = tuple(options[option].split())
    return TaskEntry(
        name=name,
        train=TaskRowSource(**rows),
        dev=() if dev is None else (TaskRowSource(**rows, **dev),),
        test=tuple(_list_tests(**tests)),
        **options,
    )


def _list_tests(
    *, languages: str = "", splits: str = "", subset: str | None, **rows: Any
) -> Iterator[TaskRowSource]:
    """Yield a test set for each language or split, or the one that has neither."""
    for language in languages.split():
        yield TaskRowSource(**rows, subset=str(subset).format(language), name=language)
    for split in splits.split():
        yield TaskRowSource(**{**rows, "split": split}, subset=subset, name=split)
    if not (languages or splits):
        yield TaskRowSource(**rows, subset=subset)
