"""A model that is not there, or has no weights, is named before the start, and no plan is shown."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from emberge import ModelRef, check_recipe, load_plugins, parse_recipe
from emberge.cli.main import main
from emberge.recipes import CheckReport

from tests.support.steps import Write, recipe, toy


@pytest.fixture
def place(berts: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder: models a and b, and one that is whole but for its weights."""
    for name, folder in zip(("a", "b", "empty"), berts, strict=True):
        shutil.copytree(folder, tmp_path / name)
    (tmp_path / "empty" / "model.safetensors").unlink()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def check(*steps: str) -> CheckReport:
    """What a check finds of steps that are written a line each, from line 2 on."""
    text = "\n".join(["steps:", *(f"  {step}" for step in steps)])
    plugins = load_plugins()
    return check_recipe(parse_recipe(text, plugins, path=Path("r.yaml")), plugins)


def errors(report: CheckReport) -> list[tuple[str, str]]:
    return [(problem.where, problem.message) for problem in report.errors]


PAIRS = "data: ./pairs.jsonl"
USES = (
    "plan: {merge: {models: [./a, ./empty], strategy: linear}}",
    "template: {merge: {models: [./a, ./b], template: ./empty, strategy: linear}}",
    f"trained: {{train: {{model: ./empty, {PAIRS}, sampler: batch_shuffle, loss: infonce}}}}",
    "scored: {evaluate: {models: [./empty], evaluators: {mteb: {tasks: [NFCorpus]}}}}",
    "extracted: {extract_lora: {model: ./empty, base: ./a, rank: 2}}",
)


def test_a_folder_without_weights_is_a_problem_of_every_step_that_uses_it(place: Path) -> None:
    row = {"anchor": "file", "positive": "read"}
    Path("pairs.jsonl").write_text(f"{json.dumps(row)}\n" * 64)
    report = check(*USES)
    found = errors(report)
    assert [where for where, _ in found] == [f"r.yaml:{line}" for line in range(2, 2 + len(USES))]
    assert all("'./empty'" in said and "model.safetensors" in said for _, said in found), found
    assert report.notes == ()


def test_a_tokenizer_or_an_unseen_model_needs_no_weights(place: Path) -> None:
    report = check("m: {merge: {models: [./a, ./b], tokenizer: ./empty, strategy: linear}}")
    assert errors(report) == []
    assert [note.title for note in report.notes] == ["merge plan"]
    report = check_recipe(recipe(a=Write(of=(ModelRef("me/away"),))), toy(), deep=False)
    assert report.errors == ()
    assert [note.step for note in report.notes] == ["a"]


def test_an_adapter_without_weights_is_named(place: Path) -> None:
    Path("adapter").mkdir()
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 2, "target_modules": ["query"]}
    Path("adapter/adapter_config.json").write_text(json.dumps(config))
    (error,) = errors(check("m: {merge: {models: [./a+./adapter, ./b], strategy: linear}}"))
    assert error[0] == "r.yaml:2"
    assert "'./adapter'" in error[1]
    assert "adapter_model.safetensors" in error[1]


@pytest.mark.parametrize(
    ("file", "fix"),
    [
        ("pytorch_model.bin", "emberge safetensors"),
        ("model-q4.gguf", "get the model's safetensors"),
    ],
)
def test_weights_in_another_format_are_named_as_such(place: Path, file: str, fix: str) -> None:
    Path("empty", file).touch()
    (error,) = errors(check("m: {merge: {models: [./a, ./empty], strategy: linear}}"))
    assert file in error[1]
    assert fix in error[1]


def test_a_check_counts_unseen_inputs_and_long_lists_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(
        "steps:\n"
        "  a:\n    merge: {models: [me/one, me/two], strategy: linear}\n"
        "  b:\n    merge: {models: [me/one, me/three], strategy: linear}\n"
        "  c:\n    train:\n      model: me/one\n      data: {hub: me/texts, task: retrieval}\n"
        "      backbone: text_encoder\n      loss: infonce\n      sampler: batch_shuffle\n"
    )
    assert main(["check", str(path), "--offline"]) == 0
    said = capsys.readouterr()
    assert "4 inputs could not be looked at from here; --long lists them\n" in said.out
    assert "me/one" not in said.err
    assert main(["check", str(path), "--offline", "--long"]) == 0
    said = capsys.readouterr()
    assert len([line for line in said.err.splitlines() if "'me/one'" in line]) == 1
    assert "and 2 other places" in said.err
