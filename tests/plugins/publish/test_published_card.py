"""The card of a published model: what is known of its ancestors, and what is not."""

from __future__ import annotations

from emberge.engine import Parent, Trained
from emberge_publish.ancestors import Ancestors
from emberge_publish.licences import Terms
from emberge_publish.published_card import overlap_of, published_card

BASE = Parent("acme/base", revision="v2", licence="mit", bases=("acme/base",), card=True)
OWN = Parent("/some/place/ft", licence="mit", bases=("acme/base",), card=True)
TASKS = {"acme/base": frozenset({"NQ", "MSMARCO"}), "/some/place/ft": frozenset({"NQ"})}
CARD = """---
license: unknown
license_name: old
model-index:
- name: soup
  results: []
---

# soup

```python
model = SentenceTransformer("soup", trust_remote_code=True)  # the path of this folder, or its hub id
## Licence
```

## Licence

of before

## Limits

- few
"""


def card(*models: Parent, data: tuple[Trained, ...] = (), scored: tuple[str, ...] = ()) -> str:
    return published_card(
        CARD, "me/fine", Ancestors(models, data, True), Terms("mit"), TASKS, scored
    )


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


def test_what_the_run_wrote_stays_but_for_the_name_and_the_licence() -> None:
    text = card(BASE)
    assert 'SentenceTransformer("me/fine", trust_remote_code=True)\n## Licence\n```' in text
    assert "of before" not in text
    assert "## Limits\n\n- few" in text
    assert "license: mit" in text
    assert "license_name" not in text
    assert "- name: fine" in text


def test_a_model_without_a_card_gets_one() -> None:
    text = published_card("", "me/fine", Ancestors((BASE,)), Terms("mit"), TASKS, ())
    assert "# fine" in text
    assert "base_model_relation: finetune" in text


def test_data_of_the_run_is_named_and_linked_only_where_it_is_a_hubs() -> None:
    text = card(BASE, data=(Trained("pairs"), Trained("acme/pairs", licence="mit")))
    assert "- the run that made this model: pairs, acme/pairs" in text
    assert "datasets:\n- acme/pairs\n" in text
    assert "Unknown for the data pairs." in text
