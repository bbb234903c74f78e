"""Every encoder that a step makes carries its passport from the moment it can be seen."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import emberge_index.space.one_space as one_space
import numpy as np
import pytest
from emberge import load_plugins
from emberge.cli.main import main
from emberge.model_folder import write_static_model
from emberge_encoder import TextEncoder
from emberge_index.space.canaries import embed_canaries
from emberge_index.space.passport import PASSPORT, passport_of, read_passport
from safetensors.numpy import load_file, save_file

from tests.support import tiny
from tests.support.fuse import DEATH, Fuse
from tests.support.killed_run import command
from tests.support.killed_steps import contents
from tests.support.translations import pairs
from tests.support.vector_service import misconfigured, serving_vectors


def made(folder: Path, **steps: Mapping[str, Any]) -> Path:
    """Run a recipe of these steps, on some pairs, and return OUT."""
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in pairs(60)))
    recipe = folder / "recipe.yaml"
    recipe.write_text(json.dumps({"steps": steps}))
    assert main(["run", str(recipe), "--out", str(folder / "out"), "--quiet"]) == 0
    return folder / "out"


def soup(models: list[Path], **options: Any) -> dict[str, Any]:
    return {"merge": {"models": [str(model) for model in models], "strategy": "linear", **options}}


def test_models_of_every_kind_of_step_carry_the_passport_of_what_they_are(
    berts: list[Path], tmp_path: Path
) -> None:
    training = {
        "model": str(berts[0]),
        "data": "./rows.jsonl",
        "loss": "infonce",
        "sampler": {"batch_shuffle": {"batch_size": 4}},
        "max_steps": 2,
    }
    bridge = {"old": str(berts[0]), "new": "$soup", "data": "./rows.jsonl", "kind": "shift"}
    out = made(
        tmp_path,
        trained={"train": training},
        soup=soup([*berts[1:], Path("$trained")]),
        fit={"bridge": bridge},
    )
    for step in ("trained", "soup", "fit"):
        folder = out / step
        kept = read_passport(folder)
        assert kept == passport_of(folder), step
        assert (kept.dimension, kept.canaries) == (32, {}), step
        assert PASSPORT in json.loads((folder / "artifact.json").read_text())["files"]
    assert len({read_passport(out / step).fingerprint for step in ("trained", "soup", "fit")}) == 3
    assert all(main(["verify", str(out / step)]) == 0 for step in ("trained", "soup", "fit"))


def test_adapters_and_trunks_alone_have_no_passport(bert: Path, tmp_path: Path) -> None:
    training = {
        "model": str(bert),
        "backbone": {"text_encoder": {"lora": {"rank": 2}}},
        "data": "./rows.jsonl",
        "loss": "infonce",
        "sampler": {"batch_shuffle": {"batch_size": 4}},
        "max_steps": 1,
    }
    trunks = [tiny.transformer(tmp_path / name, seed=seed) for seed, name in enumerate("ab")]
    out = made(tmp_path, adapter={"train": training}, trunk=soup(trunks))
    assert (out / "adapter" / "adapter_config.json").is_file()
    assert not (out / "adapter" / PASSPORT).exists()
    assert not (out / "trunk" / PASSPORT).exists()
    assert published(out / "adapter") == {}
    empty = tmp_path / "empty"
    empty.mkdir()
    assert published(empty) == {}


def test_the_passport_of_a_result_loads_no_model_and_no_backbone(
    berts: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError("a backbone was asked")

    for name in ("load", "describe"):
        monkeypatch.setattr(TextEncoder, name, never)
    out = made(tmp_path, soup=soup(berts))
    assert read_passport(out / "soup") == passport_of(out / "soup")


def published(folder: Path) -> dict[str, str]:
    found = load_plugins().call_complete_hook("complete_publication", folder=folder)
    assert found.failures == []
    return found.files


def test_a_model_that_is_published_gets_its_canaries(bert: Path, tmp_path: Path) -> None:
    (tmp_path / "space.json").write_text(published(bert)[PASSPORT])
    kept = read_passport(tmp_path)
    assert kept == passport_of(bert)
    encoder = TextEncoder().load(bert, device="cpu", dtype="float32")
    for side, rows in embed_canaries(encoder).items():
        np.testing.assert_allclose(kept.canaries[side], rows, rtol=2**-10, atol=1e-6)


def test_the_facts_of_a_folder_that_names_little_are_the_fields_defaults(
    bert: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(bert, tmp_path / "model"))
    (folder / "config_sentence_transformers.json").unlink(missing_ok=True)
    assert passport_of(folder).similarity == "cosine"
    config = json.loads((folder / "config.json").read_text())
    inner = {"hidden_size": config.pop("hidden_size")}
    (folder / "config.json").write_text(json.dumps({**config, "text_config": inner}))
    assert passport_of(folder).dimension == inner["hidden_size"]


def test_a_large_model_is_published_with_the_facts_alone(
    bert: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(one_space, "SMALL", 1000)
    assert published(bert) == {}


def test_a_model_that_cannot_embed_is_published_with_the_facts_alone(
    bert: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise RuntimeError("not enough memory")

    monkeypatch.setattr(TextEncoder, "load", fails)
    found = load_plugins().call_complete_hook("complete_publication", folder=bert)
    assert found.files == {}
    assert ["'index' has failed" in line and "not enough memory" in line for line in found.failures]


def test_a_run_killed_around_the_passport_ends_in_the_same_bytes(
    berts: list[Path], tmp_path: Path
) -> None:
    import emberge.merging.streaming.stream as journal

    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(json.dumps({"steps": {"soup": soup(berts[:2])}}))
    lines = [["run", str(recipe), "--out", str(tmp_path / name / "out")] for name in ("whole", "k")]
    (tmp_path / "whole").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(journal, "INTERVAL", 0.0)
        assert command(lines[0], Fuse()) == 0
        calls = json.loads((tmp_path / "whole" / "calls").read_text())
        expected = contents(tmp_path / "whole" / "out")
        assert f"soup/{PASSPORT}" in expected
        # The last renames are those of the passport, the artifact, the folder, its link, and the card.
        renames = [at for at, call in enumerate(calls, 1) if call in ("rename", "replace")][-7:]
        for at in sorted({at + step for at in renames for step in (0, 1)}):
            (tmp_path / "k").mkdir(exist_ok=True)
            assert command(lines[1], Fuse(at=at)) == DEATH
            result = tmp_path / "k" / "out" / "soup"
            assert not result.exists() or (result / PASSPORT).is_file()
            assert command(lines[1]) == 0
            assert contents(tmp_path / "k" / "out") == expected, calls[at - 1]
            for path in sorted((tmp_path / "k").rglob("*"), reverse=True):
                path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()


def test_a_passport_minds_the_prompts_of_both_sides(bert: Path, tmp_path: Path) -> None:
    """Of documents in its fingerprint, of queries in the vectors of their canaries."""
    found = {}
    for name, prompts in {
        "none": {},
        "query": {"query": "the "},
        "document": {"document": "the "},
    }.items():
        folder = tmp_path / name
        shutil.copytree(bert, folder)
        settings = json.loads((folder / "config_sentence_transformers.json").read_text())
        text = json.dumps({**settings, "prompts": prompts})
        (folder / "config_sentence_transformers.json").write_text(text)
        (tmp_path / f"{name}.json").write_text(published(folder)[PASSPORT])
        found[name] = read_passport(tmp_path / f"{name}.json")
    assert [one.prompts for one in found.values()] == [("", ""), ("the ", ""), ("", "the ")]
    assert found["query"].fingerprint == found["none"].fingerprint
    assert found["document"].fingerprint != found["none"].fingerprint
    assert found["query"].differences(found["none"]) == {}
    assert found["document"].differences(found["none"]) == {"document prompt": ("the ", "")}
    plain, query, document = (one.canaries for one in found.values())
    np.testing.assert_array_equal(query["document"], plain["document"])
    np.testing.assert_array_equal(document["query"], plain["document"])
    np.testing.assert_allclose(document["document"], query["query"], atol=2e-3)
    assert np.abs(document["document"] - plain["document"]).max() > 0.01


@pytest.fixture
def static(bert: Path, tmp_path: Path) -> Path:
    """A static model of the tiny BERT's tokenizer, of 8 numbers, with prompts."""
    folder = tmp_path / "static"
    folder.mkdir()
    tokenizer = (bert / "tokenizer.json").read_text()
    size = len(json.loads(tokenizer)["model"]["vocab"])
    table = np.random.default_rng(0).standard_normal((size, 8)).astype(np.float32)
    write_static_model(folder, table, tokenizer, {"query": "the "}, {})
    return folder


def test_a_static_model_has_the_passport_of_its_vectors(
    static: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["space", str(static)]) == 0
    kept = read_passport(static)
    assert kept == passport_of(static)
    assert (kept.pooling, kept.dimension, kept.normalised, kept.max_length) == (
        "mean, StaticEmbedding Normalize",
        8,
        True,
        None,
    )
    assert (kept.prompts, kept.similarity) == (("the ", ""), "cosine")
    encoder = TextEncoder().load(static, device="cpu", dtype="float32")
    for side, rows in embed_canaries(encoder).items():
        np.testing.assert_allclose(kept.canaries[side], rows, rtol=2**-10, atol=1e-6)
    assert published(static).keys() == {PASSPORT}
    assert f"space {kept.fingerprint[:12]}" in capsys.readouterr().out


def test_static_models_of_steps_carry_passports_and_differ_by_their_vectors(
    bert: Path, static: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = made(
        tmp_path,
        tokens={"static_model": {"teacher": str(bert)}},
        soup=soup([static, static]),
    )
    for step, dimension in (("tokens", 32), ("soup", 8)):
        kept = read_passport(out / step)
        assert (kept, kept.dimension) == (passport_of(out / step), dimension)
    assert read_passport(out / "soup").fingerprint == passport_of(static).fingerprint
    assert main(["space", str(out / "soup"), str(static)]) == 0
    other = Path(shutil.copytree(static, tmp_path / "other"))
    table = load_file(other / "model.safetensors")
    save_file(
        {name: rows[::-1].copy() for name, rows in table.items()}, other / "model.safetensors"
    )
    capsys.readouterr()
    assert main(["space", str(static), str(other)]) in (3, 4)
    assert "weights: differ" in capsys.readouterr().out


def test_a_server_of_a_static_model_is_checked_by_its_passport(
    bert: Path, static: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["space", str(static)]) == 0
    with serving_vectors(misconfigured(static, ())) as service:
        for model in (static, static / PASSPORT):
            assert main(["space", str(model), "--endpoint", service.url]) == 0
    with serving_vectors(misconfigured(bert, ())) as service:
        words = ["--endpoint", service.url, "--candidates", str(bert)]
        assert main(["space", str(static), *words]) == 4
    assert "the vectors are those of" in capsys.readouterr().out
