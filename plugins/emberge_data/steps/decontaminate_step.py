"""The `decontaminate` step: training rows that contain texts of tests are dropped."""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from emberge import (
    Artifact,
    DataError,
    Evaluator,
    Example,
    PositiveShare,
    Preflight,
    Problem,
    Workspace,
)

from emberge_data.steps.data_step import DataStep
from emberge_data.steps.outcome import Outcome, drop_lonely, drop_negatives
from emberge_data.steps.test_texts import EvalSets
from emberge_data.steps.text_similarity import WORDS

if TYPE_CHECKING:
    import numpy as np
    from emberge.contracts import Side
    from emberge.data import StoredDataset
    from numpy.typing import NDArray

    from emberge_data.steps.row_texts import RowTexts
    from emberge_data.steps.test_index import Match
    from emberge_data.steps.test_texts import TestTexts


# The share of a set's rows from which on near matches are a sign of templates rather than of leaks.
_MANY = 0.05
# Similarity of near copies; in kinds of task whose texts are often short and of one template it is higher.
_NEAR, _NEAR_OF_SHORT = 0.55, 0.8
_SHORT = ("sts", "pair_classification", "classification", "clustering")
_TEXTS_AT_ONCE = 256
_WAYS = {"equal": "equal to", "overlap": f"{WORDS} words of", "near": "nearly"}


@dataclass(frozen=True, kw_only=True)
class Decontaminate(DataStep):
    """Training sets without the rows that contain a text of a test.

    A training text contains a test text if both are equal without case, punctuation and white space, if a run
    of 13 words is in both (Brown et al., 2020, arXiv:2005.14165), or if the Jaccard similarity of their runs
    of four characters is `jaccard` or more, found by MinHash and then computed exactly. A row is
    dropped if its anchor or a positive contains a test text; a negative that contains one is removed from its
    row.

    Tests are the tasks of `evaluators` and both halves of `eval_sets`, with their queries and documents. In
    tasks other than search, all texts count as queries. The training texts of a classification task are not
    tests.

    A run of words counts only if at most ten training texts and ten test texts have it; a more frequent run
    is a set phrase.

    With a `jaccard` of 0.55 most questions of ten words are still found after one word was changed. Short
    texts from one template are as similar to each other without being copies, so the default is 0.8 for sets
    of tasks other than search. A warning names sets that lose more than a twentieth of their rows: look at
    the examples in `changes.json`, and clean these sets with a higher `jaccard`. For a text in several sets,
    the lowest of their thresholds is used.

    `changes.md` says of each task how many of its texts are in the data.

    Example:
        clean:
          decontaminate:
            data: ./datasets.yaml
            eval_sets: ./datasets.yaml
            evaluators: {mteb: {tasks: [NFCorpus, STS12]}}
    """

    evaluators: tuple[Evaluator, ...] = ()
    """Evaluators whose tasks are tests: `{mteb: {…}}`."""
    eval_sets: tuple[EvalSets, ...] = ()
    """Catalogues whose evaluation sets are tests."""
    jaccard: PositiveShare | None = None
    """Smallest similarity, 0 to 1, at which a training text contains a test text; 1 finds only copies. By
    default 0.55, and 0.8 in sets of tasks other than search."""
    drop: tuple[Literal["queries", "documents"], ...] = ("queries", "documents")
    """Test texts for which rows are changed."""

    def check(self, context: Preflight) -> Iterator[Problem]:
        problems, _ = self.checked_data(context)
        yield from problems
        if not (self.evaluators or self.eval_sets):
            yield context.problem("there is no test; name evaluators or eval_sets")
        if not self.drop:
            yield context.problem("drop names queries, documents or both", "drop")
        for evaluator in self.evaluators:
            if type(evaluator).texts is Evaluator.texts:
                name = type(evaluator).__name__
                yield context.problem(f"{name} does not give the texts of its tasks", "evaluators")
            yield from evaluator.check(context)
        for sets in self.eval_sets:
            yield from sets.check(context, "eval_sets")

    def _find_threshold(self, dataset: StoredDataset) -> float:
        if self.jaccard is not None:
            return self.jaccard
        return _NEAR_OF_SHORT if dataset.info.task in _SHORT else _NEAR

    def run(self, workspace: Workspace) -> Artifact:
        from emberge_data.steps.row_texts import RowTexts
        from emberge_data.steps.test_texts import gather_blocks, read_test_texts

        datasets = self.load(workspace)
        blocks = gather_blocks(read_test_texts(self.evaluators, self.eval_sets, workspace))
        first = next(blocks, None)  # tests that cannot be read stop the step before it has worked
        if first is None:
            raise DataError("the tests have no texts")
        training = RowTexts(datasets, workspace.work)
        sides: set[Side] = {"query" if word == "queries" else "document" for word in self.drop}
        thresholds = [self._find_threshold(dataset) for dataset in datasets]
        contained = ContainedTests(training, thresholds, sides)
        for block in itertools.chain([first], blocks):
            contained.search(block, functools.partial(_show_progress, workspace, block))

        def outcomes(dataset: StoredDataset) -> Iterator[Outcome]:
            start = training.starts[dataset.info.name]
            return (contained.judge(start + row, row, dataset[row]) for row in range(len(dataset)))

        artifact = self.finish(
            workspace,
            (
                (dataset, drop_lonely(dataset, functools.partial(outcomes, dataset)))
                for dataset in datasets
            ),
            notes=contained.describe(),
        )
        for dataset, threshold in zip(datasets, thresholds, strict=True):
            changes = artifact.details["changes"][dataset.info.name]
            _warn_of_templates(dataset, threshold, changes["notes"], workspace)
        return artifact


def _show_progress(workspace: Workspace, block: TestTexts, done: int, total: int) -> None:
    workspace.progress(done, total, "texts", f"{len(block.texts):,} test texts")


def _warn_of_templates(
    dataset: StoredDataset, threshold: float, notes: Mapping[str, int], workspace: Workspace
) -> None:
    """Warn of a set of which many rows go because they are like test texts, and not equal to one."""
    ways = (_WAYS["near"], _WAYS["overlap"])
    alike = sum(count for note, count in notes.items() if note.startswith(ways))
    if alike > _MANY * len(dataset):
        workspace.warn(
            f"{dataset.info.name}: {alike:,} of {len(dataset):,} rows ({alike / len(dataset):.0%}) go "
            f"because they are like test texts (jaccard {threshold:g}); if its texts are made from "
            "templates, clean this set with a higher jaccard"
        )


class ContainedTests:
    """The test texts that training texts contain, and how many of each task's texts these are.

    Only tests of `sides` count against a training text. `thresholds` are the sets' smallest similarities.
    """

    def __init__(self, training: RowTexts, thresholds: Sequence[float], sides: set[Side]) -> None:
        self._training, self._sides, self._least = training, sides, min(thresholds)
        self._lowest = _find_lowest(training, thresholds)
        self._notes: dict[int, tuple[str, str]] = {}
        self._tests: Counter[tuple[str, Side]] = Counter()
        self._found: Counter[tuple[str, Side]] = Counter()

    def search(self, tests: TestTexts, show_progress: functools.partial[None]) -> None:
        """Search all training texts for a block's test texts."""
        from emberge_data.steps.test_index import TestIndex

        index, in_data = TestIndex(tests.texts, self._least), set[int]()
        texts = self._training.distinct
        for start in range(0, len(texts), _TEXTS_AT_ONCE):
            for match in index.find_matches(texts[start : start + _TEXTS_AT_ONCE], start):
                if match.way == "equal" or match.similarity >= self._lowest[match.text]:
                    self._record(match, tests, in_data)
            show_progress(min(start + _TEXTS_AT_ONCE, len(texts)), len(texts))
        for match in index.overlaps():
            self._record(match, tests, in_data)
        for number, uses in enumerate(tests.uses):
            self._tests.update(uses)
            self._found.update(uses if number in in_data else ())

    def _record(self, match: Match, tests: TestTexts, in_data: set[int]) -> None:
        """Note a match; the first of a training text is its reason, and an equal test comes first."""
        in_data.add(match.test)
        for task, side in tests.uses[match.test]:
            if side in self._sides:
                note = f"{_WAYS[match.way]} a {side} of {task}"
                self._notes.setdefault(match.text, (note, tests.originals[match.test]))

    def judge(self, number: int, row: int, example: Example) -> Outcome:
        """Return the outcome of a row, given its number over all sets."""
        own, negatives = self._training.of_row(number)
        reason = next((self._notes[text] for text in own if text in self._notes), None)
        if reason is not None:
            return Outcome(row, example, None, *reason)
        dropped = [place for place, text in enumerate(negatives) if text in self._notes]
        if not dropped:
            return Outcome(row, example, example)
        note, test = self._notes[negatives[dropped[0]]]
        return Outcome(
            row, example, drop_negatives(example, dropped), f"a negative is {note}", test
        )

    def describe(self) -> list[str]:
        """Return a sentence for each task: how many of its texts are in the data."""
        nouns: Mapping[Side, str] = {"query": "queries", "document": "documents"}
        return [
            f"{task}: "
            + ", ".join(
                f"{self._found[task, side]:,} of {self._tests[task, side]:,} {noun}"
                for side, noun in nouns.items()
                if self._tests[task, side]
            )
            + " are in the data."
            for task in dict.fromkeys(task for task, _ in self._tests)
        ]


def _find_lowest(training: RowTexts, thresholds: Sequence[float]) -> NDArray[np.float64]:
    """Return the lowest threshold [texts] of the sets that contain each distinct text."""
    import numpy as np

    lowest = np.ones(len(training.distinct))
    for threshold, texts in zip(thresholds, training.of_sets(), strict=True):
        lowest[texts] = np.minimum(lowest[texts], threshold)
    return lowest
