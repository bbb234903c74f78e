"""Random configs: mergekit and we make the same of them, or both refuse them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.plugins.mergekit.peer import (
    LAYERS,
    check_against_mergekit,
    llama,
    refused_by_mergekit,
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


def hold(seed: int, models: list[str], folder: Path) -> bool:
    """Whether both took the config; what they made of it is the same."""
    text = random_config(seed, models, LAYERS)
    refused = why_refused(text, folder / "ours")
    if refused:
        both = refused_by_mergekit(text, folder / "theirs")
        assert both, f"refused by us alone: {refused}\n{text}"
        return False
    check_against_mergekit(text, folder / "both")
    return True


@pytest.mark.parametrize("seed", range(15))
def test_we_agree_or_both_refuse(seed: int, models: list[str], tmp_path: Path) -> None:
    hold(seed, models, tmp_path)


@pytest.mark.slow
def test_we_agree_on_two_hundred_or_both_refuse(models: list[str], tmp_path: Path) -> None:
    taken = [hold(seed, models, tmp_path / str(seed)) for seed in range(100, 300)]
    assert sum(taken) > 150  # most are configs that do something


def test_the_configs_are_of_every_method_and_shape(models: list[str]) -> None:
    texts = [random_config(seed, models, LAYERS) for seed in range(100, 300)]
    assert all(any(f"merge_method: {m}\n" in t for t in texts) for m in METHODS)
    assert all(any(f"{key}:" in t for t in texts) for key in ("models", "slices", "modules"))
    assert len(set(texts)) > 150
