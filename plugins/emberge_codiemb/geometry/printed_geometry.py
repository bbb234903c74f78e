"""A paper's table of geometry, in the paper's layout, with the run's numbers and the printed ones."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from emberge import AnyNumber
from emberge.wording import Markdown, join_some, prose, table_lines

from emberge_codiemb.geometry.geometry_result import MeasuredModel

_SCALES = {"token_similarity": 100.0}
_TITLES = {
    "rank": "Rank",
    "token_similarity": "Token similarity × 100",
    "svd_entropy": "SVD entropy",
    "condition_number": "Condition number",
}

Numbers = tuple[AnyNumber | None, ...]


@dataclass(frozen=True, kw_only=True)
class PrintedMeasures:
    """Printed numbers of one model: per measure, one number for each data set in order, then their mean.

    A number is null if the paper does not print it; a measure without numbers is not in the table.
    """

    rank: Numbers = ()
    token_similarity: Numbers = ()
    """The mean cosine of two tokens × 100."""
    svd_entropy: Numbers = ()
    condition_number: Numbers = ()

    @property
    def by_measure(self) -> Mapping[str, Numbers]:
        """Printed numbers by measure, in the paper's order, for the measures that have numbers."""
        numbers = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return {name: printed for name, printed in numbers.items() if printed}


@dataclass(frozen=True, kw_only=True)
class PrintedGeometry:
    """A paper's table of geometry: its title, and its numbers by the names of the models.

    Models that only the paper has may be among them.
    """

    title: str
    """Paper and number of the table."""
    numbers: dict[str, PrintedMeasures] = field(default_factory=dict)
    """Printed numbers by model."""

    def find_faults(self, models: Sequence[str], sets: int | None = None) -> Iterator[str]:
        """Yield a message for each row that does not fit the models and the number of data sets."""
        if not self.numbers:
            yield "there are no printed numbers; give some under `numbers`"
        strange = [name for name in self.numbers if name not in models]
        if strange and len(strange) == len(self.numbers):
            yield (
                f"none of {join_some(strange)} is a model here; there are {join_some(models, 8)}, and models "
                "get their names as {name: model}"
            )
        lengths = {
            f"{name}: {measure}": len(printed)
            for name, measures in self.numbers.items()
            for measure, printed in measures.by_measure.items()
        }
        expected_count = next(iter(lengths.values()), 0) if sets is None else sets + 1
        for place, count in lengths.items():
            if count != expected_count:
                yield (
                    f"{place} has {count} printed numbers and needs {expected_count}: one for each data "
                    "set, and "
                    "their mean; write null where the paper has none"
                )

    def table(self, models: Sequence[MeasuredModel], sets: Sequence[str]) -> str:
        """Return the table as Markdown, this run's numbers first and the printed ones in brackets."""
        measured = {model.name: model for model in models}
        rows = [
            [name, _TITLES[measure], *_draw_cells(measured.get(name), measure, printed, sets)]
            for name, measures in self.numbers.items()
            for measure, printed in measures.by_measure.items()
        ]
        head = ["model", "measure", *sets, "mean"]
        lines = [f"## {prose(self.title)}", "", "This run, and in brackets as printed:", ""]
        lines += table_lines(head, rows, "ll" + "r" * (len(sets) + 1))
        return "\n".join(lines) + "\n"


def _draw_cells(
    model: MeasuredModel | None, measure: str, printed: Numbers, sets: Sequence[str]
) -> Iterator[Markdown]:
    mine: list[float | None] = [None] * len(printed)
    if model is not None:
        scale = _SCALES.get(measure, 1.0)
        values = [model.sets[name].mean[measure] for name in sets]
        mine = [scale * value for value in (*values, model.average(measure))]
    for value, number in zip(mine, printed, strict=True):
        run_text = "–" if value is None else f"{value:,.2f}"
        yield Markdown(run_text if number is None else f"{run_text} [{number:,.2f}]")
