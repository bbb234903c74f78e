"""Each kind of card reads, from its first line to its last, as a page of `cards/` does."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from emberge import Artifact
from emberge.contracts import AdapterFacts, BaseFacts, MergeDetails
from emberge_evaluate import read_scores
from emberge_report import add_scores
from emberge_report.card import write_card

from tests.support import finished_run as runs
from tests.support.finished_run import BASE
from tests.support.json_files import edit
from tests.support.result_folders import artifact_of

CARDS = Path(__file__).parent / "cards"
ROWS = "|  |  | | --- | --- | | seed | `0` |"
VERSIONS = {"emberge": "0.1.0", "torch": "2.13.0"}


def card_of(folder: Path, **record: Any) -> str:
    """Return the card of a result whose record is changed first; None takes a key out."""
    path = folder / "artifact.json"
    changed = json.loads(path.read_text()) | record
    path.write_text(json.dumps({key: v for key, v in changed.items() if v is not None}))
    artifact = artifact_of(folder)
    return write_card(folder, folder, artifact, json.loads(path.read_text()))


def adapter(out: Path, name: str, model: Path, content: AdapterFacts, **facts: Any) -> None:
    is_merge = facts.get("origin") == "merged"
    parents = ("acme/law", "acme/code") if is_merge else ("acme/base",)
    artifact = Artifact("model", None, parents, base=BaseFacts("acme/base"), adapter=content)
    runs.publish(out, name, replace(artifact, **facts), model)


def merge(out: Path, bert: Path, berts: list[Path]) -> None:
    runs.demo_run(out, bert, berts)


def merged_adapter(out: Path, bert: Path, berts: list[Path]) -> None:
    content = AdapterFacts(
        ranks={"layer.0.query": 4, "layer.0.key": 6, "layer.0.value": 5},
        errors={"layer.0.query": 0.25, "layer.0.key": 0.0, "layer.0.value": 0.125},
        whole=["embeddings.LayerNorm", "pooler.dense"],
    )
    layers = {"layers.1": {"law": 0.5}, "layers.0": {"law": 0.25, "code": 0.75}}
    weights = {"acme/law": 0.5, "acme/code": 0.25}
    details = MergeDetails(strategy=["linear"], weights=weights, weights_by_layer=layers)
    adapter(out, "adapter", bert, content, details=details, origin="merged")


def losses(out: Path, bert: Path, berts: list[Path]) -> None:
    """Make a model with a prompt, chosen from others, and scored by losses."""
    details = {"chosen_because": "it has the least loss", "tasks": "Größe", "at": "x" * 90}
    model = Artifact("model", parents=(BASE,), details=details, origin="chosen")
    folder = runs.publish(out, "lossy", model, berts[0])
    prompts = {"document": "", "passage": "find: "}
    edit(folder, "config_sentence_transformers.json", prompts=prompts)
    place = runs.scored(out, {BASE: (1.5, 2.5, 3.5), "lossy": (1.0, 2.0, 3.0)})
    found = json.loads((place / "scores.json").read_text())
    tasks = [{**task, "kind": "→", "metric": "loss"} for task in found["tasks"]]
    tasks[1]["metric"] = ""
    for one in found["comparisons"]:
        one["less_is_better"] = True
    del found["intervals"]["lossy"]["NumpyDocs"]
    (place / "scores.json").write_text(json.dumps({**found, "tasks": tasks}))


def changed(out: Path, bert: Path, berts: list[Path]) -> None:
    """Make a model by a change without training, whose files state no length and need code of their own."""
    artifact = Artifact(
        *("model", None, ("org/xlmr",), {"rope_theta": 10_000.0}),
        origin="changed",
        made_by="giving rotary positions to",
        base=BaseFacts("org/xlmr"),
    )
    folder = runs.publish(out, "rotary", artifact, bert)
    (folder / "sentence_bert_config.json").unlink()
    config = json.loads((folder / "config.json").read_text())
    del config["max_position_embeddings"]
    mapped = {"AutoModel": "nomic-ai/nomic-bert-2048--modeling_hf_nomic_bert.NomicBertModel"}
    code = {"model_type": "nomic_bert", "num_experts": 8, "auto_map": mapped}
    (folder / "config.json").write_text(json.dumps(config | code))


PAGES: dict[str, tuple[str, Callable[[Path, Path, list[Path]], None]]] = {
    "merge": ("boom", merge),
    "merged_adapter": ("adapter", merged_adapter),
    "losses": ("lossy", losses),
    "changed": ("rotary", changed),
}


def test_the_card_of_a_chosen_merge_is_that_of_a_merge(
    bert: Path, berts: list[Path], tmp_path: Path
) -> None:
    merge(tmp_path, bert, berts)
    details = {"chosen_from": 5, "chosen_by": "mean"}
    chosen = Artifact("model", parents=("boom",), details=details, origin="chosen")
    card_of(tmp_path / "boom", trainings={"full": {"datasets": {}, "examples": 1440}})
    text, made = card_of(runs.publish(tmp_path, "best", chosen, bert)), card_of(tmp_path / "boom")
    assert "\n- merge\n" in text
    assert re.search(r"by merging \d models, chosen from 5 models\.", text)
    assert "chosen_by: mean" in text
    assert "Their trainings saw 1,440 examples" in text
    table = made.partition("## Merged from")[2].partition("\n## ")[0]
    assert table
    assert table in text


@pytest.mark.parametrize("page", PAGES)
def test_a_card_reads_as_its_page(page: str, bert: Path, berts: list[Path], tmp_path: Path) -> None:
    """Where a page is to change, write what the test shows into the file, and read it."""
    step, make = PAGES[page]
    out = tmp_path / "out"
    out.mkdir(exist_ok=True)
    make(out, bert, berts)
    text = card_of(out / step, versions=VERSIONS, recipe="5e" * 32)
    if (out / "scores").is_dir():
        text = add_scores(text, [(step, read_scores(out / "scores"))])
    assert text == (CARDS / f"{page}.txt").read_text("utf-8")


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        (
            {"origin": "changed", "made_by": "extracting the changes of"},
            ("by extracting the changes of acme/base", "Nothing is left out: it is exact."),
        ),
        ({}, ("by training acme/base",)),
        (
            {
                "origin": "merged",
                "details": MergeDetails(strategy=["linear", "keep_base"], weights={}),
            },
            ("by merging", "strategy: [linear, keep_base]"),
        ),
    ],
)
def test_a_card_says_where_an_adapter_is_from(
    facts: dict[str, Any], words: Sequence[str], bert: Path, tmp_path: Path
) -> None:
    content = AdapterFacts(ranks={"a": 4}, errors={"a": 0.0})
    adapter(tmp_path, "adapter", bert, content, **facts)
    text = card_of(tmp_path / "adapter")
    assert all(word in text for word in words), text


def test_what_a_record_does_not_state_is_not_in_the_card(berts: list[Path], tmp_path: Path) -> None:
    runs.trained(tmp_path, "full", berts[0])
    text = card_of(tmp_path / "full", fingerprint=None, component=None, recipe=None)
    made = text.partition("## How to make it again")[2]
    own = card_of(tmp_path / "full", plugins={"train": "emberge 0.1.0", "mine": "file mine.py"})
    assert "| plugin mine | `file mine.py` |" in own
    assert "plugin train" not in own
    assert made.split() == [
        *["With", "the", "same", "recipe", "or", "command,", "and", "the", "same", "inputs:"],
        *ROWS.split(),
    ]
