"""Results of a geometry from given numbers: its JSON, its tables, its figures, and the texts of a set."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from emberge import (
    Artifact,
    CheckpointError,
    DataEntry,
    DataError,
    DataRef,
    Example,
    ModelRef,
    TokenisedText,
)
from emberge_codiemb.geometry.geometry_result import (
    Drifted,
    Geometry,
    MeasuredModel,
    MeasuredSet,
    figures_of,
    how_measured,
    table_of,
)
from emberge_codiemb.geometry.geometry_step import Drift, GeometryStep
from emberge_codiemb.geometry.measure_model import (
    MeasureModel,
    SetTexts,
    measure_texts,
    read_models,
)
from emberge_codiemb.geometry.token_geometry import (
    MEASURES,
    TokenGeometry,
    linear_cka,
    shared_neighbours,
)
from emberge_encoder import TextEncoder

from tests.support.bench import Bench, model_at

HOW = {
    "singular_values": "float64",
    "tolerance": "float32",
    "epsilon": 2.0**-23,
    "entropy_of": "squares",
    "special_tokens": True,
}


def numbers(*values: float) -> dict[str, float]:
    return dict(zip(MEASURES, values, strict=True))


OLD = MeasuredModel(
    "old",
    "f0",
    {
        "first": MeasuredSet(
            10, 2, "float32", numbers(0.5, 4, 1000, 1.25), numbers(0.4, 3, 900, 1)
        ),
        "second": MeasuredSet(
            2000, 0, "float32", numbers(0.3, 6, 3000, 2), numbers(0.2, 5, 500, 1.5)
        ),
    },
    "probe-0.npy",
)
NEW = MeasuredModel(
    "new",
    "f1",
    {
        "first": MeasuredSet(
            10, 2, "float32", numbers(0.25, 5, 500, 1.5), numbers(0.1, 4, 400, 1.2)
        ),
        "second": MeasuredSet(
            2000, 0, "bfloat16", numbers(0.125, 7, 2500, 2.5), numbers(0.1, 5, 700, 2)
        ),
    },
)
DRIFT = {"old": Drifted(None, 0.5), "new": Drifted(0.98765, 0.125)}
PROBE = {"parent": "base", "texts": 1234, "neighbours": 3}
BOTH = Geometry((OLD, NEW), HOW, DRIFT, PROBE)


HEAD = (
    "| data set | model | token similarity × 100 | rank | condition number | its median | SVD entropy |\n"
    "| --- | --- | ---: | ---: | ---: | ---: | ---: |\n"
)
DRIFTED = """
| model | linear CKA | common neighbours among 3 |
| --- | ---: | ---: |
| old | – | 50.0 % |
| new | 0.9877 | 12.5 % |

Drift from base on 1,234 texts.
"""
SPREAD = (
    "; those up to max(n, d) · 1.19e-07 (float32) of the largest do not count for the rank, and the smallest "
    "is at least 1.19e-07 of it in the condition number. The entropy is that of squared singular values, in "
    "nats. Special tokens are included. Means are over 2,010 texts (2 with fewer than two tokens are left "
    "out)."
)
COMPUTED = "Singular values are computed in float64 from hidden states in float32"


def test_a_table_has_every_number_with_its_difference_from_the_first_model() -> None:
    rows = """| mean of 2 | old | 40.00 | 5.00 | 2,000.0 | 700.0 | 1.625 |
| mean of 2 | new | 18.75 (-21.25) | 6.00 (+1.00) | 1,500.0 (-500.0) | 550.0 (-150.0) | 2.000 (+0.375) |
| first | old | 50.00 | 4.00 | 1,000.0 | 900.0 | 1.250 |
| first | new | 25.00 (-25.00) | 5.00 (+1.00) | 500.0 (-500.0) | 400.0 (-500.0) | 1.500 (+0.250) |
| second | old | 30.00 | 6.00 | 3,000.0 | 500.0 | 2.000 |
| second | new | 12.50 (-17.50) | 7.00 (+1.00) | 2,500.0 (-500.0) | 700.0 (+200.0) | 2.500 (+0.500) |
"""
    how = f"\nIn parentheses differences from old. {COMPUTED}, bfloat16{SPREAD}\n"
    assert table_of(BOTH) == HEAD + rows + how + DRIFTED


def test_one_model_on_one_set_has_neither_differences_nor_a_mean() -> None:
    alone = replace(OLD, sets={"second": OLD.sets["second"]})
    found = table_of(Geometry((alone,), HOW))
    assert found.startswith(
        HEAD + "| second | old | 30.00 | 6.00 | 3,000.0 | 500.0 | 2.000 |\n\n" + COMPUTED + ";"
    )
    assert found.endswith("Means are over 2,000 texts.\n")


def test_drift_alone_is_a_table_of_its_own() -> None:
    models = tuple(replace(one, sets={}) for one in (OLD, NEW))
    result = Geometry(models, HOW, DRIFT, PROBE)
    assert table_of(result) == DRIFTED.removeprefix("\n")
    assert [one["title"] for one in figures_of(result)] == ["Drift from base"]
    assert [one["average"] for one in result.plain()["models"]] == [{}, {}]


@pytest.mark.parametrize(
    ("option", "value", "sentence"),
    [
        ("entropy_of", "values", "The entropy is that of singular values, in nats."),
        ("special_tokens", False, "Special tokens are left out."),
    ],
)
def test_options_are_in_the_sentences_on_how_it_was_measured(
    option: str, value: Any, sentence: str
) -> None:
    assert sentence in how_measured(replace(BOTH, how={**HOW, option: value}))


def test_figures_have_a_point_for_each_number_and_the_rows_of_the_table() -> None:
    spread, drift = figures_of(BOTH)
    assert spread.pop("caption").endswith(how_measured(BOTH))
    rows = spread["table"].pop("rows")
    assert [" | ".join(row) for row in rows] == [
        line.removeprefix("| ").removesuffix(" |") for line in table_of(BOTH).splitlines()[2:8]
    ]
    assert spread == {
        "title": "How the tokens of a text spread",
        "points": {
            "x": "token similarity",
            "y": "SVD entropy (nats)",
            "series": {
                "old": [[0.5, 1.25, "first"], [0.3, 2, "second"]],
                "new": [[0.25, 1.5, "first"], [0.125, 2.5, "second"]],
            },
        },
        "table": {
            "title": "Geometry by data set and model",
            "head": [
                "Data set",
                "Model",
                "Token similarity × 100",
                "Rank",
                "Condition number",
                "Its median",
                "SVD entropy",
            ],
        },
    }
    assert "1,234 texts" in drift.pop("caption")
    assert drift == {
        "title": "Drift from base",
        # A model without a number has no point.
        "points": {
            "x": "linear CKA",
            "y": "common neighbours among 3",
            "series": {"new": [[0.98765, 0.125]]},
        },
        "table": {
            "title": "Drift by model",
            "head": ["Model", "Linear CKA", "Common neighbours among 3"],
            "rows": [["old", "–", "50.0 %"], ["new", "0.9877", "12.5 %"]],
        },
    }
    nothing = replace(BOTH, drift={"old": Drifted(None, 0.5)})
    assert len(figures_of(nothing)) == len(figures_of(replace(BOTH, drift={}))) == 1


def test_plain_values_have_all_numbers_and_each_models_averages() -> None:
    averages = [numbers(0.4, 5, 2000, 1.625), numbers(0.1875, 6, 1500, 2)]
    sets = [{name: vars(one) for name, one in model.sets.items()} for model in (OLD, NEW)]
    assert BOTH.plain() == {
        "format": 1,
        "measured": HOW,
        "models": [
            {"name": "old", "fingerprint": "f0", "sets": sets[0], "average": averages[0]},
            {"name": "new", "fingerprint": "f1", "sets": sets[1], "average": averages[1]},
        ],
        "drift": {
            **PROBE,
            "models": {
                "old": {"cka": None, "neighbours": 0.5},
                "new": {"cka": 0.98765, "neighbours": 0.125},
            },
        },
    }
    assert replace(BOTH, drift={}).plain()["drift"] is None
    assert BOTH.sets == ("first", "second")


# ── one model's texts ───────────────────────────────────────────────────────────────────────────


def test_texts_without_geometry_are_counted_and_left_out_of_mean_and_median() -> None:
    found = {name: np.array([np.nan, 1.0, 2.0, 6.0]) for name in MEASURES}
    assert MeasuredSet.of(found, "float16") == MeasuredSet(
        3, 1, "float16", numbers(3, 3, 3, 3), numbers(2, 2, 2, 2)
    )


def measured(*pieces: tuple[list[int], torch.Tensor]) -> MeasuredSet:
    embedder: Any = SimpleNamespace(token_states=lambda *_: iter(pieces))
    return measure_texts(
        TokenGeometry(), embedder, [TokenisedText([1])] * 4, [], "m on data set 's'"
    )


def test_measures_are_kept_at_the_places_of_their_texts_until_texts_have_one_token() -> None:
    three, two = torch.eye(3, 4)[None], torch.tensor([[[1.0, 0], [1, 1]], [[1, 0], [1, 0]]])
    single = torch.full((1, 1, 4), torch.nan)  # which is not looked at
    found = measured(([2], three), ([0, 3], two), ([1], single))
    assert (found.texts, found.skipped, found.states) == (3, 1, "float32")
    similarities = [0, 0.5**0.5, 1]
    assert found.mean["token_similarity"] == pytest.approx(np.mean(similarities))
    assert found.median["token_similarity"] == pytest.approx(0.5**0.5)
    assert found.mean["rank"] == pytest.approx(2)
    assert measured(([2], three.to(torch.bfloat16))).states == "bfloat16"


@pytest.mark.parametrize(
    ("states", "fault"),
    [
        (torch.tensor([[[1.0, torch.inf], [1, 1]]]), "not finite"),
        (torch.zeros(1, 2, 2), "all zero"),
    ],
)
def test_states_that_have_no_geometry_are_named_with_model_and_set(
    states: torch.Tensor, fault: str
) -> None:
    with pytest.raises(CheckpointError, match=rf"^m on data set 's': .* {fault}"):
        measured(([0], states))


class Rows(list[Example]):
    """A data set of these rows."""

    def __init__(self, rows: Sequence[Example], *, symmetric: bool, prompt: str = "") -> None:
        super().__init__(rows)
        self.info, self.symmetric, self.prompt = SimpleNamespace(name="s"), symmetric, prompt


ROWS = [Example("a", ("b", "a"), ("c",)), Example("d", ("b",), ("a", "e")), Example("a", ("f",))]


@pytest.mark.parametrize(
    ("symmetric", "queries", "documents"),
    [(False, "ad", "bacef"), (True, "abcdef", "")],
)
def test_each_text_counts_once_on_its_side(symmetric: bool, queries: str, documents: str) -> None:
    rows: Any = Rows(ROWS, symmetric=symmetric, prompt="p")
    found = SetTexts.of(rows)
    assert found == SetTexts("s", "p", symmetric, tuple(queries), tuple(documents))
    assert len(found) == len(queries) + len(documents)


@pytest.mark.parametrize(
    ("prompt", "prompts", "expected"),
    [
        ("p: ", {"query": "q: ", "document": "d: "}, ["p: a", "d: b"]),
        ("", {"query": "q: ", "passage": "s: "}, ["q: a", "s: b"]),
        ("", {"document": "d: ", "passage": "s: "}, ["a", "d: b"]),
        ("", {}, ["a", "b"]),
    ],
)
def test_a_text_has_the_prompt_of_its_set_or_else_of_the_model(
    prompt: str, prompts: Mapping[str, str], expected: list[str]
) -> None:
    embedder: Any = SimpleNamespace(
        encoder=SimpleNamespace(prompts=prompts),
        tokenise=lambda texts, prompt: [prompt + text for text in texts],
    )
    found: list[Any] = SetTexts("s", prompt, False, ["a"], ["b"]).tokens(embedder)
    assert found == expected


# ── models side by side ─────────────────────────────────────────────────────────────────────────


class Finished:
    """A workspace in which models were measured: by reference, each with embeddings of the probe set."""

    def __init__(
        self, root: Path, parts: Mapping[str, Sequence[tuple[MeasuredModel, Any]]]
    ) -> None:
        self.folder, self.told = root, list[tuple[Any, ...]]()
        for part, models in parts.items():
            folder = root / part
            folder.mkdir()
            plain = []
            for number, (model, embeddings) in enumerate(models):
                file = f"probe-{number}.npy"
                np.save(folder / file, embeddings)
                plain.append(asdict(replace(model, probe=file)))
            (folder / "measured.json").write_text(json.dumps({"models": plain}))

    def artifact(self, reference: Any) -> tuple[Path, None]:
        return self.folder / reference.text, None

    def progress(self, *told: Any) -> None:
        self.told.append(told)


def run(place: Finished, models: Any, parent: str | None, neighbours: int = 2) -> Artifact:
    """Run the step on finished parts; a reference has the text of its part."""
    drift = None
    if parent is not None:
        drift = Drift(parent=ModelRef(parent), data=(), neighbours=neighbours)
    parts: Any = {path.name: SimpleNamespace(text=path.name) for path in place.folder.iterdir()}
    step = GeometryStep(models=models, drift=drift, _parts=parts)
    workspace: Any = place
    return step.run(workspace)


X = np.random.default_rng(0).standard_normal((6, 3))
Y = np.random.default_rng(1).standard_normal((6, 3))


def test_models_have_the_names_of_the_recipe_and_drift_from_the_parent(tmp_path: Path) -> None:
    place = Finished(tmp_path, {"base": [(OLD, X)], "a": [(NEW, Y)]})
    found = run(place, {"before": ModelRef("base"), "später": ModelRef("a")}, "base")
    models = replace(OLD, name="before"), replace(NEW, name="später")
    drift = {
        "before": Drifted(1.0, 1.0),
        "später": Drifted(linear_cka(X, Y), shared_neighbours(X, Y, 2)),
    }
    probe = {"parent": "before", "texts": 6, "neighbours": 2}
    result = Geometry(models, HOW, drift, probe)
    plain = result.plain()
    plain["drift"]["models"]["before"]["cka"] = pytest.approx(1)
    text = (tmp_path / "geometry.json").read_text(encoding="utf-8")
    assert json.loads(text) == plain
    assert '"name": "später"' in text
    assert (tmp_path / "geometry.md").read_text() == table_of(result)
    assert found.kind == "file"
    assert found.parents == ("f0", "f1")
    averages = {one["name"]: one["average"] for one in plain["models"]}
    assert {**found.details, "figures": None} == {
        "file": "geometry.json",
        "table": "geometry.md",
        "measured": HOW,
        "models": averages,
        "drift": plain["drift"],
        "figures": None,
    }
    assert [one["title"] for one in found.details["figures"]] == [
        "How the tokens of a text spread",
        "Drift from before",
    ]
    assert place.told == [(0, 2, "models", "drift of before"), (1, 2, "models", "drift of später")]


def test_names_that_come_again_are_numbered(tmp_path: Path) -> None:
    place = Finished(tmp_path, {"a": [(OLD, X)], "b": [(OLD, X)], "c": [(OLD, X), (NEW, Y)]})
    found = run(place, tuple(map(ModelRef, "abc")), None)
    assert [*found.details["models"]] == ["old", "old (2)", "old.1", "new.2"]
    assert found.details["drift"] is None
    found = run(place, {"x": ModelRef("a"), "y": ModelRef("c")}, "b")
    assert [*found.details["models"]] == ["x", "y.1", "y.2"]
    assert found.details["drift"]["parent"] == "old"
    found = run(place, tuple(map(ModelRef, "aab")), "a")
    assert [*found.details["models"]] == ["old", "old (2)", "old (3)"]
    assert found.details["drift"]["parent"] == "old"


def test_a_parent_that_is_several_models_or_of_another_dimension_is_refused(tmp_path: Path) -> None:
    place = Finished(tmp_path, {"a": [(OLD, X)], "b": [(OLD, X), (NEW, Y)], "c": [(NEW, X[:, :2])]})
    with pytest.raises(DataError, match="'b' is 2 models; name one"):
        run(place, (ModelRef("a"),), "b")
    with pytest.raises(DataError, match="'a' has embeddings of 3 numbers and 'new' of 2"):
        run(place, (ModelRef("c"),), "a")


def test_collapsed_embeddings_drift_without_cka_and_few_texts_have_few_neighbours(
    tmp_path: Path,
) -> None:
    place = Finished(tmp_path, {"a": [(OLD, X)], "b": [(NEW, np.ones((6, 3)))]})
    drift = run(place, (ModelRef("b"),), "a", neighbours=9).details["drift"]
    assert drift == {
        "parent": "old",
        "texts": 6,
        "neighbours": 5,
        "models": {"new": {"cka": None, "neighbours": 1.0}},
    }


def test_each_model_is_measured_in_a_step_and_the_parent_on_the_probe_set_alone() -> None:
    data, probe = (DataEntry(path=DataRef("d")),), (DataEntry(path=DataRef("p")),)
    drift = Drift(parent=ModelRef("./base"), data=probe, neighbours=4)
    step = GeometryStep(
        models={"x": ModelRef("./a"), "y": ModelRef("./b")},
        data=data,
        drift=drift,
        tolerance="float64",
    )

    def part(model: str, data: Any) -> MeasureModel:
        return MeasureModel(
            model=ModelRef(model), data=data, probe=probe, neighbours=4, tolerance="float64"
        )

    found = step.expand()
    assert list(found.values()) == [part("./a", data), part("./b", data), part("./base", ())]
    plain = replace(step, drift=None).expand()
    assert list(plain.values()) == [
        MeasureModel(model=ModelRef(model), data=data, tolerance="float64")
        for model in ("./a", "./b")
    ]
    nothing = replace(step, models=(), drift=None)
    assert nothing.expand() == {"": nothing}
    assert step.produces == MeasureModel.produces == "file"


def test_neighbours_are_ten_unless_named_and_at_least_one() -> None:
    assert Drift(parent=ModelRef("a"), data=()).neighbours == 10
    Drift(parent=ModelRef("a"), data=(), neighbours=1)
    with pytest.raises(ValueError, match="at least 1, not 0"):
        Drift(parent=ModelRef("a"), data=(), neighbours=0)


# ── one model ───────────────────────────────────────────────────────────────────────────────────


def entries(folder: Path, **texts: Sequence[str]) -> tuple[DataEntry, ...]:
    """Write sets of texts, paired with each other, and return their entries."""
    found = []
    for name, some in texts.items():
        rows = zip(some[::2], some[1::2], strict=True)
        lines = [json.dumps({"anchor": x, "positive": y}) for x, y in rows]
        (folder / f"{name}.jsonl").write_text("\n".join(lines))
        found.append(DataEntry(path=DataRef(str(folder / f"{name}.jsonl")), task="retrieval"))
    return tuple(found)


LONG = ["sort the list", "open a file", "list of a", "open the list of a file"]


def test_a_part_keeps_measures_and_embeddings_and_shows_how_far_it_is(
    bert: Path, tmp_path: Path
) -> None:
    bench: Any = Bench(tmp_path)
    data = entries(tmp_path, short=["sort", "open"], long=LONG)
    probe = entries(tmp_path, probe=LONG[:2])
    model = ModelRef(str(bert))
    step = MeasureModel(backbone=TextEncoder(), model=model, data=data, probe=probe, neighbours=1)
    artifact = step.run(bench)
    fingerprint = model_at(bert).fingerprint
    assert artifact == Artifact(kind="file", parents=(fingerprint,))
    (found,) = read_models(bench.folder)
    assert (found.name, found.fingerprint, found.probe) == (bert.name, fingerprint, "probe-0.npy")
    assert {name: one.texts for name, one in found.sets.items()} == {"short": 2, "long": 4}
    assert np.load(bench.folder / "probe-0.npy").shape == (2, 32)
    notes = [note for *_, note in bench.told if "·" in note]
    sets = [f"{bert.name} · {name}" for name in ("short", "long", "the probe set")]
    assert list(dict.fromkeys(notes)) == sets
    assert {told[:3] for told in bench.told if told[3] == sets[1]} >= {(4, 4, "texts")}
    # What a killed run has measured is read, and nothing is embedded without a probe set.
    for number in (0, 1):
        path = bench.work / f"{fingerprint[:32]}-{number}.json"
        path.write_text(json.dumps(asdict(OLD.sets["first"])))
    bench.told.clear()
    replace(step, probe=()).run(bench)
    (again,) = read_models(bench.folder)
    assert again.sets == dict.fromkeys(("short", "long"), OLD.sets["first"])
    assert again.probe is None
    assert not [note for *_, note in bench.told if "·" in note]


def test_without_special_tokens_those_of_the_text_alone_are_measured(
    bert: Path, tmp_path: Path
) -> None:
    (data,) = entries(tmp_path, mixed=["sort", "open a file"])
    whole = MeasureModel(
        backbone=TextEncoder(), model=ModelRef(str(bert)), data=(data,), special_tokens=False
    )
    bench: Any = Bench(tmp_path)
    whole.run(bench)
    (found,) = read_models(tmp_path / "out")
    assert (found.sets["mixed"].texts, found.sets["mixed"].skipped) == (1, 1)
    (short,) = entries(tmp_path, short=["sort", "open"])
    (bench.work / f"{model_at(bert).fingerprint[:32]}-0.json").unlink()
    with pytest.raises(DataError, match=r"'short': none of its 2 texts .* beside special ones"):
        replace(whole, data=(short,)).run(bench)


def test_a_probe_set_needs_more_texts_than_neighbours(bert: Path, tmp_path: Path) -> None:
    probe = entries(tmp_path, probe=LONG)
    step = MeasureModel(
        backbone=TextEncoder(), model=ModelRef(str(bert)), probe=probe, neighbours=4
    )
    bench: Any = Bench(tmp_path)
    with pytest.raises(DataError, match="has 4 distinct texts, and each needs 4 neighbours"):
        step.run(bench)
    replace(step, neighbours=3).run(bench)
    replace(step, probe=()).run(bench)
