"""What `emberge check` shows of a merge before it runs, and what it warns of."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from emberge.cli.main import main
from emberge.numerics import describe_kernels
from safetensors.torch import load_file, save_file

from tests.support.fixture_types import Capture, Patch
from tests.support.json_files import edit


@pytest.fixture
def place(bert: Path, berts: list[Path], tmp_path: Path, monkeypatch: Patch) -> Path:
    """The current folder, which holds a base and three models called a, b and c."""
    for name, folder in zip(("base", "a", "b", "c"), (bert, *berts), strict=True):
        shutil.copytree(folder, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def check(capsys: Capture, *words: str, **merge: Any) -> tuple[dict[str, list[str]], str]:
    """(the lines of the plan by label, stderr) of `emberge check` of one merge."""
    Path("r.yaml").write_text(yaml.safe_dump({"steps": {"merged": {"merge": merge}}}))
    capsys.readouterr()
    code = main(["check", "r.yaml", "--long", *words])
    said = capsys.readouterr()
    assert code == 0, said.err
    lines: dict[str, list[str]] = {}
    label = ""
    for line in filter(lambda line: line.startswith("  "), said.out.splitlines()):
        label = line[2:12].strip() or label
        lines.setdefault(label, []).append(line[14:])
    return lines, said.err


def linear(*models: Any, **more: Any) -> dict[str, Any]:
    return {"models": [*models], "strategy": "linear", **more}


def test_tensors_are_counted_by_what_becomes_of_them(place: Path, capsys: Capture) -> None:
    for name in ("a", "b"):
        state = load_file(place / name / "model.safetensors")
        state["ids.table"] = torch.arange(5)
        if name == "b":
            state = {f"bert.{key}": tensor for key, tensor in state.items()}
            state["bert.embeddings.position_ids"] = torch.arange(3)
        save_file(state, place / name / "model.safetensors")
    plan, _ = check(capsys, **linear("./a", "./b"))
    assert plan["tensors"] == [
        "55 merged, 1 copied (ids.table), 1 dropped (embeddings.position_ids)"
    ]


def test_weights_are_shown_as_the_method_takes_them(place: Path, capsys: Capture) -> None:
    plan, _ = check(capsys, **linear({"model": "./a", "weight": 3}, "./b"))
    assert plan["weights"] == ["a  0.75", "b  0.25", "sum  4: what is given; each is divided by it"]
    rules = [{"filter": "LayerNorm", "strategy": "linear"}]
    around = {"models": ["./a", "./b"], "base": "./base", "strategy": "task_arithmetic"}
    plan, _ = check(capsys, rules=rules, **around)
    assert plan["weights"][-1] == "sum  2: taken as they are, as factors"
    assert plan["method"][0] == "task_arithmetic (scale 1.0, normalize false), around the base base"
    assert plan["method"][1] == "linear (normalize true) for LayerNorm (14 tensors)"
    assert plan["kernels"] == [describe_kernels()]
    plan, _ = check(capsys, models=["./a", "./b"], strategy={"slerp": {"t": 0.2}})
    assert plan["weights"] == ["not used by slerp"]
    models = [
        {"model": "./a", "group": "x", "weight": 3},
        {"model": "./b", "group": "x"},
        {"model": "./c", "group": "y", "weight": 5},
    ]
    plan, _ = check(capsys, models=models, strategy=[{"group": "linear"}, "linear"])
    assert [words.split()[1] for words in plan["weights"][:3]] == ["0.75", "0.25", "1"]
    assert plan["weights"][-1].endswith("each is divided by it, within its group")


def test_weights_that_vary_are_shown_with_their_bounds(place: Path, capsys: Capture) -> None:
    filtered = [{"filter": "embeddings", "value": 0}, {"value": 0.5}]
    tensors = [{"filter": "intermediate", "value": 2}, {"value": 1}]
    plan, _ = check(
        capsys,
        models=[
            {"model": "./a", "weight": [0.6, 0.2], "name": "falling"},
            {"model": "./b", "weight": filtered},
            {"model": "./c", "weight": tensors},
        ],
        base="./base",
        strategy="task_arithmetic",
    )
    shown = {words.split()[0]: words.partition("(")[2] for words in plan["weights"]}
    assert shown["falling"] == "0.2 to 0.6)"
    assert shown["b"] == "0 to 0.5)"
    assert shown["c"] == "1 to 2)"


def change_the_pad_token(folder: Path) -> None:
    edit(folder, "tokenizer_config.json", pad_token="[MASK]")


def pad_on_the_left(folder: Path) -> None:
    edit(folder, "tokenizer_config.json", padding_side="left")


TOKENS: dict[Callable[[Path], None], str] = {
    change_the_pad_token: 'pad_token is "[PAD]" in one and "[MASK]" in the other',
    pad_on_the_left: 'padding_side is "right" in one and "left" in the other',
}


@pytest.mark.parametrize("change", TOKENS, ids=lambda change: change.__name__)
def test_tokenizers_of_one_vocabulary_that_read_otherwise_are_told_apart(
    change: Callable[[Path], None], place: Path, capsys: Capture
) -> None:
    edit(place / "a", "tokenizer_config.json", padding_side="right")
    assert check(capsys, **linear("./a", "./c"))[1] == ""
    for name in ("b", "c"):
        edit(place / name, "tokenizer_config.json", padding_side="right")
        change(place / name)
    _, err = check(capsys, **linear("./a", "./b", "./c"))
    assert TOKENS[change] in err
    assert "'a' and 'b', 'c': " in err, "said once for both"


# A hub, of whose models only configs and tokenizers are downloaded for a check.
HUB = """\
from pathlib import Path
from emberge import hookimpl

@hookimpl
def locate_model(reference, revision, files):
    return Path(reference.removeprefix("hub:")) if reference.startswith("hub:") else None
"""


def test_without_weights_configs_are_compared_still(place: Path, capsys: Capture) -> None:
    for name in "ab":
        (place / name / "model.safetensors").unlink()
    Path("shelf.py").write_text(HUB)
    plan, err = check(capsys, "--plugin", "shelf.py", **linear("hub:a", "hub:b"))
    assert err == ""
    assert plan["not seen"] == ["weights of hub:a, hub:b"]
    assert "tensors" not in plan
    edit(place / "b", "tokenizer_config.json", pad_token="[MASK]")
    assert "pad_token" in check(capsys, "--plugin", "shelf.py", **linear("hub:a", "hub:b"))[1]


def test_models_yet_to_be_made_count_as_like_the_others(place: Path, capsys: Capture) -> None:
    first, then = linear("./a", "./b"), linear("$first", "./c")
    steps = {"first": {"merge": first}, "then": {"merge": then}}
    Path("r.yaml").write_text(yaml.safe_dump({"steps": steps}))
    assert main(["check", "r.yaml", "--long"]) == 0
    shown = capsys.readouterr().out.partition("then: merge plan")[2]
    assert "tensors     55 merged" in shown
    assert "$first  0.5" in shown
    assert "not seen    weights of $first, taken to be like the others" in shown


def test_what_was_foretold_is_told_once_and_kept(place: Path, capsys: Capture) -> None:
    pad_on_the_left(place / "b")
    words = ["merge", "./a", "./b", "--strategy", "linear", "--out", "m"]
    assert main(words) == 0
    said = capsys.readouterr()
    assert (said.out + said.err).count("the first is kept") == 1
    record = json.loads(Path("m/artifact.json").read_text())
    assert ["the first is kept" in warning for warning in record["warnings"]] == [True]
    assert "the first is kept" in Path("m/README.md").read_text()
