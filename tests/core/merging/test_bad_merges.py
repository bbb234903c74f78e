"""What bad input gets from the command line: one line that names it and says what to do, and no debris."""

from __future__ import annotations

import shutil
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from emberge import ChainSpec
from emberge.cli.main import main
from emberge.merging import MergeInput
from emberge.model_folder import Checkpoint
from emberge_merge import Trim, strategies
from safetensors.torch import load_file, save_file

from tests.support.merges import merge_models
from tests.support.registered import CHAINS
from tests.support.tolerance import assert_combined

NAME = "encoder.layer.1.output.dense.weight"
BASED = {
    name: links
    for name, (links, _) in CHAINS.items()
    if any(link.base_policy == "required" for link in links)
}


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


# ── numbers of models, weights, bases ───────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("a b c --strategy slerp", "'slerp' takes 2 models and there are 3"),
        ("a --strategy slerp", "'slerp' takes 2 models and there is 1"),
        ("a --strategy model_stock --base base", "'model_stock' takes at least 2 models and there"),
        ("a b --strategy passthrough", "'passthrough' takes 1 model and there are 2"),
        ("a b --strategy ties", "'ties' needs a base; name it under 'base'"),
        ("a b --strategy linear --base base", "a base is given and 'linear' uses none; leave the"),
        ("a b --strategy linear --weight=1,-1", "the weights sum to zero, and 'linear' divides by"),
        ("a b --strategy multi_slerp --weight=0,0", "and 'multi_slerp' divides by their sum; give"),
        (
            "a base b --strategy ties --base base",
            "the base is also listed as the model './base', whose delta would be zero; take it out",
        ),
    ],
)
def test_a_merge_that_makes_no_sense_is_refused(
    words: str, says: str, refused: Callable[..., str]
) -> None:
    line = refused(*words.split())
    assert line.startswith("command line: ")
    assert says in line


REGISTERED = [name for name, one in strategies().items() if isinstance(one, ChainSpec)]


@pytest.mark.parametrize("name", REGISTERED)
def test_a_chain_without_its_base_is_named_as_it_was_written(
    name: str, refused: Callable[..., str]
) -> None:
    assert f"'{name}' needs a base" in refused("a", "b", "--strategy", name)


def test_a_link_that_was_written_itself_keeps_its_name(refused: Callable[..., str]) -> None:
    line = refused("a", "b", "--strategy", "[trim, sign_consensus]")
    assert "'trim' needs a base" in line


def test_a_link_of_a_chain_is_else_like_one_written_itself() -> None:
    link = Trim(density=0.3)
    named = link.as_link_of("ties")
    assert (named, repr(named), named.plain()) == (link, repr(link), link.plain())
    assert (named.name_in_messages, link.name_in_messages) == ("ties", "trim")


def test_a_base_that_no_link_requires_may_be_a_model_too(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["merge", "a", "base", "--base", "base", "--strategy", "nuslerp", "--out", "out"]
    assert main(words) == 0
    assert "'./base' holds the same weights as the base" in capsys.readouterr().err
    assert Path("out/model.safetensors").is_file()


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


# ── changes that are all zero ───────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", BASED)
def test_models_that_did_not_move_give_the_base(name: str, bert: Path, tmp_path: Path) -> None:
    links = BASED[name]
    count = min(2, links[0].arity.stop - 1)
    report = merge_models(
        [MergeInput(f"m{i}", bert, fingerprint=str(i)) for i in range(count)],
        strategy=links,
        base=MergeInput("base", _copy(bert, tmp_path / "base")),
        out=tmp_path / "out",
    )
    expected = load_file(bert / "model.safetensors")
    for tensor, found in load_file(tmp_path / "out" / "model.safetensors").items():
        kept = expected[tensor]
        assert_combined(found, [kept, kept, kept], [1, 1, -1])
    assert any("hold the same weights as the base" in w for w in _singular(report.warnings))


def _copy(folder: Path, place: Path) -> Path:
    return Path(shutil.copytree(folder, place))


def _singular(warnings: Any) -> list[str]:
    return [warning.replace("holds the same", "hold the same") for warning in warnings]


@pytest.mark.parametrize("name", BASED)
def test_one_frozen_tensor_stays_as_it_is(
    name: str, bert: Path, berts: list[Path], tmp_path: Path
) -> None:
    links = BASED[name]
    count = min(2, links[0].arity.stop - 1)
    frozen = load_file(bert / "model.safetensors")[NAME]
    folders = [_copy(folder, tmp_path / folder.name) for folder in berts[:count]]
    for folder in folders:
        change(folder, **{NAME: frozen})
    merge_models(
        [MergeInput(folder.name, folder) for folder in folders],
        strategy=links,
        base=MergeInput("base", bert),
        out=tmp_path / "out",
    )
    found = load_file(tmp_path / "out" / "model.safetensors")
    assert_combined(found[NAME], [frozen, frozen, frozen], [1, 1, -1])
    assert all(bool(torch.isfinite(tensor).all()) for tensor in found.values())


# ── tensors ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("strategy", ["slerp", "nuslerp", "multi_slerp", "karcher"])
def test_opposite_tensors_have_no_direction_between_them_and_are_said(
    strategy: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = load_file(place / "a" / "model.safetensors")[NAME]
    change(place / "b", **{NAME: -first})
    assert main(["merge", "a", "b", "--strategy", strategy, "--out", "out"]) == 0
    said = capsys.readouterr()
    found = load_file(Path("out/model.safetensors"))
    assert all(bool(torch.isfinite(tensor).all()) for tensor in found.values())
    assert_combined(found[NAME], [first, -first], [0.5, 0.5])
    assert NAME in said.out + said.err


def test_whole_numbers_that_differ_name_tensor_and_models(
    place: Path, refused: Callable[..., str]
) -> None:
    change(place / "a", **{"ids.table": torch.arange(9)})
    change(place / "b", **{"ids.table": torch.arange(9).flip(0)})
    line = refused("a", "b")
    assert line.startswith("ids.table: int64 values cannot be merged, and those of 'b' differ")


def test_whole_numbers_of_another_size_are_refused_before_the_start(
    place: Path, refused: Callable[..., str]
) -> None:
    change(place / "a", **{"ids.table": torch.arange(9)})
    change(place / "b", **{"ids.table": torch.arange(9).int()})
    line = refused("a", "b")
    assert (
        "ids.table: './b' holds int32 [9], the template int64 [9], which cannot be merged" in line
    )
    assert line.endswith("convert the models first")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("strategy", ["linear", "multi_slerp", "ties"])
def test_a_number_that_is_none_names_tensor_and_model(
    value: float, strategy: str, place: Path, refused: Callable[..., str]
) -> None:
    tensor = load_file(place / "b" / "model.safetensors")[NAME]
    tensor[7, 3] = value
    change(place / "b", **{NAME: tensor})
    based = ["--base", "base"] if strategy == "ties" else []
    line = refused("a", "b", "--strategy", strategy, *based)
    assert line.startswith(
        f"{NAME}: 'b' has values that are NaN, infinite or above 1.8e19; leave that model out"
    )


def test_a_base_with_numbers_that_are_none_is_named_too(
    place: Path, refused: Callable[..., str]
) -> None:
    change(place / "base", **{NAME: torch.full((32, 64), float("nan"))})
    line = refused("a", "b", "--strategy", "ties", "--base", "base")
    assert line.startswith(f"{NAME}: 'base' has values that are NaN, infinite or above")


def test_a_result_too_large_for_its_type_is_refused(
    place: Path, refused: Callable[..., str]
) -> None:
    for name in "ab":
        change(place / name, **{NAME: torch.full((32, 64), 7e4)})
    line = refused("a", "b", "--dtype", "float16")
    assert line.startswith(
        f"{NAME}: merging gives values that float16 cannot hold, or above 1.8e19; choose another"
    )


def test_tensors_of_other_shapes_or_missing_ones_are_named(
    place: Path, refused: Callable[..., str]
) -> None:
    change(place / "b", **{NAME: torch.zeros(32, 8)})
    line = refused("a", "b")
    assert f"{NAME}: './b' has shape [32, 8], './a' has [32, 64]; merge models of one arch" in line


# ── the machine ─────────────────────────────────────────────────────────────────────────────────


def test_memory_that_holds_no_row_is_refused_with_what_is_needed(
    refused: Callable[..., str],
) -> None:
    line = refused("a", "b", "--memory", "300B")
    # Compiled kernels need less than torch.
    assert line.startswith(
        (
            "embeddings.LayerNorm.bias: needs 384 bytes at once and the limit is 300 bytes",
            "embeddings.LayerNorm.bias: needs 1.02 kB at once and the limit is 300 bytes",
        )
    )
    assert "; allow more with --memory, or give it another strategy by a rule" in line


def test_a_disk_too_small_is_refused_before_the_start(
    refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10**6, 10**6 - 10, 10))
    line = refused("a", "b")
    assert "and the disk has 10 bytes free; make room or" in line


# ── files ───────────────────────────────────────────────────────────────────────────────────────


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def overlap(path: Path) -> None:
    raw = path.read_bytes()
    specs = sorted(Checkpoint(path.parent).specs.values(), key=lambda spec: spec.offset)
    start = int.from_bytes(raw[:8], "little") + 8
    second = specs[1].offset - start
    first = f'"data_offsets":[{second},'.encode()
    assert raw.count(first) == 1
    moved = first.replace(str(second).encode(), str(second - 4).encode().rjust(len(str(second))))
    path.write_bytes(raw.replace(first, moved))


@pytest.mark.parametrize("damage", [cut_short, overlap])
def test_a_damaged_file_is_named(
    damage: Callable[[Path], None], place: Path, refused: Callable[..., str]
) -> None:
    damage(place / "b" / "model.safetensors")
    line = refused("a", "b")
    assert "b/model.safetensors: " in line
    assert line.endswith("get the file again")


def test_a_place_that_is_taken_is_left_alone(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (place / "out").mkdir()
    (place / "out" / "mine.txt").write_text("mine")
    assert main(["merge", "a", "b", "--out", "out"]) == 2
    assert "out exists already; remove it or choose another --out" in capsys.readouterr().err
    assert [path.name for path in (place / "out").iterdir()] == ["mine.txt"]
