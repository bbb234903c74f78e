"""Base of the steps that use a teacher's similarities of queries and documents."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from emberge import Artifact, Preflight, Problem, Workspace

from emberge_data.steps.compared_set import ComparedSet, without_positives
from emberge_data.steps.data_step import DataStep
from emberge_data.steps.teacher import OpenTeacher, Teacher

if TYPE_CHECKING:
    from emberge.data import StoredDataset

    from emberge_data.steps.outcome import Outcome


@dataclass(frozen=True, kw_only=True)
class TaughtStep(DataStep):
    """Step over sets of queries and positives, which uses the similarities of a teacher.

    All ranks embed the texts as vectors together, and the first rank does the rest alone.
    """

    every_rank: ClassVar[bool] = True
    scores_pairs: ClassVar[bool] = False
    """True if pairs of any similarity are scored, and the teacher may be a cross-encoder."""

    teacher: Teacher
    """Encoder that judges."""

    def check(self, context: Preflight) -> Iterator[Problem]:
        problems, checked = self.checked_data(context)
        yield from problems
        yield from self.teacher.check(context, reads_pairs=self.scores_pairs)
        for head in checked.heads:
            if not head.example.positives:
                yield context.problem(without_positives(head.info.name), "data")
            elif head.info.task == "sts" and not self.scores_pairs:
                yield context.problem(
                    f"dataset '{head.info.name}' has pairs of any similarity, not queries and positives; "
                    "leave it out with `only`",
                    "data",
                )

    def list_texts(self, dataset: StoredDataset, workspace: Workspace) -> ComparedSet:
        """Return the queries and documents of a set that the teacher is to embed."""
        return ComparedSet.of(dataset, workspace)

    def compare(self, compared: ComparedSet, teacher: OpenTeacher) -> Any:
        """Return what the teacher says of a set; called on every rank."""
        return teacher.compare(compared)

    def judge(
        self, compared: ComparedSet, similarity: Any, workspace: Workspace
    ) -> Generator[Outcome, None, str | None]:
        """Yield the outcome of every row by what `compare` returned; return a sentence on the set."""
        raise NotImplementedError

    def run(self, workspace: Workspace) -> Artifact:
        from emberge.ranks import join_ranks

        sets = [self.list_texts(dataset, workspace) for dataset in self.load(workspace)]
        with self.teacher.opened(workspace) as teacher:
            similarities = []
            with workspace.part("stage", 1, 2):
                for number, compared in enumerate(sets, 1):
                    with workspace.part("set", number, len(sets), compared.name):
                        similarities.append(self.compare(compared, teacher))
            if not join_ranks(workspace.machine.device).is_first:
                return Artifact(kind="data")
            notes: list[str] = []

            def judge(number: int, compared: ComparedSet) -> Iterator[Outcome]:
                with workspace.part("set", number + 1, len(sets), compared.name):
                    note = yield from self.judge(compared, similarities[number], workspace)
                notes.extend([note] if note else [])

            outcomes = ((one.dataset, judge(number, one)) for number, one in enumerate(sets))
            with workspace.part("stage", 2, 2):
                return self.finish(
                    workspace,
                    outcomes,
                    notes=notes,
                    scored_by=(self.teacher.model.text,) if self.scores_pairs else (),
                )
