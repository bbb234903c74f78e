"""Texts of tests, by task: those of evaluators and of the evaluation sets of catalogues."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from emberge import DataError, EvalSet, EvalSource, Evaluator, Preflight, Problem, Workspace
from emberge.contracts import Side, Split
from emberge.data import check_eval_sets, eval_texts, lacking_half, load_eval_set, pick_eval_sets

from emberge_data.steps.text_similarity import normalise

# Distinct test texts in memory at a time: about 4 kB each, with a thousand characters.
AT_ONCE = 100_000
_HALVES: tuple[Split, ...] = ("test", "dev")


@dataclass(frozen=True, kw_only=True)
class EvalSets(EvalSource):
    """Evaluation sets whose texts training must not see: both halves, test and development.

    They are those of a catalogue, a folder in BEIR's layout, or a file of rows, as for an evaluator.
    """

    def check(self, context: Preflight, option: str) -> Iterator[Problem]:
        """Yield problems of the catalogue and its folders, or of the first rows."""
        sets, faults = check_eval_sets(context, self)
        if faults and (not sets or self.path.step is not None):
            # A split without a test part has a development part.
            development_sets, development_faults = check_eval_sets(context, self, "dev")
            if development_sets or not development_faults:
                faults = development_faults
        yield from (context.problem(fault, option) for fault in faults)

    def texts(self, workspace: Workspace) -> Iterator[tuple[str, Side, str]]:
        """Yield (set, side, text) of every set.

        Raises:
            DataError: if the data cannot be read; the message has file and line.
        """
        for eval_set, half in self._list_halves(workspace):
            data = load_eval_set(eval_set, readers=workspace.readers, split=half)
            yield from ((eval_set.name, side, text) for side, text in eval_texts(data))

    def _list_halves(self, workspace: Workspace) -> list[tuple[EvalSet, Split]]:
        """Return each set with each half that it has; rows without halves are listed once.

        Raises:
            DataError: if there is no set of either half.
        """
        halves: list[tuple[EvalSet, Split]] = []
        errors: list[DataError] = []
        for half in _HALVES:
            try:
                sets = pick_eval_sets(
                    self, readers=workspace.readers, resolve=workspace.data, split=half
                )
            except DataError as error:
                errors.append(error)
                continue
            listed_rows = [each.rows for each, _ in halves if each.rows is not None]
            halves += [
                (each, half)
                for each in sets
                if half == "test"
                or (
                    each.rows not in listed_rows
                    and lacking_half(each, half, workspace.readers) is None
                )
            ]
        if not halves:
            raise errors[0]
        return halves


def read_test_texts(
    evaluators: Sequence[Evaluator], eval_sets: Sequence[EvalSets], workspace: Workspace
) -> Iterator[tuple[str, Side, str]]:
    """Yield (task, side, text) of all tests.

    Raises:
        DataError: if the data cannot be read.
    """
    for evaluator in evaluators:
        tasks = {task.plain_name: task for task in evaluator.plan(workspace)}
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
