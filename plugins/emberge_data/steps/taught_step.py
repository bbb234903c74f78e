"""Base of the steps that use the similarities of teachers."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from emberge import Artifact, Preflight, Problem, Workspace

from emberge_data.steps.data_step import DataStep
from emberge_data.steps.listed_set import without_positives
from emberge_data.steps.teacher import Teacher

if TYPE_CHECKING:
    from emberge.data import FirstRows, StoredDataset
    from numpy.typing import NDArray

    from emberge_data.steps.listed_set import ArrangedSet
    from emberge_data.steps.outcome import Outcome
    from emberge_data.steps.search.exact import SearchMemory
    from emberge_data.steps.search.found_passages import FoundPassages
    from emberge_data.steps.search.space import Space
    from emberge_data.steps.teacher import OpenTeacher


@dataclass(frozen=True, slots=True)
class SetDescription:
    """Description of a set's result: sentences, and lines of Markdown below them."""

    sentences: Sequence[str] = ()
    lines: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class TaughtStep(DataStep):
    """Step over sets of queries and positives, which uses the similarities of teachers.

    All ranks embed the texts as vectors together, and the first rank does the rest alone.
    """

    every_rank: ClassVar[bool] = True

    teachers: tuple[Teacher, ...]
    """Encoders that judge: one, or several that must agree."""

    def check(self, context: Preflight) -> Iterator[Problem]:
        problems, checked = self.checked_data(context)
        yield from problems
        if not self.teachers:
            yield context.problem("there is no teacher; name a model", "teachers")
        for teacher in self.teachers:
            yield from teacher.check(context, "teachers")
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

    def arranged(self, dataset: StoredDataset, workspace: Workspace) -> ArrangedSet:
        """Return the queries and documents of a set that teachers are to embed."""
        raise NotImplementedError

    def compare(
        self, number: int, arranged: ArrangedSet, teacher: OpenTeacher, workspace: Workspace
    ) -> Space | FoundPassages:
        """Return the similarities of the `number`-th set's queries and documents by a teacher."""
        from emberge_data.steps.search.space import Space

        queries = teacher.queries(arranged.queries, arranged.dataset)
        documents = teacher.documents(arranged.documents, arranged.dataset)
        return Space(queries, documents, workspace.machine.device)

    def outcomes(
        self,
        number: int,
        arranged: ArrangedSet,
        spaces: Sequence[Any],
        workspace: Workspace,
    ) -> Generator[Outcome, None, SetDescription | None]:
        """Yield the outcome of every row of the `number`-th set, decided by the teachers' similarities.

        `spaces` has what `compare` returned for each teacher.
        The generator returns sentences and Markdown on the set, or None.
        """
        raise NotImplementedError

    def run(self, workspace: Workspace) -> Artifact:
        from emberge.ranks import join_ranks

        sets = [self.arranged(dataset, workspace) for dataset in self.load(workspace)]
        with workspace.part("stage", 1, 2):
            spaces = self._embed_sets(sets, workspace)
        if not join_ranks(workspace.machine.device).is_first:
            return Artifact(kind="data")

        notes: list[str] = []
        sections: list[str] = []

        def yield_outcomes(number: int, arranged: ArrangedSet) -> Iterator[Outcome]:
            with workspace.part("set", number + 1, len(sets), arranged.name):
                description = yield from self.outcomes(number, arranged, spaces[number], workspace)
            if description is not None:
                notes.extend(description.sentences)
                sections.extend(description.lines)

        with workspace.part("stage", 2, 2):
            return self.finish(
                workspace,
                (
                    (arranged.dataset, yield_outcomes(number, arranged))
                    for number, arranged in enumerate(sets)
                ),
                {"teachers": [str(teacher.model) for teacher in self.teachers]},
                notes=notes,
                sections=sections,
            )

    def _embed_sets(
        self, sets: Sequence[ArrangedSet], workspace: Workspace
    ) -> list[list[Space | FoundPassages]]:
        """Return each set's similarities by each teacher, with one teacher in memory at a time."""
        from emberge.ranks import join_ranks

        is_first = join_ranks(workspace.machine.device).is_first
        spaces_by_set: list[list[Space | FoundPassages]] = [[] for _ in sets]
        for place, teacher in enumerate(self.teachers, 1):
            if teacher.backbone.kind != "vector" and not is_first:
                continue
            with (
                workspace.part("teacher", place, len(self.teachers), teacher.model.text),
                teacher.opened(workspace) as teacher_model,
            ):
                for number, arranged in enumerate(sets):
                    with workspace.part("set", number + 1, len(sets), arranged.name):
                        space = self.compare(number, arranged, teacher_model, workspace)
                    spaces_by_set[number].append(space)
        return spaces_by_set

    def limits(self, workspace: Workspace) -> SearchMemory:
        """Return the memory that a search may take."""
        from emberge_data.steps.search.exact import SearchMemory

        memory = workspace.machine.memory
        return SearchMemory() if memory is None else SearchMemory(memory)


def describe_spread(values: NDArray[Any]) -> str:
    """Return the lowest, median and highest of the numbers as text."""
    import numpy as np

    sample = np.asarray(values, dtype=np.float64)
    sample = sample[np.isfinite(sample)]
    if not len(sample):
        return "none"
    low, middle, high = np.quantile(sample, [0, 0.5, 1], method="nearest")
    return f"{low:.4g} to {high:.4g}, median {middle:.4g}"
