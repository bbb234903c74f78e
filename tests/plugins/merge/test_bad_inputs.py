"""What goes into a merge and is no good is said in one line before work starts, and nothing is left."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from emberge.cli.main import main
from safetensors.torch import load_file, save_file

from tests.support.json_files import changing
from tests.support.peft_adapters import save_adapter

Capture = pytest.CaptureFixture[str]
Change = Callable[[Path], str]


@pytest.fixture(scope="module")
def models(bert: Path, berts: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base, a sibling, and an adapter."""
    root = tmp_path_factory.mktemp("models")
    shutil.copytree(bert, root / "bert")
    shutil.copytree(berts[0], root / "other")
    save_adapter(root / "a0", root / "bert")
    return root


@pytest.fixture
def place(models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("bert", "other", "a0"):
        shutil.copytree(models / name, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def merge(*models: str, more: str = "", strategy: str = "linear") -> str:
    entries = "".join(f"        - {model}\n" for model in models)
    end = f"      strategy: {strategy}\n{more}"
    return f"steps:\n  merged:\n    merge:\n      models:\n{entries}{end}"


def another_shape(place: Path) -> str:
    path = place / "other" / "model.safetensors"
    save_file({**load_file(path), "embeddings.LayerNorm.weight": torch.ones(5)}, path)
    return merge("./bert", "./other")


def missing(place: Path) -> str:
    path = place / "other" / "model.safetensors"
    state = load_file(path)
    del state["embeddings.LayerNorm.weight"]
    save_file(state, path)
    return merge("./bert", "./other")


def clashing_ids(place: Path) -> str:
    with changing(place / "other" / "tokenizer.json") as said:
        vocab = said["model"]["vocab"]
        vocab["cat"] = vocab.pop("table")
    return merge("./bert", "./other")


def pickled_model(place: Path) -> str:
    state = load_file(place / "other" / "model.safetensors")
    torch.save(state, place / "other" / "pytorch_model.bin")
    (place / "other" / "model.safetensors").unlink()
    return merge("./bert", "./other")


CASES: dict[str, Change | str] = {
    "LayerNorm.weight: 'other' has shape [5], 'bert' has [32]": another_shape,
    "'other' lacks it; merge models of one architecture, or give `missing: average_present`": missing,
    'is "table" in one and "cat" in the other': clashing_ids,
    "emberge safetensors": pickled_model,
    "'./oter': there is no such folder": merge("./bert", "./oter"),
    "'./a7': there is no such folder": merge("./bert+./a7", "./other"),
    "it has neither modules.json nor config.json": merge("./bert", "."),
    "needs its own output": merge("./bert", "$merged"),
}


@pytest.mark.parametrize("expected", CASES)
def test_a_bad_input_is_named_before_any_work(expected: str, place: Path, capsys: Capture) -> None:
    given = CASES[expected]
    Path("r.yaml").write_text(given if isinstance(given, str) else given(place))
    for words in (["check", "r.yaml"], ["run", "r.yaml", "--out", "out"]):
        assert main(words) == 2
        said = capsys.readouterr().err
        assert "Traceback" not in said
        lines = [line for line in said.splitlines() if expected in line]
        assert lines, said
        assert all(line.startswith("error: r.yaml:") for line in lines), said
    assert not list(place.glob("out/**/*.safetensors"))


def test_a_verb_names_the_option_that_it_takes(place: Path, capsys: Capture) -> None:
    missing(place)
    assert main(["merge", "./bert", "./other", "--out", "out"]) == 2
    assert "or give `--set missing=average_present`" in capsys.readouterr().err
