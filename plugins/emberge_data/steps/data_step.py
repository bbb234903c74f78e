"""Base class of the steps that read training sets and write training sets."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from emberge import (
    Artifact,
    ArtifactKind,
    DataEntry,
    DataError,
    Example,
    Expected,
    Preflight,
    Problem,
    Step,
    Workspace,
)
from emberge.data import check_datasets, load_step_datasets

from emberge_data.steps.outcome import (
    TABLE_FILE,
    Outcome,
    SetChanges,
    drop_rows_without_partners,
    write_changes,
)

if TYPE_CHECKING:
    from emberge.contracts import Split
    from emberge.data import StoredDataset


@dataclass(frozen=True, kw_only=True)
class DataStep(Step):
    """Step that reads training sets and writes a catalogue of them.

    The result is a `datasets.yaml` with a file of JSON lines for every set, so the `data` of another step may
    name this step. Counts by set are in `changes.md`, and up to twenty examples of rows that were dropped or
    changed in `changes.json`.
    """

    produces: ClassVar[ArtifactKind] = "data"

    data: tuple[DataEntry, ...]
    """Training sets: files, catalogues, hub datasets or earlier steps."""

    def check(self, context: Preflight) -> Iterator[Problem]:
        checked = check_datasets(context, self.data)
        yield from checked.problems
        if not self.data:
            yield context.problem("data names no training set", "data")
        is_all_seen = len(checked.first_rows) == len(checked.places)
        infos = [first_rows.info for first_rows in checked.first_rows] if is_all_seen else []
        sets = {info.name: info.task for info in infos} if self.expected_splits else {}
        context.expect(Expected(sets=sets, splits=self.expected_splits))

    def load(self, workspace: Workspace) -> list[StoredDataset]:
        """Return the sets of `data`.

        Raises:
            DataError: if rows cannot be read.
        """
        return load_step_datasets(workspace, self.data)

    def finish(
        self,
        workspace: Workspace,
        sets: Iterable[tuple[StoredDataset, Callable[[], Iterable[Outcome]]]],
        dev: Iterable[tuple[StoredDataset, Iterable[Example]]] = (),
        test: Iterable[tuple[StoredDataset, Iterable[Example]]] = (),
        notes: Sequence[str] = (),
        scored_by: tuple[str, ...] = (),
    ) -> Artifact:
        """Consume the outcomes, write the catalogue of kept rows and the counts, and return the artifact.

        `sets` have a function that returns the outcomes of a set's rows; a label's only remaining row is
        dropped if the set draws positives by label.
        `dev` and `test` are sets that are not for training; the catalogue lists them separately. `notes` are
        sentences below the table of counts, which may be filled while the outcomes are consumed. `scored_by`
        are the models that gave the rows new scores.

        Raises:
            DataError: if no row of any set is kept.
        """
        from emberge_data.written_sets import write_catalogue

        changes: list[SetChanges] = []

        def written() -> Iterator[Any]:
            for dataset, outcomes in sets:
                changes.append(SetChanges(dataset.info.name))
                yield (
                    dataset.info.name,
                    dataset,
                    changes[-1].watch(drop_rows_without_partners(dataset, outcomes)),
                )

        parts = {
            part: ((dataset.info.name, dataset, examples) for dataset, examples in sets_of_part)
            for part, sets_of_part in (("dev", dev), ("test", test))
        }
        write_catalogue(workspace.folder, written(), parts, scored_by)
        rows = sum(change.rows for change in changes)
        kept_rows = sum(change.kept for change in changes)
        if not kept_rows:
            counts_by_note = sum((change.notes for change in changes), Counter[str]())
            seen = "; ".join(f"{note} ({n:,})" for note, n in counts_by_note.most_common(5))
            raise DataError(f"none of {rows:,} rows is left: {seen}; choose milder options")
        for change in changes:
            if not change.kept:
                workspace.warn(f"{change.name}: none of its {change.rows:,} rows is left")
        details = write_changes(workspace.folder, self.title, changes, notes)
        return Artifact(kind="data", size=kept_rows, details=details, table=TABLE_FILE)

    @property
    def expected_splits(self) -> tuple[Split, ...]:
        """Parts of the result that are not for training."""
        return ()

    @property
    def title(self) -> str:
        """Heading of the table of counts."""
        words = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", type(self).__name__)
        return words.capitalize()
