"""Recipes whose settings are not what their paper prints, or one of its readings, say so in their headers."""

from __future__ import annotations

import pytest
from emberge.recipes import list_shipped_recipes

from tests.support.printed import steps_of

# Recipes by the start of their names, what stands in their steps, and what their headers say then.
SAID = (
    ("boom/", "CoSENT(", "CoSENT, where the paper has InfoNCE for every task"),
    ("boom/paper", "MultiSlerp(", "eqs. 2 and 3 can be read of the whole model"),
    ("boom/paper", "Unanimous(", "eqs. 7 and 8"),
    ("boom/paper", "ModelStock(", "eq. 9"),
    ("codiemb/", "RankKL(", "eqs. 6 and 8 print sums"),
    ("codiemb/", "BatchShuffle(", "paper alternates between"),
    ("codiemb/", "LayerSoftmax(", "of several trainings"),
    ("codiemb/", "normalise='mean'", "by one mean, over"),
    ("moe/nomic_v2", "labelled", "Stackoverflow"),
    *((f"moe/{one}", "balance=1", "Eq. 1") for one in ("nomic_v2", "ablations", "multilingual")),
    *((f"bidirlm/{one}", "corpora/pairs", "negatives") for one in ("adapt", "omni", "rates")),
    *((f"bidirlm/{one}", "MNTP(", "Bi+MNTP") for one in ("adapt", "omni", "specialists")),
)


@pytest.mark.parametrize(("start", "setting", "words"), SAID)
def test_a_header_says_what_differs_from_the_print(start: str, setting: str, words: str) -> None:
    recipes = [name for name in list_shipped_recipes() if name.startswith(start)]
    having = [name for name in recipes if setting in repr([*steps_of(name).values()])]
    assert having
    for name in having:
        header = " ".join(list_shipped_recipes()[name].description.split())
        assert words in header, name
