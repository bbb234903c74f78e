"""Several adapters of one base in one folder: what sentence-transformers makes of it, and what is refused."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from emberge import Model
from emberge.cli.main import main
from emberge.merging import open_whole_model
from sentence_transformers import SentenceTransformer

from tests.support import tiny
from tests.support.json_files import edit
from tests.support.peft_adapters import save_adapter

Capture = pytest.CaptureFixture[str]
SETTINGS = "config_sentence_transformers.json"
TRAIN = {"data": "./d.jsonl", "loss": "infonce", "sampler": "batch_shuffle"}
LORA = {**TRAIN, "backbone": {"text_encoder": {"lora": {"rank": 2}}}}
STEPS = {
    "one": {"train": {"model": "./base", **LORA}},
    "two": {"train": {"model": "./other", **LORA}},
    "whole": {"train": {"model": "./base", **TRAIN}},
}


@pytest.fixture
def place(bert: Path, berts: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A base and adapters on it: `a` as peft saves it, `b` and `c` with modules and prompts."""
    monkeypatch.chdir(tmp_path)
    for name, model in (("base", bert), ("other", berts[0])):
        shutil.copytree(model, name)
    Path("d.jsonl").write_text('{"anchor": "a list", "positive": "the items"}\n' * 32)
    for seed, name in enumerate("abc"):
        targets = ["query", "value"] if seed else ["key", "dense", "word_embeddings"]
        folder = save_adapter(Path(name), Path("base"), seed=seed, target_modules=targets)
        if seed:
            tiny.write_modules(folder, 32)
            tiny.write_tokenizer(folder)
            edit(folder, SETTINGS, prompts={f"to-{name}": f"{name}: "})
    edit(folder, SETTINGS, model_type="SentenceTransformer")
    truncation = {"max_length": 64, "strategy": "LongestFirst", "stride": 0}
    edit(folder, "tokenizer.json", truncation=truncation)
    return tmp_path


def publish(verb: str, *names: str, steps: Any = STEPS, **options: Any) -> int:
    adapters = {name[-1] if "+" in name else name.strip("$./"): name for name in names}
    step = {"kept": {"publish": {"adapters": adapters, **options}}}
    recipe = yaml.safe_dump({"seed": 0, "steps": {**steps, **step}}, sort_keys=False)
    Path("recipe.yaml").write_text(recipe)
    return main([verb, "recipe.yaml", *(["--out", "out"] if verb == "run" else ["--offline"])])


def run_card(folder: Path) -> Any:
    """Run the lines of a card, and return the model that they load."""
    scope: dict[str, Any] = {}
    code = (folder / "README.md").read_text().split("```python\n")[1].split("```")[0]
    exec(code.replace(f'"{folder.name}"', repr(str(folder))), scope)
    return scope["model"]


def test_the_lines_of_an_adapters_card_load_it_on_its_base(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A base in a package, or in a folder that the card names; the merge verb finds both by the adapter."""
    shutil.copytree("base", "pack/inner/model")
    (place / "pack" / "__init__.py").touch()
    monkeypatch.syspath_prepend(place)
    merge = {"strategy": "linear"}
    steps = {
        "one": {"train": {**LORA, "model": "pkg:pack"}},
        "joined": {"merge_adapters": {"models": ["$one", "$one"], **merge}},
        "alone": {"merge_adapters": {"models": ["./a"], **merge}},
    }
    assert publish("run", "$one", "$joined", steps=steps) == 0
    assert "loss: infonce" in (place / "out" / "kept" / "README.md").read_text()
    shutil.rmtree("other")
    for name, base in (("one", "pkg:pack"), ("joined", "pkg:pack"), ("alone", "base")):
        folder = place / "out" / name
        assert f"A LoRA adapter of {base}, made" in (folder / "README.md").read_text()
        assert main(["merge", str(folder), "--strategy", "linear", "--out", f"whole-{name}"]) == 0
        expected = SentenceTransformer(f"whole-{name}", device="cpu").encode(tiny.WORDS)
        assert np.abs(run_card(folder).encode(tiny.WORDS) - expected).max() < 1e-6


@pytest.mark.filterwarnings("ignore:Already found a `peft_config`")
def test_each_adapter_loads_by_the_lines_of_the_card_as_emberge_reads_it(
    place: Path, capsys: Capture
) -> None:
    (place / "tests.csv").write_text("question,answer\na list,the items\nan account,a bank\n")
    names = ("./base+./a", "./base+./b", "./base+./c")
    merge = {"merge": {"models": ["./base", "./base"], "strategy": "linear"}}
    models = ["$both", "./base", *names]
    scores = {"models": models, "evaluators": {"mteb": {"data": "tests.csv"}}}
    steps = {"both": merge, "scores": {"evaluate": scores}}
    assert publish("run", *names, steps=steps, after="$scores") == 0
    kept = place / "out" / "kept"
    card = (kept / "README.md").read_text()
    assert (place / "out" / "scores" / "scores.md").read_text() in card
    assert "Columns: base+a is the adapter a on the base; base+b is" in card
    assert "not in this folder as adapters: the merged model both, base." in card
    model, plain = run_card(kept), SentenceTransformer("base", device="cpu").encode(tiny.WORDS)
    for name in "abc":
        found = Model(name, place / "base", name * 64, None, place / name)
        with open_whole_model(found, place) as whole:
            expected = SentenceTransformer(str(whole), device="cpu").encode(tiny.WORDS)
        model.set_adapter(name)
        assert np.abs(model.encode(tiny.WORDS) - expected).max() < 1e-6
        assert np.abs(plain - expected).max() > 1e-4
    model.disable_adapters()
    assert np.abs(model.encode(tiny.WORDS) - plain).max() < 1e-6
    assert {k: v for k, v in model.prompts.items() if v} == {"to-b": "b: ", "to-c": "c: "}
    assert str(place) not in "".join(file.read_text() for file in kept.rglob("*.json"))
    capsys.readouterr()
    assert main(["publish", "out/kept", "me/kept", "--dry-run"]) == 0
    shown = capsys.readouterr().out
    assert "adapters/a/adapter_model.safetensors" in shown
    assert '  folder = "me/kept"\n' in shown
    assert shown.count("## Scores") == 1


@pytest.mark.parametrize(
    ("file", "changes", "message"),
    [
        (SETTINGS, {"prompts": {"to-b": "x"}}, "the prompt 'to-b' is 'b: '"),
        (SETTINGS, {"prompts": {"query": "x"}}, "the prompt 'query' is ''"),
        (SETTINGS, {"default_prompt_name": "to-c"}, "default_prompt_name"),
        ("1_Pooling/config.json", {"pooling_mode": "cls"}, "Pooling's mode"),
        ("sentence_bert_config.json", {"max_seq_length": 8}, "max_seq_length"),
        ("tokenizer_config.json", {"pad_token": "[UNK]"}, "the tokenizer's pad_token"),
    ],
)
def test_what_adapters_disagree_on_is_refused_before_any_work(
    place: Path, capsys: Capture, file: str, changes: Any, message: str
) -> None:
    edit(place / "c", file, **changes)
    assert publish("check", "./base+./b", "./base+./c", steps={}) == 2
    assert f"recipe.yaml:7: 'b' and 'c': {message}" in capsys.readouterr().err
    assert publish("check", "./base+./c", "./base+./a", "./base+./b", steps={}) == 2
    shown = capsys.readouterr().err
    assert len(shown.splitlines()) == 1, "it is said once"


def test_other_bases_and_what_cannot_be_switched_are_refused(place: Path, capsys: Capture) -> None:
    save_adapter(place / "d", place / "base", use_dora=True)
    save_adapter(place / "e", place / "base", bias="all")
    for names, message in (
        (("./base+./a", "./other+./c"), "their bases, .*base and .*other, have other weights"),
        (("$one", "$two"), "their bases, .*base and .*other, have other weights"),
        (("$one", "$whole"), r"'\$whole' is a whole model"),
        (("$one", "./base"), "'./base' is a whole model"),
        (("./base+./a", "./base+./d"), "'d' has more than low-rank factors.*merge_adapters with"),
        (("./base+./a", "./base+./e"), "'e' has more.*does not switch; publish it merged"),
    ):
        assert publish("check", *names) == 2
        assert re.search(message, capsys.readouterr().err)
    assert publish("check", "$one") == 0
    assert publish("check", "$one", licence="mit") == 2
    assert "'licence' has no effect with 'adapters'" in capsys.readouterr().err
