"""The datasets of each short training: those of a cluster, or a single one."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from emberge import DataEntry, DataError, suggest
from emberge.data import one_by_one

# Data entries of a group by the labels of their datasets.
Group = Mapping[str, DataEntry]


def group_datasets(
    data: Sequence[DataEntry],
    clusters: Mapping[str, Sequence[str]],
    shares: Mapping[str, float],
) -> dict[str, Group]:
    """Return the groups by name; `shares`, if there are any, name all of them.

    Raises:
        DataError: if the datasets cannot be known, or clusters or shares do not fit them.
    """
    entries = one_by_one(data)
    _check_clusters(clusters, entries)
    clustered = {name for names in clusters.values() for name in names}
    groups: dict[str, Group] = {
        cluster: {name: entries[name] for name in names} for cluster, names in clusters.items()
    }
    groups |= {name: {name: entries[name]} for name in entries if name not in clustered}
    for name in shares:
        if name not in groups:
            raise DataError(f"shares: there is no '{name}'{suggest(name, groups)}")
    if missing := [name for name in groups if shares and name not in shares]:
        raise DataError(
            f"shares: {', '.join(missing)} has none; give it one, or leave it out of `data`"
        )
    return groups


def _check_clusters(
    clusters: Mapping[str, Sequence[str]], entries: Mapping[str, DataEntry]
) -> None:
    """Require that clusters name datasets, each of them once."""
    named = [name for names in clusters.values() for name in names]
    for cluster, names in clusters.items():
        if not re.fullmatch(r"[\w.-]+", cluster):
            raise DataError(
                f"clusters: '{cluster}' has other characters than letters, digits, . _ -"
            )
        if not names:
            raise DataError(f"clusters: '{cluster}' names no dataset")
        if cluster in entries and cluster not in named:
            raise DataError(f"clusters: '{cluster}' is the name of a dataset; choose another")
    for name in named:
        if name not in entries:
            raise DataError(f"clusters: there is no dataset '{name}'{suggest(name, entries)}")
        if named.count(name) > 1:
            raise DataError(f"clusters: '{name}' is in two clusters, or twice in one")
