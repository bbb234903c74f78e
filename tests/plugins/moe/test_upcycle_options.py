"""Options of an upcycling: what each changes, and what is refused before work."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from emberge import load_plugins
from emberge_moe.dense_model import BLOCKS
from emberge_moe.derived_tensors import JoinedTensor, NormalTensor
from emberge_moe.modeling_emberge_routed import FEED_FORWARD
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from torch import Tensor

from tests.support.recipe_runs import find_faults, run_checked
from tests.support.result_folders import artifact_of
from tests.support.routable import dense

ROUTER = "encoder.layer.1.router.weight"
EXPERT = "encoder.layer.1.experts.{}.intermediate.dense.weight"


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return dense(tmp_path_factory.mktemp("models") / "dense", "bert")


@pytest.fixture
def place(bert: Path, tmp_path: Path) -> Path:
    (tmp_path / "dense").symlink_to(bert)
    return tmp_path


@pytest.fixture(scope="module")
def made(bert: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """What options make of a dense model, and the folder of the dense one."""
    place = tmp_path_factory.mktemp("made")
    (place / "dense").symlink_to(bert)
    options = {"plain": "experts: 4", "shrunk": "experts: 4, normalize_gates: false"}
    found = ran(
        place, **{name: f"upcycle: {{model: ./dense, {more}}}" for name, more in options.items()}
    )
    return {**found, "dense": bert}


def ran(place: Path, **steps: str) -> dict[str, Path]:
    """Run steps, each written as `name: kind: {options}`, and return their folders."""
    text = "steps:\n" + "".join(f"  {name}: {{{step}}}\n" for name, step in steps.items())
    return run_checked(place, text, load_plugins())


def refused(place: Path, options: str) -> str:
    """Return the errors that a check finds; options that no model can have are one when they are read."""
    return find_faults(place, f"steps:\n  routed:\n    upcycle: {{{options}}}\n", load_plugins())


def facts(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = artifact_of(folder).details["upcycled"]
    return found


def tensors(folder: Path) -> dict[str, Tensor]:
    return load_file(folder / "model.safetensors")


# ── what options change ─────────────────────────────────────────────────────────────────────────


def test_experts_are_copies_and_routers_are_drawn(made: dict[str, Path]) -> None:
    found, own = tensors(made["plain"]), tensors(made["dense"])
    for number in range(4):
        assert torch.equal(
            found[EXPERT.format(number)], own["encoder.layer.1.intermediate.dense.weight"]
        )
    assert found[ROUTER].shape == (4, 32)
    assert 0.015 < float(found[ROUTER].std()) < 0.025
    # Other layers, norms and embeddings are the dense model's.
    assert {n for n in own if not torch.equal(own[n], found.get(n, torch.empty(0)))} == {
        f"encoder.layer.1.{name}.dense.{part}"
        for name in ("intermediate", "output")
        for part in ("weight", "bias")
    }


def test_all_dense_types_that_are_known_can_be_loaded_routed() -> None:
    assert BLOCKS.keys() == FEED_FORWARD.keys()


def test_without_normalised_gates_a_blocks_output_shrinks(made: dict[str, Path]) -> None:
    texts = ["open a file", "sort the list"]
    own, plain, shrunk = (
        SentenceTransformer(str(made[name]), device="cpu", trust_remote_code=True).encode(texts)
        for name in ("dense", "plain", "shrunk")
    )
    assert np.abs(shrunk - own).max() > 10 * np.abs(plain - own).max()
    config = json.loads((made["shrunk"] / "config.json").read_text())
    assert config["normalize_gates"] is False


def test_the_card_says_how_to_load_the_model(made: dict[str, Path]) -> None:
    card = (made["plain"] / "README.md").read_text()
    assert "trust_remote_code=True" in card
    assert "modeling_emberge_routed.py" in card


ALONE = """
import sys
for name in ("emberge", "emberge_moe", "emberge_encoder"):
    sys.modules[name] = None
import numpy as np
from sentence_transformers import SentenceTransformer
trusted = sys.argv[2] == "trusted"
model = SentenceTransformer(sys.argv[1], device="cpu", trust_remote_code=trusted)
np.save(sys.argv[3], model.encode(["open a file", "sort the list"]))
"""


@pytest.mark.slow
def test_a_routed_folder_embeds_without_emberge_only_if_trusted(
    made: dict[str, Path], place: Path
) -> None:
    folder = made["plain"]
    environment = {"HF_HOME": str(place / "hub"), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    for trust in ("trusted", "not"):
        found = place / f"{trust}.npy"
        done = subprocess.run(
            [sys.executable, "-c", ALONE, str(folder), trust, str(found)],
            capture_output=True,
            text=True,
            env=environment,
            cwd=place,
            check=False,
        )
        assert (done.returncode == 0) == found.is_file() == (trust == "trusted"), done.stderr[
            -2000:
        ]
    ours = SentenceTransformer(str(place / "dense"), device="cpu")
    expected = ours.encode(["open a file", "sort the list"])
    assert np.abs(np.load(place / "trusted.npy") - expected).max() < 1e-5


# ── members as experts ──────────────────────────────────────────────────────────────────────────

MEMBERS = "members: [./a, ./b, ./c], top_k: 1"


@pytest.fixture(scope="module")
def members(bert: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three models beside a dense one; do not write into them."""
    place = tmp_path_factory.mktemp("members")
    (place / "dense").symlink_to(bert)
    for number, name in enumerate("abc"):
        dense(place / name, "bert", seed=number + 1)
    return place


@pytest.fixture(scope="module")
def mixed(members: Path) -> dict[str, Path]:
    """Experts of the members, and their merge."""
    return ran(
        members,
        own=f"upcycle: {{model: $merged, {MEMBERS}}}",
        merged="merge: {models: [./a, ./b, ./c], base: ./dense, strategy: {ties: {density: 0.3}}}",
    )


def test_each_member_gives_an_expert_and_other_tensors_are_merged(
    members: Path, mixed: dict[str, Path]
) -> None:
    found, own = tensors(mixed["own"]), [tensors(members / name) for name in "abc"]
    name = "encoder.layer.1.intermediate.dense.weight"
    assert all(torch.equal(found[EXPERT.format(n)], one[name]) for n, one in enumerate(own))
    merged = tensors(mixed["merged"])
    for name in ("encoder.layer.0.output.dense.weight", "embeddings.word_embeddings.weight"):
        assert torch.equal(found[name], merged[name])
    artifact = artifact_of(mixed["own"])
    assert artifact.parents == ("$merged", "./a", "./b", "./c")


def test_members_of_other_shapes_or_types_are_refused(members: Path, place: Path) -> None:
    dense(place / "wide", "bert", intermediate_size=96)
    (place / "a").symlink_to(members / "a")
    found = refused(place, "model: ./dense, members: [./a, ./wide]")
    assert "recipe.yaml:3" in found
    assert "wide: its feed-forward block of layer 1 has other tensors or shapes" in found
    config = place / "wide" / "config.json"
    config.write_text(config.read_text().replace('"bert"', '"mpnet"'))
    found = refused(place, "model: ./dense, members: [./a,\n      ./wide]")
    assert "recipe.yaml:4" in found
    assert "the feed-forward blocks of model type 'mpnet' are not known" in found


# ── what is refused ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("model: ./dense, experts: 1, top_k: 1", ("option 'experts'", "a whole number from 2 ")),
        ("model: ./dense, layers: [1, 3]", ("layer 3", "0 to 2")),
    ],
)
def test_bad_options_are_refused_before_work(
    place: Path, options: str, words: tuple[str, ...]
) -> None:
    found = refused(place, options)
    assert "recipe.yaml:3" in found
    assert [word for word in words if word not in found] == []
    assert not (place / "out").exists()


def test_a_layer_with_blocks_under_other_names_is_refused(place: Path) -> None:
    folder = dense(place / "renamed", "bert")
    named = tensors(folder)
    other = {
        name.replace("intermediate", "inner").replace("layer.1.output.dense", "layer.1.outer"): t
        for name, t in named.items()
    }
    save_file(other, folder / "model.safetensors", metadata={"format": "pt"})
    assert "layer 1" in refused(place, "model: ./renamed")


# ── tensors that are computed while they are read ───────────────────────────────────────────────


def test_derived_tensors_are_equal_in_pieces_of_any_size(tmp_path: Path) -> None:
    from emberge.model_folder import Checkpoint
    from emberge.tensor_files import TensorReader

    torch.manual_seed(0)
    stored = {"a": torch.randn(6, 4), "b": torch.randn(6, 4)}
    save_file(stored, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text("{}")
    specs = Checkpoint(tmp_path).specs
    a, b = (specs[name] for name in "ab")
    joined = JoinedTensor("j", (2, 6, 4), "float32", parts=(a, b))
    expected = torch.stack([stored["a"], stored["b"]])
    with TensorReader() as reader:
        for step in (1, 5, expected.numel()):
            found = torch.empty(expected.numel())
            for start in range(0, len(found), step):
                reader.read(joined, start, found[start : start + step])
            assert torch.equal(found.view(expected.shape), expected)
        drawn = torch.empty(100_000, dtype=torch.float64)
        reader.read(NormalTensor("n", (100, 1000), "float64", deviation=0.5, seed=3), 0, drawn)
    # Six deviations of a mean and of a variance of so many numbers.
    assert abs(float(drawn.mean())) < 6 * 0.5 / np.sqrt(len(drawn))
    assert float(drawn.var()) == pytest.approx(0.25, rel=6 * np.sqrt(2 / len(drawn)))
