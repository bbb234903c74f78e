"""Facts that members state beside weights, for each verb: kept, taken from who states them, or refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from emberge import load_plugins, parse_recipe, run_recipe
from emberge.model_folder import Checkpoint, JoinedFacts, ModelPair, TextLimit, copy_template

from tests.support import tiny
from tests.support.json_files import changing, edit
from tests.support.whole import STATES, merge, move_trunk, plan, problems

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
        with changing(folder / file) as content:
            at(content).pop(name, None)
            if value is not None:
                at(content)[name] = value

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
    path = folder / "1_Pooling" / "config.json"
    config = json.loads(path.read_text()) if path.is_file() else None
    return config and next(
        mode for mode in ("mean", "cls") if config[f"pooling_mode_{mode}_{_FLAG[mode]}"]
    )


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
    "pooling": Stated(("cls", "mean"), _pool, _read_pooling, "ooling"),
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
    "by layer": key(
        "config.json", "layer_types", ["sliding_attention"] * 3, ["linear_attention"] * 3
    ),
    "window": key("config.json", "sliding_window", 8, 16),
    "positions": key("config.json", "rope_theta", 1e4, 1e6),
    "epsilon": key("config.json", "layer_norm_eps", 1e-5, 1e-6),
    "pooling of classes": key("config.json", "classifier_pooling", "mean", "cls"),
    "experts": key("config.json", "num_experts_per_tok", 2, 4),
    "labels": key("config.json", "id2label", {"0": "yes"}, {"0": "no"}),
    "activation": key("config.json", "sentence_transformers", *_ACTIVATIONS)._replace(
        word="activation_fn"
    ),
    "colbert": key("artifact.metadata", "doc_maxlen", 48, 64),
    "chat template": key("tokenizer_config.json", "chat_template", "{{ a }}", "{{ b }}"),
    "head": _file("colbert_linear.pt"),
    "licence": _file("LICENSE"),
}
# What comes of a fact in each of STATES: whose value the result has, and whether a line says so.
_MERGED = ("first", "first", "second, said", "refused")
_ADAPTED = ("none", "none", "none, said", "refused")
_COMPOSED = ("first", "first", "none, said", "first, said")
_DIRECTIONS = ("causal", "bidirectional")
_KEPT = ("chat template", "licence")
OUTCOMES: Mapping[str, Mapping[str, Sequence[str]]] = {
    "merge": {
        **dict.fromkeys(FACTS, _MERGED),
        **dict.fromkeys(_DIRECTIONS, ("first", "first, said", "second, said", "refused")),
        "head": ("first", "first, said", "second, said", "none, said"),
        **dict.fromkeys(_KEPT, ("first", "first", "second, said", "first, said")),
    },
    # An adapter states none of it; what its members' bases state is that of a base.
    "merge_adapters": {
        **dict.fromkeys(FACTS, _ADAPTED),
        **dict.fromkeys(_DIRECTIONS, ("none", "none, said", "none, said", "refused")),
        "head": ("none", "none, said", "none, said", "none, said"),
        **dict.fromkeys(_KEPT, ("none", "none", "none, said", "none, said")),
    },
    # The text model decides. Attention is its trunk's, and conversations a processor's: both mean nothing.
    "compose": {
        **dict.fromkeys(FACTS, _COMPOSED),
        **dict.fromkeys((*_DIRECTIONS, "chat template"), ("first", "first", "none", "first")),
        "head": ("first", "first, said", "none, said", "first, said"),
    },
}
# An upcycling keeps what the merge before it has.
OUTCOMES = {**OUTCOMES, "upcycle": OUTCOMES["merge"]}


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


def _write_files(facts: JoinedFacts, out: Path) -> Path:
    """The files of a merge, without its weights."""
    template = Checkpoint(facts.members[facts.template_name].folder)
    copy_template(template, out, dtype="float32")
    facts.write(out, template)
    return out


def _upcycle_files(merged: Path, out: Path) -> Path:
    """The files of a mixture of experts made of a merge, with the dense config in its place."""
    dense = Checkpoint(merged)
    copy_template(dense, out, dtype="float32", config={"inner": dict(dense.config)})
    inner = json.loads((out / "config.json").read_text())["inner"]
    (out / "config.json").write_text(json.dumps(inner))
    return out


@pytest.mark.parametrize("fact", FACTS)
@pytest.mark.parametrize("state", STATES)
def test_facts_that_members_state_are_kept_joined_or_refused(
    state: str, fact: str, pair: tuple[Path, Path], tmp_path: Path
) -> None:
    stated, (one, two) = FACTS[fact], pair
    first, second = stated.values
    stated.write(one, None if state == "only second" else first)
    stated.write(two, {"equal": first, "only first": None}.get(state, second))

    def judge(problems: Sequence[object], warnings: Sequence[str], out: Path | None) -> str:
        for problem in problems:
            assert "'one' and 'two'" in str(problem)
            assert stated.word in str(problem)
        if problems:
            return "refused"
        value = stated.read(out) if out is not None else None
        said = ", said" * (stated.word.lower() in "\n".join(warnings).lower())
        return {str(first): "first", str(second): "second"}.get(str(value), "none") + said

    merged, adapter = plan(one, two), plan(one, two, as_adapter=True)
    members = {folder.name: Checkpoint(folder) for folder in pair}
    composed = JoinedFacts.of(members["one"], members, chosen=True, towers=True)
    assert all(str(one).endswith("choose one with 'template'") for one in merged.problems)
    assert all(str(one).endswith("choose one with 'base'") for one in adapter.problems)
    out = _write_files(merged.joined_facts, tmp_path / "merged")
    found = {
        "merge": judge(merged.problems, merged.warnings, out),
        "merge_adapters": judge(adapter.problems, adapter.warnings, None),
        "compose": judge(composed.problems, composed.warnings, one),
        "upcycle": judge(
            merged.problems, merged.warnings, _upcycle_files(out, tmp_path / "routed")
        ),
    }
    assert found == {
        verb: outcomes[fact][STATES.index(state)] for verb, outcomes in OUTCOMES.items()
    }


@pytest.mark.parametrize("fact", FACTS)
def test_a_chosen_template_decides(fact: str, pair: tuple[Path, Path], tmp_path: Path) -> None:
    stated, (one, two) = FACTS[fact], pair
    for folder, value in zip(pair, stated.values, strict=True):
        stated.write(folder, value)
    if fact not in ("head", *_KEPT):
        assert "'two' and 'one'" in problems(two, one)
    found = plan(one, two, template=two)
    assert not found.problems
    assert stated.word.lower() in "\n".join(found.warnings).lower()
    assert stated.read(_write_files(found.joined_facts, tmp_path / "out")) == stated.values[1]


STEPS = """
steps:
  merged: {merge: {models: [./one, ./two]}}
  routed: {upcycle: {model: $merged, experts: 2, top_k: 1}}
  adapter: {merge_adapters: {models: [./one, ./two], base: ./one, rank: 2}}
"""


def test_results_of_steps_have_what_one_member_states(
    pair: tuple[Path, Path], berts: list[Path]
) -> None:
    one, two = pair
    shutil.copy(berts[0] / "model.safetensors", two)
    for name, stated in FACTS.items():
        # Modules with weights come from whoever has them, and so that model is the template.
        stated.write(one, stated.values[0] if name == "pooling" else None)
        stated.write(two, stated.values[0])
    for folder in pair:
        edit(folder, SETTINGS, prompts=PROMPTS)
    plugins = load_plugins()
    recipe = parse_recipe(STEPS, plugins, path=one.parent / "recipe.yaml")
    made = run_recipe(recipe, one.parent / "made", plugins, quiet=True)
    config = made["routed"].path / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text())["inner"]))
    for step in ("merged", "routed"):
        found = {name: stated.read(made[step].path) for name, stated in FACTS.items()}
        assert found == {name: stated.values[0] for name, stated in FACTS.items()}
    adapter = {path.name for path in made["adapter"].path.iterdir()}
    assert "adapter_config.json" in adapter
    assert not adapter & {path.name for path in two.iterdir()}


@pytest.mark.parametrize("state", STATES)
def test_a_longest_text_is_no_longer_than_the_positions(state: str, tmp_path: Path) -> None:
    """XLM-R with a table of 66 rows has positions for 65 tokens if padding is token 0."""
    one, two = (tiny.checkpoint(tmp_path / name, "xlm-roberta") for name in ("one", "two"))
    for folder, silent in ((one, "only second"), (two, "only first")):
        edit(folder, "tokenizer_config.json", model_max_length=10**30)
        edit(folder, LENGTHS, max_seq_length=None if state == silent else 66)
    if state == "differ":
        edit(two, LENGTHS, max_seq_length=65)
    found = plan(one, two)
    assert not found.problems
    out = merge(tmp_path / "out", one, two)
    assert (TextLimit.read(out).stated, TextLimit.read(out).positions) == (65, 65)
    assert "65" in "\n".join(found.warnings)


# Keys of configs that no tensor shows, by class: a value that is not the default.
UNSHOWN: Mapping[str, Mapping[str, Any]] = {
    "bert": {"layer_norm_eps": 1e-5, "num_attention_heads": 2},
    "modernbert": {"local_attention": 8},
    "gemma3_text": {"query_pre_attn_scalar": 8},
    "t5": {"relative_attention_max_distance": 8, "feed_forward_proj": "gelu", "num_heads": 2},
    "distilbert": {"n_heads": 2, "activation": "relu"},
    "gpt2": {"n_head": 2, "activation_function": "relu", "layer_norm_epsilon": 1e-3},
}


@pytest.mark.parametrize(("kind", "name"), [(k, n) for k, keys in UNSHOWN.items() for n in keys])
def test_numbers_of_configs_that_no_tensor_shows_are_compared(
    kind: str, name: str, tmp_path: Path
) -> None:
    from transformers import CONFIG_MAPPING

    one, two = (Checkpoint(tmp_path / n) for n in ("one", "two") if not (tmp_path / n).mkdir())
    for folder, changes in ((one.folder, {}), (two.folder, {name: UNSHOWN[kind][name]})):
        CONFIG_MAPPING[kind](**changes).save_pretrained(folder)
    facts = JoinedFacts.of(one, {"one": one, "two": two}, chosen=False)
    said = [*map(str, facts.problems), *ModelPair(one, two).find_differences()]
    assert any(f"config.json's {name} is " in line for line in said)
    same = Checkpoint(shutil.copytree(one.folder, tmp_path / "same"))
    edit(one.folder, "config.json", **{name: None})  # the default is no difference
    found = JoinedFacts.of(one, {"one": one, "same": same}, chosen=False)
    assert [*found.problems, *found.warnings] == []


def test_modules_of_the_second_come_with_their_weights(tmp_path: Path) -> None:
    """A bare first member has no say about pooling, a Dense after it, or where the trunk is."""
    one = tiny.projected(tmp_path / "one")
    bare = shutil.copytree(tmp_path / ".one", tmp_path / "bare")
    found = plan(bare, one)
    assert not found.problems
    assert any("'bare' has no modules" in line for line in found.warnings)
    out = merge(tmp_path / "out", bare, one)
    assert [m.kind for m in Checkpoint(out).modules] == [m.kind for m in Checkpoint(one).modules]


def test_files_of_members_are_removed_and_written_in_their_folders(
    bert: Path, tmp_path: Path
) -> None:
    one, two = (move_trunk(shutil.copytree(bert, tmp_path / name)) for name in ("one", "two"))
    for folder in (one, two):
        (folder / "0_Transformer" / "head.pt").write_text(folder.name)
    for name in ("0_Transformer/LICENSE", "1_Pooling/note.txt"):
        (two / name).write_text("terms")
    out = _write_files(plan(one, two).joined_facts, tmp_path / "out")
    found = [path for name in ("head.pt", "LICENSE", "note.txt") for path in out.rglob(name)]
    assert found == [out / "0_Transformer" / "LICENSE", out / "1_Pooling" / "note.txt"]
