"""Random configs: mergekit and we make the same of them, or both refuse them."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import pytest

from tests.plugins.mergekit.peer import (
    LAYERS,
    assert_same,
    check_against_mergekit,
    llama,
    ours,
    refused_by_mergekit,
    state_of,
    theirs,
    why_refused,
)
from tests.plugins.mergekit.random_configs import METHODS, random_config


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """A base, and four siblings of a model tuned from it."""
    root = tmp_path_factory.mktemp("llamas")
    base = llama(root / "base")
    tuned = llama(root / "tuned", seed=9, like=base)
    others = [llama(root / name, seed=i, like=tuned) for i, name in enumerate("abcd")]
    return [str(folder) for folder in (base, *others)]


# A Karcher mean of layers so far apart that mergekit's in float32 is not its own in float64.
FAR_SEED = 182


def hold(seed: int, models: list[str], folder: Path) -> str:
    """What came of a config: "agree", "both refuse", or "refused by name" where mergekit is silent."""
    text, odd = random_config(seed, models, LAYERS)
    refused = why_refused(text, folder / "ours")
    if odd is not None:
        assert f"'{odd}'" in refused, f"{odd} is not refused: {refused}\n{text}"
        return "refused by name"
    if refused:
        both = refused_by_mergekit(text, folder / "theirs")
        assert both, f"refused by us alone: {refused}\n{text}"
        return "both refuse"
    made, other = check_against_mergekit(text, folder / "both")
    for one in (made, other):  # what is compared is of no more use, and there are many
        shutil.rmtree(one)
    return "agree"


@pytest.mark.parametrize("seed", range(6))
def test_we_agree_or_both_refuse(seed: int, models: list[str], tmp_path: Path) -> None:
    assert hold(seed, models, tmp_path) in ("agree", "both refuse", "refused by name")


def test_a_karcher_mean_in_float32_is_mergekits_in_float64(
    models: list[str], tmp_path: Path
) -> None:
    text = random_config(FAR_SEED, models, LAYERS).text
    assert "merge_method: karcher\ndtype: float64\n" in text
    made = state_of(ours(text.replace("float64", "float32"), tmp_path))
    wide = state_of(theirs(text, tmp_path / "theirs"))
    assert_same(made, {name: tensor.float() for name, tensor in wide.items()})


@pytest.mark.slow
def test_we_agree_on_two_hundred_or_both_refuse(models: list[str], tmp_path: Path) -> None:
    counts = Counter(hold(seed, models, tmp_path / str(seed)) for seed in range(100, 300))
    assert counts.total() == 200
    assert counts["agree"] > 150  # most are configs that do something
    assert counts["both refuse"] > 0
    assert counts["refused by name"] > 0


def test_the_configs_are_of_every_method_and_shape(models: list[str]) -> None:
    texts = [random_config(seed, models, LAYERS).text for seed in range(100, 300)]
    assert all(any(f"merge_method: {m}\n" in t for t in texts) for m in METHODS)
    shapes = ("models", "slices", "modules", "tokenizer_source", "out_dtype", "residual_weight")
    assert all(any(f"{key}:" in t for t in texts) for key in shapes)
    assert len(set(texts)) > 150
