"""The summary of training data: its sections, what is stated in them, and what is not."""

from __future__ import annotations

import json

import pytest
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
