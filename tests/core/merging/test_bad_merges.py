"""What bad input gets from the command line: one line that names it and says what to do, and no debris."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import yaml
from emberge.cli.main import main
from emberge.contracts import ChainSpec
from safetensors.torch import load_file, save_file

from tests.support.chains import STRATEGIES

NAME = "encoder.layer.1.output.dense.weight"


@pytest.fixture
def place(bert: Path, berts: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, which holds a base and three models called a, b and c."""
    for name, folder in zip(("base", "a", "b", "c"), (bert, *berts), strict=True):
        shutil.copytree(folder, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def refused(place: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Call `emberge merge …` and return its one line of error; nothing may be left but what was there."""

    def call(*words: str) -> str:
        before = sorted(path for path in place.rglob("*"))
        capsys.readouterr()
        code = main(["merge", *words, "--out", "out", "--quiet"])
        said = capsys.readouterr()
        assert code == 2, said
        assert sorted(path for path in place.rglob("*")) == before, "nothing is left"
        errors = [line for line in said.err.splitlines() if line.startswith("error: ")]
        assert len(errors) == 1, said.err
        assert "Traceback" not in said.err
        return errors[0].removeprefix("error: ")

    return call


def change(folder: Path, **tensors: torch.Tensor) -> None:
    path = folder / "model.safetensors"
    save_file({**load_file(path), **tensors}, path)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("a b c --strategy slerp", "'slerp' takes 2 models and there are 3"),
        ("a --strategy slerp", "'slerp' takes 2 models and there is 1"),
        ("a --strategy model_stock --base base", "'model_stock' takes at least 2 models and there"),
        ("a b --strategy passthrough", "'passthrough' takes 1 model and there are 2"),
        ("a b --strategy ties", "'ties' needs a base; name it by --base"),
        ("a b --dtype float33", "--dtype: option --dtype needs one of float32"),
        (
            "a b --set keep=0.1",
            "--set keep: step 'merge': 'keep: 0.1' keeps that share of the base",
        ),
        ("a b --strategy linear --weight=1,-1", "the weights sum to zero, and 'linear' divides by"),
        ("a b --strategy multi_slerp --weight=0,0", "and 'multi_slerp' divides by their sum; give"),
        (
            "a base b --strategy ties --base base",
            "the base is also listed as the model 'base', whose delta would be zero; take it out",
        ),
    ],
)
def test_a_request_that_cannot_be_merged_is_refused(
    words: str, says: str, refused: Callable[..., str]
) -> None:
    line = refused(*words.split())
    assert line.startswith(("merge", "--"))
    assert says in line


REGISTERED = [name for name, one in STRATEGIES.items() if isinstance(one, ChainSpec)]


@pytest.mark.parametrize("name", REGISTERED)
def test_a_chain_without_its_base_is_named_as_it_was_written(
    name: str, refused: Callable[..., str]
) -> None:
    assert f"'{name}' needs a base" in refused("a", "b", "--strategy", name)


def test_a_base_that_no_link_requires_may_also_be_a_model(place: Path) -> None:
    words = ["merge", "a", "base", "--base", "base", "--strategy", "nuslerp", "--out", "out"]
    assert main(words) == 0
    assert Path("out/model.safetensors").is_file()


def test_a_base_that_no_link_uses_is_left_out_with_a_remark(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    remark = "'linear' uses no base, so the base 'base' is left out"
    for out, base in (("out", ()), ("remarked", ("--base", "base"))):
        assert main(["merge", "a", "b", "--strategy", "linear", "--out", out, *base]) == 0
        assert (remark in capsys.readouterr().err) == bool(base)
    first, second = (load_file(f"{out}/model.safetensors") for out in ("out", "remarked"))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert '"base": ' not in Path("remarked/artifact.json").read_text()
    steps = {"x": {"merge": {"models": ["./a"]}}, "y": {"merge": {"models": ["$x"], "base": "./b"}}}
    Path("r.yaml").write_text(yaml.safe_dump({"steps": steps}))
    assert main(["check", "r.yaml"]) == 0
    assert "'linear' uses no base, so the base 'b' is left out" in capsys.readouterr().err


def test_group_weights_that_cancel_out_name_the_group(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    models = [
        {"model": "./a", "group": "x", "weight": 1},
        {"model": "./b", "group": "x", "weight": -1},
        {"model": "./c", "group": "y"},
    ]
    merge = {"models": models, "strategy": [{"group": "linear"}, "linear"]}
    Path("r.yaml").write_text(yaml.safe_dump({"steps": {"m": {"merge": merge}}}))
    assert main(["run", "r.yaml", "--out", "out"]) == 2
    err = capsys.readouterr().err
    assert "the weights sum to zero in the group 'x', and 'group' divides by their sum" in err
    assert not Path("out").exists()


def whole_numbers(place: Path) -> None:
    change(place / "a", **{"ids.table": torch.arange(9)})
    change(place / "b", **{"ids.table": torch.arange(9).flip(0)})


def short_numbers(place: Path) -> None:
    change(place / "a", **{"ids.table": torch.arange(9)})
    change(place / "b", **{"ids.table": torch.arange(9).int()})


def put(number: float, model: str = "b") -> Callable[[Path], None]:
    """A change that puts a number into a model."""

    def write(place: Path) -> None:
        tensor = load_file(place / model / "model.safetensors")[NAME]
        tensor[7, 3] = number
        change(place / model, **{NAME: tensor})

    return write


def large_numbers(place: Path) -> None:
    for name in "ab":
        change(place / name, **{NAME: torch.full((32, 64), 7e4)})


NONE = f"^{NAME}: '{{}}' has values that are NaN, infinite or above 1.8e19; leave that model out"
# A change of the models, further words of the command, and what is said.
BROKEN: dict[str, tuple[Callable[[Path], None], str, str]] = {
    "whole numbers": (
        whole_numbers,
        "",
        "^ids.table: int64 values cannot be merged, and those of 'b' differ",
    ),
    "whole numbers of another size": (
        short_numbers,
        "",
        r"ids.table: 'b' holds int32 \[9\], the template int64 \[9\], which cannot be merged.* "
        "convert the models first$",
    ),
    "NaN": (put(float("nan")), "", NONE.format("b")),
    "infinity": (put(float("inf")), "--strategy multi_slerp", NONE.format("b")),
    "minus infinity": (put(-float("inf")), "--strategy ties --base base", NONE.format("b")),
    "a base with NaN": (
        put(float("nan"), "base"),
        "--strategy ties --base base",
        NONE.format("base"),
    ),
    "numbers too large for their dtype": (
        large_numbers,
        "--dtype float16",
        f"^{NAME}: merging gives NaN, or values that float16 cannot hold or above 1.8e19; choose another",
    ),
    # Compiled kernels need less than torch.
    "no memory for a row": (
        lambda _: None,
        "--memory 300B",
        r"^embeddings.LayerNorm.bias: needs (384 bytes|1\.02 kB) at once and the limit is 300 bytes"
        "; allow more with --memory, or give it another strategy by a rule",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_damaged_file_is_named(case: str, place: Path, refused: Callable[..., str]) -> None:
    damage, words, says = BROKEN[case]
    damage(place)
    assert re.search(says, refused("a", "b", *words.split()))
