"""Texts of tests, by task, in blocks of distinct normalised texts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from emberge import DataError, Evaluator, Workspace
from emberge.contracts import Side

from emberge_data.steps.text_similarity import normalise

TEXTS_AT_ONCE = 100_000
"""Distinct test texts in memory at a time: about 4 kB each, with a thousand characters."""


def read_test_texts(
    evaluators: Sequence[Evaluator], workspace: Workspace
) -> Iterator[tuple[str, Side, str]]:
    """Yield (task, side, text) of all tasks of the evaluators.

    Raises:
        DataError: if the data cannot be read.
    """
    for evaluator in evaluators:
        tasks = {task.name: task for task in evaluator.plan(workspace)}
        for number, (name, task) in enumerate(tasks.items()):
            workspace.progress(number, len(tasks), "tasks", f"texts of {name}")
            texts = evaluator.texts(task, workspace)
            if texts is None:
                raise DataError(f"{type(evaluator).__name__} keeps the texts of {name} to itself")
            yield from ((name, side, text) for side, text in texts)


@dataclass
class TestTexts:
    """Distinct normalised texts of tests, as they were, and a label of each: `a query of NFCorpus`."""

    __test__ = False  # for pytest: the name is a noun

    texts: list[str] = field(default_factory=list)
    originals: list[str] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)


def gather_blocks(
    texts: Iterable[tuple[str, Side, str]], most: int = TEXTS_AT_ONCE
) -> Iterator[TestTexts]:
    """Yield all texts in blocks of at most `most` distinct texts, so that memory is bounded."""
    block, seen = TestTexts(), set[str]()
    for task, side, text in texts:
        normalised = normalise(text)
        if not normalised or normalised in seen:
            continue
        if len(seen) == most:
            yield block
            block, seen = TestTexts(), set()
        seen.add(normalised)
        block.texts.append(normalised)
        block.originals.append(text)
        block.labels.append(f"a {side} of {task}")
    if block.texts:
        yield block
