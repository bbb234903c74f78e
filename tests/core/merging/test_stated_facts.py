"""Facts that members state beside their weights: kept, taken from who states them, or refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from emberge.merging import summary
from emberge.model_folder import Checkpoint

from tests.support import tiny
from tests.support.whole import edit, merge, plan, problems

SETTINGS, LENGTHS = "config_sentence_transformers.json", "sentence_bert_config.json"
PROMPTS = {"query": "find: ", "document": "text: "}


class Stated(NamedTuple):
    """A fact: two values that a folder may state, how it is written (None takes it out) and read."""

    values: tuple[Any, Any]
    write: Callable[[Path, Any], None]
    read: Callable[[Path], Any]
    word: str


def key(file: str, name: str, *values: Any, at: Callable[[Any], Any] = lambda x: x) -> Stated:
    """A key of a JSON file, in the object that `at` finds in it."""

    def write(folder: Path, value: Any) -> None:
        path = folder / file
        content = json.loads(path.read_text()) if path.is_file() else {}
        at(content).pop(name, None)
        if value is not None:
            at(content)[name] = value
        path.write_text(json.dumps(content))

    def read(folder: Path) -> Any:
        return at(json.loads((folder / file).read_text())).get(name)

    return Stated((values[0], values[1]), write, read, name)


def _pool(folder: Path, value: str | None) -> None:
    if value is not None:
        tiny.write_modules(folder, 32, pooling=value)
        return
    for name in ("modules.json", LENGTHS, SETTINGS):
        (folder / name).unlink()
    shutil.rmtree(folder / "1_Pooling")


def _read_pooling(folder: Path) -> str | None:
    config = json.loads((folder / "1_Pooling" / "config.json").read_text())
    return next(mode for mode in ("mean", "cls") if config[f"pooling_mode_{mode}_{_FLAG[mode]}"])


_FLAG = {"mean": "tokens", "cls": "token"}


def _file(name: str) -> Stated:
    def write(folder: Path, value: str | None) -> None:
        (folder / name).unlink(missing_ok=True)
        if value is not None:
            (folder / name).write_text(value)

    def read(folder: Path) -> str | None:
        return (folder / name).read_text() if (folder / name).is_file() else None

    return Stated(("one", "two"), write, read, name)


_ACTIVATIONS = {"activation_fn": "x.Sigmoid"}, {"activation_fn": "x.Tanh"}
FACTS: Mapping[str, Stated] = {
    "pooling": Stated(("cls", "mean"), _pool, _read_pooling, "pooling"),
    "prompts": key(SETTINGS, "prompts", PROMPTS, {**PROMPTS, "query": "q: "}),
    "default prompt": key(SETTINGS, "default_prompt_name", "query", "document"),
    "similarity": key(SETTINGS, "similarity_fn_name", "dot", "euclidean"),
    "dimension": key(SETTINGS, "truncate_dim", 8, 16),
    "longest text": key(LENGTHS, "max_seq_length", 32, 48),
    "lengths of kinds": key(LENGTHS, "query_length", 32, 48),
    "arguments": key(LENGTHS, "model_args", {"a": 1}, {"a": 2}),
    "kwargs": key("modules.json", "kwargs", ["task"], ["mode"], at=lambda listed: listed[0]),
    "normalize": key("2_Normalize/config.json", "keepdim", "a", "b"),
    "causal": key("config.json", "is_causal", False, True),
    "bidirectional": key("config.json", "use_bidirectional_attention", True, "all"),
    "by layer": key("config.json", "layer_types", ["sliding_attention"], ["linear_attention"]),
    "window": key("config.json", "sliding_window", 8, 16),
    "positions": key("config.json", "rope_theta", 1e4, 1e6),
    "experts": key("config.json", "norm_topk_prob", True, False),
    "labels": key("config.json", "id2label", {"0": "yes"}, {"0": "no"}),
    "activation": key("config.json", "sentence_transformers", *_ACTIVATIONS)._replace(
        word="activation_fn"
    ),
    "colbert": key("artifact.metadata", "doc_maxlen", 48, 64),
    "head": _file("colbert_linear.pt"),
    "licence": _file("LICENSE"),
}
# Files of members that differ cannot be chosen from silently, and need no decision.
_FILES = ("head", "licence")


@pytest.fixture
def pair(bert: Path, tmp_path: Path) -> tuple[Path, Path]:
    """Two folders that state as little as they can."""
    one, two = (shutil.copytree(bert, tmp_path / name) for name in ("one", "two"))
    for folder in (one, two):
        (folder / "artifact.metadata").write_text("{}")
        (folder / "2_Normalize" / "config.json").write_text("{}")
        edit(folder, "tokenizer_config.json", model_max_length=10**30)
        edit(folder, LENGTHS, max_seq_length=None)
        edit(folder, SETTINGS, prompts=PROMPTS)
        FACTS["default prompt"].write(folder, None)
    return one, two


@pytest.mark.parametrize("fact", FACTS)
@pytest.mark.parametrize("state", ["equal", "only first", "only second", "differ"])
def test_what_members_state_is_kept_taken_or_refused(
    fact: str, state: str, pair: tuple[Path, Path], tmp_path: Path
) -> None:
    stated, (one, two), out = FACTS[fact], pair, tmp_path / "out"
    first, second = stated.values
    stated.write(one, None if state == "only second" else first)
    stated.write(two, {"equal": first, "only first": None, "only second": first}.get(state, second))
    found = plan(one, two)
    said = "\n".join([*map(str, found.problems), *found.warnings])
    if state != "differ":
        assert not found.problems
        assert stated.read(merge(out, one, two)) == first
        assert (stated.word in said) == (state == "only second") or state == "only first"
        assert ("alike" in "\n".join(summary(found))) == found.stated.agree
        return
    assert stated.word.lower() in said.lower()
    if fact in _FILES:
        assert stated.read(merge(out, one, two)) == (None if fact == "head" else first)
        return
    assert "'one' and 'two'" in said
    assert said.endswith("choose one with 'template'")
    assert "'two' and 'one'" in problems(two, one)
    chosen = plan(one, two, template=two)
    assert not chosen.problems
    assert "the template is followed" in "\n".join(chosen.warnings)
    assert stated.read(merge(out, one, two, template=two)) == second


@pytest.mark.parametrize("fact", ["prompts", "kwargs", "head"])
def test_a_template_that_states_nothing_is_followed_with_a_line(
    fact: str, pair: tuple[Path, Path], tmp_path: Path
) -> None:
    one, two = pair
    FACTS[fact].write(one, None)
    FACTS[fact].write(two, FACTS[fact].values[0])
    lines = "\n".join(plan(one, two, template=one).warnings)
    assert FACTS[fact].word in lines
    assert "the template is followed" in lines
    assert FACTS[fact].read(merge(tmp_path / "out", one, two, template=one)) is None


def test_modules_of_the_second_come_with_their_weights(tmp_path: Path) -> None:
    """A bare first member has no say about pooling, a Dense after it, or where the trunk is."""
    one = tiny.projected(tmp_path / "one")
    bare = shutil.copytree(tmp_path / ".one", tmp_path / "bare")
    found = plan(bare, one)
    assert not found.problems
    assert any("'bare' has no modules" in line for line in found.warnings)
    out = merge(tmp_path / "out", bare, one)
    assert [m.kind for m in Checkpoint(out).modules] == [m.kind for m in Checkpoint(one).modules]
