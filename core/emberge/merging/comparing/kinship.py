"""Words for how alike the changes of several models are: siblings, relatives or strangers."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["kinship_words"]

# Mean cosines of changes from a common base. Models trained on bags of the same data are above the first,
# models of one data set each below the second.
_SIBLINGS, _STRANGERS = 0.5, 0.2


def kinship_words(cosines: Sequence[float]) -> str:
    """Return a plain sentence on the cosines of models' changes, pair by pair; "" without any."""
    if not cosines:
        return ""
    mean = sum(cosines) / len(cosines)
    low, high = f"{min(cosines):.2f}", f"{max(cosines):.2f}"
    numbers = f"cosine of their changes {low if low == high else f'{low} to {high}'}"
    if mean >= _SIBLINGS:
        return f"siblings, {numbers}: a merge is close to their ensemble, and methods differ little"
    if mean < _STRANGERS:
        return (
            f"strangers, {numbers}: an average undoes part of what each learned, and methods matter"
        )
    return f"relatives, {numbers}: they changed partly alike"
