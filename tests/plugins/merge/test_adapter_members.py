"""Members that are adapters give the bytes that whole members give, however a strategy reads them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from emberge import FileRef, Stage
from emberge.merging import MergeInput, MergeRequest, Statistics, plan_merge
from emberge.model_folder import Checkpoint
from emberge_merge.methods.fisher import Fisher
from emberge_merge.methods.weighted_sums import Passthrough
from emberge_mergekit import Mergekit

from tests.support import tiny
from tests.support.merges import merge_models
from tests.support.peft_adapters import save_adapter
from tests.support.registered import CHAINS

# One that reads rows in each of the ways there are: drawn, by rank, whole, by angle, in groups, with files.
CHOSEN = (
    *(
        "dare_ties",
        "della",
        "group",
        "keep_base, karcher",
        "layer_softmax",
        "linear",
        "model_stock",
    ),
    *("multi_slerp", "nuslerp of deltas", "regmean", "sce", "ties", "tsv_m"),
)
STRATEGIES: dict[str, Sequence[Stage]] = {
    **{name: CHAINS[name][0] for name in CHOSEN},
    "fisher": [Fisher(statistics=())],
    "mergekit": [Mergekit(method="sce")],
}
SETTINGS = (
    {"target_modules": ["query", "value", "word_embeddings"]},
    {"target_modules": ["query", "output.dense"], "use_rslora": True, "r": 2},
    {"target_modules": ["query", "key"], "use_dora": True},
)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.checkpoint(tmp_path_factory.mktemp("base") / "bert", num_hidden_layers=2)


@pytest.fixture(scope="module")
def adapters(base: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    root = tmp_path_factory.mktemp("adapters")
    return [
        save_adapter(root / f"a{seed}", base, seed=seed, **settings)
        for seed, settings in enumerate(SETTINGS)
    ]


@pytest.fixture(scope="module")
def wholes(
    base: Path, adapters: list[Path], tmp_path_factory: pytest.TempPathFactory
) -> list[Path]:
    """The same members, written whole."""
    root = tmp_path_factory.mktemp("wholes")
    for adapter in adapters:
        one = [MergeInput("one", base, adapter=adapter)]
        merge_models(one, strategy=[Passthrough()], out=root / adapter.name)
    return [root / adapter.name for adapter in adapters]


def bytes_of(
    members: Sequence[MergeInput], strategy: Sequence[Stage], base: MergeInput | None, out: Path
) -> bytes:
    """The tensors of a merge; what stands before them says what it was made of."""
    merge_models(members, strategy=strategy, out=out, base=base)
    raw = (out / "model.safetensors").read_bytes()
    return raw[8 + int.from_bytes(raw[:8], "little") :]


def fitting(strategy: Sequence[Stage], base: MergeInput, members: int) -> tuple[int, bool]:
    """(how many members the strategy takes, whether it takes a base)."""
    for count in range(members, 0, -1):
        for given in (base, None):
            inputs = tuple(
                MergeInput(f"m{i}", base.folder, group=f"g{i % 2}", fingerprint=f"content {i}")
                for i in range(count)
            )
            request = MergeRequest(inputs=inputs, strategy=tuple(strategy), base=given)
            if not [p for p in plan_merge(request).problems if "also listed" not in str(p)]:
                return count, given is not None
    raise AssertionError("the strategy takes no members")


def measured(strategy: Sequence[Stage], whole: Path, folder: Path) -> Sequence[Stage]:
    """The strategy with a statistics file of the members' own, if it takes one."""
    if strategy[0].statistics_kind not in ("fisher", "gram"):
        return strategy
    torch.manual_seed(0)
    folder.mkdir()
    values = {}
    is_gram = strategy[0].statistics_kind == "gram"
    for name, spec in Checkpoint(whole).specs.items():
        if is_gram and len(spec.shape) != 2:
            continue
        inputs = torch.rand(len(SETTINGS), *spec.shape)
        found = inputs.mT @ inputs if is_gram else inputs
        values[name] = {f"m{i}": own for i, own in enumerate(found)}
    contents = {f"m{i}": f"content {i}" for i in range(len(SETTINGS))}
    path = Statistics(values, models=contents, measure=strategy[0].statistics_kind).write(folder)
    files: Any = {"statistics": (FileRef(str(path)),)}
    return [dataclasses.replace(strategy[0], **files)]


@pytest.mark.parametrize("name", STRATEGIES)
def test_members_that_are_adapters_give_the_bytes_of_whole_ones(
    name: str,
    base: Path,
    adapters: list[Path],
    wholes: list[Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By plain torch, and by kernels where there are any."""
    strategy = measured(STRATEGIES[name], wholes[0], tmp_path / "statistics")
    origin = MergeInput("base", base)
    count, based = fitting(strategy, origin, len(adapters))
    made = []
    for whole, kernels in ((False, "never"), (True, "never"), (False, "")):
        monkeypatch.setenv("EMBERGE_KERNELS", kernels)
        members = [
            MergeInput(
                f"m{i}",
                wholes[i] if whole else base,
                group=f"g{i % 2}",
                fingerprint=f"content {i}",  # of which random masks are a function
                adapter=None if whole else adapters[i],
            )
            for i in range(count)
        ]
        out = tmp_path / f"{whole} {kernels}"
        made.append(bytes_of(members, strategy, origin if based else None, out))
    assert made[0] == made[1] == made[2]
