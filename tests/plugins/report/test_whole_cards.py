"""Each kind of card reads, from its first line to its last, as a page of `cards/` does."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from emberge import Artifact
from emberge.contracts import StepSkipped
from emberge.results import read_artifact
from emberge_report.hooks import hear_event

from tests.support import finished_run as runs
from tests.support.finished_run import BASE

CARDS = Path(__file__).parent / "cards"
ROWS = "|  |  | | --- | --- | | seed | `0` |"
VERSIONS = {"emberge": "0.1.0", "torch": "2.13.0"}


def finish(out: Path, *steps: str) -> None:
    """Announce that steps are done, each with the versions and the recipe that a run notes."""
    for step in steps:
        path = out / step / "artifact.json"
        record = json.loads(path.read_text())
        path.write_text(json.dumps({**record, "versions": VERSIONS, "recipe": "5e" * 32}))
        artifact = read_artifact(out / step)
        assert artifact is not None
        hear_event(StepSkipped(out, step, out / step))


def edit(folder: Path, **changes: Any) -> None:
    """Change a result's record; None takes a key out."""
    record = json.loads((folder / "artifact.json").read_text()) | changes
    kept = {key: value for key, value in record.items() if value is not None}
    (folder / "artifact.json").write_text(json.dumps(kept))


def adapter(out: Path, name: str, model: Path, content: Mapping[str, Any], **details: Any) -> None:
    made = {"base": "acme/base", "adapter": content, **details}
    parents = ("acme/law", "acme/code") if "strategy" in made else ("acme/base",)
    runs.publish(out, name, Artifact("model", parents=parents, details=made), model)


def merge(out: Path, bert: Path, berts: list[Path]) -> None:
    runs.demo_run(out, bert, berts)
    finish(out, "full", "members.draw=1", "members.draw=2", "members.draw=3", "boom", "scores")


def merged_adapter(out: Path, bert: Path, berts: list[Path], *, chain: bool = False) -> None:
    content = {
        "ranks": {"layer.0.query": 4, "layer.0.key": 6, "layer.0.value": 5},
        "errors": {"layer.0.query": 0.25, "layer.0.key": 0.0, "layer.0.value": 0.125},
        "whole": ["embeddings.LayerNorm", "pooler.dense"],
    }
    weights: dict[str, Any] = {"weights": {"acme/law": 0.5, "acme/code": 0.25}}
    layers = {"layers.1": {"law": 0.5}, "layers.0": {"law": 0.25, "code": 0.75}}
    weights |= {"weights_by_layer": layers}
    strategy = ["linear", "keep_base"] if chain else ["linear"]
    adapter(out, "adapter", bert, content, strategy=strategy, **weights)
    finish(out, "adapter")


def exact_adapter(out: Path, bert: Path, berts: list[Path]) -> None:
    content = {"ranks": {"layer.0.query": 4}, "errors": {"layer.0.query": 0.0}}
    adapter(out, "adapter", bert, content)
    finish(out, "adapter")


def trained_adapter(out: Path, bert: Path, berts: list[Path]) -> None:
    adapter(out, "adapter", bert, {"ranks": {"layer.0.query": 4}}, loss_curve=[[1, 1.5]])
    finish(out, "adapter")


def losses(out: Path, bert: Path, berts: list[Path]) -> None:
    """Make a model with a prompt, chosen from others, and scored by losses."""
    details = {"chosen_because": "it has the least loss", "tasks": "Größe", "at": "x" * 90}
    model = Artifact("model", parents=(BASE,), details=details)
    folder = runs.publish(out, "lossy", model, berts[0])
    settings = folder / "config_sentence_transformers.json"
    prompts = {"document": "", "passage": "find: "}
    settings.write_text(json.dumps({**json.loads(settings.read_text()), "prompts": prompts}))
    place = runs.scored(out, {BASE: (1.5, 2.5, 3.5), "lossy": (1.0, 2.0, 3.0)})
    found = json.loads((place / "scores.json").read_text())
    tasks = [{**task, "kind": "→", "metric": "loss"} for task in found["tasks"]]
    tasks[1]["metric"] = ""
    for one in found["comparisons"]:
        one["less"] = True
    del found["intervals"]["lossy"]["NumpyDocs"]
    (place / "scores.json").write_text(json.dumps({**found, "tasks": tasks}))
    runs.scored(out, {BASE: (1.5, 2.5, 3.5), "full": (1.0, 2.0, 3.0)}, step="elder_scores")
    finish(out, "lossy", "scores")


def changed(out: Path, bert: Path, berts: list[Path]) -> None:
    """Make a model by a change without training, whose files state no length and need code of their own."""
    details = {"base": "org/xlmr", "made_by": "giving rotary positions to", "rope_theta": 10_000.0}
    folder = runs.publish(
        out, "rotary", Artifact("model", parents=("org/xlmr",), details=details), bert
    )
    (folder / "sentence_bert_config.json").unlink()
    config = json.loads((folder / "config.json").read_text())
    del config["max_position_embeddings"]
    mapped = {"AutoModel": "nomic-ai/nomic-bert-2048--modeling_hf_nomic_bert.NomicBertModel"}
    code = {"model_type": "nomic_bert", "num_experts": 8, "auto_map": mapped}
    (folder / "config.json").write_text(json.dumps(config | code))
    finish(out, "rotary")


PAGES: dict[str, tuple[str, Callable[[Path, Path, list[Path]], None]]] = {
    "merge": ("boom", merge),
    "training": ("full", merge),
    "merged_adapter": ("adapter", merged_adapter),
    "adapters_by_a_chain": ("adapter", partial(merged_adapter, chain=True)),
    "exact_adapter": ("adapter", exact_adapter),
    "trained_adapter": ("adapter", trained_adapter),
    "losses": ("lossy", losses),
    "changed": ("rotary", changed),
}


@pytest.mark.parametrize("page", PAGES)
def test_a_card_reads_as_its_page(page: str, bert: Path, berts: list[Path], tmp_path: Path) -> None:
    """Where a page is to change, write what the test shows into the file, and read it."""
    step, make = PAGES[page]
    out = tmp_path / "out"
    out.mkdir(exist_ok=True)
    make(out, bert, berts)
    text = (out / step / "README.md").read_text("utf-8")
    assert text == (CARDS / f"{page}.txt").read_text("utf-8")


def test_what_a_record_does_not_state_is_not_in_the_card(berts: list[Path], tmp_path: Path) -> None:
    runs.trained(tmp_path, "full", berts[0])
    edit(tmp_path / "full", fingerprint=None, component=None, recipe=None)
    artifact = read_artifact(tmp_path / "full")
    assert artifact is not None
    hear_event(StepSkipped(tmp_path, "full", tmp_path / "full"))
    text = (tmp_path / "full" / "README.md").read_text("utf-8")
    made = text.partition("## How to make it again")[2]
    assert made.split() == [
        *["The", "same", "recipe", "with", "the", "same", "inputs."],
        *ROWS.split(),
    ]


def test_a_result_without_a_record_gets_no_card(berts: list[Path], tmp_path: Path) -> None:
    runs.trained(tmp_path, "full", berts[0])
    (tmp_path / "full" / "artifact.json").unlink()
    hear_event(StepSkipped(tmp_path, "full", tmp_path / "full"))
    assert not (tmp_path / "full" / "README.md").exists()
