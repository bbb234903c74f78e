"""Licences of parents together: the freest that all allow, and what excludes what."""

from __future__ import annotations

import itertools

import pytest
from emberge_publish.licences import Terms, joint_terms

# As hubs write them: those that ask for notices at most, the freest first, and what is derived from the
# others may be under.
FREE = (
    *("cc0-1.0", "unlicense", "wtfpl", "mit", "isc", "bsd-2-clause", "bsd", "bsd-3-clause", "zlib"),
    *(
        "postgresql",
        "afl-3.0",
        "cdla-permissive-2.0",
        "cdla-permissive-1.0",
        "openmdw-1.1",
        "odc-by",
    ),
    *("cc-by-2.0", "cc-by-2.5", "cc-by-3.0", "cc-by-4.0", "apache-2.0"),
)
BOUND = {
    "cc-by-nc-2.0": "cc-by-nc-3.0 cc-by-nc-4.0 cc-by-nc-sa-2.0 cc-by-nc-sa-3.0 cc-by-nc-sa-4.0",
    "cc-by-nc-3.0": "cc-by-nc-4.0 cc-by-nc-sa-3.0 cc-by-nc-sa-4.0",
    "cc-by-nc-4.0": "cc-by-nc-sa-4.0",
    "cc-by-nc-sa-2.0": "cc-by-nc-sa-3.0 cc-by-nc-sa-4.0",
    "cc-by-nc-sa-3.0": "cc-by-nc-sa-4.0",
    "cc-by-nc-sa-4.0": "",
    "cc-by-sa-3.0": "cc-by-sa-4.0",
    "cc-by-sa-4.0": "gpl-3.0",
    "mpl-2.0": "lgpl-3.0 gpl-3.0 agpl-3.0",
    "eupl-1.2": "gpl-3.0 agpl-3.0",
    "lgpl-2.1": "lgpl-3.0 gpl-2.0 gpl-3.0 agpl-3.0",
    "lgpl-3.0": "gpl-3.0 agpl-3.0",
    "gpl-2.0": "",
    "gpl-3.0": "agpl-3.0",
    "agpl-3.0": "",
    "odbl": "",
    "cdla-sharing-1.0": "",
}
ALL = [*FREE, *BOUND, "gemma"]


def together(*licences: str) -> str | None:
    return joint_terms({f"parent {n}": one for n, one in enumerate(licences)}).licence


@pytest.mark.parametrize(
    ("parents", "result"),
    [
        (["mit"], "mit"),
        (["mit", "apache-2.0"], "apache-2.0"),
        (["MIT", "Apache-2.0", "cc0-1.0"], "apache-2.0"),
        (["cc-by-4.0", "mit"], "cc-by-4.0"),
        (["mit", "cc-by-nc-4.0"], "cc-by-nc-4.0"),  # what is not commercial spreads
        (["cc-by-nc-3.0", "cc-by-nc-4.0"], "cc-by-nc-4.0"),
        (["cc-by-nc-4.0", "cc-by-nc-sa-4.0"], "cc-by-nc-sa-4.0"),
        (["mit", "cc-by-sa-4.0"], "cc-by-sa-4.0"),
        (["cc-by-sa-3.0", "cc-by-sa-4.0"], "cc-by-sa-4.0"),
        (["cc-by-sa-4.0", "gpl-3.0"], "gpl-3.0"),  # the one way that is open
        (["lgpl-3.0", "apache-2.0"], "lgpl-3.0"),
        (["gpl-3.0", "agpl-3.0"], "agpl-3.0"),
        (["gemma", "apache-2.0"], "gemma"),
    ],
)
def test_a_merge_has_the_freest_licence_that_all_parents_allow(
    parents: list[str], result: str
) -> None:
    assert together(*parents) == result
    assert together(*reversed(parents)) == result


def test_each_licence_allows_those_that_keep_to_its_terms() -> None:
    for i, one in enumerate(FREE):
        allowed = {*FREE[i:], *BOUND} - ({"gpl-2.0"} if one == "apache-2.0" else set())
        assert {other for other in ALL if joint_terms({"./one": one}, other).licence} == allowed
        assert joint_terms({"./one": one}) == Terms(one)
    for one, others in BOUND.items():
        fits = {other for other in ALL if joint_terms({"./one": one}, other).licence}
        assert fits == {one, *others.split()}
        assert joint_terms({"./one": one}) == Terms(one)


@pytest.mark.parametrize(
    ("written", "licence"),
    [
        (" Apache-2 ", "apache-2.0"),
        ("apache2.0", "apache-2.0"),
        ("GPL", "gpl-3.0"),
        ("agpl", "agpl-3.0"),
    ],
)
def test_a_licence_by_another_name_is_the_same(written: str, licence: str) -> None:
    assert joint_terms({"./one": written}) == Terms(licence)
    assert joint_terms({"./one": licence}, written) == Terms(licence)
    assert joint_terms({}, written) == Terms(licence)


@pytest.mark.parametrize(
    "parents",
    [
        ("cc-by-sa-4.0", "cc-by-nc-4.0"),
        ("cc-by-sa-4.0", "cc-by-nc-sa-4.0"),
        ("gpl-3.0", "cc-by-nc-4.0"),
        ("gpl-2.0", "apache-2.0"),
        ("gpl-2.0", "gpl-3.0"),
        ("gemma", "llama3.1"),
        ("gemma", "gpl-3.0"),
    ],
)
def test_licences_that_exclude_each_other_are_named_with_their_parents(
    parents: tuple[str, str],
) -> None:
    found = joint_terms({"./one": parents[0], "./free": "mit", "./two": parents[1]})
    assert found.licence is None
    for word in ("'./one'", "'./two'", *parents, "leave one of them out"):
        assert word in found.problem
    assert "./free" not in found.problem


@pytest.mark.parametrize("licence", ["cc-by-nd-4.0", "cc-by-nc-nd-4.0"])
def test_no_derivatives_forbids_a_merge(licence: str) -> None:
    found = joint_terms({"./free": "mit", "./closed": licence})
    assert found.licence is None
    assert "'./closed'" in found.problem
    assert "leave it out" in found.problem


@pytest.mark.parametrize("licence", ["other", "unknown", "not specified", "mit, gpl-3.0"])
def test_terms_that_a_card_does_not_name_have_to_be_stated(licence: str) -> None:
    found = joint_terms({"./free": "mit", "./odd": licence})
    assert found == Terms(problem=found.problem)
    assert "'./odd'" in found.problem
    assert "--licence-of ./odd=" in found.problem


def test_a_stricter_licence_may_be_chosen_and_a_freer_one_may_not() -> None:
    parents = {"./one": "mit", "./two": "apache-2.0"}
    assert joint_terms(parents, "gpl-3.0").licence == "gpl-3.0"
    refused = joint_terms(parents, "mit")
    assert refused.licence is None
    assert "'./two' (apache-2.0)" in refused.problem
    assert refused.problem.endswith("apache-2.0 is")
    assert joint_terms({"./one": "gemma"}, "Gemma") == Terms("gemma", own=True)


def test_the_order_of_parents_does_not_matter_and_a_third_never_frees() -> None:
    for one, other in itertools.combinations(ALL, 2):
        pair = together(one, other)
        assert pair == together(other, one)
        assert together(one, other, one) == pair
        if pair is None:
            assert together(one, other, "mit") is None


def test_licences_that_fit_in_pairs_fit_together() -> None:
    fits = {pair: together(*pair) for pair in itertools.combinations(ALL, 2)}
    for one, two, three in itertools.combinations(ALL, 3):
        if fits[one, two] and fits[two, three] and fits[one, three]:
            assert together(one, two, three)


def test_what_goes_back_to_nothing_needs_a_choice() -> None:
    assert "--licence" in joint_terms({}).problem
    assert joint_terms({}).licence is None
    assert joint_terms({}, "mit") == Terms("mit")
    assert joint_terms({}, "acme-terms") == Terms("acme-terms", own=True)


def test_an_authors_own_terms_are_marked_as_such() -> None:
    assert joint_terms({"./one": "gemma"}).own
    assert not joint_terms({"./one": "mit"}).own


def test_the_reason_of_a_licence_is_its_rule_and_the_ancestor_it_comes_from() -> None:
    free, copyleft, own = ("mit", "./one"), ("cc-by-sa-4.0", "./two"), ("gemma", "./three")
    assert "freest" in joint_terms({"./a": "mit", "./one": "apache-2.0"}).reason
    for licence, name in (free, copyleft, own):
        assert f"'{name}'" in joint_terms({"./free": "cc0-1.0", name: licence}).reason
    neither = joint_terms({"./one": "cc-by-sa-4.0", "./two": "lgpl-3.0"})
    assert (neither.licence, "'" in neither.reason) == ("gpl-3.0", False)
    assert "publisher" in joint_terms({"./one": "mit"}, "apache-2.0").reason
    assert "publisher" in joint_terms({}, "mit").reason
