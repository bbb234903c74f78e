"""What `emberge check` shows of a merge before it runs, and what it warns of."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from emberge import Machine, PerTensor
from emberge.cli.main import main
from emberge.merging import MergeInput, MergePlan, MergeRequest, plan_merge
from emberge.merging.streaming.cost import forecast
from emberge.model_folder import Checkpoint
from emberge.numerics import kernels_line
from emberge_merge import Linear, SignConsensus, Trim
from safetensors.torch import load_file, save_file

from tests.benchmarks.measure import run as measured
from tests.support.fixture_types import Capture, Patch


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


def rewrite(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


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
    (renamed,) = plan["renamed"]
    assert renamed.startswith("56, such as bert.")
    assert renamed.rpartition(" to ")[2] in load_file(place / "a" / "model.safetensors")


def test_bytes_are_those_of_the_tensors(place: Path) -> None:
    found = planned(place, "a", "b", base="base", strategy=(Trim(), SignConsensus()))
    size = sum(spec.nbytes for spec in Checkpoint(place / "a").specs.values())
    cost = forecast(found, Machine(workers=1))
    assert cost.inputs == 3 * size
    assert cost.write == size
    assert cost.read == 3 * size * 3, "a trim reads twice as a rule, and then it is merged"
    half = planned(place, "a", "b", out_dtype="float16", strategy=(Linear(),))
    assert forecast(half, Machine(workers=1)).write == size / 2


def planned(place: Path, *names: str, base: str | None = None, **request: Any) -> MergePlan:
    plan = plan_merge(
        MergeRequest(
            inputs=tuple(MergeInput(name, place / name) for name in names),
            base=MergeInput(base, place / base) if base else None,
            **request,
        )
    )
    assert not plan.problems, plan.problems
    return plan


def test_workers_and_what_measures_keep_take_memory(place: Path) -> None:
    plain = planned(place, "a", "b", strategy=(Linear(),))
    ties = planned(place, "a", "b", base="base", strategy=(Trim(), SignConsensus()))
    one, two = Machine(workers=1), Machine(workers=2)
    assert forecast(ties, two).memory > forecast(ties, one).memory
    held = forecast(plain, Machine(workers=2, memory=10_000)).memory
    assert held < forecast(plain, two).memory
    plain, remembering = (
        planned(place, "a", "b", base="base", strategy=(stage, SignConsensus()))
        for stage in (Trim(), TrimThatRemembers())
    )
    one, largest = Machine(workers=1), max(tensor.out.elements for tensor in plain.tensors)
    assert forecast(remembering, one).memory - forecast(plain, one).memory == largest // 2


class TrimThatRemembers(Trim):
    measure_bytes = 0.25


def test_the_memory_foretold_is_about_what_a_run_takes(tmp_path: Path) -> None:
    for number, name in enumerate(("base", "a", "b", "c")):
        (tmp_path / name).mkdir()
        generator = torch.Generator().manual_seed(number)
        state = {
            f"layers.{i}.weight": torch.randn(1024, 2048, generator=generator) for i in range(3)
        }
        save_file(state, tmp_path / name / "model.safetensors")
        (tmp_path / name / "config.json").write_text('{"model_type": "acme"}')
    plan = planned(tmp_path, "a", "b", "c", base="base", strategy=(Trim(), SignConsensus()))
    expected = forecast(plan, Machine(workers=2)).memory
    words = [str(tmp_path / name) for name in "abc"]
    words += ["--base", str(tmp_path / "base"), "--strategy", "ties", "--set", "density=0.5"]
    words += ["--out", str(tmp_path / "out"), "--workers", "2", "--devices", "cpu", "--quiet"]
    cost = measured([sys.executable, "-m", "emberge", "merge", *words])
    # What waits for a slow disk is foretold; a fast one lets nothing wait.
    assert 0.65 < expected / cost.anonymous < 2.2, (expected / 1e6, cost.anonymous / 1e6)


def test_weights_are_shown_as_the_method_takes_them(place: Path, capsys: Capture) -> None:
    plan, _ = check(capsys, **linear({"model": "./a", "weight": 3}, "./b"))
    assert plan["weights"] == [
        "./a  0.75",
        "./b  0.25",
        "sum  4: what is given; each is divided by it",
    ]
    plan, _ = check(capsys, models=["./a", "./b"], base="./base", strategy="task_arithmetic")
    assert plan["weights"][-1] == "sum  2: taken as they are, as factors"
    assert plan["method"] == ["task_arithmetic, around the base ./base"]
    assert plan["kernels"] == [kernels_line()]
    plan, _ = check(capsys, models=["./a", "./b"], strategy={"slerp": {"t": 0.2}})
    assert plan["weights"] == ["not used by slerp"]
    assert plan["method"] == ["slerp (t 0.2)"]
    models = [
        {"model": "./a", "group": "x", "weight": 3},
        {"model": "./b", "group": "x"},
        {"model": "./c", "group": "y", "weight": 5},
    ]
    plan, _ = check(capsys, models=models, strategy=[{"group": "linear"}, "linear"])
    assert [words.split()[1] for words in plan["weights"][:3]] == ["0.75", "0.25", "1"]
    assert plan["weights"][-1].endswith("each is divided by it, within its group")


def test_weights_that_vary_are_shown_by_layer(place: Path, capsys: Capture) -> None:
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
        rules=[{"filter": "LayerNorm", "strategy": "linear"}],
    )
    shown = {words.split()[0]: words.partition("(")[2] for words in plan["weights"]}
    assert shown["falling"] == "0.6 in layers.0 to 0.2 in layers.2)"
    assert shown["./b"] == "embeddings 0, layers.0–2 0.5, pooler 0.5)"
    assert shown["./c"] == "0.476 to 2 by tensor)"
    assert plan["method"][1] == "linear for LayerNorm (14 tensors)"


def test_weights_that_turn_or_change_nothing_are_doubted(place: Path, capsys: Capture) -> None:
    models = [{"model": "./a", "weight": [{"filter": "pooler", "value": -1}, {"value": 1}]}, "./b"]
    _, err = check(capsys, models=models, base="./base", strategy="ties")
    assert "warning: r.yaml:" in err
    assert "'ties': ./a: a negative weight turns a model's signs around" in err
    _, err = check(capsys, models=models, base="./base", strategy="task_arithmetic")
    assert err == ""
    models = [{"model": "./a", "weight": 2}, "./b"]
    _, err = check(capsys, models=models, base="./base", strategy="sce")
    assert "'sce': the weights that are given count for nothing" in err


def change_the_pad_token(folder: Path) -> None:
    rewrite(folder / "tokenizer_config.json", pad_token="[MASK]")


def pad_on_the_left(folder: Path) -> None:
    rewrite(folder / "tokenizer_config.json", padding_side="left")


def normalise_otherwise(folder: Path) -> None:
    rewrite(folder / "tokenizer.json", normalizer={"type": "NFC"})


TOKENS: dict[Callable[[Path], None], str] = {
    change_the_pad_token: 'pad_token is "[PAD]" in one and "[MASK]" in the other',
    pad_on_the_left: 'padding_side is "right" in one and "left" in the other',
    normalise_otherwise: "the tokenizers' normalizer differs (tokenizer.json)",
}


@pytest.mark.parametrize("change", TOKENS, ids=lambda change: change.__name__)
def test_tokenizers_of_one_vocabulary_that_read_otherwise_are_told_apart(
    change: Callable[[Path], None], place: Path, capsys: Capture
) -> None:
    rewrite(place / "a" / "tokenizer_config.json", padding_side="right")
    assert check(capsys, **linear("./a", "./c"))[1] == ""
    for name in ("b", "c"):
        rewrite(place / name / "tokenizer_config.json", padding_side="right")
        change(place / name)
    _, err = check(capsys, **linear("./a", "./b", "./c"))
    assert TOKENS[change] in err
    assert "'a' and './b', './c': " in err, "said once for both"


def test_a_template_is_followed_and_differences_told(place: Path, capsys: Capture) -> None:
    rewrite(place / "b" / "sentence_bert_config.json", max_seq_length=32)
    rewrite(place / "b" / "config_sentence_transformers.json", prompts={"query": "find: "})
    plan, err = check(capsys, **linear("./a", "./b", template="./a"))
    assert "max_seq_length is 64 in one and 32 in the other" in err
    assert "prompts is {} in one and {'query': 'find: '} in the other" in err
    assert "configs, tokenizer and modules come from 'a'" in plan["beside"][0]


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
    rewrite(place / "b" / "tokenizer_config.json", pad_token="[MASK]")
    assert "pad_token" in check(capsys, "--plugin", "shelf.py", **linear("hub:a", "hub:b"))[1]


def test_models_yet_to_be_made_count_as_like_the_others(place: Path, capsys: Capture) -> None:
    text = {
        "steps": {
            "first": {"merge": linear("./a", "./b")},
            "then": {"merge": linear("$first", "./c")},
        }
    }
    Path("r.yaml").write_text(yaml.safe_dump(text))
    assert main(["check", "r.yaml", "--long"]) == 0
    then = capsys.readouterr().out.partition("then: merge plan")[2]
    assert "tensors     55 merged" in then
    assert "$first  0.5" in then
    assert "not seen    weights of $first, taken to be like the others" in then


def test_one_column_of_numbers_for_any_kind_of_schedule(place: Path) -> None:
    zigzag = PerTensor([0.1, 0.9, 0.2])
    inputs = (MergeInput("a", place / "a", zigzag), MergeInput("b", place / "b"))
    plan = plan_merge(
        MergeRequest(
            inputs=inputs, strategy=(SignConsensus(),), base=MergeInput("base", place / "base")
        )
    )
    assert plan.shares["a"].variation == "0.1 to 0.9 by layer"
    assert plan.shares["b"].variation == ""


def test_what_was_foretold_is_told_once_and_kept(place: Path, capsys: Capture) -> None:
    pad_on_the_left(place / "b")
    words = ["merge", "./a", "./b", "--strategy", "linear", "--out", "m"]
    assert main(words) == 0
    said = capsys.readouterr()
    assert (said.out + said.err).count("the first is kept") == 1
    record = json.loads(Path("m/artifact.json").read_text())
    assert ["the first is kept" in warning for warning in record["warnings"]] == [True]
    assert "the first is kept" in Path("m/README.md").read_text()


def test_what_only_the_run_could_see_is_told_then(place: Path, capsys: Capture) -> None:
    pad_on_the_left(place / "a")
    steps = {
        "first": {"merge": {"models": ["./a"], "strategy": "passthrough"}},
        "then": {"merge": linear("$first", "./b")},
    }
    Path("r.yaml").write_text(yaml.safe_dump({"steps": steps}))
    assert main(["run", "r.yaml", "--out", "out"]) == 0
    said = capsys.readouterr()
    assert "the first is kept" in said.out + said.err
