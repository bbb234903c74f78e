"""Minings, generations and adaptations that die end, run again, in the bytes of those that did not."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path
from typing import Any

import emberge.encoding.embedding_store as embedding_store
import pytest
import yaml
from emberge import load_plugins
from emberge.cli.main import main
from emberge_adapt import AdaptRequest, prepare
from emberge_data.steps.generate.chat_server import ChatServer
from emberge_data.steps.generate.model_reply import KeptReplies

from tests.support import tiny
from tests.support.chat_server import Wrong, completion, queries_by_rule, serving_chat
from tests.support.handbook import write_handbook
from tests.support.killed import assert_deaths_change_nothing, killed_when, run_command
from tests.support.result_folders import read_results

PARALLEL = 3


@pytest.mark.slow
def test_a_mining_that_dies_ends_in_the_same_bytes(
    bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With several segments of embeddings."""
    monkeypatch.setattr(embedding_store, "SEGMENT", 16)
    draw = random.Random(0)
    rows = [[" ".join(draw.choices(tiny.WORDS, k=6)) for _ in range(2)] for _ in range(40)]
    (tmp_path / "rows.jsonl").write_text(
        "".join(json.dumps({"query": query, "pos": [found]}) + "\n" for query, found in rows)
    )
    mined = {"teacher": str(bert), "count": 3, "range": [1, 9], "margin": None}
    step = {"mine_hard_negatives": {"data": str(tmp_path / "rows.jsonl"), **mined}}
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(json.dumps({"steps": {"mined": step}}))
    assert_deaths_change_nothing(recipe, tmp_path / "disk", deaths=6)


def write_generation(documents: Path, server: dict[str, Any]) -> dict[str, Any]:
    """A recipe of the step alone."""
    step = {"documents": str(documents), "by": server}
    return {"steps": {"generated": {"generate_queries": step}}}


def write_adaptation(documents: Path, server: dict[str, Any]) -> dict[str, Any]:
    """The recipe that `emberge adapt` writes, with the server, for a tiny model that need not get better."""
    request = AdaptRequest(
        data=str(documents), model=str(tiny.checkpoint(documents.parent / "bert"))
    )
    recipe: dict[str, Any] = yaml.safe_load(prepare(request, load_plugins()).recipe_text)
    steps = recipe["steps"]
    steps["generated"]["generate_queries"] |= {"by": server}
    training = steps["trained"]["train"]
    training["learning_rate"] = float(training["learning_rate"])  # PyYAML takes 7e-5 for text
    del steps["scores"]["evaluate"]["require"]
    del steps["report"]  # it tells how long everything took
    return {"seed": recipe["seed"], "steps": steps}


def rule(prompt: str) -> Wrong:
    """Answer after a moment, so that kills find requests on their way."""
    return Wrong(body=completion(queries_by_rule(prompt)), seconds=0.01)


@pytest.mark.slow
@pytest.mark.parametrize(("write", "documents"), [(write_generation, 24), (write_adaptation, 120)])
def test_a_generation_that_is_killed_ends_in_the_same_bytes_and_buys_no_kept_reply_twice(
    write: Any, documents: int, tmp_path: Path
) -> None:
    """Of the requests that are sent again, none had a reply that was kept, and few were on their way.

    The second kill of an adaptation comes when the training has saved a state.
    """
    pages = write_handbook(tmp_path / "docs", documents=documents)
    recipe, out = tmp_path / "recipe.yaml", tmp_path / "killed"
    keys = KeptReplies(Path())
    with serving_chat(rule) as service:
        server = {"endpoint": service.url, "model": "m", "parallel": PARALLEL}
        recipe.write_text(json.dumps(write(pages, server)), "utf-8")
        named = ChatServer(endpoint=service.url, model="m").name_request
        assert main(run_command(recipe, tmp_path / "whole")) == 0
        half = len(service.asked) // 2
        service.asked.clear()
        assert killed_when(lambda: len(service.asked) >= half, main, run_command(recipe, out))
        time.sleep(0.1)  # the server still answers what was on its way
        before = [*service.asked]
        replies = out.rglob("replies/*/*.json")
        kept = {path.stem for path in replies if not path.name.startswith(".")}
        service.asked.clear()
        if write is write_adaptation:
            states = ".work/*/**/states/step-*"
            assert killed_when(lambda: any(out.glob(states)), main, run_command(recipe, out))
        assert main(run_command(recipe, out)) == 0
    assert kept
    assert not [prompt for prompt in service.asked if keys.key(named(prompt)) in kept]
    assert len([prompt for prompt in service.asked if prompt in before]) <= PARALLEL
    assert read_results(out) == read_results(tmp_path / "whole")
