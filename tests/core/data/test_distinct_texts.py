from __future__ import annotations

from pathlib import Path

from emberge.data import DistinctTexts
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st


@given(st.lists(st.text(max_size=5), max_size=30))
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_texts_are_in_the_order_of_their_first(tmp_path: Path, given: list[str]) -> None:
    texts = DistinctTexts(iter(given), tmp_path)
    assert list(texts) == list(dict.fromkeys(given))
    assert [texts[int(place)] for place in texts.places] == given
    assert texts[1:3] == list(dict.fromkeys(given))[1:3]


def test_half_a_surrogate_pair_is_a_text(tmp_path: Path) -> None:
    assert list(DistinctTexts(["\ud800", "a", "\ud800"], tmp_path)) == ["\ud800", "a"]
    assert not list(tmp_path.iterdir())
