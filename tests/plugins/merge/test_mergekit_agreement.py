"""Agreement with mergekit 0.1.5, and with sentence-transformers 6.2, on random tiny models."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import sentence_transformers
import torch
import yaml
from emberge import PerModel, PerTensor, Stage
from emberge.merging import MergeInput, merge_state_dicts
from emberge_merge.methods.sparse.sign_consensus import SignConsensus
from emberge_merge.methods.sparse.trim import Trim
from emberge_merge.methods.spherical.multi_slerp import MultiSlerp
from safetensors.torch import load_file
from torch import Tensor

from tests.support import tiny
from tests.support.chains import chain
from tests.support.merges import merge_models
from tests.support.tolerance import assert_exact, assert_near, likely, unit

with warnings.catch_warnings():
    # mergekit's dependencies warn about their own deprecations while they are imported.
    warnings.simplefilter("ignore")
    from mergekit.merge_methods.api import merge_state_dicts as theirs

State = Mapping[str, Tensor]
WEIGHTS = (0.5, 0.3, 0.2)
RUN = 8192  # numbers that are summed in float32


Case = tuple[Sequence[Stage], int, bool, str, dict[str, Any]]


def read_cases(text: str) -> dict[str, Case]:
    """Return by name our links, the number of models, whether there is a base, and mergekit's side."""
    found: dict[str, Case] = {}
    for line in text.strip().splitlines():
        name, ours, models, theirs = (part.strip() for part in line.split(" | "))
        count, _, base = models.partition(" ")
        weights = f"weight: {list(WEIGHTS[: int(count)])}"
        method, _, parameters = theirs.replace("{W", "{" + weights).partition(" ")
        component, _, options = ours.partition(" ")
        links = chain(component, **(yaml.safe_load(options) or {}))
        found[name] = links, int(count), bool(base), method, yaml.safe_load(parameters)
    return found


@pytest.fixture(scope="module")
def family(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A base and three siblings, whose changes have something in common."""
    root = tmp_path_factory.mktemp("family")
    base = tiny.checkpoint(root / "base", num_hidden_layers=2)
    tuned = tiny.checkpoint(root / "tuned", seed=9, like=base, num_hidden_layers=2)
    siblings = [
        tiny.checkpoint(root / name, seed=i, like=tuned, num_hidden_layers=2)
        for i, name in enumerate(("first", "second", "third"))
    ]
    return [base, *siblings]


@pytest.fixture(scope="module")
def states(family: list[Path]) -> list[State]:
    return [load_file(folder / "model.safetensors") for folder in family]


@pytest.fixture(scope="module")
def wide(states: list[State]) -> list[State]:
    """The same in float64."""
    return [{name: tensor.double() for name, tensor in state.items()} for state in states]


# Name, our chain, number of models and whether there is a base, mergekit's method and its parameters; W are
# the weights. The eps of mergekit's multislerp is added to norms.
CASES = read_cases("""
linear | linear | 3 | linear {W}
linear, not normalized | linear {normalize: false} | 3 | linear {W, normalize: false}
slerp | slerp {t: 0.3, linear_threshold: 0.9995} | 2 | slerp {t: 0.3}
nuslerp | nuslerp | 2 | nuslerp {W}
nuslerp of deltas | nuslerp | 2 base | nuslerp {W}
multi_slerp | multi_slerp {mode: projected} | 3 | multislerp {W, eps: 1.0e-30}
multi_slerp of deltas | multi_slerp {mode: projected, space: deltas} | 3 base | multislerp {W, eps: 1.0e-30}
karcher | karcher {max_iter: 10, tol: 1.0e-5} | 3 | karcher {}
task_arithmetic | task_arithmetic {scale: 0.7} | 3 base | task_arithmetic {W, lambda: 0.7}
ties | ties {density: 0.4} | 3 base | ties {W, density: 0.4}
ties, not normalized | ties {density: 0.4, normalize: false, scale: 0.6} | 3 base | \
 ties {W, density: 0.4, normalize: false, lambda: 0.6}
breadcrumbs | breadcrumbs {density: 0.6, gamma: 0.1} | 3 base | breadcrumbs {W, density: 0.6, gamma: 0.1}
breadcrumbs, rescaled | breadcrumbs {density: 0.6, gamma: 0.1, rescale_mode: l1} | 3 base | \
 breadcrumbs {W, density: 0.6, gamma: 0.1, rescale: true}
breadcrumbs_ties | breadcrumbs_ties {density: 0.6, gamma: 0.1} | 3 base | \
 breadcrumbs_ties {W, density: 0.6, gamma: 0.1}
dare_linear at density 1 | dare_linear | 3 base | dare_linear {W}
dare_ties at density 1 | dare_ties | 3 base | dare_ties {W}
della at density 1 | della | 3 base | della {W}
della_linear at density 1 | della_linear | 3 base | della_linear {W}
sce | sce | 3 base | sce {}
sce of the places that differ most | sce {select_topk: 0.3} | 3 base | sce {select_topk: 0.3}
model_stock | model_stock {clamp: false} | 3 base | model_stock {}
passthrough | passthrough {scale: 0.5} | 1 | passthrough {scale: 0.5}
""")


def ours_of(case: str, states: Sequence[State], **settings: Any) -> State:
    links, count, based, _, parameters = CASES[case]
    base = states[0] if based else None
    weights = parameters.get("weight")
    dtype = "float64" if dtype_of(states) == torch.float64 else "float32"
    return merge_state_dicts(states[1 : count + 1], links, base, weights, dtype=dtype, **settings)


def dtype_of(states: Sequence[State]) -> torch.dtype:
    return next(iter(states[0].values())).dtype


def theirs_of(case: str, states: Sequence[State]) -> State:
    _, count, based, method, parameters = CASES[case]
    inputs = list(states[0 if based else 1 : count + 1])
    given = {
        name: {i + based: v for i, v in enumerate(value)} if name == "weight" else value
        for name, value in parameters.items()
    }
    base = 0 if based or method == "slerp" else None
    with torch.no_grad():
        return theirs(inputs, method, parameters=given, base=base, dtype=dtype_of(states))


# These measure a tensor, in float32 on mergekit's side: sums as long as it. Others add up a few models.
MEASURING = ("slerp", "karcher", "sce", "model_stock", "rescaled")


def hold(ours: State, found: State, case: str) -> None:
    assert ours.keys() == found.keys()
    measures = any(word in case for word in MEASURING)
    for name, tensor in found.items():
        addends = max(8, tensor.numel()) if measures else 8
        assert_near(ours[name], tensor, addends, name=name)


@pytest.mark.parametrize("case", CASES)
def test_we_agree(case: str, wide: list[State]) -> None:
    """In float64, which leaves no room for another formula."""
    assert_exact(ours_of(case, wide), theirs_of(case, wide))


@pytest.mark.parametrize("case", CASES)
def test_we_agree_row_by_row(case: str, states: list[State]) -> None:
    names = {tensor.shape: name for name, tensor in states[0].items()}.values()  # one of each shape
    some = [{name: state[name] for name in names} for state in states]
    hold(ours_of(case, some, granule=1, block=1), theirs_of(case, some), case)


def test_the_runner_agrees_from_file_to_file(family: list[Path], tmp_path: Path) -> None:
    inputs = [
        MergeInput(folder.name, folder, PerTensor(weight))
        for folder, weight in zip(family[1:], WEIGHTS, strict=True)
    ]
    merge_models(
        inputs,
        strategy=[Trim(density=PerModel(0.4)), SignConsensus()],
        base=MergeInput("base", family[0]),
        out=tmp_path / "merged",
    )
    written = load_file(tmp_path / "merged" / "model.safetensors")
    found = theirs_of("ties", [load_file(f / "model.safetensors") for f in family])
    for name, tensor in found.items():
        assert_near(written[name], tensor, addends=8, name=name)


def test_the_mean_length_is_kept_to_float32_precision() -> None:
    """Sums of squares of millions of float32 numbers are kept in runs, and the runs in float64."""
    torch.manual_seed(1)
    models = [{"w": torch.randn(4000, 1000) * 0.02} for _ in range(2)]
    ours = merge_state_dicts(models, [MultiSlerp(mode="projected")])["w"].double().norm()
    exact = sum(m["w"].double().norm() for m in models) / 2
    # A length is a root, which halves relative errors, and those of runs are of either sign.
    runs = 4000 * 1000 / RUN
    assert float(abs(ours - exact) / exact) < likely(RUN) / 2 / runs**0.5 + unit()


# Classes of sentence-transformers, and what writes a model of each: the first with two Dense modules.
KINDS = {
    "SentenceTransformer": tiny.projected,
    "CrossEncoder": tiny.reranker,
    "SparseEncoder": tiny.splade,
    "MultiVectorEncoder": tiny.colbert,
}
# Our options beside sentence-transformers', and how far numbers may differ: mergekit takes angles in float32.
# Of changes of equal magnitude its TIES keeps others; these models have none.
METHODS: dict[str, tuple[dict[str, Any], dict[str, Any], float]] = {
    "linear": ({}, {"weight": [*WEIGHTS]}, 1e-5),
    "slerp": ({"linear_threshold": 0.9995}, {"t": 0.3}, 1e-3),
    "karcher": ({"max_iter": 10, "tol": 1e-5}, {}, 1e-3),
    "ties": ({}, {"weight": [*WEIGHTS], "density": 0.4}, 1e-5),
}


@pytest.mark.parametrize(
    ("kind", "method"),
    [
        # All kinds are written alike: one row and one column of the table are quick.
        pytest.param(
            k, m, marks=[] if k == "SentenceTransformer" or m == "ties" else pytest.mark.slow
        )
        for k in KINDS
        for m in METHODS
    ],
)
def test_the_merge_of_sentence_transformers_gives_the_same_tensors(
    kind: str, method: str, tmp_path: Path
) -> None:
    cls = getattr(sentence_transformers, kind)
    ours, theirs, tolerance = METHODS[method]
    count = 2 if method == "slerp" else 3
    base, *folders = [KINDS[kind](tmp_path / f"m{i}", seed=i) for i in range(count + 1)]
    based = {"base_model": str(base)} if method == "ties" else {}
    expected = cls.merge([str(f) for f in folders], method, parameters=theirs, **based)
    weights = theirs.get("weight", [1.0] * count)
    merge_models(
        [MergeInput(f.name, f, PerTensor(w)) for f, w in zip(folders, weights, strict=True)],
        strategy=chain(method, **ours, **{k: v for k, v in theirs.items() if k != "weight"}),
        base=MergeInput("base", base) if based else None,
        out=tmp_path / "out",
    )
    found = cls(str(tmp_path / "out"), device="cpu").state_dict()
    assert found.keys() == expected.state_dict().keys()
    for name, tensor in expected.state_dict().items():
        assert float((found[name] - tensor).abs().max()) <= tolerance, name
