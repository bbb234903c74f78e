from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from emberge import Example, Loss, PerDataset, load_plugins
from emberge.ranks import shard_rows
from emberge.training import FitOptions
from emberge_train import BatchShuffle, CoSENT, InfoNCE, OuterLoss, list_guided_losses
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from tests.support import ranked_fit, tiny
from tests.support.exact import ExactEncoder
from tests.support.losses import LOSSES, on_shards
from tests.support.ranked_fit import Death, Training
from tests.support.tolerance import EXACT, exactly, of_adamw
from tests.support.training_data import InMemory, dataset, retrieval, similarity

# A guide is a model of its own, which has its own tests.
TRIED = {
    name: loss
    for name, (loss, _) in LOSSES.items()
    if not any(one.guide for one in list_guided_losses([loss]))
}
# Ranks add gradients in another order than one process. In float64, and with steps that follow gradients
# rather than their signs, weights stay together as closely as gradients do, which have a length of at most 1.
LEARNING_RATE, EPSILON = 1e-3, 1e-2
TRAINED = "encoder.layer.1.output.dense.weight"


def everything(size: int = 22) -> InMemory:
    """Rows with all that any loss reads."""

    def word(i: int) -> str:
        return tiny.WORDS[i * 5 % len(tiny.WORDS)]

    rows = [
        Example(
            f"find {word(i)} {word(i + 7)}",
            (f"{word(i)} of the {word(i + 7)} list", f"the {word(i)} table {word(i + 2)}"),
            (f"{word(i + 3)} of a {word(i + 11)}", f"no {word(i + 1)}"),
            positive_scores=(0.6 + i % 5 / 20, 0.5 + i % 7 / 20),
            negative_scores=(i % 4 / 10, i % 3 / 10),
            label=word(i % 4),
        )
        for i in range(size)
    ]
    return dataset("all", "retrieval", rows)


def _arguments(model: Path, loss: Loss, **more: Any) -> dict[str, Any]:
    options: dict[str, Any] = {
        **{"learning_rate": LEARNING_RATE, "token_budget": 60, "kept_tokens": 60, "dropout": False},
        **{"positives": 2, "hard_negatives": 2, "logging_steps": 1, "max_steps": 4},
        **{"adam_epsilon": EPSILON},
        **more.pop("options", {}),
    }
    return {
        "backbone": ExactEncoder(),
        "checkpoint": model,
        "datasets": [everything()],
        "sampler": (BatchShuffle(batch_size=PerDataset(default=7)),),
        "losses": PerDataset(default=(loss,)),
        "options": FitOptions(**options),
        "seed": 3,
        **more,
    }


def _weights(root: Path) -> dict[str, torch.Tensor]:
    return dict(load_file(root / "out" / "model.safetensors"))


def _apart(first: Path, second: Path) -> float:
    one, two = _weights(first), _weights(second)
    assert one.keys() == two.keys()
    assert one[TRAINED].dtype == two[TRAINED].dtype == torch.float64
    return max(float((one[name] - two[name]).abs().max()) for name in one)


def _pairs(model: Path, root: Path, names: Iterable[str]) -> Mapping[str, tuple[Any, Any, float]]:
    """Losses, gathering and local: those of two ranks, of one that does the same, how far weights differ."""
    wanted = [
        (name, gathers, _with_cross_rank(TRIED[name], gathers))
        for name in names
        for gathers in (True, False)
    ]
    both, one = [], []
    for number, (_, gathers, loss) in enumerate(wanted):
        alone = loss if gathers else on_shards(loss)
        both.append(Training(root / f"both{number}", _arguments(model, loss), exact=True))
        one.append(Training(root / f"one{number}", _arguments(model, alone), exact=True))
    two = ranked_fit.run(both, root / "both.pkl", 2)
    single = ranked_fit.run(one, root / "one.pkl", 1)
    return {
        f"{name}, {'gathering' if gathers else 'local'}": (
            two[number]["losses"],
            single[number]["losses"],
            _apart(root / f"both{number}", root / f"one{number}"),
        )
        for number, (name, gathers, _) in enumerate(wanted)
    }


@pytest.fixture(scope="module")
def tried(bert: Path, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Any]:
    return _pairs(bert, tmp_path_factory.mktemp("tried"), TRIED)


def _with_cross_rank(loss: Loss, gathers: bool) -> Loss:
    more: dict[str, Any] = {}
    if isinstance(loss, OuterLoss):
        more["loss"] = tuple(_with_cross_rank(one, gathers) for one in loss.loss)
    if "cross_rank" in {option.name for option in dataclasses.fields(loss) if option.init}:
        more["cross_rank"] = gathers  # otherwise it does as the losses inside
    return dataclasses.replace(loss, **more)


def test_every_registered_loss_is_tried() -> None:
    known = {c.type for c in load_plugins().components if c.kind == "loss"}
    known = {kind for kind in known if issubclass(kind, Loss)}  # else it scores tokens
    guided = {type(loss) for loss, _ in LOSSES.values()}
    assert known == {type(loss) for loss in TRIED.values()} | guided


@pytest.mark.slow
@pytest.mark.parametrize("how", ["gathering", "local"])
@pytest.mark.parametrize("name", TRIED)
def test_two_ranks_learn_what_one_does_by_any_loss(
    tried: Mapping[str, Any], name: str, how: str
) -> None:
    two, one, apart = tried[f"{name}, {how}"]
    assert len(two) == len(one) == 4
    assert two == exactly(one, size=1.0)
    assert apart <= of_adamw(LEARNING_RATE, 4, EPSILON, EXACT)


@pytest.fixture(scope="module")
def mixed(bert: Path, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Any]:
    """Two datasets, a gathering and a local loss, a sum of both; batches of seven rows and tails of one."""
    root = tmp_path_factory.mktemp("mixed")
    both = (InfoNCE(temperature=0.1), CoSENT(unscored=True, weight=0.3))
    more: dict[str, Any] = {
        "datasets": [retrieval(15), similarity(9)],
        "sampler": (BatchShuffle(batch_size=PerDataset(default=7), tail="keep"),),
        "losses": PerDataset(default=both, by_task={"sts": (CoSENT(cross_rank=True),)}),
        "options": {"max_steps": None, "epochs": 2},
    }
    arguments = _arguments(bert, both[0], **more)
    local = {
        **arguments,
        "losses": PerDataset(
            default=(both[0], on_shards(both[1], ranks=3)),
            by_task={"sts": (CoSENT(cross_rank=True),)},
        ),
    }
    found = {}
    for name, ranks, shard, given_ in (
        ("one", 1, False, local),
        ("three", 3, False, arguments),
        ("split", 3, True, arguments),
    ):
        training = Training(root / name, given_, shard, exact=True)
        found[name] = ranked_fit.run([training], root / f"{name}.pkl", ranks)[0] | {
            "root": root / name
        }
    return found


@pytest.mark.slow
@pytest.mark.parametrize("ranks", ["three", "split"])
def test_shards_of_any_size_are_one_batch(mixed: Mapping[str, Any], ranks: str) -> None:
    one, many = mixed["one"], mixed[ranks]
    assert len(one["losses"]) == 10
    assert many["losses"] == exactly(one["losses"], size=1.0)
    assert _apart(many["root"], one["root"]) <= of_adamw(LEARNING_RATE, 10, EPSILON, EXACT)
    assert many["result"].examples == one["result"].examples == 48
    assert many["result"].last_loss == exactly(one["result"].last_loss)


@given(st.integers(0, 40), st.integers(1, 9))
def test_shards_are_the_rows_in_order(size: int, ranks: int) -> None:
    parts = [shard_rows(size, rank, ranks) for rank in range(ranks)]
    rows = list(range(size))
    assert list(itertools.chain.from_iterable(rows[part] for part in parts)) == rows
    sizes = {part.stop - part.start for part in parts}
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_dies_ends_the_others_with_a_word(
    bert: Path, tmp_path: Path, rank: int
) -> None:
    arguments = _arguments(bert, InfoNCE(), options={"max_steps": 4000, "logging_steps": 10})
    training = Training(tmp_path / "t", arguments, deaths=(Death(rank, "step", 3),))
    path = tmp_path / "case.pkl"
    ended = ranked_fit.codes(ranked_fit.start([training], path, 2))
    assert ended[rank] == -9
    assert ended[1 - rank] == 1
    assert "another rank has ended" in ranked_fit.said(path, 1 - rank)
