"""References: what their texts mean, and the names of the models that they lead to."""

from __future__ import annotations

import pytest
from emberge import ModelRef


@pytest.mark.parametrize(
    ("text", "main", "adapter", "step", "part"),
    [
        ("./a+./b", "./a", "./b", None, None),
        ("me/a+b@v2+me/lora", "me/a+b@v2", "me/lora", None, None),
        ("$run.checkpoints", "$run.checkpoints", None, "run", "checkpoints"),
        ("$members.ratio=0.2", "$members.ratio=0.2", None, "members.ratio=0.2", None),
        ("./a.checkpoints", "./a.checkpoints", None, None, None),
    ],
)
def test_a_reference_is_a_model_or_a_step_with_its_part_and_an_adapter(
    text: str, main: str, adapter: str | None, step: str | None, part: str | None
) -> None:
    found = ModelRef(text)
    assert (found.main, found.adapter, found.step, found.part) == (main, adapter, step, part)


def test_parts_have_names_that_are_ids_and_tell_models_apart() -> None:
    texts = ["$bls.seed=1", "$run.checkpoints", "owner/name@v2", "./a/b", "./a_b", "./A/b", "m+ad"]
    names = ModelRef.name_parts([ModelRef(text) for text in [*texts, "./a/b"]])
    assert list(names.values()) == [
        "model=bls.seed=1",
        "model=run-checkpoints",
        "model=owner-name-v2",
        "model=a-b",
        "model=a_b",
        "model=A-b-2",
        "model=m-ad",
    ]
    private = ModelRef.name_parts([ModelRef(f"/srv/{who}/my models/A") for who in "ab"])
    assert list(private.values()) == ["model=A", "model=A-2"]
    long = ModelRef.name_parts([ModelRef(f"./{'x' * 300}/{end}") for end in "ab"])
    assert [name[-2:] for name in long.values()] == ["-a", "-b"]
