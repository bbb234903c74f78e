"""A model card says what a model is, in the hub's format, and never more than the run left."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
import yaml
from emberge.contracts import StepFilled
from emberge_evaluate import read_scores
from emberge_report import add_scores
from emberge_report import hooks as cards
from huggingface_hub import ModelCard

from tests.support import finished_run as runs
from tests.support.finished_run import SCORES, TASKS, FinishedRun
from tests.support.json_files import changing
from tests.support.result_folders import artifact_of

MODELS = ("full", "members.draw=1", "members.draw=2", "members.draw=3", "boom")


def filled(out: Path, step: str, origin: Path | None = None) -> StepFilled:
    """The event before a step's result is published."""
    artifact = artifact_of(out / step)
    record = json.loads((out / step / "artifact.json").read_text())
    record["kind"] = record["component"]
    return StepFilled(out, step, out / step, artifact, record, origin or out.parent)


def finish(out: Path, *steps: str) -> None:
    """Announce that steps are done, as a run does."""
    for step in steps:
        cards.hear_event(filled(out, step))


def card(out: Path, step: str) -> ModelCard:
    return ModelCard.load(out / step / "README.md")


@pytest.fixture
def run(bert: Path, berts: list[Path], tmp_path: Path) -> FinishedRun:
    run = runs.demo_run(tmp_path / "out", bert, berts)
    finish(run.root, *MODELS)
    return run


def with_scores(out: Path, *columns: str) -> ModelCard:
    """The card of `boom` with the scores of its columns."""
    scores = read_scores(out / "scores")
    text = (out / "boom" / "README.md").read_text()
    return ModelCard(add_scores(text, [(name, scores) for name in columns]))


def test_the_card_loads_and_its_front_matter_is_in_the_hubs_form(
    run: FinishedRun, tmp_path: Path
) -> None:
    data = with_scores(run.root, "boom").data
    assert data.library_name == "sentence-transformers"
    assert data.pipeline_tag == "sentence-similarity"
    assert {"sentence-transformers", "feature-extraction", "emberge", "merge"} <= set(data.tags)
    assert data.language == ["en"]
    assert data.model_name == "boom"
    found = {r.dataset_name: (r.metric_type, r.metric_value) for r in data.eval_results}
    expected = zip(TASKS, SCORES["boom"], strict=True)
    assert found == {name: (metric, round(100 * s, 3)) for (name, _, metric, _), s in expected}
    raw = yaml.safe_load((run.root / "boom" / "README.md").read_text().split("---\n")[1])
    assert set(raw) <= {"language", "library_name", "pipeline_tag", "tags"}
    # Packages and steps are no base models of the hub, and a licence that one does not state is not claimed.
    assert card(run.root, "full").data.base_model is data.base_model is None
    assert data.license is None
    assert "Unknown for stdlib." in card(run.root, "boom").text
    assert "## How it was trained" in card(run.root, "full").text
    assert "\nsampler: {batch_shuffle: {batch_size: 16}}\n" in card(run.root, "full").text
    assert "| stdlib | retrieval | 800 of 960 | unknown |" in card(run.root, "full").text
    assert "The training saw 800 examples" in card(run.root, "full").text
    for name in MODELS:
        text = (run.root / name / "README.md").read_text()
        assert str(tmp_path) not in text
        assert os.path.expanduser("~") + "/" not in text


MEMBERS = [f"members.draw={draw}" for draw in (1, 2, 3)]


def state_licence(folder: Path, licence: str) -> None:
    """Record that the data of a training are under a licence."""
    with changing(folder / "artifact.json") as record:
        record["details"]["datasets"]["stdlib"]["source"] = {"licence": licence}


def test_a_licence_that_all_state_is_claimed(run: FinishedRun) -> None:
    for member in MEMBERS:
        state_licence(run.root / member, "apache-2.0")
    finish(run.root, "boom")
    assert card(run.root, "boom").data.license == "apache-2.0"
    for member in MEMBERS:
        state_licence(run.root / member, "PSF-2.0")
    finish(run.root, "boom")
    assert card(run.root, "boom").data.license is None
    assert "stdlib: PSF-2.0" in card(run.root, "boom").text


def test_the_usage_snippet_uses_the_prompts_that_the_model_has(
    run: FinishedRun, capsys: pytest.CaptureFixture[str]
) -> None:
    with changing(run.root / "boom" / "config_sentence_transformers.json") as config:
        config["prompts"] = {"query": "find | in: ", "document": ""}
    finish(run.root, "boom")
    text = card(run.root, "boom").text
    assert "encode_query" in text
    assert r"| Prompt `query` | `find \| in:` |" in text
    assert embeds(run, capsys) == (1, 2)


def embeds(run: FinishedRun, capsys: pytest.CaptureFixture[str]) -> tuple[int, int]:
    """Run the card's snippet on the model's folder; the shape of the similarities it prints."""
    found = re.search(r"```python\n(.*?)```", card(run.root, "boom").text, re.DOTALL)
    assert found is not None
    lines = found[1].replace('"boom"', repr(str((run.root / "boom").resolve())))
    capsys.readouterr()
    exec(lines, {})
    printed = capsys.readouterr().out
    rows = printed.count("[") - 1
    return rows, printed.replace("[", " ").replace("]", " ").count(".") // rows


def test_models_of_the_hub_are_linked_with_their_revision(
    berts: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = tmp_path / "cache"
    kept.mkdir()
    (kept / "README.md").write_text("---\nlicense: mit\nlanguage: [en, de]\n---\nhello")

    def cached(name: str, file: str, revision: str | None = None) -> str | None:
        known = (name, file, revision) == ("acme/legal", "README.md", "v2")
        return str(kept / "README.md") if known else None

    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", cached)
    out = tmp_path / "out"
    out.mkdir()
    runs.merged(out, "soup", berts[0], {"acme/legal@v2": 0.6, "acme/code": 0.4}, size=None)
    finish(out, "soup")
    found = card(out, "soup")
    assert found.data.base_model == ["acme/legal", "acme/code"]
    assert found.data.base_model_relation == "merge"
    assert found.data.language == ["en", "de"]
    assert found.data.license is None
    link = "[acme/legal](https://huggingface.co/acme/legal/tree/v2)"
    assert f"| {link} | 0.6 | v2 | mit |" in found.text
    assert "| [acme/code](https://huggingface.co/acme/code) | 0.4 | – | unknown |" in found.text


def test_a_member_of_weight_zero_is_not_counted_and_empty_options_are_left_out(
    berts: list[Path], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    weights = {"./legal": 1.0, "./faq": 1, "./news": 0.0}
    folder = runs.merged(out, "soup", berts[0], weights, size=None)
    with changing(folder / "artifact.json") as record:
        record["details"] |= {"dtype": "bfloat16", "keep": 0.0, "copied_heads": []}
    finish(out, "soup")
    text = card(out, "soup").text
    assert "by merging 2 models." in text
    assert "| news | 0 |" in text
    assert "dtype: bfloat16\n" in text
    assert not any(f"{name}:" in text for name in ("copied_heads", "keep"))


def test_a_card_has_the_scores_of_each_size_of_embeddings(
    bert: Path, berts: list[Path], tmp_path: Path
) -> None:
    run = runs.demo_run(tmp_path / "out", bert, berts)
    path = run.root / "scores" / "scores.json"
    found = json.loads(path.read_text())
    text = json.dumps(found).replace('"boom"', '"boom@384"').replace('"full"', '"boom@128"')
    found = json.loads(text)
    found["tasks"][0]["note"] = "at most 9 queries"
    sizes = {"boom@384": 384, "boom@128": 128}
    found["columns"] = {name: {"model": "boom", "size": size} for name, size in sizes.items()}
    path.write_text(json.dumps(found))
    finish(run.root, "boom")
    both = with_scores(run.root, *sizes)
    assert "## Scores of embeddings cut to 384 numbers" in both.text
    assert "## Scores of embeddings cut to 128 numbers" in both.text
    names = {result.dataset_name for result in both.data.eval_results}
    notes = {TASKS[0][0]: " (at most 9 queries)"}
    assert names == {f"{n}@{size}{notes.get(n, '')}" for n, *_ in TASKS for size in (384, 128)}
