"""The `decontaminate` step: training rows that contain texts of tests are dropped."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from emberge import (
    Artifact,
    DataError,
    Evaluator,
    PerDataset,
    PositiveShare,
    Preflight,
    Problem,
    RecipeError,
    Workspace,
    suggest,
)

from emberge_data.steps.data_step import TABLE, DataStep
from emberge_data.steps.decontaminate.test_texts import EvalSets
from emberge_data.steps.outcome import Outcome, drop_lonely, drop_negatives
from emberge_data.steps.text_similarity import SHINGLE, WORDS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from emberge import Example
    from emberge.contracts import Side
    from emberge.data import StoredDataset

    from emberge_data.steps.decontaminate.findings import Findings, RowFate
    from emberge_data.steps.decontaminate.test_texts import TestTexts
    from emberge_data.steps.row_texts import RowTexts


# The share of a set's rows from which on near matches are a sign of templates rather than of leaks.
_MANY = 0.05
# Kinds of task whose texts are often short and of one template.
_SHORT = dict.fromkeys(("sts", "pair_classification", "classification", "clustering"), 0.8)


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
    the examples in `changes.json`, and raise `jaccard` for these sets (`{default: 0.55, by_dataset: {faq:
    0.85}}`). For a text in several sets, the lowest of their thresholds is used.

    A table has for each task the number of test texts in the data, and of rows with such texts before and
    after the step. The cards of models that are trained on the result show this table.

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
    jaccard: PerDataset[PositiveShare] = field(
        default_factory=lambda: PerDataset(default=0.55, by_task=_SHORT)
    )
    """Smallest similarity, 0 to 1, at which a training text contains a test text; 1 finds only copies."""
    drop: tuple[Literal["queries", "documents"], ...] = ("queries", "documents")
    """Test texts for which rows are changed; for other test texts rows are only counted."""

    def check(self, context: Preflight) -> Iterator[Problem]:
        problems, checked = self.checked_data(context)
        yield from problems
        if not (self.evaluators or self.eval_sets):
            yield context.problem("there is no test; name evaluators or eval_sets")
        if not self.drop:
            yield context.problem("drop names queries, documents or both", "drop")
        if not problems:
            names = [head.info.name for head in checked.heads]
            yield from (context.problem(fault, "jaccard") for fault in self._check_names(names))
        yield from self._check_tests(context)

    def _check_names(self, names: Sequence[str]) -> Iterator[str]:
        for name in self.jaccard.by_dataset if names else ():
            if name not in names:
                hint = suggest(name, names) or f"; there are {', '.join(names)}"
                yield f"there is no set '{name}'{hint}"

    def _check_tests(self, context: Preflight) -> Iterator[Problem]:
        for evaluator in self.evaluators:
            if type(evaluator).texts is Evaluator.texts:
                name = type(evaluator).__name__
                yield context.problem(f"{name} does not give the texts of its tasks", "evaluators")
            yield from evaluator.check(context)
        for sets in self.eval_sets:
            yield from sets.check(context, "eval_sets")

    def _find_threshold(self, dataset: StoredDataset) -> float:
        threshold = self.jaccard.of(dataset.info.name, dataset.info.task)
        return 1.0 if threshold is None else threshold

    def run(self, workspace: Workspace) -> Artifact:
        from emberge.files import write_text

        from emberge_data.steps.decontaminate.findings import tests_table
        from emberge_data.steps.decontaminate.test_texts import gather_blocks, read_test_texts
        from emberge_data.steps.row_texts import RowTexts

        datasets = self.load(workspace)
        for fault in self._check_names([dataset.info.name for dataset in datasets]):
            raise RecipeError(fault)
        blocks = gather_blocks(read_test_texts(self.evaluators, self.eval_sets, workspace))
        first = next(blocks, None)  # tests that cannot be read stop the step before it has worked
        if first is None:
            raise DataError("the tests have no texts")
        training = RowTexts(datasets, workspace.work)
        thresholds = [self._find_threshold(dataset) for dataset in datasets]
        findings = self._find(itertools.chain([first], blocks), training, thresholds, workspace)
        verdicts = self._judge_rows(findings, training)

        def outcomes(dataset: StoredDataset) -> Iterator[Outcome]:
            start = training.starts[dataset.info.name]
            for row in range(len(dataset)):
                yield self._make_outcome(row, dataset[row], verdicts.get(start + row))

        for dataset in datasets:
            self._warn_of_templates(dataset, training, verdicts, workspace)
        parts = [(dataset, functools.partial(outcomes, dataset)) for dataset in datasets]
        details = {
            "contamination": {
                "tests": findings.plain(),
                "words": WORDS,
                "jaccard": {stored.info.name: self._find_threshold(stored) for stored in datasets},
                "shingle": SHINGLE,
            }
        }
        artifact = self.finish(
            workspace,
            ((dataset, drop_lonely(dataset, row_outcomes)) for dataset, row_outcomes in parts),
            details,
        )
        table = workspace.folder / TABLE
        write_text(table, table.read_text(encoding="utf-8") + tests_table(findings.plain()))
        return artifact

    def _find(
        self,
        blocks: Iterable[TestTexts],
        training: RowTexts,
        thresholds: Sequence[float],
        workspace: Workspace,
    ) -> Findings:
        from emberge_data.steps.decontaminate.findings import Findings, lowest_of_text

        findings = Findings(lowest_of_text(training, thresholds))
        for block in blocks:
            note = f"{len(block.texts):,} test texts"
            for searched_count in findings.search(block, training, min(thresholds)):
                workspace.progress(searched_count, len(training.distinct), "texts", note)
        return findings

    def _judge_rows(self, findings: Findings, training: RowTexts) -> dict[int, RowFate]:
        """Return the verdicts on all rows that contain a test text, and count them by task."""
        import numpy as np

        drop: set[Side] = {"query" if word == "queries" else "document" for word in self.drop}
        texts_with_findings = np.array(sorted(findings.by_text), dtype=np.int64)
        verdicts = {
            row: findings.verdict(training, row, drop)
            for row in training.rows_with(texts_with_findings).tolist()
        }
        for verdict in verdicts.values():
            findings.count(verdict)
        return verdicts

    def _make_outcome(self, row: int, example: Example, verdict: RowFate | None) -> Outcome:
        if verdict is None or verdict.finding is None:
            return Outcome(row, example, example)
        note = verdict.finding.note()
        if verdict.dropped:
            return Outcome(row, example, None, note, verdict.finding.test)
        after = drop_negatives(example, verdict.negatives)
        return Outcome(row, example, after, f"a negative is {note}", verdict.finding.test)

    def _warn_of_templates(
        self,
        dataset: StoredDataset,
        training: RowTexts,
        verdicts: Mapping[int, RowFate],
        workspace: Workspace,
    ) -> None:
        start = training.starts[dataset.info.name]
        set_verdicts = (verdicts.get(row) for row in range(start, start + len(dataset)))
        similar_count = sum(
            fate is not None
            and fate.dropped
            and fate.finding is not None
            and fate.finding.way != "equal"
            for fate in set_verdicts
        )
        if similar_count > _MANY * len(dataset):
            workspace.warn(
                f"{dataset.info.name}: {similar_count:,} of {len(dataset):,} rows "
                f"({similar_count / len(dataset):.0%}) go "
                f"because they are like test texts (jaccard {self._find_threshold(dataset):g}); if its texts "
                f"are made from templates, raise it: by_dataset: {{{dataset.info.name}: …}}"
            )
