"""Choice of a derived model's licence: the freest that all parents allow; no legal advice."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from emberge.model_folder import licence_limits

# Licences that only ask for notices, the freest first: each asks for all that the licences before it ask for.
_PERMISSIVE = (
    *("cc0-1.0", "unlicense", "wtfpl", "mit", "isc", "bsd-2-clause", "bsd", "bsd-3-clause"),
    *("zlib", "postgresql", "afl-3.0", "cdla-permissive-2.0", "cdla-permissive-1.0"),
    *("openmdw-1.1", "odc-by", "cc-by-2.0", "cc-by-2.5", "cc-by-3.0", "cc-by-4.0", "apache-2.0"),
)
_NC = ("cc-by-nc-2.0", "cc-by-nc-3.0", "cc-by-nc-4.0")
_NC_SA = ("cc-by-nc-sa-2.0", "cc-by-nc-sa-3.0", "cc-by-nc-sa-4.0")
_SA = ("cc-by-sa-3.0", "cc-by-sa-4.0")
# Licences that a derived work may have: each licence allows itself and the licences listed for it.
_COPYLEFT: dict[str, tuple[str, ...]] = {
    **{name: (*_NC[i:], *_NC_SA[i:]) for i, name in enumerate(_NC)},
    **{name: _NC_SA[i:] for i, name in enumerate(_NC_SA)},
    "cc-by-sa-3.0": _SA,
    "cc-by-sa-4.0": ("cc-by-sa-4.0", "gpl-3.0"),
    "mpl-2.0": ("mpl-2.0", "lgpl-3.0", "gpl-3.0", "agpl-3.0"),
    "eupl-1.2": ("eupl-1.2", "gpl-3.0", "agpl-3.0"),
    "lgpl-2.1": ("lgpl-2.1", "lgpl-3.0", "gpl-2.0", "gpl-3.0", "agpl-3.0"),
    "lgpl-3.0": ("lgpl-3.0", "gpl-3.0", "agpl-3.0"),
    "gpl-2.0": ("gpl-2.0",),
    "gpl-3.0": ("gpl-3.0", "agpl-3.0"),
    "agpl-3.0": ("agpl-3.0",),
    "odbl": ("odbl",),
    "cdla-sharing-1.0": ("cdla-sharing-1.0",),
}
# Pairs (first, second): work under the first licence cannot become part of work under the second.
_CONFLICTS = {("apache-2.0", "gpl-2.0")}
# Licences by other names.
_ALIASES = {
    "apache-2": "apache-2.0",
    "apache2.0": "apache-2.0",
    "gpl": "gpl-3.0",
    "agpl": "agpl-3.0",
}


@dataclass(frozen=True, slots=True)
class Terms:
    """Licence that a derived model may have, or None with a `problem` that names models and remedy.

    `own` is True for an author's own terms, which a derived model must keep unchanged. `reason` is the rule
    by which the licence was chosen.
    """

    licence: str | None = None
    own: bool = False
    problem: str = ""
    reason: str = field(default="", compare=False)


def joint_terms(licences: Mapping[str, str], wanted: str | None = None) -> Terms:
    """Return the licence of a model derived from models with these licences (by name).

    `wanted` is the publisher's choice, which all of the licences must allow.
    """
    licence_by_model = {name: _normalise_name(licence) for name, licence in licences.items()}
    if not licence_by_model:
        if wanted is None:
            return Terms(
                problem="goes back to no other model; choose its licence with --licence ID"
            )
        return _build_terms(
            wanted, "the publisher's choice, as the model goes back to no other model"
        )
    for name, licence in licence_by_model.items():
        if problem := _find_problem(name, licence):
            return Terms(problem=problem)
    allowed = _find_common(licence_by_model)
    if not allowed:
        return Terms(problem=_describe_conflict(licence_by_model))
    if wanted is None:
        return _build_terms(allowed[0], _explain_default(allowed[0], licence_by_model))
    if _normalise_name(wanted) not in allowed:
        conflicting_model = next(
            n
            for n, one in licence_by_model.items()
            if _normalise_name(wanted) not in _list_allowed(one)
        )
        return Terms(
            problem=f"licence '{wanted}' is not open to what is made of '{conflicting_model}' "
            f"({licence_by_model[conflicting_model]}); {allowed[0]} is"
        )
    return _build_terms(wanted, "the publisher's choice, which the licences of all ancestors allow")


def _build_terms(licence: str, reason: str) -> Terms:
    name = _normalise_name(licence)
    return Terms(name, own=_is_own(name), reason=reason)


def _explain_default(licence: str, licence_by_model: Mapping[str, str]) -> str:
    """Return the reason for a licence that nobody chose; names an ancestor that has it, if one has."""
    source = next((name for name, stated in licence_by_model.items() if stated == licence), None)
    if _is_own(licence):
        return f"terms of an author's own, of '{source}', which pass on unchanged"
    reason = "the freest licence that the licences of all ancestors allow"
    return f"{reason}; it is that of '{source}'" if source else reason


def _normalise_name(licence: str) -> str:
    name = licence.strip().lower()
    return _ALIASES.get(name, name)


def _is_own(licence: str) -> bool:
    return licence not in _PERMISSIVE and licence not in _COPYLEFT


def _find_problem(name: str, licence: str) -> str:
    limits = licence_limits(licence)
    if "nd" in limits:
        return (
            f"'{name}' is under {licence}, which forbids sharing what is derived from it; leave it out, or "
            "get another licence from its authors"
        )
    if "own" in limits:
        return (
            f"'{name}' is under terms of its own that its card does not name ('{licence}'); read them, and "
            f"state them with --licence-of {name}=NAME"
        )
    if ", " in licence:
        return (
            f"'{name}' names several licences ({licence}); choose one with --licence-of {name}=NAME"
        )
    return ""


def _list_allowed(licence: str) -> Sequence[str]:
    """Return the licences that a derived work may have, the freest first."""
    if licence in _PERMISSIVE:
        stricter_licences = [other for other in _COPYLEFT if (licence, other) not in _CONFLICTS]
        return (*_PERMISSIVE[_PERMISSIVE.index(licence) :], *stricter_licences)
    return _COPYLEFT.get(licence, (licence,))


def _find_common(licence_by_model: Mapping[str, str]) -> list[str]:
    """Return the licences that all models allow, the freest first."""
    different_licences = list(dict.fromkeys(licence_by_model.values()))
    own_terms = [name for name in different_licences if _is_own(name)]
    allowed_lists = [_list_allowed(name) for name in different_licences if not _is_own(name)]
    if own_terms:  # only what asks for no licence of its own fits under an author's terms
        fits = len(own_terms) == 1 and all(
            name in _PERMISSIVE for name in different_licences if not _is_own(name)
        )
        return own_terms if fits else []
    return (
        [name for name in allowed_lists[0] if all(name in others for others in allowed_lists)]
        if allowed_lists
        else []
    )


def _describe_conflict(licence_by_model: Mapping[str, str]) -> str:
    """Return a message on the first two models whose licences exclude each other."""
    pairs: Iterator[tuple[str, str]] = (
        (second, first)
        for i, second in enumerate(licence_by_model)
        for first in list(licence_by_model)[:i]
        if not _find_common({second: licence_by_model[second], first: licence_by_model[first]})
    )
    second, first = next(pairs)
    return (
        f"'{first}' ({licence_by_model[first]}) and '{second}' ({licence_by_model[second]}) exclude each "
        "other: no licence keeps the terms of both; leave one of them out, or get another licence from "
        "its authors"
    )
