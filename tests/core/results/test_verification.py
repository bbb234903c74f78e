"""`emberge verify`: a result held against its provenance, wherever it lies."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from emberge.cli.main import main
from emberge.model_folder import Checkpoint, hash_model
from emberge.recipes import read_status

from tests.support.fixture_types import Capture, Patch

NAME = "encoder.layer.1.output.dense.weight"
WEIGHTS = "model.safetensors"

RECIPE = """\
seed: 3
steps:
  first:
    merge: {base: ./base, models: [./a, {model: ./b, weight: 2}], strategy: {ties: {density: 0.4}}}
  second:
    merge: {models: [$first, ./c], strategy: {slerp: {t: 0.25}}}
"""


@pytest.fixture(scope="module")
def made(bert: Path, berts: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with models a, b, c and base, the recipe, its results in `out`, and `merged`; read only."""
    place = tmp_path_factory.mktemp("made")
    for name, folder in zip(("base", "a", "b", "c"), (bert, *berts), strict=True):
        shutil.copytree(folder, place / name)
    (place / "r.yaml").write_text(RECIPE)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        assert main(["run", "r.yaml", "--out", "out", "--quiet"]) == 0
        words = ["merge", "a", "./b", "--base", "base", "--strategy", "ties", "--quiet"]
        assert main([*words, "--out", "merged"]) == 0
    return place


@pytest.fixture
def copied(made: Path, tmp_path: Path, monkeypatch: Patch) -> Path:
    """A copy of `merged` far from where it was made."""
    monkeypatch.chdir(tmp_path)
    return Path(shutil.copytree(made / "merged", tmp_path / "elsewhere" / "model"))


def call(capsys: Capture, *words: Any) -> tuple[int, str, str]:
    """(exit code, stdout, stderr) of `emberge verify words…`."""
    capsys.readouterr()
    code = main(["verify", *map(str, words)])
    said = capsys.readouterr()
    return code, said.out, said.err


def test_a_published_folder_verifies_wherever_it_is_copied(copied: Path, capsys: Capture) -> None:
    (copied / "README.md").write_text("# Better words")
    code, out, err = call(capsys, copied)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == f"{copied}: model of step 'merged' (merge:merge)"
    assert lines[1].endswith(" files as published")
    assert lines[2].startswith("trim → sign_consensus, seed 0, emberge ")
    assert lines[-1] == "nothing differs from what the step wrote"


def flip_a_byte(folder: Path) -> None:
    spec = Checkpoint(folder).specs[NAME]
    with spec.file.open("r+b") as file:
        file.seek(spec.offset + 5)
        byte = file.read(1)[0]
        file.seek(spec.offset + 5)
        file.write(bytes([byte ^ 1]))


def add_a_vocabulary(folder: Path) -> None:
    (folder / "vocab.txt").write_text("a\nb\n")


def break_the_record(folder: Path) -> None:
    (folder / "artifact.json").write_text("{")


def remove_the_weights(folder: Path) -> None:
    (folder / WEIGHTS).unlink()


AGAIN = "get it again from where the folder came from, or remove "
DIFFERENCES: dict[Callable[[Path], None], str] = {
    flip_a_byte: f"{WEIGHTS} was changed; {AGAIN}",
    remove_the_weights: f"{WEIGHTS} is missing; {AGAIN}",
    break_the_record: "artifact.json (",
    add_a_vocabulary: "vocab.txt was added; move it elsewhere",
}


@pytest.mark.parametrize("change", DIFFERENCES, ids=lambda change: change.__name__)
def test_each_difference_is_named_with_advice_that_puts_it_right(
    change: Callable[[Path], None], made: Path, tmp_path: Path, capsys: Capture, monkeypatch: Patch
) -> None:
    monkeypatch.chdir(shutil.copytree(made, tmp_path / "copy", symlinks=True))
    change(Path("out/first"))
    code, out, err = call(capsys, "out/first")
    assert (code, out, err.startswith("error: ")) == (1, "", True)
    assert DIFFERENCES[change] in err
    if change is add_a_vocabulary:
        Path("out/first/vocab.txt").rename("vocab.txt")
    else:
        shutil.rmtree(err.partition(" or remove ")[2].rpartition(" and run the ")[0])
        assert f"(`emberge run RECIPE --out {Path('out').resolve()}`)" in err
        assert "its result was removed" in read_status(Path("out")).lines[0]
        assert main(["run", "r.yaml", "--out", "out", "--quiet"]) == 0
    assert call(capsys, "out/first")[0] == 0


def test_a_folder_that_cannot_be_verified_says_why(
    made: Path, bert: Path, tmp_path: Path, capsys: Capture
) -> None:
    code, _, err = call(capsys, bert)
    assert code == 2
    assert "has no artifact.json, so it is no result of emberge" in err
    code, _, err = call(capsys, made / "out")
    assert code == 2
    assert f"name one of the results in it: {made / 'out' / 'first'}" in err
    code, _, err = call(capsys, tmp_path / "none")
    assert (code, err) == (2, f"error: {tmp_path / 'none'}: there is no such folder\n")


@pytest.mark.parametrize("record", ["{", "{}", '{"kind": "data", "files": {}}'])
def test_a_damaged_artifact_json_is_a_difference(
    record: str, copied: Path, capsys: Capture
) -> None:
    (copied / "artifact.json").write_text(record)
    code, _, err = call(capsys, copied)
    assert code == 1
    assert err.startswith("error: artifact.json (")


def test_headers_and_artifact_json_say_how_a_result_was_made(made: Path) -> None:
    record = json.loads((made / "out" / "first" / "artifact.json").read_text())
    said = json.loads(Checkpoint(made / "out" / "first").metadata["emberge"])
    for key in ("recipe", "seed", "fingerprint", "versions", "plugins", "step"):
        assert said[key] == record[key], key
    assert said["plugins"]["merge"].startswith("emberge ")
    assert said["strategy"] == record["details"]["strategy"]
    assert [m["weight"] for m in said["models"].values()] == [1, 2]
    inputs = {one["reference"]: one for one in record["inputs"]}
    assert set(inputs) == {"./base", "./a", "./b"}
    for name in ("a", "b"):
        content = hash_model(made / name)
        assert inputs[f"./{name}"]["content"] == said["models"][name]["content"] == content
    assert str(made) not in json.dumps([record, said]), "no path of this machine"
