"""The part of a safetensors header that names how a file came about; loads no torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

HEADER = "emberge"
"""The key of a safetensors header under which the provenance is kept, as JSON."""

_PACKAGES = ("emberge", "torch", "transformers", "safetensors")


def versions() -> dict[str, str]:
    """Return the versions of the packages that a result's bytes may depend on, without importing them."""
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def header_texts(provenance: Mapping[str, Any]) -> dict[str, str]:
    """Return provenance as a header has it: text by key, and our part with the versions of packages.

    Values that are no text become JSON.
    """
    ours = provenance.get(HEADER, {})
    if isinstance(ours, Mapping):
        provenance = {**provenance, HEADER: {**ours, "versions": ours.get("versions", versions())}}
    return {
        key: value if isinstance(value, str) else json.dumps(value, default=str)
        for key, value in provenance.items()
    }


def read_provenance(metadata: Mapping[str, str]) -> dict[str, Any] | None:
    """Parse the provenance in a header's metadata; None when it is not of ours or damaged."""
    try:
        found = json.loads(metadata.get(HEADER, ""))
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
