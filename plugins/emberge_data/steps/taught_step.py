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
    from emberge.data import FirstRows, StoredDataset

    from emberge_data.steps.outcome import Outcome


@dataclass(frozen=True, kw_only=True)
class TaughtStep(DataStep):
    """Step over sets of queries and positives, which uses the similarities of a teacher.

    All ranks embed the texts as vectors together, and the first rank does the rest alone.
    """

    every_rank: ClassVar[bool] = True

    teacher: Teacher
    """Encoder that judges."""

    def check(self, context: Preflight) -> Iterator[Problem]:
        problems, checked = self.checked_data(context)
        yield from problems
        yield from self.teacher.check(context)
        for head in checked.heads:
            for message in self.set_problems(head):
                yield context.problem(message, "data")

    def set_problems(self, head: FirstRows) -> Iterator[str]:
        """Yield reasons why the step cannot work on a set, from its first rows."""
        if not head.example.positives:
            yield without_positives(head.info.name)
        elif head.info.task == "sts":
            yield (
                f"dataset '{head.info.name}' has pairs of any similarity, not queries and positives; leave "
                "it out with `only`"
            )

    @property
    def scored_by(self) -> tuple[str, ...]:
        """Models that give the rows new scores."""
        return ()

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
                    scored_by=self.scored_by,
                )
