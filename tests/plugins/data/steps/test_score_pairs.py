"""The step `score_pairs`: a teacher's score of each text, and errors before work."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from emberge import (
    EmbergeError,
    Plugins,
    check_recipe,
    parse_recipe,
    run_recipe,
)
from emberge.contracts import DataOrigin
from emberge.data import load_catalogue
from emberge_data import write_json_rows
from emberge_encoder import CrossEncoderFacts

from tests.support import tiny
from tests.support.recipe_runs import run_checked
from tests.support.result_folders import artifact_of
from tests.support.tolerance import of_pass

# A pass may be off by so much of what one sum is; cosines have lengths beside.
SLACK, OF_COSINES = 5, 20
ROWS = [
    {"query": "find the file", "pos": ["open a file", "the path"], "neg": ["weather"]},
    {"query": "sort a list", "pos": ["list sort"], "neg": []},
    {"query": "merge", "pos": ["merge the model"], "neg": ["train data", "music", "open a file"]},
    {"query": "find the file", "pos": ["the path"], "neg": ["music of the bank " * 4]},
]
RECIPE = """
steps:
  scored:
    score_pairs:
      data: {path: ./pairs.jsonl, task: retrieval}
      teacher: TEACHER
      MORE
"""


@pytest.fixture(scope="module")
def reranker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.reranker(tmp_path_factory.mktemp("models") / "reranker")


def write_place(folder: Path, reranker: Path, bert: Path) -> Path:
    """Write a set of pairs, a cross-encoder, the same as a bare folder, and an encoder."""
    (folder / "cross").symlink_to(reranker)
    (folder / "bare").symlink_to(reranker.with_name(f".{reranker.name}"))
    (folder / "encoder").symlink_to(bert)
    write_json_rows(folder / "pairs.jsonl", ROWS)
    return folder


@pytest.fixture
def place(tmp_path: Path, reranker: Path, bert: Path) -> Path:
    return write_place(tmp_path, reranker, bert)


def recipe(place: Path, plugins: Plugins, teacher: str, more: str = "") -> Any:
    text = RECIPE.replace("TEACHER", teacher).replace("MORE", more)
    return parse_recipe(text, plugins, path=place / "recipe.yaml")


def run(
    place: Path, plugins: Plugins, teacher: str, more: str = "", out: str = "out"
) -> list[dict[str, Any]]:
    """The rows that the step writes."""
    read = recipe(place, plugins, teacher, more)
    check_recipe(read, plugins).raise_errors()
    run_recipe(read, place / out, plugins, quiet=True)
    (path,) = (place / out / "scored").glob("*.jsonl")
    return [json.loads(line) for line in path.read_text().splitlines()]


def problems(place: Path, plugins: Plugins, teacher: str, more: str = "") -> list[Any]:
    return [*check_recipe(recipe(place, plugins, teacher, more), plugins).problems]


def plain_logit(folder: Path, query: str, text: str) -> tuple[float, float]:
    """The logit of one pair alone through plain transformers, and how far a pass may be off it."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    model = AutoModelForSequenceClassification.from_pretrained(folder)
    inputs = AutoTokenizer.from_pretrained(folder)(query, text, return_tensors="pt")
    with torch.no_grad():
        (logit,) = model(**inputs).logits.double().flatten().tolist()
    # The head reads a tanh, which is at most 1.
    return logit, SLACK * of_pass(folder) * float(model.classifier.weight.detach().abs().sum())


SCORED = {
    "cross": "{model: ./cross}",
    "prompted": "{model: ./cross, query_prompt: 'search ', document_prompt: 'text '}",
    "encoder": "{model: ./encoder, query_prompt: 'find '}",
}
STEP = "  {}: {{score_pairs: {{data: {{path: ./pairs.jsonl, {}}}, teacher: {}}}}}\n"
ORIGIN = "task: retrieval, source: {licence: mit, scored_by: [old]}"


@pytest.fixture(scope="module")
def made(
    bert: Path, reranker: Path, plugins: Plugins, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    """The results of one recipe in which different teachers score the same pairs."""
    place = write_place(tmp_path_factory.mktemp("scored"), reranker, bert)
    steps = [STEP.format(name, ORIGIN, teacher) for name, teacher in SCORED.items()]
    text = "steps:\n" + "".join(steps)
    return run_checked(place, text, plugins)


def rows_of(folder: Path) -> list[dict[str, Any]]:
    (path,) = folder.glob("*.jsonl")
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_cross_encoders_scores_are_sigmoids_of_what_it_gives_each_pair_alone(
    made: dict[str, Path], reranker: Path
) -> None:
    found = rows_of(made["cross"])
    for row, written in zip(ROWS, found, strict=True):
        assert {key: written[key] for key in row} == row
        for side in ("pos", "neg"):
            for text, score in zip(row[side], written[f"{side}_scores"], strict=True):
                logit, off = plain_logit(reranker, str(row["query"]), text)
                # A sigmoid is at most a quarter as steep.
                near = pytest.approx(1 / (1 + math.exp(-logit)), abs=off / 4)
                assert score == near
    scores = [one for row in found for one in (*row["pos_scores"], *row["neg_scores"])]
    assert max(scores) - min(scores) > off  # so one pair is not taken for another
    logit, off = plain_logit(reranker, "search sort a list", "text list sort")
    near = pytest.approx([1 / (1 + math.exp(-logit))], abs=off / 4)
    assert rows_of(made["prompted"])[1]["pos_scores"] == near


def test_an_encoders_cosines_become_numbers_from_0_to_1(made: dict[str, Path], bert: Path) -> None:
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(bert), device="cpu", local_files_only=True)
    for row, written in zip(ROWS, rows_of(made["encoder"]), strict=True):
        texts = [*row["pos"], *row["neg"]]
        query = model.encode([str(row["query"])], prompt="find ", show_progress_bar=False)
        cosines = model.similarity(query, model.encode(texts, show_progress_bar=False))
        off = OF_COSINES * of_pass(bert)
        near = pytest.approx([(1 + cosine) / 2 for cosine in cosines[0].tolist()], abs=off)
        assert [*written["pos_scores"], *written["neg_scores"]] == near
    (listed,) = load_catalogue(made["encoder"]).train
    assert listed.source == DataOrigin(licence="mit", scored_by=("./encoder",))


def test_the_table_counts_rows_with_a_negative_above_a_positive(made: dict[str, Path]) -> None:
    rows, details = rows_of(made["cross"]), artifact_of(made["cross"]).details
    higher = sum(max(row["neg_scores"], default=-1) > min(row["pos_scores"]) for row in rows)
    notes = details.changes["pairs"].notes
    assert notes.get("scored, a negative above a positive", 0) == higher
    assert sum(notes.values()) == len(rows)
    positives = [score for row in rows for score in row["pos_scores"]]
    low, middle, high = np.quantile(positives, [0, 0.5, 1], method="nearest")
    (sentence,) = details.sentences
    assert f"positives score {low:.4g} to {high:.4g}, median {middle:.4g}, negatives" in sentence


# ── bad input ───────────────────────────────────────────────────────────────────────────────────


def test_a_classifier_is_no_teacher(place: Path, plugins: Plugins) -> None:
    tiny.transformer(place / "classes", "AutoModelForSequenceClassification", num_labels=3)
    assert [
        CrossEncoderFacts.read(place / n).is_one for n in ("classes", "cross", "bare", "encoder")
    ] == [*(True, True, True, False)]
    (found,) = problems(place, plugins, "{model: ./classes}")
    assert "3 outputs" in found.message
    assert str(place / "classes" / "config.json") in found.message


@pytest.mark.parametrize(
    ("config", "cross", "outputs"),
    [
        ({"architectures": ["BertForSequenceClassification"]}, True, 2),
        ({"architectures": ["AForSequenceClassification"], "id2label": {"0": "a"}}, True, None),
        ({"architectures": ["BertModel", "AForSequenceClassification"]}, False, None),
        ({"architectures": None}, False, None),
        (None, False, None),
    ],
)
def test_a_bare_folder_is_a_cross_encoder_by_its_first_class(
    config: Any, cross: bool, outputs: int | None, tmp_path: Path
) -> None:
    if config is not None:
        (tmp_path / "config.json").write_text(json.dumps(config))
    assert CrossEncoderFacts.read(tmp_path).is_one is cross
    found = CrossEncoderFacts.read(tmp_path).problems
    assert len(found) == (outputs is not None)
    assert all(f"config.json: the model has {outputs} outputs" in message for message in found)


def test_scores_that_are_not_finite_stop_the_step(place: Path, plugins: Plugins) -> None:
    from safetensors.torch import load_file, save_file

    folder = tiny.transformer(place / "broken", "AutoModelForSequenceClassification", num_labels=1)
    path = folder / "model.safetensors"
    tensors = load_file(path)
    tensors["classifier.weight"].fill_(math.nan)
    save_file(tensors, path, metadata={"format": "pt"})
    with pytest.raises(EmbergeError, match="not finite"):
        run(place, plugins, "{model: ./broken}")
