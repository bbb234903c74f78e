"""Results of a measurement of geometry as data, as a table and as figures."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from emberge.wording import prose, table_lines

from emberge_codiemb.geometry.token_geometry import MEASURES

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


FORMAT = 1


@dataclass(frozen=True)
class MeasuredSet:
    """Measures of one model over a data set's texts; `skipped` texts have fewer than two tokens.

    `states` is the dtype of the hidden states that were measured.
    """

    texts: int
    skipped: int
    states: str
    mean: Mapping[str, float]
    median: Mapping[str, float]

    @classmethod
    def of(cls, values_by_measure: Mapping[str, NDArray[np.float64]], states: str) -> MeasuredSet:
        """Build the result of a set from the measures of its texts, which are NaN for skipped texts."""
        import numpy as np

        measured = ~np.isnan(values_by_measure[MEASURES[0]])
        measures = {name: values[measured] for name, values in values_by_measure.items()}
        return cls(
            texts=int(measured.sum()),
            skipped=int((~measured).sum()),
            states=states,
            mean={name: float(values.mean()) for name, values in measures.items()},
            median={name: float(np.median(values)) for name, values in measures.items()},
        )


@dataclass(frozen=True)
class MeasuredModel:
    """One model's measures by data set; `probe` is the file of its embeddings of the probe set."""

    name: str
    fingerprint: str
    sets: Mapping[str, MeasuredSet]
    probe: str | None = None

    def average(self, measure: str) -> float:
        """Return the mean of a measure over data sets, each represented by its mean."""
        return math.fsum(measured_set.mean[measure] for measured_set in self.sets.values()) / len(
            self.sets
        )

    @classmethod
    def read(cls, content: Mapping[str, Any]) -> MeasuredModel:
        """Build the model from its plain values."""
        sets = {name: MeasuredSet(**values) for name, values in content["sets"].items()}
        return cls(content["name"], content["fingerprint"], sets, content["probe"])


@dataclass(frozen=True)
class Drifted:
    """Distance of one model's embeddings from the parent's: linear CKA, and the share of common neighbours.

    `cka` is None if all embeddings of one of the models are equal.
    """

    cka: float | None
    neighbours: float


@dataclass(frozen=True)
class Geometry:
    """Measures of several models, and their drift from a parent; differences are from the first model.

    `how` has the settings and dtypes that the measures depend on.
    """

    models: tuple[MeasuredModel, ...]
    how: Mapping[str, Any]
    drift: Mapping[str, Drifted] = dataclasses.field(default_factory=dict)
    probe: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def sets(self) -> tuple[str, ...]:
        """Names of the data sets, in order."""
        return tuple(self.models[0].sets)

    def plain(self) -> dict[str, Any]:
        """Return the numbers as plain values, with each model's averages over data sets."""
        models = [dataclasses.asdict(model) for model in self.models]
        for values, model in zip(models, self.models, strict=True):
            del values["probe"]
            values["average"] = {name: model.average(name) for name in MEASURES if model.sets}
        drift = {name: dataclasses.asdict(drifted) for name, drifted in self.drift.items()}
        return {
            "format": FORMAT,
            "measured": dict(self.how),
            "models": models,
            "drift": {**self.probe, "models": drift} if drift else None,
        }


@dataclass(frozen=True)
class Column:
    """Column of the table: a measure's mean or median over texts, and its number format."""

    title: str
    measure: str
    form: str
    over: Literal["mean", "median"] = "mean"
    scale: float = 1.0

    def value(self, model: MeasuredModel, data: str | None) -> float:
        """Return the number for one data set, or its average over all."""
        names = [*model.sets] if data is None else [data]
        values = [getattr(model.sets[name], self.over)[self.measure] for name in names]
        return self.scale * float(sum(values)) / len(values)

    def cell(self, model: MeasuredModel, reference: MeasuredModel, data: str | None) -> str:
        """Return the number with its difference from the first model's."""
        value = self.value(model, data)
        if model is reference:
            return f"{value:{self.form}}"
        return f"{value:{self.form}} ({value - self.value(reference, data):+{self.form}})"


COLUMNS = (
    Column("token similarity × 100", "token_similarity", ".2f", scale=100),
    Column("rank", "rank", ".2f"),
    Column("condition number", "condition_number", ",.1f"),
    Column("its median", "condition_number", ",.1f", over="median"),
    Column("SVD entropy", "svd_entropy", ".3f"),
)


def table_of(result: Geometry) -> str:
    """Return measures by data set and model, and drift by model, as Markdown."""
    lines: list[str] = []
    if result.sets:
        head = ["data set", "model", *(column.title for column in COLUMNS)]
        lines += _write_markdown(head, rows_of(result), words=2)
        lines += ["", prose(how_measured(result)), ""]
    if result.drift:
        lines += _write_markdown(["model", *drift_head(result.probe)], drift_rows(result), words=1)
        drift = f"Drift from {result.probe['parent']} on {result.probe['texts']:,} texts."
        lines += ["", prose(drift)]
    return "\n".join(lines).rstrip() + "\n"


def rows_of(result: Geometry) -> list[list[str]]:
    """Return a row for every data set and model, averages over data sets first."""
    several: list[str | None] = [None] if len(result.sets) > 1 else []
    first_model = result.models[0]
    return [
        [
            f"mean of {len(result.sets)}" if data is None else data,
            model.name,
            *(column.cell(model, first_model, data) for column in COLUMNS),
        ]
        for data in [*several, *result.sets]
        for model in result.models
    ]


def drift_head(probe: Mapping[str, object]) -> list[str]:
    """Return the headings of the drift table."""
    return ["linear CKA", f"common neighbours among {probe['neighbours']}"]


def drift_rows(result: Geometry) -> list[list[str]]:
    """Return a row of the drift table for every model whose drift was measured."""
    return [
        [
            name,
            "–" if drifted.cka is None else f"{drifted.cka:.4f}",
            f"{100 * drifted.neighbours:.1f} %",
        ]
        for name, drifted in result.drift.items()
    ]


def how_measured(result: Geometry) -> str:
    """Return sentences that state precision, tolerance and omitted texts."""
    return " ".join(_write_sentences(result))


def _write_sentences(result: Geometry) -> Iterator[str]:
    settings, sets = (
        result.how,
        [measured_set for model in result.models for measured_set in model.sets.values()],
    )
    if len(result.models) > 1:
        yield f"In parentheses differences from {result.models[0].name}."
    states = ", ".join(dict.fromkeys(measured_set.states for measured_set in sets))
    yield (
        f"Singular values are computed in {settings['singular_values']} from hidden states in {states}; "
        "those up "
        f"to max(n, d) · {settings['epsilon']:.3g} ({settings['tolerance']}) of the largest do not count "
        "for the rank, "
        f"and the smallest is at least {settings['epsilon']:.3g} of it in the condition number."
    )
    squares = settings["entropy_of"] == "squares"
    yield f"The entropy is that of {'squared singular' if squares else 'singular'} values, in nats."
    yield f"Special tokens are {'included' if settings['special_tokens'] else 'left out'}."
    counts_by_model = {model.name: _count_texts(model) for model in result.models}
    if len(set(counts_by_model.values())) == 1:
        yield f"Means are over {counts_by_model[result.models[0].name]}."
    else:  # tokenizers differ
        yield f"Means are {', '.join(f'over {texts} for {name}' for name, texts in counts_by_model.items())}."


def _count_texts(model: MeasuredModel) -> str:
    """Return, as text, how many texts a model's means include and how many are omitted."""
    texts = sum(measured_set.texts for measured_set in model.sets.values())
    skipped = sum(measured_set.skipped for measured_set in model.sets.values())
    omission_note = f" ({skipped:,} with fewer than two tokens are left out)" if skipped else ""
    return f"{texts:,} texts{omission_note}"


def _write_markdown(head: list[str], rows: list[list[str]], *, words: int) -> list[str]:
    return table_lines(head, rows, "l" * words + "r" * (len(head) - words))


def figures_of(result: Geometry) -> list[dict[str, Any]]:
    """Return the figures as plain values: measures by data set, and drift."""
    return [*_yield_measure_figures(result), *_yield_drift_figures(result)]


def _yield_measure_figures(result: Geometry) -> Iterator[dict[str, Any]]:
    if not result.sets:
        return
    yield {
        "title": "How the tokens of a text spread",
        "points": {
            "x": "token similarity",
            "y": "SVD entropy (nats)",
            "series": _make_series(result, "token_similarity", "svd_entropy"),
        },
        "caption": "A point for each data set: means over its texts. Tokens that point one way are to the "
        f"right and low. {how_measured(result)}",
        "table": {
            "title": "Geometry by data set and model",
            "head": ["Data set", "Model", *(_capitalise_title(column.title) for column in COLUMNS)],
            "rows": rows_of(result),
        },
    }


def _make_series(result: Geometry, x: str, y: str) -> dict[str, list[list[Any]]]:
    return {
        model.name: [
            [measured_set.mean[x], measured_set.mean[y], name]
            for name, measured_set in model.sets.items()
        ]
        for model in result.models
    }


def _yield_drift_figures(result: Geometry) -> Iterator[dict[str, Any]]:
    series = {
        name: [[drifted.cka, drifted.neighbours]]
        for name, drifted in result.drift.items()
        if drifted.cka is not None
    }
    if not series:
        return
    probe = result.probe
    titles = drift_head(probe)
    yield {
        "title": f"Drift from {probe['parent']}",
        "points": {"x": titles[0], "y": titles[1], "series": series},
        "caption": f"Embeddings of {probe['texts']:,} texts beside those of {probe['parent']}: at the top "
        "right they are alike.",
        "table": {
            "title": "Drift by model",
            "head": ["Model", *(_capitalise_title(title) for title in titles)],
            "rows": drift_rows(result),
        },
    }


def _capitalise_title(title: str) -> str:
    return title[0].upper() + title[1:]
