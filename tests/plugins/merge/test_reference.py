"""Every strategy, in files and by kernels, gives the bytes of the reference merge."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from emberge import PerTensor
from emberge.merging import MergeInput
from safetensors.torch import load_file

from tests.reference.merge import Recipe, merge_folders
from tests.support import tiny
from tests.support.merges import merge_models
from tests.support.registered import CHAINS

WEIGHTS = (0.5, 0.3, 0.2)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A base and three models tuned from it, in bfloat16."""
    folder = tmp_path_factory.mktemp("models")
    base = tiny.checkpoint(folder / "base", dtype="bfloat16")
    made = [
        tiny.checkpoint(folder / f"m{n}", seed=n, like=base, dtype="bfloat16") for n in (1, 2, 3)
    ]
    return [base, *made]


# Without a file, regmean has no statistics of the models.
@pytest.mark.parametrize("name", [name for name in CHAINS if name != "regmean"])
def test_the_bytes_are_those_of_the_reference(
    name: str, models: Sequence[Path], tmp_path: Path
) -> None:
    links, declared = CHAINS[name]
    needs_base = any(link.base_policy == "required" for link in links)
    base = models[0] if declared.get("base", needs_base) else None
    count = min(3, links[0].arity.stop - 1)
    members = models[1 : 1 + count]
    names, groups = [f"m{n}" for n in range(count)], ["a", "b", "a"][:count]
    recipe = Recipe(links, names, WEIGHTS[:count], groups, seed=3)
    merge_folders(members, base, recipe, tmp_path / "expected.safetensors")
    inputs = [
        MergeInput(n, folder, PerTensor(weight), group, fingerprint=n)
        for n, folder, weight, group in zip(names, members, WEIGHTS, groups, strict=False)
    ]
    merge_models(
        inputs,
        strategy=tuple(links),
        base=None if base is None else MergeInput("base", base),
        seed=3,
        out=tmp_path / "out",
    )
    found, expected = (
        load_file(path)
        for path in (tmp_path / "out" / "model.safetensors", tmp_path / "expected.safetensors")
    )
    assert found.keys() == expected.keys()
    for tensor_name, tensor in expected.items():
        assert found[tensor_name].equal(tensor), tensor_name
