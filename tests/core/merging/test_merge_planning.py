"""Plans of merges from headers: tensors that are merged, copied or left out, and problems."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from emberge import PerTensor
from emberge.merging import (
    MergeInput,
    MergePlan,
    MergeRequest,
    Rule,
    VocabularyPolicy,
    plan_merge,
)
from emberge_merge import Group, Linear, Slerp, TaskArithmetic
from safetensors.torch import save_file
from torch import Tensor

from tests.support import tiny
from tests.support.json_files import changing


def model(folder: Path, tensors: dict[str, Tensor], **config: Any) -> Path:
    folder.mkdir(parents=True)
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"model_type": "acme", **config}))
    return folder


def plan(*folders: Path, **settings: Any) -> MergePlan:
    inputs = tuple(MergeInput(f.name, f) for f in folders)
    settings = {"strategy": (Linear(),), "inputs": inputs, "missing": "strict", **settings}
    return plan_merge(MergeRequest(**settings))


def problems(*folders: Path, **settings: Any) -> str:
    found = plan(*folders, **settings).problems
    assert all("\n" not in str(p) for p in found)
    return "\n".join(str(p) for p in found)


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("second_tied", [True, False])
def test_a_head_with_other_numbers_than_the_embedding_is_merged(
    order: int, second_tied: bool, tmp_path: Path
) -> None:
    """A stored head with other numbers is no copy, whatever the config says of it."""
    trunk = {"model.embed_tokens.weight": torch.zeros(4, 2), "model.layers.0.w": torch.zeros(2)}
    own = model(
        tmp_path / "own",
        {**trunk, "lm_head.weight": torch.ones(4, 2)},
        tie_word_embeddings=second_tied,
        architectures=["Qwen3ForCausalLM"],
    )
    tied = model(
        tmp_path / "tied", trunk, tie_word_embeddings=True, architectures=["Qwen3ForCausalLM"]
    )
    found = plan(*[own, tied][::order])
    assert not found.problems
    assert "lm_head.weight" in found.merged
    assert any("head of its own" in line for line in found.warnings) == (order == -1)
    # Where the template has none, the head is named.
    assert "lm_head.weight" in plan(own, tied, template=tied).dropped
    assert any("lm_head" in line for line in plan(own, tied, template=tied).warnings)


def test_a_model_that_is_given_twice_is_named(tmp_path: Path) -> None:
    one = model(tmp_path / "one", {"w": torch.zeros(2)})
    found = plan(one, inputs=(MergeInput("a", one), MergeInput("b", one)))
    assert "'a', 'b': one model, whose weight counts 2 times" in found.warnings


def test_a_wrapped_model_merges_with_a_bare_one(tmp_path: Path) -> None:
    bare = {"embed_tokens.weight": torch.zeros(4, 2), "layers.0.w": torch.zeros(2)}
    wrapped = {f"model.{n}": t + 2 for n, t in bare.items()} | {
        "lm_head.weight": torch.ones(4, 2) * 2
    }
    a = model(tmp_path / "a", bare)
    b = model(tmp_path / "b", wrapped, tie_word_embeddings=True)
    found = plan(a, b)
    assert not found.problems
    assert found.merged == list(bare)
    assert found.dropped == ("lm_head.weight",)
    # The other way round the wrapper's names come out, and its tied head is not written.
    found = plan(b, a)
    assert sorted(found.merged) == ["model.embed_tokens.weight", "model.layers.0.w"]


def test_a_folder_of_a_tokenizer_that_is_not_there_is_a_problem(bert: Path) -> None:
    assert "there is no such model folder" in problems(bert, tokenizer=bert / "nowhere")


def test_an_untied_head_is_merged_with_a_tied_models_embedding(tmp_path: Path) -> None:
    tied = {"embed_tokens.weight": torch.zeros(4, 2)}
    a = model(tmp_path / "a", {**tied, "lm_head.weight": torch.ones(4, 2)})
    b = model(tmp_path / "b", tied)
    found = {t.name: t for t in plan(a, b).tensors}
    assert found["lm_head.weight"].sources[1].name == "embed_tokens.weight"  # type: ignore[union-attr]


def test_buffers_are_copied_from_the_template(tmp_path: Path) -> None:
    tensors = {"w": torch.zeros(2), "embeddings.position_ids": torch.arange(4)}
    a = model(tmp_path / "a", tensors)
    b = model(tmp_path / "b", {"w": torch.zeros(2), "rotary.inv_freq": torch.zeros(2)})
    found = plan(a, b)
    assert not found.problems
    assert found.copied == ["embeddings.position_ids"]
    assert found.dropped == ("rotary.inv_freq",)


def test_a_problem_of_shapes_names_the_models_and_the_tensor(tmp_path: Path) -> None:
    a = model(tmp_path / "acme", {"layers.3.w": torch.zeros(3, 2)})
    b = model(tmp_path / "other", {"layers.3.w": torch.zeros(3, 1)})
    assert problems(a, b) == (
        "layers.3.w: 'other' has shape [3, 1], 'acme' has [3, 2]; merge models of one architecture"
    )


def pair(tmp_path: Path) -> tuple[Path, Path, Path]:
    whole = {"w": torch.ones(2), "v": torch.ones(3)}
    return (
        model(tmp_path / "a", whole),
        model(tmp_path / "b", {"w": torch.ones(2)}),
        model(tmp_path / "base", whole),
    )


def test_a_missing_tensor_is_a_problem_unless_the_others_are_averaged(tmp_path: Path) -> None:
    a, b, _ = pair(tmp_path)
    assert problems(a, b).startswith("v: 'b' lacks it; merge models of one architecture, or ")
    # A step without the option is not told to set it.
    assert problems(a, b, missing=None) == "v: 'b' lacks it; merge models of one architecture"
    assert problems(b, a).startswith("v: 'b' lacks it")
    averaged = {t.name: t for t in plan(a, b, missing="average_present").tensors}
    assert [s is not None for s in averaged["v"].sources] == [True, False]
    assert plan(a, b, missing="average_present", strategy=(Slerp(),)).copied == ["v"]
    # Any link may refuse what is left, also after another one has merged the models of a group.
    c = shutil.copytree(a, tmp_path / "c")
    grouped = [MergeInput(f.name, f, group=g) for f, g in ((a, "x"), (b, "y"), (c, "x"))]
    links: dict[str, Any] = {
        "strategy": (Group(by=Linear()), Slerp()),
        "missing": "average_present",
    }
    assert plan(inputs=tuple(grouped[:2]), **links).copied == ["v"]
    assert problems(inputs=tuple(grouped), **links) == (
        "v: some models lack it, and 'slerp' takes 2 models and there is 1; merge it by a rule"
    )
    assert "it is empty" in problems(a, b, missing="average_present", strategy=())


def test_a_tensor_the_base_lacks_is_a_problem_and_one_only_it_has_is_left_out(
    tmp_path: Path,
) -> None:
    a, b, base = pair(tmp_path)
    twins = [shutil.copytree(one, tmp_path / f"{one.name}-twin") for one in (a, b)]
    said = problems(a, twins[0], base=MergeInput("b", b), strategy=(TaskArithmetic(),))
    assert said.startswith("v: the base lacks it; merge it by a rule that needs no base")
    assert "rules: [{filter: v, strategy: linear}]" in said
    found = plan(b, twins[1], base=MergeInput("base", base), strategy=(TaskArithmetic(),))
    assert not found.problems
    assert found.dropped == ("v",)


def with_token(bert: Path, folder: Path) -> Path:
    """A copy of a model whose tokenizer has one token more."""
    path = shutil.copytree(bert, folder) / "tokenizer.json"
    with changing(path) as content:
        tokens = content["added_tokens"]
        tokens.append({**tokens[0], "id": 500, "content": "[NEW]"})
    return folder


@pytest.mark.parametrize("policy", ["token_aware", "union"])
def test_tokens_are_not_matched_before_any_model_exists(
    policy: Any, bert: Path, tmp_path: Path
) -> None:
    found = plan(
        inputs=(MergeInput("x", None), MergeInput("y", None)),
        base=MergeInput("base", bert),
        template=with_token(bert, tmp_path / "template"),
        strategy=(TaskArithmetic(),),
        vocabulary_policy=VocabularyPolicy(policy=policy),
    )
    assert not found.problems
    assert found.future_models == {"x", "y"}


def test_a_folder_that_may_not_be_read_is_a_problem(
    bert: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    for function in ("scandir", "listdir"):
        monkeypatch.setattr(os, function, refuse)
    assert problems(bert) == f"{bert}: cannot be read (Permission denied)"


def test_tokens_without_a_row_are_a_warning(bert: Path, tmp_path: Path) -> None:
    other = with_token(bert, tmp_path / "other")
    found = plan(bert, other)
    assert not found.problems
    assert any('no model has a row for the tokens "[NEW]"' in said for said in found.warnings)
    assert not problems(bert, other, tokenizer=other)


def test_a_plan_lists_every_problem_at_once(berts: list[Path], bert: Path) -> None:
    inputs = (
        MergeInput("a", berts[0], PerTensor([{"filter": "embedings", "value": 0}, {"value": 1}])),
        MergeInput("a", berts[1]),
        MergeInput("c", bert, options={"slerb": {"t": PerTensor(1)}}),
    )
    said = problems(
        inputs=inputs,
        base=MergeInput("c", bert),
        strategy=(Slerp(),),
        rules=(Rule(filter="Norm", strategy=(TaskArithmetic(),)),),
    )
    assert "two models are called 'a'" in said
    assert "two models are called 'c'" in said
    assert "'slerp' takes 2 models and there are 3" in said
    assert "the base is also listed as the model 'c'" in said
    assert "'c' has options for 'slerb', which is no link here; did you mean 'slerp'?" in said
    assert (
        "the filter 'embedings' of the weight of 'a' matches no tensor; did you mean 'embeddings'?"
        in said
    )


def test_a_weight_by_filters_needs_a_last_plain_value(berts: list[Path]) -> None:
    partial = PerTensor([{"filter": "layer.0", "value": 1}])
    inputs = (MergeInput("a", berts[0], partial), MergeInput("b", berts[1]))
    assert "end the list with a plain value" in problems(inputs=inputs)
    slerp = (Slerp(t=partial),)
    inputs = (MergeInput("a", berts[0]), MergeInput("b", berts[1]))
    assert "'slerp': t: no filter fits" in problems(inputs=inputs, strategy=slerp)


def test_a_plan_may_have_future_models_and_lists_effective_weights(berts: list[Path]) -> None:
    inputs = (MergeInput("a", berts[0]), MergeInput("b", None))
    found = plan(inputs=inputs)
    assert not found.problems
    assert found.future_models == {"b"}
    assert found.merged
    assert found.weights == {"a": 0.5, "b": 0.5}
    inputs = tuple(
        MergeInput(f.name, f, PerTensor(w)) for f, w in zip(berts, (1, 2, 5), strict=True)
    )
    found = plan(inputs=inputs)
    assert list(found.weights.values()) == pytest.approx([0.125, 0.25, 0.625])
    assert found.weight_sum == 8


def test_another_model_type_is_the_only_problem_reported(bert: Path, tmp_path: Path) -> None:
    qwen = tiny.checkpoint(tmp_path / "qwen", "qwen3")
    said = problems(bert, qwen)
    assert "model_type is 'bert' in one and 'qwen3' in the other" in said
    assert said.count("\n") == 0, "what follows from it is not told"
