"""The `decontaminate` step: training rows that contain texts of tests are dropped."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

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
from emberge_data.steps.outcome import Outcome, drop_texts
from emberge_data.steps.text_similarity import RUN_WORDS

if TYPE_CHECKING:
    from emberge.contracts import TextRole
    from emberge.data import StoredDataset

    from emberge_data.steps.leak_index import LeakTexts, Match
    from emberge_data.steps.row_texts import RowTexts


# Similarity of near copies; in kinds of task whose texts are often short and of one template it is higher.
_NEAR_COPY, _NEAR_COPY_OF_SHORT = 0.55, 0.8
_SHORT_TEXT_TASKS = ("sts", "pair_classification", "classification", "clustering")
_TEXTS_AT_ONCE = 256
_PHRASE_BY_MATCH = {"equal": "equal to", "overlap": f"{RUN_WORDS} words of", "near": "nearly"}


@dataclass(frozen=True, kw_only=True)
class Decontaminate(DataStep):
    """Training sets without the rows that contain a text of a test.

    A training text contains a test text if both are equal without case, punctuation and white space, if a run
    of 13 words is in both (Brown et al., 2020, arXiv:2005.14165), or if the Jaccard similarity of their runs
    of four characters is `jaccard` or more, found by MinHash and then computed exactly ("nearly"). A row is
    dropped if its anchor or a positive contains a test text; a negative that contains one is removed from its
    row.

    Tests are the tasks of `evaluators`, with their queries and documents. In tasks other than search, all
    texts count as queries. The training texts of a classification task are not tests.

    A run of words counts only if at most ten training texts and ten test texts have it; a more frequent run
    is a set phrase.

    With a `jaccard` of 0.55 most questions of ten words are still found after one word was changed. Short
    texts from one template are as similar to each other without being copies, so the default is 0.8 for sets
    of tasks other than search. If a set loses more rows to it than leaks can explain, look at the examples in
    `changes.json`, and clean that set with a higher `jaccard`.

    Example:
        clean:
          decontaminate:
            data: ./datasets.yaml
            evaluators: {mteb: {data: ./datasets.yaml, tasks: [NFCorpus, STS12]}}
    """

    evaluators: tuple[Evaluator, ...]
    """Evaluators whose tasks are tests: `{mteb: {…}}`."""
    jaccard: PositiveShare | None = None
    """Smallest similarity, 0 to 1, at which a training text contains a test text; 1 finds only copies. By
    default 0.55, and 0.8 in sets of tasks other than search."""
    drop: tuple[Literal["queries", "documents"], ...] = ("queries", "documents")
    """Test texts for which rows are changed."""

    def check(self, context: Preflight) -> Iterator[Problem]:
        yield from super().check(context)
        if not self.evaluators:
            yield context.problem("there is no test; name one", "evaluators")
        for evaluator in self.evaluators:
            yield from evaluator.check(context)

    def _find_threshold(self, dataset: StoredDataset) -> float:
        if self.jaccard is not None:
            return self.jaccard
        return _NEAR_COPY_OF_SHORT if dataset.info.task in _SHORT_TEXT_TASKS else _NEAR_COPY

    def run(self, workspace: Workspace) -> Artifact:
        from emberge_data.steps.leak_index import gather_blocks, read_test_texts
        from emberge_data.steps.row_texts import RowTexts

        datasets = self.load(workspace)
        sides: set[TextRole] = {"query" if word == "queries" else "document" for word in self.drop}
        tests = read_test_texts(self.evaluators, workspace)
        names = {dataset.info.name for dataset in datasets}
        parts = ((f"{n}'s test part" if n in names else n, side, text) for n, side, text in tests)
        blocks = gather_blocks(test for test in parts if test[1] in sides)
        first = next(blocks, None)  # tests that cannot be read stop the step before it has worked
        if first is None:
            raise DataError("the tests have no texts")
        training = RowTexts(datasets, workspace.work)
        contained = ContainedTests(training, min(map(self._find_threshold, datasets)))
        for block in itertools.chain([first], blocks):
            note = f"{len(block.texts):,} test texts"
            contained.search(block, functools.partial(workspace.progress, unit="texts", note=note))

        def outcomes(dataset: StoredDataset) -> Iterator[Outcome]:
            start, threshold = training.starts[dataset.info.name], self._find_threshold(dataset)
            for row in range(len(dataset)):
                yield contained.judge(start + row, row, dataset[row], threshold)

        sets = ((dataset, functools.partial(outcomes, dataset)) for dataset in datasets)
        return self.finish(workspace, sets)


class _Contained(NamedTuple):
    """The test text that a training text contains, how similar they are, and the note for the row."""

    similarity: float
    note: str
    test: str


class ContainedTests:
    """The most similar test text that each training text contains, at `least` as similar as that."""

    def __init__(self, training: RowTexts, least: float) -> None:
        self._training, self._least = training, least
        self._best: dict[int, _Contained] = {}

    def search(self, tests: LeakTexts, show_progress: functools.partial[None]) -> None:
        """Search all training texts for a block's test texts."""
        from emberge_data.steps.leak_index import LeakIndex

        index, texts = LeakIndex(tests.texts, self._least), self._training.distinct
        for start in range(0, len(texts), _TEXTS_AT_ONCE):
            for match in index.find_matches(texts[start : start + _TEXTS_AT_ONCE], start):
                self._record(match, tests)
            show_progress(min(start + _TEXTS_AT_ONCE, len(texts)), len(texts))
        for match in index.find_overlaps():
            self._record(match, tests)

    def _record(self, match: Match, tests: LeakTexts) -> None:
        best = self._best.get(match.text)
        if best is None or match.similarity > best.similarity:
            note = f"{_PHRASE_BY_MATCH[match.way]} {tests.labels[match.test]}"
            self._best[match.text] = _Contained(match.similarity, note, tests.originals[match.test])

    def judge(self, number: int, row: int, example: Example, threshold: float) -> Outcome:
        """Return the outcome of a row, given its number over all sets and its set's threshold."""

        def find(text: int) -> _Contained | None:
            best = self._best.get(text)
            return best if best is not None and best.similarity >= threshold else None

        own, negatives = self._training.list_texts(number)
        reason = next(filter(None, map(find, own)), None)
        if reason is not None:
            return Outcome(row, example, None, reason.note, reason.test)
        dropped = {place: one for place, text in enumerate(negatives) if (one := find(text))}
        if not dropped:
            return Outcome(row, example, example)
        first = next(iter(dropped.values()))
        after = drop_texts(example, "negative", dropped)
        return Outcome(row, example, after, f"a negative is {first.note}", first.test)
