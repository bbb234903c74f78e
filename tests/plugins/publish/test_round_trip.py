"""A merge published on a hub loads back by its id and scores as before, by other libraries' own code."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import mteb
import pytest
from emberge.cli.main import main

from tests.support.commands import environment
from tests.support.loopback_hub import Hub
from tests.support.publishing import Merged
from tests.support.tiny import WORDS

# Of the hub's client itself, about how it calls its HTTP library.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")

RECIPE = """
seed: 0
steps:
  soup:
    merge: {models: [./legal, ./faq], strategy: linear}
  scores:
    evaluate: {models: [$soup], evaluators: {mteb: {tasks: [STS12]}}}
"""

# A process of its own, as the hub's client reads its address once.
_LOAD = """
import json, sys
import mteb
from sentence_transformers import SentenceTransformer
data, local, name = sys.argv[1:]
task = mteb.get_task("STS12")
task.metadata.dataset.update(path=data, revision="main")
texts = ["the legal answer", "a new value"]
mine, theirs = (SentenceTransformer(one, device="cpu").encode(texts) for one in (local, name))
meta = mteb.get_model_meta(name, fetch_from_hf=True)
model = mteb.get_model(name, device="cpu")
scores = mteb.evaluate(model, task, cache=None, co2_tracker=False, show_progress_bar=False)
print(json.dumps({
    "equal": bool((mine == theirs).all()),
    "score": scores.task_results[0].get_score(),
    "meta": {key: getattr(meta, key) for key in ("name", "revision", "license", "adapted_from",
                                                 "n_parameters", "embed_dim")},
}))
"""


@pytest.fixture
def sts12(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The data of mteb's STS12, forty pairs, where mteb looks for it."""
    folder = tmp_path / "sts12"
    folder.mkdir()
    draw = random.Random(0)
    rows = []
    for i in range(40):
        words = draw.sample(WORDS, 5)
        other = words[: i % 6] + draw.sample(WORDS, 5 - i % 6)
        pair = {"sentence1": " ".join(words), "sentence2": " ".join(other)}
        rows.append(json.dumps({**pair, "score": float(i % 6)}))
    (folder / "test.jsonl").write_text("\n".join(rows) + "\n")
    metadata = mteb.get_task("STS12").metadata
    monkeypatch.setitem(metadata.dataset, "path", str(folder))
    monkeypatch.setitem(metadata.dataset, "revision", "main")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "datasets"))
    return folder


def load(hub: Hub, data: Path, local: Path, home: Path) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _LOAD, str(data), str(local), "me/soup"],
        env=environment(
            HF_ENDPOINT=hub.url,
            HF_HUB_OFFLINE="0",
            HF_HOME=str(home),
            HF_HUB_DISABLE_XET="1",
            NO_PROXY="127.0.0.1",
        ),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.slow
def test_what_is_published_loads_by_its_id_with_equal_vectors_and_scores(
    hub: Hub, merged: Merged, sts12: Path, tmp_path: Path
) -> None:
    merged("license: mit\nbase_model: acme/small", "license: apache-2.0\nlanguage: en")
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    assert main(["run", "recipe.yaml", "--out", "out", "--quiet"]) == 0
    assert main(["publish", "out/soup", "me/soup", "--yes", "--licence", "apache-2.0"]) == 0
    own = json.loads((tmp_path / "out/scores/scores.json").read_text())["values"]["soup"]["STS12"]

    found = load(hub, sts12, tmp_path / "out" / "soup", tmp_path / "home")
    assert found["equal"]
    assert found["score"] == pytest.approx(own, abs=1e-5)
    commit = hub.commits["me/soup"][-1]
    assert found["meta"]["name"] == "me/soup"
    assert found["meta"]["revision"] == commit
    assert found["meta"]["license"] == "apache-2.0"
    assert found["meta"]["adapted_from"] == "acme/small"
