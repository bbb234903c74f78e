"""The summary of training data: its sections, what is stated in them, and what is not."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from emberge.cli.main import main
from emberge.contracts import DataOrigin
from emberge.results import Parent, Trained
from emberge_publish.ancestors import Ancestors
from emberge_publish.training_summary import TrainingSummary, list_statement_faults

BASE = Parent(
    "acme/base",
    revision="v2",
    link="https://huggingface.co/acme/base/tree/v2",
    licence="mit",
    datasets=("acme/nli",),
)
MAILS = Trained(
    "mails",
    "retrieval",
    rows=4,
    whole=10,
    origin=DataOrigin(licence="mit", kind="user", personal_data=True, collected="2019 to 2024"),
    language="de",
    tasks=(),
)
PAGES = Trained(
    "pages",
    "retrieval",
    rows=1200,
    whole=1200,
    origin=DataOrigin(
        kind="public",
        url="https://acme.org/pages",
        personal_data=False,
        written_by=("gpt-4o-mini",),
        scored_by=("$judge", "/models/ranker"),
    ),
    media=("image",),
)
OLD = Trained("old", rows=None)
DATA = (MAILS, PAGES, OLD)

TEXT = """# Public summary of training content: me/soup

In the layout of the European Commission's template for Article 53(1)(d) of Regulation (EU) 2024/1689. \
It has what recipes, catalogues and cards state of the data; the rest is called not stated. This is no \
legal advice. Last update: the commit that has this file. [training_data.json](training_data.json) has \
the same facts.

## 1. General information

### 1.1. Provider identification

- Account on the hub: me

The publisher states: Acme, Berlin

### 1.2. Model identification

- Versioned model name: me/soup, `0123`
- Model dependencies: acme/base, ft
- Date of placement of the model on the Union market: not stated

| Model dependency | Revision | Licence | Training data, as its card names them |
| --- | --- | --- | --- |
| [acme/base](https://huggingface.co/acme/base/tree/v2) | v2 | mit | acme/nli |
| ft | not stated | not stated | unknown |

The data of these models are not counted below; their own providers describe them.

### 1.3. Modalities, overall training data size and other characteristics

| Modality | Training data size |
| --- | --- |
| text | 4 examples, not stated for old |
| text and image | 1,200 examples |

- Size in tokens, images or hours: not stated
- Latest date of data collection: 2019 to 2024: mails; not stated: pages, old
- Languages: de: mails; not stated: pages, old
- Personal data: yes: mails; no: pages; not stated: old

## 2. List of data sources

### 2.1. Publicly available datasets

| Set | Examples | Modality | Language | Licence | Personal data | Collected |
| --- | ---: | --- | --- | --- | --- | --- |
| [pages](https://acme.org/pages) | 1,200 | text, image | not stated | not stated | no | not stated |

### 2.2. Private non-publicly available datasets obtained from third parties

#### 2.2.1. Datasets commercially licensed by rightsholders or their representatives

No set of this kind is stated.

#### 2.2.2. Private datasets obtained from other third parties

No set of this kind is stated.

### 2.3. Data crawled and scraped from online sources

No set of this kind is stated.

### 2.4. User data

| Set | Examples | Modality | Language | Licence | Personal data | Collected |
| --- | ---: | --- | --- | --- | --- | --- |
| mails | 4 of 10 | text | de | mit | yes | 2019 to 2024 |

### 2.5. Synthetic data

| Set | Examples | Modality | Language | Licence | Personal data | Collected |
| --- | ---: | --- | --- | --- | --- | --- |
| [pages](https://acme.org/pages) | 1,200 | text, image | not stated | not stated | no | not stated |

- Texts written by: gpt-4o-mini (pages)
- Scores given by: judge (pages); ranker (pages)

### 2.6. Other sources of data

No set of this kind is stated.

### Sets whose kind of source is not stated

| Set | Examples | Modality | Language | Licence | Personal data | Collected |
| --- | ---: | --- | --- | --- | --- | --- |
| old | not stated | text | not stated | not stated | not stated | not stated |

## 3. Data processing aspects

### 3.1. Respect of reservation of rights from text and data mining exception or limitation

The publisher states: robots.txt was kept

### 3.2. Removal of illegal content

Not stated.

### 3.3. Other information

Not stated.
"""


def draw(ancestors: Ancestors, **statements: str) -> dict[str, str]:
    sections = {name.strip("_").replace("_", "."): text for name, text in statements.items()}
    return TrainingSummary("me/soup", "0123", ancestors, sections).draw()


def test_a_summary_has_all_sections_and_names_what_nobody_stated() -> None:
    ancestors = Ancestors((BASE,), DATA, outside=(BASE, Parent("/some/place/ft")))
    text = draw(ancestors, _1_1="Acme, Berlin", _3_1="robots.txt was kept")["training_data.md"]
    assert text == TEXT
    assert "/some/place" not in text


def test_the_facts_are_those_of_the_text() -> None:
    drawn = draw(Ancestors((BASE,), DATA, outside=(BASE,)), _3_2="none found")
    facts = json.loads(drawn["training_data.json"])
    assert facts["statements"] == {"3.2": "none found"}
    assert (facts["model"], facts["version"]) == ("me/soup", "0123")
    (base,) = facts["base_models"]
    assert (base["name"], base["revision"], base["datasets"]) == ("acme/base", "v2", ["acme/nli"])
    mails, pages, old = facts["training_sets"]
    assert mails == {
        "name": "mails",
        "section": "2.4",
        "task": "retrieval",
        "rows": 4,
        "of": 10,
        "language": "de",
        "modalities": ["text"],
        "licence": "mit",
        "kind": "user",
        "url": None,
        "personal_data": True,
        "collected": "2019 to 2024",
        "written_by": [],
        "scored_by": [],
        "ind_tasks": [],
    }
    assert (pages["section"], pages["modalities"]) == ("2.1", ["text", "image"])
    assert pages["scored_by"] == ["judge", "ranker"]
    assert (old["section"], old["personal_data"], old["ind_tasks"]) == (None, None, None)


def test_a_model_without_trainings_has_none_to_summarise() -> None:
    text = draw(Ancestors(()))["training_data.md"]
    assert "- Model dependencies: none\n" in text
    assert "No training of a known run is behind this model." in text
    assert "whose kind of source is not stated" not in text


@pytest.mark.parametrize(
    ("section", "fix"), [("3.4", "did you mean '3."), ("law", "it has 1.1, 1.2")]
)
def test_a_statement_needs_a_section_of_the_summary(section: str, fix: str) -> None:
    (fault,) = list_statement_faults({"3.1": "fine", section: "a"})
    assert f"has no section '{section}'" in fault
    assert fix in fault


RECIPE = """
seed: 0
x-data: &data {path: ./datasets.yaml}
x-training: &training
  model: ./base
  loss: infonce
  max_steps: 1
steps:
  parts:
    split: {data: *data, share: 0.1}
  members:
    foreach: {draw: [1, 2]}
    train:
      <<: *training
      data: $parts
      sampler: [bagging: {ratio: 0.6, draw: $draw}, batch_shuffle: {batch_size: 2}]
  soup:
    merge: {models: $members, strategy: linear}
  again:
    train:
      <<: *training
      model: $soup
      data: {path: ./faq.jsonl, task: retrieval, name: faq, source: {kind: other}}
      sampler: {batch_shuffle: {batch_size: 2}}
"""
CATALOGUE = """
train:
- name: mails
  file: mails.jsonl
  task: retrieval
  language: de
  ind_tasks: []
  source: {licence: mit, kind: user, personal_data: true, collected: 2024, package: mails}
"""


@pytest.fixture
def finished(bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run with a model trained on a merge of two halves of a set that a step wrote."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(bert, "base")
    Path("base/README.md").write_text("---\nlicense: mit\n---\n")
    Path("datasets.yaml").write_text(CATALOGUE)
    for name, count in (("mails", 20), ("faq", 4)):
        rows = [{"query": f"{name} {i}", "pos": [f"answer {i}"]} for i in range(count)]
        Path(f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    Path("recipe.yaml").write_text(RECIPE)
    assert main(["run", "recipe.yaml", "--out", "out", "--quiet"]) == 0
    return tmp_path / "out"


def test_origins_go_from_the_catalogue_through_steps_members_and_merges(
    finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert main(["publish", "--dry-run", str(finished / "again"), "--state", "3.2=none"]) == 0
    shown = capsys.readouterr().out
    assert "note: trained on personal data: mails; " in shown
    row = r"  \| mails \| (\d+) of (\d+) \| text \| de \| mit \| yes \| 2024 \|"
    (rows,) = re.findall(row, shown.partition("2.4. User data")[2])
    members = [
        json.loads((finished / f"members.draw={n}/artifact.json").read_text()) for n in (1, 2)
    ]
    used = [member["details"]["datasets"]["mails"] for member in members]
    bags = [
        np.load(finished / f"members.draw={n}" / facts["bag"]).tolist()
        for n, facts in enumerate(used, 1)
    ]
    assert rows == (str(len({row for bag in bags for row in bag})), str(used[0]["of"]))
    assert "  | faq | 4 | text | not stated | not stated | not stated | not stated |" in shown
    assert "  The publisher states: none\n" in shown
    assert "[training_data.md](training_data.md)" in shown
    assert re.search(r"^  training_data\.json +[\d.]+ k?B$", shown, re.MULTILINE)
