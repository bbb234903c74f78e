"""Texts of tests, by task: those of evaluators and of the evaluation sets of catalogues."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from emberge import DataError, DataRef, EvalSet, Evaluator, Preflight, Problem, Workspace
from emberge.contracts import Side
from emberge.data import check_eval_sets, eval_texts, lacking_half, load_eval_set, pick_eval_sets

from emberge_data.steps.text_similarity import normalise

if TYPE_CHECKING:
    from typing import Literal

    Split = Literal["test", "dev"]


# Distinct test texts in memory at a time: about 4 kB each, with a thousand characters.
AT_ONCE = 100_000
_HALVES: tuple[Split, ...] = ("test", "dev")


@dataclass(frozen=True, kw_only=True)
class EvalSets:
    """Evaluation sets of a catalogue, all or those in `only`: both halves, test and development."""

    path: DataRef
    only: tuple[str, ...] = ()

    def check(self, context: Preflight, option: str) -> Iterator[Problem]:
        """Yield problems of the catalogue and its folders."""
        _, faults = check_eval_sets(context, self.path, self.only)
        yield from (context.problem(fault, option) for fault in faults)

    def texts(self, workspace: Workspace) -> Iterator[tuple[str, Side, str]]:
        """Yield (set, side, text) of every set.

        Raises:
            DataError: if the data cannot be read; the message has file and line.
        """
        limit = workspace.rehearsal.rows if workspace.rehearsal else None
        for eval_set in pick_eval_sets(workspace.data(self.path), self.only):
            for half in self._yield_halves(eval_set):
                data = load_eval_set(eval_set, readers=workspace.readers, split=half, limit=limit)
                yield from ((eval_set.name, side, text) for side, text in eval_texts(data))

    def _yield_halves(self, eval_set: EvalSet) -> list[Split]:
        return [half for half in _HALVES if half == "test" or lacking_half(eval_set, half) is None]


def read_test_texts(
    evaluators: Sequence[Evaluator], eval_sets: Sequence[EvalSets], workspace: Workspace
) -> Iterator[tuple[str, Side, str]]:
    """Yield (task, side, text) of all tests.

    Raises:
        DataError: if the data cannot be read.
    """
    for evaluator in evaluators:
        tasks = {task.name_without_size: task for task in evaluator.plan(workspace)}
        for number, (name, task) in enumerate(tasks.items()):
            workspace.progress(number, len(tasks), "tasks", f"texts of {name}")
            texts = evaluator.texts(task, workspace)
            if texts is None:
                raise DataError(f"{type(evaluator).__name__} keeps the texts of {name} to itself")
            yield from ((name, side, text) for side, text in texts)
    for sets in eval_sets:
        yield from sets.texts(workspace)


@dataclass
class TestTexts:
    """Distinct normalised texts of tests; `uses` has the (task, side) pairs of each text."""

    __test__ = False  # for pytest: the name is a noun

    texts: list[str] = field(default_factory=list)
    originals: list[str] = field(default_factory=list)
    uses: list[tuple[tuple[str, Side], ...]] = field(default_factory=list)


def gather_blocks(
    texts: Iterable[tuple[str, Side, str]], most: int = AT_ONCE
) -> Iterator[TestTexts]:
    """Yield all texts in blocks of at most `most` distinct texts, so that memory is bounded."""
    block, places = TestTexts(), dict[str, int]()
    for task, side, text in texts:
        normalised = normalise(text)
        if not normalised:
            continue
        if len(places) == most and normalised not in places:
            yield block
            block, places = TestTexts(), {}
        number = places.setdefault(normalised, len(places))
        if number == len(block.texts):
            block.texts.append(normalised)
            block.originals.append(text)
            block.uses.append(())
        if (task, side) not in block.uses[number]:
            block.uses[number] += ((task, side),)
    if places:
        yield block
