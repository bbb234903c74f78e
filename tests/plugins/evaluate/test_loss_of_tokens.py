"""Losses over held-out texts: by hand, with intervals, in tables, and those that do not compare."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from emberge import (
    DataEntry,
    DataRef,
    PerDataset,
    Plugins,
    TaskScore,
    Tokens,
    check_recipe,
    make_seed,
    parse_recipe,
)
from emberge_evaluate import read_scores
from emberge_evaluate.mean_loss import MeanLoss
from emberge_evaluate.scoring import plan_tasks, score_model
from emberge_train import MLM, MNTP, BatchShuffle, CausalLM

from tests.support import tiny
from tests.support.bench import Bench, model_at
from tests.support.exact import ExactEncoder
from tests.support.recipe_runs import run_checked
from tests.support.token_training import windows_of
from tests.support.tolerance import exactly
from tests.support.training_data import texts

LOSS = MLM(share=0.4, masked=0.8, random=0.1)
SAMPLER = (BatchShuffle(batch_size=PerDataset(default=32), tail="keep"),)
ENCODER = "backbone: {text_encoder: {pooling: mean}}"
SETS = {"english": texts(24), "code": texts(10)}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    root = tmp_path_factory.mktemp("readers")
    return [
        tiny.transformer(root / f"reader-{seed}", "AutoModelForMaskedLM", "bert", seed=seed)
        for seed in (1, 2)
    ]


@pytest.fixture(scope="module")
def stranger(models: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first model, whose tokenizer does not know a word and so cuts it into letters."""
    folder = tmp_path_factory.mktemp("strangers") / "stranger"
    shutil.copytree(models[0], folder)
    path = folder / "tokenizer.json"
    path.write_text(path.read_text().replace('"train":', '"tra1n":'))
    return folder


@pytest.fixture
def place(tmp_path: Path) -> Path:
    for name, made in SETS.items():
        rows = [json.dumps({"text": made[row].anchor}) for row in range(len(made))]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(rows) + "\n")
    return tmp_path


def evaluator(place: Path, **options: Any) -> MeanLoss:
    data = tuple(DataEntry(path=DataRef(str(place / f"{name}.jsonl"))) for name in SETS)
    backbone = ExactEncoder(pooling="mean")
    given = {"backbone": backbone, "token_budget": 200, "sampler": SAMPLER, **options}
    given["loss"] = PerDataset(default=(given.get("loss", LOSS),))
    return MeanLoss(data=data, **given)


def scored(one: MeanLoss, model: Path, place: Path, bench: str = "bench") -> dict[str, TaskScore]:
    workspace: Any = Bench(place / bench)
    return score_model(model_at(model), plan_tasks([one], workspace), workspace, name="model")


def by_hand(model: Any, folder: Path, name: str, loss: Any, *, shift: int = 0) -> tuple[float, int]:
    """Return (summed loss, scored places) of a set by transformers, window by window."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    special = np.asarray(tokenizer.all_special_ids)
    total, places = 0.0, 0
    for number, window in enumerate(windows_of(tokenizer, SETS[name])):
        ids = np.asarray(window, np.int64)
        text = Tokens(ids, np.isin(ids, special), tokenizer.mask_token_id, len(tokenizer))
        changed, labels = loss.corrupt(text, make_seed(0, "scored texts", name, number))
        with torch.no_grad():
            logits = model.double().eval()(input_ids=torch.from_numpy(changed)[None]).logits[0]
        wanted = torch.from_numpy(labels)[shift:]
        given = logits[: len(wanted)]
        total += float(torch.nn.functional.cross_entropy(given, wanted, reduction="sum"))
        places += int((wanted != -100).sum())
    return total, places


def test_a_set_has_the_mean_loss_of_its_scored_tokens(models: list[Path], place: Path) -> None:
    found = scored(evaluator(place), models[0], place)
    model = transformers.AutoModelForMaskedLM.from_pretrained(models[0])
    for name, data in SETS.items():
        total, places = by_hand(model, models[0], name, LOSS)
        score = found[name]
        assert score.score == exactly(total / places)
        assert score.task.metric == "nats/token"
        assert score.result == {"texts": len(data), "scored_tokens": places}


@pytest.mark.parametrize(("loss", "causal"), [(MNTP(share=0.4), False), (CausalLM(), True)])
def test_losses_from_the_place_before_are_those_of_a_causal_head(
    loss: MNTP | CausalLM, causal: bool, place: Path
) -> None:
    """A label is predicted by the logits of the place before it, by attention to one side or both."""
    folder = tiny.transformer(place / "qwen3", "AutoModelForCausalLM", "qwen3")
    attention, pooling = ("as is", "last") if causal else ("bidirectional", "mean")
    backbone = ExactEncoder(pooling=pooling, attention=attention)
    found = scored(
        evaluator(place, loss=loss, backbone=backbone, max_length=PerDataset(default=64)),
        folder,
        place,
    )
    config = transformers.AutoConfig.from_pretrained(folder)
    config.is_causal = causal
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, config=config)
    total, places = by_hand(model, folder, "code", loss, shift=1)
    assert found["code"].score == exactly(total / places)
    assert found["code"].result["scored_tokens"] == places


def test_every_model_has_the_same_places_hidden(models: list[Path], place: Path) -> None:
    one, other = (scored(evaluator(place), model, place) for model in models)
    for name in SETS:
        mine, theirs = one[name].units, other[name].units
        assert mine is not None
        assert theirs is not None
        assert mine.gold == theirs.gold
        assert mine.values != theirs.values


def recipe(models: list[Path], more: str = "", *, data: str = "", step: str = "evaluate") -> str:
    listed = ", ".join(map(str, models))
    sets = data or "[{path: ./english.jsonl}, {path: ./code.jsonl}]"
    own = f"data: {sets}, loss: {{mlm: {{share: 0.4}}}}, {ENCODER}"
    return (
        f"steps:\n  known:\n    {step}:\n      models: [{listed}]\n"
        f"      evaluators: {{mean_loss: {{{own}}}}}\n{more}"
    )


def test_the_least_loss_is_the_best_of_a_table(
    models: list[Path], plugins: Plugins, place: Path
) -> None:
    demand = (
        f"      require: [{{model: {models[0]}, not_worse_than: [{models[1]}], margin: 900}}]\n"
    )
    made = run_checked(place, recipe(models, demand), plugins)["known"]
    scores = read_scores(made)
    assert scores.less_is_better
    for name in SETS:
        difference = scores.find_difference(scores.models[1], name)
        assert difference is not None
        assert difference.interval is not None
        assert difference.less_is_better
    (verdict,) = scores.requirements
    assert verdict.met
    table = (made / "scores.md").read_text()
    row = re.search(r"^\| english \(nats/token\) \| (.*) \| (.*) \|$", table, re.M)
    assert row is not None
    shown = [float(cell.strip("*")) for cell in row.groups()]
    bold = [cell.startswith("**") for cell in row.groups()]
    assert shown == pytest.approx([scores.values[m]["english"] for m in scores.models], abs=6e-4)
    assert bold == [value == min(shown) for value in shown]
    assert "less is better" in table


def faults(text: str, plugins: Plugins, place: Path) -> Iterator[str]:
    found = check_recipe(parse_recipe(text, plugins, path=place / "r.yaml"), plugins)
    return (str(problem) for problem in found.problems if problem.severity != "unseen")


def test_models_that_read_other_tokens_are_noted_before_and_beside_their_scores(
    models: list[Path], stranger: Path, plugins: Plugins, place: Path
) -> None:
    (note,) = faults(recipe([models[0], stranger]), plugins, place)
    assert "r.yaml:5" in note
    assert "those of one tokenizer" in note
    made = run_checked(place, recipe([models[0], stranger]), plugins)["known"]
    assert "other tokenizers" in (made / "scores.md").read_text()
    found = read_scores(made).find_difference("stranger", "english")
    assert found is not None
    assert found.interval is None


def test_sets_losses_and_models_that_do_not_fit_are_found_before_any_work(
    models: list[Path], plugins: Plugins, place: Path
) -> None:
    (place / "empty.jsonl").write_text("")
    (place / "pairs.jsonl").write_text('{"anchor": "a", "positive": "b"}\n' * 40)
    both = "[{path: ./english.jsonl}, {path: ./pairs.jsonl, task: retrieval}]"
    loss = "loss: {mlm: {share: 0.4}}"
    kinds = "loss: {by_task: {text: mlm, retrieval: infonce}}"
    pair = r"r\.yaml:5.*'pairs' is of the task retrieval.*task: text"
    for text, words in (
        (recipe(models, data="{path: ./empty.jsonl}"), r"empty\.jsonl.*no rows"),
        (recipe(models, data="{path: ./pairs.jsonl}"), pair),
        (recipe(models, data=both).replace(loss, kinds), "(?s)english.*an evaluation of its own"),
        (
            recipe(models).replace(loss, "loss: [mlm, {mlm: {share: 0.1}}]"),
            r"r\.yaml:5.*'code' has 2 losses over tokens; give it a single one",
        ),
    ):
        found = "\n".join(faults(text, plugins, place))
        assert re.search(words, found), found
