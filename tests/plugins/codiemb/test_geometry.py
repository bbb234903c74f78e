"""The `geometry` step on tiny real models: numbers, tables, figures, kills, and errors before work."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from emberge import (
    Backbone,
    EmbergeError,
    Plugins,
    RecipeError,
    check_recipe,
    hookimpl,
    load_plugins,
    parse_recipe,
    run_recipe,
)
from emberge.results import read_artifact
from emberge_codiemb.geometry.geometry_result import Geometry, MeasuredModel, MeasuredSet, table_of
from emberge_codiemb.geometry.token_geometry import MEASURES
from emberge_encoder import TextEncoder, TextModel
from torch import Tensor

from tests.plugins.codiemb.by_numpy import by_numpy, cka_by_kernels
from tests.support import tiny
from tests.support.places import ROOT
from tests.support.result_folders import folders
from tests.support.tolerance import of_pass

# Chunks that the frail encoder has read, and after how many of them it dies.
READ: list[int] = []
LIMIT: list[int] = []


class KilledError(BaseException):
    """The end of a process, as far as a test goes."""


class Frail:
    """An encoder that counts the chunks whose states it gives, and dies after some."""

    def __init__(self, encoder: Any) -> None:
        self._encoder = encoder

    def __getattr__(self, name: str) -> Any:
        return getattr(self._encoder, name)

    def __call__(self, *given: Any) -> Any:
        return self._encoder(*given)

    def states(self, features: Mapping[str, Tensor]) -> Tensor:
        if LIMIT and len(READ) >= LIMIT[0]:
            os.kill(os.getpid(), signal.SIGKILL)
        READ.append(len(features["input_ids"]))
        return self._encoder.states(features)


class Pooled:
    """An encoder that gives embeddings and no states."""

    def __init__(self, encoder: Any) -> None:
        for name in ("module", "dimension", "tokenizer_fingerprint", "prompts"):
            setattr(self, name, getattr(encoder, name))
        self.tokenise, self.collate, self.call = encoder.tokenise, encoder.collate, encoder.__call__

    def __call__(self, *given: Any) -> Any:
        return self.call(*given)


@dataclass(frozen=True, kw_only=True)
class FrailEncoder(TextEncoder):
    """A text encoder that may die while it reads."""

    def load(self, checkpoint: Path, *, device: str, dtype: str, predicts: bool = False) -> Any:
        return Frail(super().load(checkpoint, device=device, dtype=dtype, predicts=predicts))


@dataclass(frozen=True, kw_only=True)
class PooledEncoder(TextEncoder):
    """A text encoder without states of tokens."""

    def load(self, checkpoint: Path, *, device: str, dtype: str, predicts: bool = False) -> Any:
        return Pooled(super().load(checkpoint, device=device, dtype=dtype, predicts=predicts))


def with_frail() -> Plugins:
    """All plugins, and one with the encoders above."""
    module = ModuleType("frail")

    @hookimpl
    def register_backbones() -> Mapping[str, type[Backbone]]:
        return {"frail_encoder": FrailEncoder, "pooled_encoder": PooledEncoder}

    vars(module)["register_backbones"] = register_backbones
    found = load_plugins(block=())
    found.register(module, "frail", "frail", "1.0")
    return found


@pytest.fixture(scope="module")
def plugins() -> Plugins:
    return with_frail()


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    READ.clear()
    LIMIT.clear()
    yield
    LIMIT.clear()


TEXTS = [" ".join(tiny.WORDS[start : start + 1 + start % 5]) for start in range(24)]


@pytest.fixture
def place(bert: Path, berts: list[Path], tmp_path: Path) -> Path:
    """A folder with a base, two models of it, and two data sets."""
    for name, folder in zip(("base", "a", "b"), (bert, *berts), strict=False):
        (tmp_path / name).symlink_to(folder)
    for name, texts in (("first", TEXTS[:12]), ("second", TEXTS)):
        rows = zip(texts[0::2], texts[1::2], strict=True)
        lines = [json.dumps({"anchor": x, "positive": y}) for x, y in rows]
        # The first text of all once more: it counts once.
        lines.append(json.dumps({"anchor": texts[0], "positive": texts[3]}))
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
    return tmp_path


DATA = "[{path: ./first.jsonl, task: retrieval}, {path: ./second.jsonl, task: retrieval}]"
RECIPE = f"""
steps:
  geo:
    geometry:
      models: {{old: ./a, new: ./b}}
      data: {DATA}
      drift: {{parent: ./base, data: [{{path: ./second.jsonl, task: retrieval}}], neighbours: 3}}
      MORE
  page: {{report: {{of: $geo}}}}
"""


def recipe(place: Path, plugins: Plugins, text: str = RECIPE, more: str = "") -> Any:
    return parse_recipe(text.replace("MORE", more), plugins, path=place / "recipe.yaml")


def run(
    place: Path, plugins: Plugins, text: str = RECIPE, out: str = "out", more: str = ""
) -> dict[str, Any]:
    read = recipe(place, plugins, text, more)
    check_recipe(read, plugins).raise_errors()
    made = folders(run_recipe(read, place / out, plugins, quiet=True))
    found: dict[str, Any] = json.loads((made["geo"] / "geometry.json").read_text())
    return found


def plain_states(folder: Path, *, special: bool = True) -> dict[str, Any]:
    """The last hidden states of every text, each alone through plain transformers."""
    from transformers import AutoModel, AutoTokenizer

    model, tokenizer = AutoModel.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    found = {}
    for text in TEXTS:
        inputs = tokenizer(text, return_tensors="pt")
        with torch.no_grad():
            states = model(**inputs)[0][0].double().numpy()
        found[text] = states if special else states[1:-1]
    return found


# A pass may be off by so much of the largest state; measures of two tokens that are nearly alike are not as
# good, and these here are not.
SLACK = 20


@pytest.mark.parametrize("special", [True, False])
def test_each_model_is_measured_on_each_set(special: bool, place: Path, plugins: Plugins) -> None:
    more = "" if special else "special_tokens: false"
    found = run(place, plugins, more=more)
    assert [one["name"] for one in found["models"]] == ["old", "new"]
    for one, folder in zip(found["models"], ("a", "b"), strict=True):
        states = plain_states(place / folder, special=special)
        for name, texts in (("first", TEXTS[:12]), ("second", TEXTS)):
            kept = [states[text] for text in texts if len(states[text]) > 1]
            by_text = [by_numpy(x) for x in kept]
            mine = one["sets"][name]
            assert mine["texts"] == len(kept)
            assert mine["skipped"] == len(texts) - len(kept)
            for measure in MEASURES:
                values = [each[measure] for each in by_text]
                near = pytest.approx(np.mean(values), rel=SLACK * of_pass(place / folder))
                assert mine["mean"][measure] == near, measure
                near = pytest.approx(np.median(values), rel=SLACK * of_pass(place / folder))
                assert mine["median"][measure] == near, measure
        sets = one["sets"].values()
        for measure in MEASURES:
            mean = np.mean([mine["mean"][measure] for mine in sets])
            assert one["average"][measure] == pytest.approx(mean)
    assert not special or all(one["skipped"] == 0 for one in found["models"][0]["sets"].values())
    assert special or found["models"][0]["sets"]["first"]["skipped"] > 0


def test_precision_and_tolerance_are_named(place: Path, plugins: Plugins) -> None:
    found = run(place, plugins, more="tolerance: float64\n      entropy_of: values")
    assert found["measured"] == {
        "singular_values": "float64",
        "tolerance": "float64",
        "epsilon": 2.0**-52,
        "entropy_of": "values",
        "special_tokens": True,
    }
    assert found["models"][0]["sets"]["first"]["states"] == "float32"
    table = (place / "out" / "geo" / "geometry.md").read_text()
    assert "computed in float64 from hidden states in float32" in table
    assert "2.22e-16 (float64)" in table


def test_drift_is_that_of_embeddings(place: Path, plugins: Plugins) -> None:
    found = run(place, plugins)["drift"]
    assert {name: found[name] for name in ("parent", "texts", "neighbours")} == {
        "parent": "base",
        "texts": len(TEXTS),
        "neighbours": 3,
    }
    from sentence_transformers import SentenceTransformer

    base, old = (
        SentenceTransformer(str(place / name), device="cpu", local_files_only=True)
        .encode(TEXTS, show_progress_bar=False)
        .astype(np.float64)
        for name in ("base", "a")
    )
    assert found["models"]["old"]["cka"] == pytest.approx(cka_by_kernels(base, old), rel=1e-4)
    assert found["models"].keys() == {"old", "new"}
    assert all(0 < one["neighbours"] < 1 for one in found["models"].values())


def test_a_model_has_not_drifted_from_itself(place: Path, plugins: Plugins) -> None:
    text = RECIPE.replace("old: ./a", "old: ./base")
    found = run(place, plugins, text)["drift"]
    assert found["parent"] == "old"
    assert found["models"]["old"] == pytest.approx({"cka": 1, "neighbours": 1})


def test_the_table_has_models_side_by_side_with_differences(place: Path, plugins: Plugins) -> None:
    found = run(place, plugins)
    lines = (place / "out" / "geo" / "geometry.md").read_text().splitlines()
    rows = [line.split(" | ") for line in lines if line.startswith("| ")]
    sets = ["mean of 2", "mean of 2", "first", "first", "second", "second"]
    assert [row[0].removeprefix("| ") for row in rows[2:8]] == sets
    assert [row[1] for row in rows[2:8]] == ["old", "new"] * 3
    old, new = (one["sets"]["second"]["mean"] for one in found["models"])
    assert rows[6][3] == f"{old['rank']:.2f}"
    assert rows[7][3] == f"{new['rank']:.2f} ({new['rank'] - old['rank']:+.2f})"
    assert any("linear CKA" in line for line in lines)


PRINTED = """printed:
        title: A paper, table 4
        numbers:
          old: {rank: [3.5, 4.25, 3.88], condition_number: [1234.5, null, 2000]}
          Theirs: {token_similarity: [50, 60, 55]}"""


def test_a_papers_table_stands_first_with_this_runs_numbers(place: Path, plugins: Plugins) -> None:
    found = run(place, plugins, more=PRINTED)
    lines = (place / "out" / "geo" / "geometry.md").read_text().splitlines()
    assert lines[0] == "## A paper, table 4"
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines[4:9]]
    assert rows[0] == ["model", "measure", "first", "second", "mean"]
    (old, _) = found["models"]
    means = [old["sets"][name]["mean"] for name in ("first", "second")] + [old["average"]]
    ranks = [f"{mean['rank']:.2f}" for mean in means]
    printed = ("3.50", "4.25", "3.88")
    assert rows[2][:2] == ["old", "Rank"]
    assert rows[2][2:] == [f"{a} [{b}]" for a, b in zip(ranks, printed, strict=True)]
    conditions = [f"{mean['condition_number']:,.2f}" for mean in means]
    assert rows[3][2:] == [
        f"{conditions[0]} [1,234.50]",
        conditions[1],
        f"{conditions[2]} [2,000.00]",
    ]
    assert rows[4] == ["Theirs", "Token similarity × 100", *("– [50.00]", "– [60.00]", "– [55.00]")]
    assert any(line.startswith("| mean of 2 | old ") for line in lines), "the other table follows"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("3.88]", "3.88, 1]"), "old: condition_number has 3 printed numbers and needs 4"),
        (("old: {rank", "older: {rank"), "models get their names as {name: model}"),
    ],
)
def test_printed_numbers_that_do_not_fit_are_refused_before_work(
    change: tuple[str, str], words: str, place: Path, plugins: Plugins
) -> None:
    with pytest.raises(RecipeError) as caught:
        check_recipe(recipe(place, plugins, more=PRINTED.replace(*change)), plugins).raise_errors()
    assert words in str(caught.value)
    assert f"{place}/recipe.yaml:" in str(caught.value)


def test_printed_numbers_for_other_sets_are_refused(place: Path, plugins: Plugins) -> None:
    text = RECIPE.replace(DATA, "[{path: ./first.jsonl, task: retrieval}]", 1)
    with pytest.raises(EmbergeError, match="needs 2"):
        run(place, plugins, text, more=PRINTED)


def test_figures_are_data_with_their_table(place: Path, plugins: Plugins) -> None:
    found = run(place, plugins)
    artifact = read_artifact(place / "out" / "geo")
    assert artifact is not None
    spread, drift = artifact.details["figures"]
    points = spread["points"]["series"]["new"]
    mine = found["models"][1]["sets"]["first"]["mean"]
    assert points[0] == [mine["token_similarity"], mine["svd_entropy"], "first"]
    assert all(len(row) == len(spread["table"]["head"]) for row in spread["table"]["rows"])
    assert drift["points"]["series"].keys() == {"old", "new"}
    assert (place / "out" / "page" / "report.html").is_file()


def test_one_more_model_is_the_only_one_that_is_read(place: Path, plugins: Plugins) -> None:
    frail = "backbone: frail_encoder"
    one = RECIPE.replace("{old: ./a, new: ./b}", "{old: ./a}")
    first = run(place, plugins, one, more=frail)
    before = sum(READ)
    both = run(place, plugins, more=frail)
    assert sum(READ) == 2 * before
    assert both["models"][0] == first["models"][0]


@pytest.mark.slow
def test_a_killed_run_goes_on_after_the_sets_that_are_done(place: Path, plugins: Plugins) -> None:
    frail = "backbone: frail_encoder"
    whole = run(place, plugins, out="whole", more=frail)
    chunks = [*READ]
    sets = (12, 24)
    first = next(n for n in range(1, len(chunks)) if sum(chunks[:n]) == sets[0])
    mortal = (
        "from pathlib import Path\n"
        "from tests.plugins.codiemb import test_geometry as here\n"
        f"here.LIMIT.append({first + 1})  # within the second set of the first model\n"
        f"place = Path({str(place)!r})\n"
        f"here.run(place, here.with_frail(), more={frail!r})\n"
    )
    killed = subprocess.run([sys.executable, "-c", mortal], cwd=ROOT, check=False)
    assert killed.returncode == -signal.SIGKILL
    READ.clear()
    assert run(place, plugins, more=frail) == whole
    assert chunks[first:] == READ


TRAINED = """
steps:
  trained:
    train:
      model: ./base
      data: [{path: ./second.jsonl, task: retrieval}]
      loss: infonce
      sampler: {batch_shuffle: {batch_size: 4}}
      max_steps: 6
      save_steps: 2
      keep_last: 2
  geo:
    geometry:
      models: [./base, $trained.checkpoints]
      data: [{path: ./first.jsonl, task: retrieval}]
"""


def test_checkpoints_of_a_killed_training_have_the_same_geometry(
    place: Path, plugins: Plugins, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run(place, plugins, TRAINED, "whole")
    assert len({one["name"] for one in whole["models"]}) == 3
    # Nor is what was kept of one checkpoint taken for another.
    assert len({json.dumps(one["sets"]) for one in whole["models"]}) == 3
    passes: list[int] = []
    forward = TextModel.__call__

    def dying(self: TextModel, *given: Any, **named: Any) -> Any:
        passes.append(1)
        if len(passes) == 5:
            raise KilledError
        return forward(self, *given, **named)

    monkeypatch.setattr(TextModel, "__call__", dying)
    with pytest.raises(KilledError):
        run(place, plugins, TRAINED)
    assert run(place, plugins, TRAINED) == whole
    assert len(passes) > 6


def test_an_adapter_is_measured_on_its_base(place: Path, plugins: Plugins) -> None:
    text = """
steps:
  trained:
    train:
      model: ./base
      data: [{path: ./second.jsonl, task: retrieval}]
      loss: infonce
      sampler: {batch_shuffle: {batch_size: 4}}
      max_steps: 2
      learning_rate: 0.1
      backbone: {text_encoder: {lora: {rank: 2}}}
  geo: {geometry: {models: [./base, $trained], data: [{path: ./first.jsonl, task: retrieval}]}}
"""
    base, trained = run(place, plugins, text)["models"]
    assert base["sets"]["first"]["mean"] != trained["sets"]["first"]["mean"]


# ── errors ──────────────────────────────────────────────────────────────────────────────────────

BAD = {
    "models: []": ("data: DATA", "there are no models to measure"),
    "models: [./a, ./a]": ("data: DATA", "'./a' is named 2 times"),
    "models: [./a]": ("", "name data, or a drift"),
    "models: [./b]": ("data: [{path: ./none.jsonl}]", "none.jsonl"),
    "models: {x: ./a}": (
        "drift: {parent: ./wide, data: DATA}",
        "'./wide' has embeddings of 48 numbers and './a' of 32",
    ),
    "models: {y: ./a}": ("drift: {parent: ./b, data: DATA, neighbours: 0}", "at least 1"),
    "models: {z: ./bare}": ("data: DATA", "name it: backbone: {text_encoder: {pooling: mean}}"),
}

# Lines of the recipe that are at fault; of the others it is that of the models.
PLACES = {"models: [./a]": 2, "models: {x: ./a}": 5, "models: {y: ./a}": 5}


@pytest.mark.parametrize("models", BAD)
def test_a_wrong_step_is_found_before_work(models: str, place: Path, plugins: Plugins) -> None:
    more, words = BAD[models]
    tiny.checkpoint(place / "wide", hidden_size=48)
    bare = tiny.checkpoint(place / "bare")
    (bare / "modules.json").unlink()
    text = f"steps:\n  geo:\n    geometry:\n      {models}\n"
    text += f"      {more.replace('DATA', DATA)}\n"
    with pytest.raises(RecipeError) as caught:
        check_recipe(recipe(place, plugins, text), plugins).raise_errors()
    assert words in str(caught.value)
    assert f"{place}/recipe.yaml:{PLACES.get(models, 4)}: " in str(caught.value) or "none" in words


def test_a_parent_of_another_dimension_is_refused_when_a_step_made_it(
    place: Path, plugins: Plugins
) -> None:
    tiny.checkpoint(place / "wide", hidden_size=48)
    tiny.checkpoint(place / "wider", hidden_size=48, seed=1)
    soup = "  soup: {merge: {models: [./wide, ./wider], strategy: linear}}\n"
    text = RECIPE.replace("steps:\n", f"steps:\n{soup}").replace("./base", "$soup")
    with pytest.raises(
        EmbergeError, match=r"'\$soup' has embeddings of 48 numbers and 'old' of 32"
    ):
        run(place, plugins, text)


def test_a_fault_of_the_data_is_told_once(place: Path, plugins: Plugins) -> None:
    text = RECIPE.replace("./first.jsonl", "./none.jsonl").partition("  page:")[0]
    report = check_recipe(recipe(place, plugins, text), plugins)
    assert len(report.errors) == 1


def test_a_set_of_single_tokens_is_refused_before_any_is_read(
    place: Path, plugins: Plugins
) -> None:
    lines = [json.dumps({"anchor": x, "positive": y}) for x, y in (("list", "file"), ("of", "a"))]
    (place / "second.jsonl").write_text("\n".join(lines))
    text = RECIPE.replace("neighbours: 3", "neighbours: 1")
    run(place, plugins, text)  # with the special tokens there are three
    more = "special_tokens: false\n      backbone: frail_encoder"
    with pytest.raises(EmbergeError, match="data set 'second': none of its 4 texts has two tokens"):
        run(place, plugins, text, "other", more)
    assert not READ


def test_a_backbone_without_states_is_refused(place: Path, plugins: Plugins) -> None:
    with pytest.raises(EmbergeError, match=r"Pooled.*choose another backbone"):
        run(place, plugins, more="backbone: pooled_encoder")
    text = RECIPE.replace(f"      data: {DATA}\n", "")
    found = run(place, plugins, text, more="backbone: pooled_encoder")
    assert found["drift"]["models"].keys() == {"old", "new"}  # which takes embeddings alone


def test_a_probe_set_of_too_few_texts_is_refused_before_work(place: Path, plugins: Plugins) -> None:
    text = RECIPE.replace("neighbours: 3", "neighbours: 24")
    with pytest.raises(RecipeError, match=r"recipe.yaml:7.*has 24 distinct texts"):
        run(place, plugins, text)
    run(place, plugins, text.replace("24", "23"))


def test_a_probe_set_that_a_step_has_yet_to_write_is_not_counted(
    place: Path, plugins: Plugins
) -> None:
    text = RECIPE.replace("steps:\n", "steps:\n  corpus: {stdlib_corpus: {}}\n")
    text = text.replace("data: [{path: ./second", "data: [$corpus, {path: ./second")
    read = recipe(place, plugins, text.replace("neighbours: 3", "neighbours: 50"))
    assert not check_recipe(read, plugins).errors


def test_a_probe_set_that_a_check_cannot_count_is_refused_before_any_is_read(
    place: Path, plugins: Plugins
) -> None:
    text = RECIPE.replace("neighbours: 3", "neighbours: 12")
    text = text.replace("second.jsonl, task: retrieval}], n", "second.jsonl, limit: 4}], n")
    with pytest.raises(EmbergeError, match="has 8 distinct texts"):
        run(place, plugins, text, more="backbone: frail_encoder")
    assert not READ


@pytest.mark.parametrize(("factor", "fault"), [(float("nan"), "not finite"), (0.0, "all zero")])
def test_states_without_geometry_are_named(
    factor: float, fault: str, place: Path, plugins: Plugins, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Frail, "states", lambda self, f: self._encoder.states(f) * factor)
    with pytest.raises(EmbergeError, match=rf"a on data set 'first': hidden states are {fault}"):
        run(place, plugins, more="backbone: frail_encoder")


def test_embeddings_that_are_not_finite_have_not_drifted_but_are_refused(
    place: Path, plugins: Plugins, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: Frail, *given: Any) -> Any:
        found = self._encoder(*given)
        return replace(found, embeddings=found.embeddings * float("nan"))

    monkeypatch.setattr(Frail, "__call__", broken)
    with pytest.raises(EmbergeError, match=r"base: .* embeddings are not finite"):
        run(place, plugins, more="backbone: frail_encoder")


def test_texts_are_counted_for_each_model_where_tokenizers_differ() -> None:
    one = dict.fromkeys(MEASURES, 1.0)
    counts = {"old": (10, 2), "new": (12, 0)}
    models = [
        MeasuredModel(name, name, {"s": MeasuredSet(texts, skipped, "float32", one, one)})
        for name, (texts, skipped) in counts.items()
    ]
    how = {
        "singular_values": "float64",
        "tolerance": "float32",
        "epsilon": 1e-7,
        "entropy_of": "squares",
        "special_tokens": True,
    }
    assert re.search(
        r"10 texts \(2 .*\) for old, over 12 texts for new", table_of(Geometry((*models,), how))
    )
    assert re.search(r"over 12 texts\.", table_of(Geometry((models[1],), how)))
