"""Licence of a model made of others: the freest that all of theirs allow; no legal advice."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from emberge.model_folder import licence_limits

# Licences that ask for notices at most, from the freest on: of several, the last asks for what all ask for.
_FREE = (
    *("cc0-1.0", "unlicense", "wtfpl", "mit", "isc", "bsd-2-clause", "bsd", "bsd-3-clause"),
    *("zlib", "postgresql", "afl-3.0", "cdla-permissive-2.0", "cdla-permissive-1.0"),
    *("openmdw-1.1", "odc-by", "cc-by-2.0", "cc-by-2.5", "cc-by-3.0", "cc-by-4.0", "apache-2.0"),
)
_NC = ("cc-by-nc-2.0", "cc-by-nc-3.0", "cc-by-nc-4.0")
_NC_SA = ("cc-by-nc-sa-2.0", "cc-by-nc-sa-3.0", "cc-by-nc-sa-4.0")
_SA = ("cc-by-sa-3.0", "cc-by-sa-4.0")
# Licences that what is derived may have: each allows itself, and those behind it.
_BOUND: dict[str, tuple[str, ...]] = {
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
# Pairs (first, second): what is under the first cannot be taken into work under the second.
_CLASHES = {("apache-2.0", "gpl-2.0")}
# Licences by other names.
_ALIASES = {
    "apache-2": "apache-2.0",
    "apache2.0": "apache-2.0",
    "gpl": "gpl-3.0",
    "agpl": "agpl-3.0",
}


@dataclass(frozen=True, slots=True)
class Terms:
    """Licence that what is made of several models may have; None with a `problem`, their names and the fix.

    `own` is True for terms of an author's own, which only pass on as they are.
    """

    licence: str | None = None
    own: bool = False
    problem: str = ""


def joint_terms(licences: Mapping[str, str], wanted: str | None = None) -> Terms:
    """Return the licence of what is made of models, by their names and licences.

    `wanted` is a licence of the publisher's choice, which has to be one that all of them allow.
    """
    plain = {name: _normalise_name(licence) for name, licence in licences.items()}
    if not plain:
        if wanted is None:
            return Terms(
                problem="goes back to no other model; choose its licence with --licence ID"
            )
        return Terms(_normalise_name(wanted), own=_is_own(_normalise_name(wanted)))
    for name, licence in plain.items():
        if problem := _find_problem(name, licence):
            return Terms(problem=problem)
    allowed = _find_common(plain)
    if not allowed:
        return Terms(problem=_describe_conflict(plain))
    if wanted is None:
        return Terms(allowed[0], own=_is_own(allowed[0]))
    if _normalise_name(wanted) not in allowed:
        against = next(
            n for n, one in plain.items() if _normalise_name(wanted) not in _list_allowed(one)
        )
        return Terms(
            problem=f"licence '{wanted}' is not open to what is made of '{against}' ({plain[against]}); "
            f"{allowed[0]} is"
        )
    return Terms(_normalise_name(wanted), own=_is_own(_normalise_name(wanted)))


def _normalise_name(licence: str) -> str:
    flat = licence.strip().lower()
    return _ALIASES.get(flat, flat)


def _is_own(licence: str) -> bool:
    return licence not in _FREE and licence not in _BOUND


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
    """Return the licences that what is derived may have, the freest first."""
    if licence in _FREE:
        stricter = [one for one in _BOUND if (licence, one) not in _CLASHES]
        return (*_FREE[_FREE.index(licence) :], *stricter)
    return _BOUND.get(licence, (licence,))


def _find_common(plain: Mapping[str, str]) -> list[str]:
    """Return the licences that all allow, the freest first."""
    stated = list(dict.fromkeys(plain.values()))
    own = [one for one in stated if _is_own(one)]
    known = [_list_allowed(one) for one in stated if not _is_own(one)]
    if own:  # only what asks for no licence of its own fits under an author's terms
        fits = len(own) == 1 and all(one in _FREE for one in stated if not _is_own(one))
        return own if fits else []
    return [one for one in known[0] if all(one in others for others in known)] if known else []


def _describe_conflict(plain: Mapping[str, str]) -> str:
    """Name the first two of the models that exclude each other; licences of this table do it in pairs."""
    pairs: Iterator[tuple[str, str]] = (
        (one, other)
        for i, one in enumerate(plain)
        for other in list(plain)[:i]
        if not _find_common({one: plain[one], other: plain[other]})
    )
    one, other = next(pairs)
    return (
        f"'{other}' ({plain[other]}) and '{one}' ({plain[one]}) exclude each other: no licence keeps the "
        "terms of both; leave one of them out, or get another licence from its authors"
    )
