"""Numbers that strategies computed reach the report of a merge, on any machine and after any stop."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from emberge import Block, Measures, MergeStrategy, Pass, Stage, Stats
from emberge.merging import MergeInput, MergeReport
from emberge.merging.streaming import journal
from emberge.model_folder import Checkpoint
from safetensors.torch import load_file
from torch import Tensor

from tests.support import tiny
from tests.support.chains import chain
from tests.support.merges import merge_models
from tests.support.tolerance import gamma

Findings = Mapping[str, Mapping[str, float]]
MEAN = "mean of the models"


@pytest.fixture(scope="module")
def family(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A base and three models of it."""
    root = tmp_path_factory.mktemp("family")
    base = tiny.checkpoint(root / "base", "bert", num_hidden_layers=2)
    return [
        base,
        *(
            tiny.checkpoint(
                root / f"m{i}", "bert", seed=i, like=base, noise=0.1, num_hidden_layers=2
            )
            for i in (1, 2, 3)
        ),
    ]


def merged(
    family: Sequence[Path], out: Path, strategy: Sequence[Stage], **settings: Any
) -> MergeReport:
    groups = ("one", "two", "two")
    inputs = [MergeInput(f.name, f, group=g) for f, g in zip(family[1:], groups, strict=True)]
    base = MergeInput("base", family[0])
    return merge_models(inputs, strategy=strategy, base=base, out=out, **settings)


CHAINS: dict[str, Callable[[], Sequence[Stage]]] = {
    "by tensor": lambda: chain("model_stock"),
    "by model": lambda: chain("layer_softmax"),
    "of groups": lambda: [*chain("group", by=chain("linear")[0]), *chain("layer_softmax")],
}


@dataclass(frozen=True, kw_only=True)
class Sizes(MergeStrategy):
    """Take the first model and report the size of each tensor, and of vectors apart."""

    passes = (Pass(),)

    def measure(self, block: Block, stats: Stats) -> Measures:
        return {"size": block.tensors[0].numel()}

    def conclude(self, block: Block, stats: Stats) -> Measures:
        label = "vectors" if len(block.shape) == 1 else "others"
        return {"findings": {"size": torch.tensor(stats[-1]["size"]), label: 1}}

    def merge(self, block: Block, stats: Stats) -> Tensor:
        return block.tensors[0]


def test_a_layers_finding_is_the_mean_over_its_elements(family: list[Path], tmp_path: Path) -> None:
    """Each tensor counts with its elements, under each label with those that have it."""
    from emberge.tensor_names import find_layer

    report = merged(family, tmp_path / "out", [Sizes()])
    by_layer: dict[str, list[int]] = {}
    for name, tensor in load_file(family[0] / "model.safetensors").items():
        by_layer.setdefault(find_layer(name), []).append(tensor.numel())
    assert report.findings.keys() == by_layer.keys()
    for layer, sizes in by_layer.items():
        expected = sum(size * size for size in sizes) / sum(sizes)
        bound = gamma(4 * len(sizes), torch.float64) * max(sizes)  # four roundings each
        assert abs(report.findings[layer]["size"] - expected) <= bound
        assert report.findings[layer]["vectors"] == 1
        assert isinstance(report.findings[layer]["size"], float)


def test_findings_inside_groups_have_the_groups_names(family: list[Path], tmp_path: Path) -> None:
    inputs = [
        MergeInput(f"{f.name}{i}", f, group=group)
        for i, group in enumerate(("findings", "warning"))
        for f in family[1:]
    ]
    strategy = [*chain("group", by=chain("model_stock")[0]), *chain("linear")]
    base = MergeInput("base", family[0])
    report = merge_models(inputs, strategy=strategy, base=base, out=tmp_path / "out")
    alone = merged(family, tmp_path / "alone", CHAINS["by tensor"]())
    for layer, found in report.findings.items():
        number = alone.findings[layer][MEAN]
        assert found == {f"findings: {MEAN}": number, f"warning: {MEAN}": number}
    assert report.warnings == ()


class StoppedError(Exception):
    """The end of a merge before its time."""


@pytest.mark.parametrize(("name", "share"), [*((name, 0.5) for name in CHAINS), ("by tensor", 1.0)])
def test_a_continued_merge_reports_what_it_does_not_compute_again(
    name: str, share: float, family: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped midway, or with all tensors finished and only the other files missing."""
    expected = merged(family, tmp_path / "whole", CHAINS[name]())
    monkeypatch.setattr(journal, "SYNC_INTERVAL", 0.0 if share < 1 else 3600.0)

    def stop(done: float, total: float, _: str) -> None:
        if done >= share * total:
            raise StoppedError

    def cut_short(*_: Any, **__: Any) -> None:
        raise StoppedError

    with monkeypatch.context() as patch:
        patch.setattr("emberge.merging.streaming.stream.copy_template", cut_short)
        with pytest.raises(StoppedError):
            merged(family, tmp_path / "out", CHAINS[name](), progress=stop if share < 1 else None)
    lines = (tmp_path / ".out.partial" / "journal.jsonl").read_text().splitlines()
    tensors = len(Checkpoint(family[0]).specs)
    assert (len(lines) - 1 == tensors) if share == 1 else (0 < len(lines) - 1 < tensors)
    again = merged(family, tmp_path / "out", CHAINS[name]())
    assert again.findings == expected.findings
    assert again.warnings == expected.warnings
