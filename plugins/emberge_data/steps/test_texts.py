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
        read: list[EvalSet] = []
        errors: list[DataError] = []
        readers = workspace.readers
        for half in _HALVES:
            try:
                sets = pick_eval_sets(self, readers=readers, resolve=workspace.data, split=half)
            except DataError as error:
                errors.append(error)
                continue
            for one in sets:
                # Rows have no halves, and a set that was read may lack the second one.
                if one in read and (one.rows or lacking_half(one, half, readers) is not None):
                    continue
                read.append(one)
                data = load_eval_set(one, readers=readers, split=half)
                yield from ((one.name, side, text) for side, text in eval_texts(data))
        if not read:
            raise errors[0]


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
    """Distinct normalised texts of tests, as they were, and a label of each: `a query of NFCorpus`."""

    __test__ = False  # for pytest: the name is a noun

    texts: list[str] = field(default_factory=list)
    originals: list[str] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)


def gather_blocks(
    texts: Iterable[tuple[str, Side, str]], most: int = AT_ONCE
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
