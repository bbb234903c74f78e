"""`merge` takes loaded models, methods and parameters as `SentenceTransformer.merge` does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from emberge import CheckpointError, RecipeError
from emberge.files import working_in
from emberge_merge import merge
from emberge_merge.loaded_models import build_mergekit_config
from mergekit.merge_methods import registry
from sentence_transformers import SentenceTransformer

from tests.support import tiny

CALLS: dict[str, tuple[str, dict[str, Any], float]] = {
    "weights of models": ("linear", {"weight": [0.6, 0.4]}, 1e-5),
    "no parameters": ("linear", {}, 1e-5),
    "one for all, and weights without the base": (
        "ties",
        {"weight": [0.6, 0.4], "density": 0.4},
        1e-5,
    ),
    "the first is the base": ("slerp", {"t": 0.3}, 1e-3),
    "a mapping by number": ("task_arithmetic", {"weight": {0: 0.3, 1: 0.7}}, 1e-5),
}


@pytest.mark.parametrize("call", CALLS)
def test_loaded_models_give_the_tensors_of_sentence_transformers(call: str, tmp_path: Path) -> None:
    method, parameters, tolerance = CALLS[call]
    one, two, base = (
        SentenceTransformer(str(tiny.checkpoint(tmp_path / name, seed=seed)), device="cpu")
        for seed, name in enumerate(("one", "two", "base"))
    )
    based = {"base_model": base} if method in ("ties", "task_arithmetic") else {}
    expected = SentenceTransformer.merge([one, two], method, parameters=parameters, **based)
    out = tmp_path / "merged"
    # As there, `linear` needs no name.
    named = () if method == "linear" and parameters else (method,)
    found = merge([one, two], *named, parameters=parameters, out=out, quiet=True, **based)
    tensors = found.load(device="cpu").state_dict()
    assert tensors.keys() == expected.state_dict().keys()
    for name, tensor in expected.state_dict().items():
        assert float((tensors[name] - tensor).abs().max()) <= tolerance, name
    assert sorted(path.name for path in tmp_path.iterdir()) == ["base", "merged", "one", "two"]


@pytest.mark.parametrize(
    ("words", "options"),
    [
        ((), {"strategy": "linear", "vocabulary": "union"}),
        (({"ties": {"density": 1.0}},), {"base": "other", "template": "model"}),
    ],
)
def test_loaded_models_take_strategies_too(
    words: tuple[Any, ...],
    options: dict[str, Any],
    bert: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)  # where `out` is relative to
    folders = {"model": bert, "other": tiny.checkpoint(tmp_path / "other", seed=9)}
    loaded = {n: SentenceTransformer(str(f), device="cpu") for n, f in folders.items()}
    options = {name: loaded.get(value, value) for name, value in options.items()}
    model = loaded["model"]
    found = merge([{"model": model, "weight": 2.0}, bert], *words, out="merged", **options)
    assert capsys.readouterr().err.splitlines()[-1] == "merged: merged"
    assert rf"| models\[0\]/{bert.name} |" in (found.path / "README.md").read_text()
    expected = model.state_dict()
    tensors = found.load(device="cpu").state_dict()
    assert all((expected[n] - t).abs().max() <= 1e-6 for n, t in tensors.items())


@pytest.mark.parametrize(
    ("method", "options", "words"),
    [
        ("linear", {"strategy": "linear"}, "takes no `strategy`; leave one out"),
        ({"ties": {}}, {"strategy": "linear"}, "so is `strategy`; leave one out"),
        ("linear", {"vocabulary": "union"}, "takes no `vocabulary`; write strategy='linear'"),
        ("linear", {"kep": 0.5}, "`kep`; write strategy='linear'; did you mean 'keep'"),
        ("linear", {"bse_model": "x"}, "takes no `bse_model`; did you mean 'base_model'"),
        ("wudi", {}, "^'wudi' is no method of mergekit but a strategy; write strategy='wudi'$"),
        ("lineer", {}, "^there is no merge method 'lineer'; did you mean 'linear'"),
        ("linear", {"parameters": {"weight": [1.0]}}, "1 value for 2 models"),
        ("linear", {"models": [{"model": "one"}, "two"]}, "a model is no mapping"),
        ("linear", {"parameters": {"densty": 0.5}}, "^merge method .* has no parameter 'densty'"),
        ("ties", {"parameters": {"density": [0.5, -0.5]}}, "-0.5 lies outside 0 to 1"),
    ],
)
def test_a_call_of_mixed_or_wrong_parameters_is_refused_before_models_are_saved(
    method: Any,
    options: dict[str, Any],
    words: str,
    bert: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = SentenceTransformer(str(bert), device="cpu")
    monkeypatch.setattr(model, "save_pretrained", None)
    with pytest.raises(RecipeError, match=words):
        merge(**{"models": [model, bert], "method": method, "out": tmp_path / "merged", **options})


def test_methods_without_weights_get_none() -> None:
    for spec in (method.spec for method in registry.registered_methods()):
        entry, *_ = build_mergekit_config(["me/a"], spec.name, None, {})["models"]
        assert ("weight" in entry["parameters"]) == ("weight" in {p.name for p in spec.parameters})


def test_what_a_call_would_ignore_is_refused(bert: Path, tmp_path: Path) -> None:
    for options in ({"parameters": {"density": 0.5}}, {"base_model": bert}):
        with pytest.raises(RecipeError, match="leave `strategy` out"):
            merge([bert, bert], strategy="linear", out=tmp_path / "merged", **options)
        with pytest.raises(RecipeError, match=f"leave out {next(iter(options))}"):
            merge("config.yaml", out=tmp_path / "merged", **options)


def test_nothing_is_saved_if_the_result_exists_or_another_process_saves(
    bert: Path, tmp_path: Path
) -> None:
    model = SentenceTransformer(str(bert), device="cpu")
    with working_in(tmp_path / ".merged.models"):
        with pytest.raises(CheckpointError, match="another process"):
            merge([model, model], strategy="linear", out=tmp_path / "merged")
        (tmp_path / "merged").mkdir()
        (tmp_path / "merged" / "notes.txt").touch()
        with pytest.raises(RecipeError, match="exists already"):
            merge([model, model], strategy="linear", out=tmp_path / "merged")
