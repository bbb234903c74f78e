"""The card of a published model: what is known of its ancestors, and what is not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import yaml
from emberge import EmbergeError
from emberge.contracts import DataOrigin
from emberge.documents import BulletList, Card, Section, draw_card
from emberge.results import Parent, Trained
from emberge_publish.ancestors import Ancestors
from emberge_publish.licences import Terms
from emberge_publish.published_card import authors_card, overlap_of, published_card

BASE = Parent("acme/base", revision="v2", licence="mit", bases=("acme/base",), card=True)
OWN = Parent("/some/place/ft", licence="mit", bases=("acme/base",), card=True)
TASKS = {"acme/base": frozenset({"NQ", "MSMARCO"}), "/some/place/ft": frozenset({"NQ"})}
CARD = Card(
    "fine",
    ["A model."],
    [Section("Licence", ["of before"]), Section("Limits", [BulletList(["few"])])],
    {"license": "unknown", "license_name": "old", "model-index": [{"name": "fine"}]},
)


def drawn(
    card: Card, ancestors: Ancestors, terms: Terms, tasks: Any = TASKS, scored: Sequence[str] = ()
) -> str:
    return draw_card(published_card(card, ancestors, terms, tasks, scored))


def card(*models: Parent, data: tuple[Trained, ...] = (), scored: tuple[str, ...] = ()) -> str:
    return drawn(CARD, Ancestors(models, data, True, outside=models), Terms("mit"), scored=scored)


def test_overlap_is_by_task_with_the_ancestors_that_saw_it() -> None:
    assert overlap_of(TASKS, ["NQ", "STS12"]) == {"NQ": ["acme/base", "/some/place/ft"]}
    assert overlap_of({"acme/base": None}, ["NQ"]) == {}


def test_a_hubs_model_has_its_register_and_a_folder_only_that_of_what_it_was_made_of() -> None:
    text = card(BASE, OWN, scored=("NQ",))
    assert "- acme/base: trained on 2 of mteb's test sets: MSMARCO, NQ" in text
    assert "- ft: unknown for its own training data; through acme/base it saw NQ" in text
    assert "Scored above, and trained on by an ancestor: NQ." in text
    unknown = Parent("acme/other", licence="mit", bases=("acme/other",), card=True)
    assert "- acme/other: unknown" in card(unknown)


def test_nothing_of_a_folders_place_is_in_the_lineage() -> None:
    assert "/some/place" not in card(BASE, OWN)


def test_what_the_run_wrote_stays_but_for_the_licence() -> None:
    text = card(BASE)
    assert text.count("\n## Licence\n") == 1
    assert "of before" not in text
    assert "## Limits\n\n- few" in text
    assert "license: mit" in text
    assert "license_name" not in text
    assert "- name: fine" in text


def test_a_model_without_a_card_gets_one() -> None:
    text = drawn(Card("fine"), Ancestors((BASE,), outside=(BASE,)), Terms("mit"))
    assert "# fine" in text
    assert "base_model_relation: finetune" in text


def test_data_of_the_run_is_named_and_linked_only_where_it_is_a_hubs() -> None:
    text = card(
        BASE, data=(Trained("pairs"), Trained("acme/pairs", origin=DataOrigin(licence="mit")))
    )
    assert "- the runs behind this model: pairs, acme/pairs" in text
    assert "datasets:\n- acme/pairs\n" in text
    assert "Unknown for the data pairs." in text


WHOLE = """---
author: Jürgen
license: other
license_name: acme-terms
base_model:
- acme/base
base_model_relation: merge
datasets:
- acme/pairs
- acme/nli
library_name: sentence-transformers
---

# soup

x = SentenceTransformer("soup")
# of the author

## Lineage

| It goes back to | Revision | Licence |
| --- | --- | --- |
| [acme/base](https://hub/acme/base) | v2 | mit |
| ft | – | acme-terms (as the publisher states) |
| plain | – | unknown |

ft was made of acme/base, as its card states.

## Training data of the ancestors

- [acme/base](https://hub/acme/base): acme/nli, acme/pairs
- ft: unknown: its card names none
- plain: unknown: it has no card that can be found
- the runs behind this model: acme/pairs, mine, no id/

[training_data.md](training_data.md) has the rows, licence, source and personal data of each set.

## Overlap with test sets

- [acme/base](https://hub/acme/base): trained on 2 of mteb's test sets: MSMARCO, NQ
- ft: unknown for its own training data; through acme/base it saw NQ
- plain: unknown for its own training data

Scored above, and trained on by an ancestor: MSMARCO, NQ.

## Licence

acme-terms, which keeps to those of:

- acme/base: mit
- ft: acme-terms
- mine: cc0-1.0

Unknown for the data acme/pairs, no id/.

This was gathered from cards and is no legal advice: check the licences of all parents and of all data \
yourself.
"""


def test_a_card_has_all_that_is_known_in_its_places() -> None:
    base = Parent(
        "acme/base",
        revision="v2",
        link="https://hub/acme/base",
        licence="mit",
        bases=("acme/base",),
        datasets=("acme/nli", "acme/pairs"),
        card=True,
    )
    own = Parent("./ft", licence="acme-terms", bases=("acme/base",), card=True)
    data = (
        Trained("acme/pairs"),
        Trained("mine", origin=DataOrigin(licence="cc0-1.0")),
        Trained("no id/"),
    )
    models = (base, own, Parent("~/plain"))
    ancestors = Ancestors(models, data, True, ("./ft",), models)
    tasks = {"acme/base": {"NQ", "MSMARCO"}, "./ft": ["NQ"], "~/plain": None}
    text = """---
author: Jürgen
license: mit
license_link: old
---
# soup

x = SentenceTransformer("soup")
# of the author
"""
    terms = Terms("acme-terms", own=True)
    made = drawn(authors_card(text), ancestors, terms, tasks, ["NQ", "STS12", "MSMARCO"])
    assert made == WHOLE


def test_a_model_of_nothing_known_has_a_card_of_its_own() -> None:
    assert (
        drawn(Card("fine", ["An embedding model."]), Ancestors(()), Terms("mit"), {})
        == """---
license: mit
library_name: sentence-transformers
---

# fine

An embedding model.

## Lineage

| It goes back to | Revision | Licence |
| --- | --- | --- |

## Training data of the ancestors

- the runs behind this model: no training

[training_data.md](training_data.md) has the rows, licence, source and personal data of each set.

## Overlap with test sets

## Licence

mit, which keeps to those of:

This was gathered from cards and is no legal advice: check the licences of all parents and of all data \
yourself.
"""
    )


@pytest.mark.parametrize(
    "licence", ["gemma", "llama3.1", "creativeml-openrail-m", "deepfloyd-if-license", "etalab-2.0"]
)
def test_terms_that_hubs_know_are_named_by_their_id(licence: str) -> None:
    text = drawn(Card(), Ancestors(()), Terms(licence, own=True), {})
    assert yaml.safe_load(text.split("---\n")[1]) == {
        "license": licence,
        "library_name": "sentence-transformers",
    }


def test_what_a_card_states_of_its_making_stays() -> None:
    text = "---\nbase_model_relation: adapter\nlibrary_name: peft\n---\n# a"
    made = drawn(authors_card(text), Ancestors((BASE,), outside=(BASE,)), Terms("mit"), {})
    assert "base_model_relation: adapter\nlibrary_name: peft\n" in made
    assert "- acme/base: unknown: mteb's register lists no training data of it" in made
    listed = authors_card("--- \n- a\n---")
    none = drawn(listed, Ancestors((BASE,), outside=(BASE,)), Terms("mit"), {BASE.name: []})
    assert none.startswith("---\nlicense: mit\n")
    assert "- acme/base: mteb's register lists none of its test sets" in none
    with pytest.raises(EmbergeError, match=r"(?s)README\.md: .*front matter.*mend it"):
        authors_card("---\na: [\n---\n")


def test_what_an_author_wrote_is_not_edited() -> None:
    body = "# a\n\n   ~~~yaml\n```\n## Lineage\n~~~~\n\n##  Licence\n\nmine, *all* of it"
    made = drawn(authors_card(body), Ancestors(()), Terms("mit"), {})
    assert f"---\n\n{body}\n\n## Lineage\n" in made


def test_an_authors_language_that_yaml_takes_for_a_truth_value_stays_text() -> None:
    front = authors_card("---\nlanguage: [no, en]\ngated: true\n---\n").front
    assert front == {"language": ["no", "en"], "gated": True}
