"""The state that a training keeps in its result: what continues from it, and what is refused in it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from emberge import PerDataset
from emberge.encoding import PassResult
from emberge.errors import EmbergeError
from emberge.model_folder import copy_model, model_fingerprint, published_files
from emberge.ranks import ALONE
from emberge.training import (
    Averaging,
    FitOptions,
    KeptState,
    PlannedBatch,
    train,
)
from emberge_encoder import Lora, TextEncoder
from emberge_train import BatchShuffle, InfoNCE
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.support.fitting import run_fit
from tests.support.pulls import Pull
from tests.support.training_data import retrieval

OPTIONS: dict[str, Any] = {
    "learning_rate": 0.05,
    "schedule": "constant",
    "warmup_ratio": 0.0,
    "keep_state": True,
}


class Pulled(Pull):
    """A vector that is pulled to a target of each step, from the step `begins` of a long row on."""

    ranks = ALONE

    def __init__(self, steps: int, begins: int = 0) -> None:
        draw = torch.Generator().manual_seed(5)
        self.targets = torch.randn((40, 6), generator=draw)
        self.point = torch.zeros(6, requires_grad=True)
        self.unused = torch.ones(2, requires_grad=True)
        self.count, self.begins = steps, begins

    @property
    def parameters(self) -> Mapping[str, Tensor]:
        return {"point": self.point, "unused": self.unused}

    @property
    def steps(self) -> int:
        return self.count

    def backward(self, batch: PlannedBatch) -> PassResult:
        loss = (self.point - self.targets[self.begins + batch.step]).pow(4).sum()
        loss.backward()  # type: ignore[no-untyped-call]
        return PassResult(loss.detach(), tokens=1, padded=1)

    def save(self, folder: Path) -> None:
        save_file({"point": self.point.detach()}, folder / "model.safetensors")


def pulled(point: Pulled, root: Path, state: Path | None = None, **options: Any) -> Path:
    """Train into `root/out` and return the folder of the kept state."""
    train(
        point,
        FitOptions(**{**OPTIONS, **options}),
        folder=root / "out",
        work=root / "work",
        progress=lambda *_: None,
        from_state=state,
    )
    return root / "out" / KeptState.FOLDER


@pytest.mark.parametrize("average", [None, Averaging(share=0.5)], ids=["plain", "average"])
def test_a_continued_training_ends_as_one_that_was_never_ended(
    average: Averaging | None, tmp_path: Path
) -> None:
    """The moments are there: the first step after the state moves the weights as the next one did."""
    whole, first, cold, second = Pulled(20), Pulled(12), Pulled(8, 12), Pulled(8, 12)
    pulled(whole, tmp_path / "whole")
    state = pulled(first, tmp_path / "first", average=average)
    raw = load_file(state / "tensors.safetensors")
    assert torch.equal(raw["point"], first.point) == (average is None)
    pulled(second, tmp_path / "second", state)
    assert torch.equal(second.point, whole.point)
    with torch.no_grad():
        cold.point.copy_(raw["point"])
    pulled(cold, tmp_path / "cold")
    assert not torch.allclose(cold.point, whole.point, atol=1e-3)


def test_a_continued_training_that_was_killed_goes_on_from_its_own_state(tmp_path: Path) -> None:
    state = pulled(Pulled(12), tmp_path / "first")
    whole, again = Pulled(8, 12), Pulled(8, 12)
    pulled(whole, tmp_path / "whole", state)

    def kill(done: int, *_: object) -> None:
        if done == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(
            Pulled(8, 12),
            FitOptions(**OPTIONS, save_steps=2),
            folder=tmp_path / "again/out",
            work=tmp_path / "again/work",
            progress=kill,
            from_state=state,
        )
    pulled(again, tmp_path / "again", state, save_steps=2)
    assert torch.equal(again.point, whole.point)


# ── what is refused ─────────────────────────────────────────────────────────────────────────────


def rewrite(change: Callable[[dict[str, Tensor]], Any]) -> Callable[[Path], None]:
    def rewritten(state: Path) -> None:
        tensors = load_file(state / "tensors.safetensors")
        change(tensors)
        save_file(tensors, state / "tensors.safetensors")

    return rewritten


def facts(content: Any) -> Callable[[Path], None]:
    def written(state: Path) -> None:
        text = content if isinstance(content, str) else json.dumps(content)
        (state / "state.json").write_text(text)

    return written


def link_out(state: Path) -> None:
    secret = state.parent.parent / "secret"
    os.replace(state / "tensors.safetensors", secret)
    (state / "tensors.safetensors").symlink_to(secret)


def link_facts_out(state: Path) -> None:
    secret = state.parent.parent / "secret.json"
    os.replace(state / "state.json", secret)
    (state / "state.json").symlink_to(secret)


def pipe(state: Path) -> None:
    (state / "tensors.safetensors").unlink()
    os.mkfifo(state / "tensors.safetensors")


def cut(state: Path) -> None:
    path = state / "tensors.safetensors"
    path.write_bytes(path.read_bytes()[:-4])


NAN = float("nan")
ADAMW = {"optimizer": "adamw", "adam_beta1": 0.9, "adam_beta2": 0.999, "adam_epsilon": 1e-8}
FAULTS: dict[str, tuple[Callable[[Path], None], str]] = {
    "a weight that is no number": (rewrite(lambda t: t["point"].fill_(NAN)), "point has values"),
    "an infinite moment": (
        rewrite(lambda t: t["exp_avg.point"].fill_(float("inf"))),
        "exp_avg.point has values",
    ),
    "a square below 0": (rewrite(lambda t: t["exp_avg_sq.point"].neg_()), "below 0"),
    "no step": (rewrite(lambda t: t["step.point"].fill_(0)), "no number of steps"),
    "half a step": (rewrite(lambda t: t["step.point"].fill_(2.5)), "no number of steps"),
    "too many steps": (rewrite(lambda t: t["step.point"].fill_(1e12)), "no number of steps"),
    "another shape": (
        rewrite(lambda t: t.update({"point": torch.zeros(7)})),
        r"point is float32 \[7\].*\[6\]",
    ),
    "another type": (
        rewrite(lambda t: t.update({"point": t["point"].half()})),
        r"point is float16 \[6\].*float32",
    ),
    "a counter of each number": (
        rewrite(lambda t: t.update({"step.point": torch.ones(6)})),
        r"step.point is float32 \[6\]",
    ),
    "no weight": (rewrite(lambda t: t.pop("point")), "lacks point"),
    "half the moments": (rewrite(lambda t: t.pop("exp_avg_sq.point")), "lacks exp_avg_sq.point"),
    "a weight too many": (
        rewrite(lambda t: t.update({"head": torch.zeros(2)})),
        "has in addition head",
    ),
    "a cut file": (cut, "truncated"),
    "a pipe": (pipe, "not a regular file"),
    "a link out": (link_out, "outside of"),
    "facts behind a link": (link_facts_out, "outside of"),
    "facts that are no JSON": (facts("{"), "cannot be read as JSON"),
    "facts that are a list": (facts([1]), "must be a JSON object"),
    "another optimizer": (facts({**ADAMW, "optimizer": "lion"}), "optimizer: lion"),
    "another decay": (facts({**ADAMW, "adam_beta2": 0.95}), "adam_beta2: 0.95.*0.999"),
    "a decay that is no number": (facts({**ADAMW, "adam_beta1": NAN}), "adam_beta1: nan"),
    "no decay": (facts({"optimizer": "adamw"}), "adam_beta1: None"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_state_of_a_stranger_is_checked_before_a_step(fault: str, tmp_path: Path) -> None:
    state = pulled(Pulled(3), tmp_path / "first")
    break_it, words = FAULTS[fault]
    break_it(state)
    point = Pulled(2)
    with pytest.raises(EmbergeError, match=words):
        pulled(point, tmp_path / "second", state)
    assert torch.equal(point.point, torch.zeros(6))


def test_a_folder_without_a_state_is_refused_with_the_option_that_keeps_one(
    tmp_path: Path,
) -> None:
    pulled(Pulled(3), tmp_path, keep_state=False)
    assert not (tmp_path / "out" / KeptState.FOLDER).exists()
    with pytest.raises(EmbergeError, match="keep_state: true"):
        KeptState.find(tmp_path / "out")


def test_a_state_behind_a_link_out_of_the_result_is_refused(tmp_path: Path) -> None:
    state = pulled(Pulled(3), tmp_path)
    os.rename(state, tmp_path / "elsewhere")
    state.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(EmbergeError, match="outside of"):
        KeptState.find(tmp_path / "out")


def test_a_state_that_is_not_finite_is_not_kept(tmp_path: Path) -> None:
    point = Pulled(3)
    with torch.no_grad():
        point.unused.fill_(float("inf"))
    with pytest.raises(EmbergeError, match=r"unused.*not finite.*keep_state"):
        pulled(point, tmp_path)
    assert not (tmp_path / "out" / KeptState.FOLDER).exists()


# ── models ──────────────────────────────────────────────────────────────────────────────────────


def fitted(model: Path, root: Path, **changes: Any) -> Path:
    options = {"learning_rate": 1e-3, "token_budget": 80, **OPTIONS, "max_steps": 4}
    options |= {"average": Averaging(share=0.5), "learning_rate": 1e-3}
    job: dict[str, Any] = {
        "backbone": TextEncoder(),
        "checkpoint": model,
        "datasets": [retrieval()],
        "sampler": (BatchShuffle(batch_size=PerDataset(default=8)),),
        "losses": PerDataset(default=(InfoNCE(temperature=0.1, learn_temperature=True),)),
        "options": FitOptions(**options),
        "folder": root / "out",
        "work": root / "work",
        "seed": 0,
    }
    run_fit(**{**job, **changes})
    return root / "out"


def test_a_model_is_the_same_with_and_without_its_state(bert: Path, tmp_path: Path) -> None:
    """It is loaded, copied, hashed and published as if the folder were not there."""
    out = fitted(bert, tmp_path)
    before = model_fingerprint(out)
    copy_model(out, tmp_path / "copy")
    names = {path.relative_to(out).parts[0] for path in published_files(out)}
    assert KeptState.FOLDER not in names
    assert "model.safetensors" in names
    assert not (tmp_path / "copy" / KeptState.FOLDER).exists()
    os.rename(out / KeptState.FOLDER, tmp_path / "elsewhere")
    assert model_fingerprint(out) == before


@pytest.mark.parametrize("lora", [None, Lora(rank=2)], ids=["whole", "adapter"])
def test_a_fit_continues_from_the_weights_and_not_from_their_mean(
    lora: Lora | None, bert: Path, tmp_path: Path
) -> None:
    """With learning_rate 0 nothing moves, so that the result is where the training began."""
    backbone = TextEncoder(lora=lora)
    first = fitted(bert, tmp_path / "first", backbone=backbone)
    # The base of an adapter is the model that it was trained on.
    start = first if lora is None else bert
    still = FitOptions(**{**OPTIONS, "learning_rate": 0.0, "max_steps": 2, "token_budget": 80})
    state = KeptState.find(first).folder
    given = {"backbone": backbone, "options": still, "from_state": state}
    second = fitted(start, tmp_path / "second", **given)
    kept, again = (
        load_file(out / KeptState.FOLDER / "tensors.safetensors") for out in (first, second)
    )
    assert kept.keys() == again.keys()
    weights = [name for name in kept if name.startswith(("model.", "loss."))]
    assert any(".lora_" in name for name in weights) == (lora is not None)
    assert all(torch.equal(kept[name], again[name]) for name in weights)
    assert float(again[f"step.{weights[0]}"]) == 6


def test_another_backbone_is_refused_by_its_parameters(bert: Path, tmp_path: Path) -> None:
    first = fitted(bert, tmp_path / "first")
    with pytest.raises(
        EmbergeError, match=r"lacks model\..*lora_A.*another model, backbone or loss"
    ):
        fitted(
            first,
            tmp_path / "second",
            backbone=TextEncoder(lora=Lora(rank=2)),
            from_state=KeptState.find(first).folder,
        )


def test_work_of_another_state_is_not_continued(bert: Path, tmp_path: Path) -> None:
    first, other = (
        fitted(bert, tmp_path / name, seed=seed) for name, seed in (("first", 0), ("other", 1))
    )

    def kill(done: int, _: int, unit: str, note: str = "") -> None:
        if done == 3 and unit == "steps":
            raise KeyboardInterrupt

    options = FitOptions(**OPTIONS, max_steps=4, token_budget=80, save_steps=1)
    given = {"options": options, "from_state": KeptState.find(first).folder}
    with pytest.raises(KeyboardInterrupt):
        fitted(first, tmp_path / "second", progress=kill, **given)
    given["from_state"] = KeptState.find(other).folder
    with pytest.raises(EmbergeError, match="the weights it starts from have changed"):
        fitted(first, tmp_path / "second", **given)
