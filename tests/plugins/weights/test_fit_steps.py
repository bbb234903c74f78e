"""Parts of a search by layer and of real merges: steps of a fit, members on disk, vectors, folders."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from emberge import CheckpointError
from emberge_encoder import TextEncoder
from emberge_merge import Linear
from emberge_weights.layers.fit import fit_coefficients
from emberge_weights.layers.layer_search import LayerSearch, open_members
from emberge_weights.layers.member_tensors import MixedForward, blocks_of, member_tensors
from emberge_weights.members import (
    SetEmbedder,
    SideVectors,
    before_length_one,
    member_inputs,
    plan_members,
)
from emberge_weights.real_merges import describe_merge, merge_and_embed, merged_folder
from emberge_weights.weight_sets import WeightSet

from tests.support.bench import Bench, model_at

SLOPE = torch.tensor([[-3.0, -1.0], [0.0, 0.0]])


def fitted(rounds: int, batches: int, *, factor: float = 1.0, told: Any = None) -> Any:
    """Coefficients of two blocks after steps of which the first have a batch with a constant gradient."""

    def some(units: Any, _: Any) -> Iterator[Any]:
        yield from [units] * batches

    one: Any = SimpleNamespace(
        name="set", batches=some, loss=lambda embed, _: (embed * SLOPE).sum() * factor
    )
    forward: Any = SimpleNamespace(at=lambda coefficients: coefficients)
    start, units = np.array([0.25, 0.75]), [np.arange(2)]
    with TemporaryDirectory() as work:
        return fit_coefficients(
            start,
            2,
            forward,
            [one],
            units,
            seed=0,
            rounds=rounds,
            work=Path(work),
            progress=told,
        )


def test_steps_of_a_fit_get_smaller_to_its_end() -> None:
    told: list[int] = []
    found = fitted(1, 1, told=told.append)
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, [[0.3, 0.7], [0.25, 0.75]], atol=1e-6)
    assert told == [1]
    told.clear()
    # Twice the way of 0.05 and 0.025, less a little for the pull back.
    found = fitted(2, 2, told=told.append)
    np.testing.assert_allclose(found, [[0.325, 0.675], [0.25, 0.75]], atol=1e-3)
    assert told == [1, 2]


def test_a_fit_goes_back_where_no_batch_is_left() -> None:
    (moved, _), (back, unseen) = fitted(1, 1), fitted(40, 1, factor=1e-3)
    assert moved[0] == pytest.approx(0.3, abs=1e-5)
    assert back[0] == pytest.approx(0.25, abs=0.02)
    assert unseen.tolist() == [0.25, 0.75]
    assert fitted(3, 0).tolist() == [[0.25, 0.75]] * 2


def test_a_pull_is_weaker_than_a_loss_and_grows_with_the_distance() -> None:
    # The centred gradient of the loss is 0.06; that of the pull is 0.6 for a distance of 1.
    far = fitted(400, 400, factor=0.06)
    assert far[0, 0] == pytest.approx(0.35, abs=0.01)


def test_a_loss_that_is_no_number_is_refused_with_its_step_and_set() -> None:
    with pytest.raises(CheckpointError, match=r"loss of step 1 on set 'set' is not finite"):
        fitted(2, 2, factor=float("nan"))


# ── members on disk ─────────────────────────────────────────────────────────────────────────────


def test_parameters_of_members_are_rows_of_one_file(berts: list[Path], tmp_path: Path) -> None:
    models = [model_at(folder) for folder in berts]
    blocks, bench = blocks_of(plan_members(models, Linear())), Bench(tmp_path)
    found, encoder = member_tensors(models, TextEncoder(), blocks, bench)
    assert bench.told == [(done, 3, "models", "reading members") for done in (1, 2, 3)]
    backbone = before_length_one(TextEncoder())
    own = [backbone.load(folder, device="cpu", dtype="float32") for folder in berts]
    tensors = [dict(one.module.named_parameters()) for one in own]
    assert found.rows.shape == (3, sum(tensor.numel() for tensor in tensors[0].values()))
    np.testing.assert_array_equal(np.load(bench.work / "members.npy"), found.rows)
    assert found.shapes == {name: tuple(tensor.shape) for name, tensor in tensors[0].items()}
    # The last block is a module that the encoder does without.
    assert {*found.blocks.values()} == set(range(len(blocks) - 1))
    weights = torch.tensor([0.5, 0.25, 1.0])
    for name in tensors[0]:
        each = torch.stack([one[name].detach() for one in tensors])
        mixed = torch.einsum("m,m...->...", weights, each)
        torch.testing.assert_close(found.mixed(name, weights), mixed)
        products = (each * each[1]).flatten(1).sum(1)
        torch.testing.assert_close(found.products(name, each[1]), products, rtol=1e-4, atol=1e-5)
    # The encoder that stays is that of the first.
    for name, tensor in encoder.module.named_parameters():
        assert torch.equal(tensor, tensors[0][name])
    lacking: Any = replace(blocks, place={name: 0 for name in blocks.place if "LayerNorm" in name})
    with pytest.raises(
        CheckpointError, match=r"^'sibling2': .* no tensor of the merge.*leave 'layers' out"
    ):
        member_tensors(models, TextEncoder(), lacking, Bench(tmp_path / "other"))


def test_texts_come_back_in_their_order_from_chunks_of_equal_lengths(
    berts: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = [model_at(folder) for folder in berts[:2]]
    blocks = blocks_of(plan_members(models, Linear()))
    members, encoder = member_tensors(models, TextEncoder(), blocks, Bench(tmp_path))
    forward = MixedForward(encoder, members)
    lines = ["sort", "open the list of a file", "list of", "a", "file of the list"]
    texts = encoder.tokenise(lines, prompt="", max_length=None)
    coefficients = torch.full((len(blocks), 2), 0.5)
    whole = forward.at(coefficients)(texts)
    monkeypatch.setattr("emberge_weights.layers.member_tensors.CHUNK", 2)
    torch.testing.assert_close(forward.at(coefficients)(texts), whole, rtol=1e-4, atol=1e-5)
    for number, text in enumerate(texts):
        alone = forward.at(coefficients)([text])
        torch.testing.assert_close(alone[0], whole[number], rtol=1e-4, atol=1e-5)
    assert not encoder.module.training
    assert not any(tensor.requires_grad for tensor in encoder.module.parameters())


def test_a_search_by_layer_shows_its_fits(berts: list[Path], tmp_path: Path) -> None:
    bench: Any = Bench(tmp_path)
    models = [model_at(folder) for folder in berts[:2]]
    blocks, forward = open_members(models, TextEncoder(), plan_members(models, Linear()), bench)
    gold = [0.1, 0.9, 0.4, 0.6]
    texts = ["sort the list", "open a file", "list of a", "the file"]
    pairs = WeightSet("near", "sts", "spearman", "spearman", texts, texts[::-1], gold=gold)
    embedder = SetEmbedder(
        sets=[pairs, pairs], backbone=TextEncoder(), prompt=None, max_length=None, workspace=bench
    )
    members = [embedder.member(model) for model in models]
    bench.told.clear()
    found = LayerSearch(
        models=models,
        members=members,
        sets=[pairs],
        blocks=blocks,
        forward=forward,
        strategy=Linear(),
        embedder=embedder,
        seed=0,
    ).run(np.array([0.25, 0.75]))
    assert [told for told in bench.told if told[2] == "fits"] == [
        (number - 1 + done / 2, 2, "fits", f"fit {number} of 2: a half of the texts")
        for number in (1, 2)
        for done in (0, 1, 2, 2)
    ]
    assert "near" in {note for *_, unit, note in bench.told if unit != "fits"}
    assert found.blocks == blocks.names
    assert found.coefficients.shape == (len(blocks), 2)
    np.testing.assert_allclose(found.coefficients.sum(1), 1, atol=1e-6)
    assert 0 < np.abs(found.coefficients - [0.25, 0.75]).max() < 0.1
    for number, one in enumerate(found.by_tensor):
        values, other = found.coefficients[:, number].tolist(), [0.25, 0.75][number]
        assert one == blocks.weights(values, other)


# ── vectors and merges ──────────────────────────────────────────────────────────────────────────

TEXTS = ["sort the list", "open a file", "list of a"]
ASKED = WeightSet("asked", "retrieval", "mean", "ndcg_at_10", TEXTS, TEXTS[::-1])
FREE = WeightSet("free", "clustering", "mean", "agreement", TEXTS, TEXTS, alike=True)


def embedder_of(bench: Any, prompt: str | None, max_length: int | None = None) -> SetEmbedder:
    return SetEmbedder(
        sets=[ASKED, replace(FREE, documents=FREE.queries), replace(ASKED, alike=True)],
        backbone=TextEncoder(),
        prompt=prompt,
        max_length=max_length,
        workspace=bench,
    )


def test_vectors_are_those_of_texts_with_their_prompts_before_length_one(
    berts: list[Path], tmp_path: Path
) -> None:
    bench = Bench(tmp_path)
    model = model_at(berts[0], "first")
    asked, free, alike = embedder_of(bench, "list ").member(model)
    encoder = before_length_one(TextEncoder()).load(berts[0], device="cpu", dtype="float32")

    def own(texts: list[str], prompt: str, max_length: int | None = None) -> Any:
        tokens = encoder.tokenise(texts, prompt=prompt, max_length=max_length)
        with torch.no_grad():
            return torch.cat([encoder(encoder.collate([t])).embeddings for t in tokens]).numpy()

    near = {"rtol": 1e-4, "atol": 1e-5}
    np.testing.assert_allclose(asked.queries[:], own(TEXTS, "list "), **near)
    np.testing.assert_allclose(asked.documents[:], own(TEXTS[::-1], ""), **near)
    assert free.documents is free.queries
    np.testing.assert_allclose(alike.documents[:], own(TEXTS[::-1], "list "), **near)
    notes = [
        f"set {number} of 3: {name}" for number, name in enumerate(("asked", "free", "asked"), 1)
    ]
    assert list(dict.fromkeys(note for *_, note in bench.told)) == notes
    assert any(bench.store.iterdir())
    assert not (bench.work / "vectors").exists()
    bench.told.clear()
    (short, *_) = embedder_of(bench, None, 3).merged(berts[0], "key", "merged")
    np.testing.assert_allclose(short.queries[:], own(TEXTS, "", 3), **near)
    assert list(dict.fromkeys(note for *_, note in bench.told)) == notes
    assert any((bench.work / "vectors").iterdir())


def test_a_merge_is_in_its_folder_until_its_vectors_are_read(
    berts: list[Path], tmp_path: Path
) -> None:
    models, bench = [model_at(folder) for folder in berts], Bench(tmp_path)
    workspace: Any = bench
    inputs = member_inputs(models, [0.5, 0.25, 0.25])
    with merged_folder(inputs, Linear(), workspace) as folder:
        assert folder.parent == bench.work / "anchors"
        assert (folder / "model.safetensors").is_file()
        with merged_folder(member_inputs(models, [0.5, 0.5, 0.0]), Linear(), workspace) as other:
            assert other.name != folder.name
        assert not other.exists()
        assert folder.is_dir()
    assert not folder.exists()
    # A merge that is there already is taken as it is, and removed like another.
    folder.mkdir()
    with merged_folder(inputs, Linear(), workspace) as again:
        assert again == folder
        assert not any(again.iterdir())
    assert not folder.exists()
    bench.told.clear()
    embedder = embedder_of(bench, None)
    given: Any = [[SideVectors(np.ones(1), np.ones(1))] * 3] * 3
    weights = np.array([0.5, 0.0, 0.5])
    sides = merge_and_embed(models, given, weights, Linear(), embedder)
    assert len(sides) == 3
    assert {note for *_, note in bench.told} == {
        "set 1 of 3: asked",
        "set 2 of 3: free",
        "set 3 of 3: asked",
    }
    assert describe_merge(models, weights) == f"0.50 {models[0].name}, 0.50 {models[2].name}"
