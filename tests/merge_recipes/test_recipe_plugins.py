"""Plugin files beside the shipped recipes: drawn media, towers, texts and tasks of Python's own files."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from emberge import Machine, Plugins, RecipeError, load_plugins, run_recipe
from emberge.cli.main import main
from emberge.encoding import TextEmbedder
from emberge.recipes import list_shipped_recipes
from safetensors.torch import load_file

from tests.support import tiny
from tests.support.specialists import text_model

TINY = list_shipped_recipes()["bidirlm/tiny"].path
FILES = [
    TINY.parents[1] / one
    for one in ("bidirlm/media.py", "python_texts.py", "boom/stored_vectors.py")
]


@pytest.fixture(scope="module")
def plugins() -> Plugins:
    return load_plugins(FILES)


def ran(folder: Path, plugins: Plugins, steps: dict[str, Any]) -> Path:
    run_recipe({"steps": steps}, folder, plugins, machine=Machine(), quiet=True)
    return folder


def rows(path: Path) -> list[Any]:
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return [json.loads(line) for line in text.splitlines()]


def test_a_shipped_recipe_loads_its_files_and_a_copy_of_it_asks_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", "bidirlm/tiny", "--offline"]) == 0
    assert main(["check", str(TINY), "--offline"]) == 2
    assert "--allow-plugins" in capsys.readouterr().err
    assert main(["check", str(TINY), "--offline", "--allow-plugins"]) == 0


@pytest.fixture(scope="module")
def drawn(plugins: Plugins, tmp_path_factory: pytest.TempPathFactory) -> Path:
    steps = {"drawn": {"drawn_media": {}}, "shuffled": {"drawn_media": {"paired": False}}}
    return ran(tmp_path_factory.mktemp("drawn"), plugins, steps)


@pytest.mark.slow
def test_drawn_bytes_are_those_of_every_machine(drawn: Path) -> None:
    found = [
        hashlib.sha256((drawn / "drawn/train" / name).read_bytes()).hexdigest()[:16]
        for name in ("images/three_blue_triangles_0.bmp", "clips/three_quick_soft_high_beeps_0.wav")
    ]
    assert found == ["a363b5636f262826", "b5a875dccfa90d24"]


@pytest.mark.slow
def test_captions_of_the_tests_are_in_no_training_pair(drawn: Path) -> None:
    trained = {
        caption
        for name in ("drawings", "tones")
        for row in rows(drawn / f"drawn/train/{name}.jsonl")
        for caption in row["pos"]
    }
    assert len(trained) == 72 + 60
    for name in ("texts_to_images", "texts_to_clips"):
        tested = {row["text"] for row in rows(drawn / f"drawn/eval/{name}/queries.jsonl")}
        assert tested
        assert not trained & tested


def test_the_control_has_the_same_media_with_captions_of_others(drawn: Path) -> None:
    right, wrong = (rows(drawn / name / "train/drawings.jsonl") for name in ("drawn", "shuffled"))
    assert [row["query"] for row in right] == [row["query"] for row in wrong]
    captions, others = ([row["pos"][0] for row in found] for found in (right, wrong))
    assert Counter(captions) == Counter(others)
    assert sum(map(str.__eq__, captions, others)) < len(captions) / 10


def test_a_tower_stands_on_its_trunk_and_shuffled_parts_keep_the_numbers_of_each_row(
    plugins: Plugins, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = text_model(tmp_path / "text")
    vision = {"depth": 1, "hidden_size": 16, "intermediate_size": 24, "num_heads": 2}
    vision |= {"patch_size": 4, "num_position_embeddings": 16}
    steps = {
        "seeing": {"random_tower": {"model": "./text", "vision": vision}},
        "blind": {"shuffled_parts": {"model": "$seeing", "parts": ["visual"]}},
    }
    out = ran(tmp_path / "out", plugins, steps)
    trunk, before, after = (
        load_file(folder / "model.safetensors") for folder in (text, out / "seeing", out / "blind")
    )
    for name, value in trunk.items():
        assert before[name.replace("model.", "model.language_model.", 1)].equal(value), name
    moved = {name for name, value in before.items() if not value.equal(after[name])}
    assert moved
    assert all(".visual." in name for name in moved)
    for name in moved:
        one, two = (found[name].view(len(found[name]), -1) for found in (before, after))
        flat = before[name].ndim == 1
        one, two = (one.T, two.T) if flat else (one, two)
        assert torch.equal(one.sort(dim=1).values, two.sort(dim=1).values), name


def test_a_package_that_is_not_there_is_refused_with_the_fix(plugins: Plugins) -> None:
    from emberge import check_recipe

    steps = {"texts": {"stdlib_texts": {"packages": ["acme_missing"]}}}
    with pytest.raises(RecipeError, match="'acme_missing' is not installed"):
        check_recipe({"steps": steps}, plugins).raise_errors()


def test_stored_vectors_are_whole_steps_or_signs(plugins: Plugins, tmp_path: Path) -> None:
    folder, texts = tiny.checkpoint(tmp_path), tiny.WORDS[:9]
    (backbone,) = (one.type for one in plugins.components if one.name == "stored_vectors")
    vectors = {}
    for bits in (32, 8, 1):
        encoder = backbone(bits=bits).load(folder, device="cpu", dtype="float32")
        vectors[bits] = torch.tensor(TextEmbedder(encoder).embed(texts))
    whole, int8 = (127 * v / v.abs().amax(1, keepdim=True) for v in (vectors[32], vectors[8]))
    assert torch.allclose(int8, whole.round(), atol=1e-3)
    assert torch.allclose(vectors[1], whole.sign() / whole.shape[1] ** 0.5)
