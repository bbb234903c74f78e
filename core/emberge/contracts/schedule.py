"""Numbers that vary: over depth, over tensors by name, over models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from emberge.contracts.option import is_sound_number

Number = int | float


@dataclass(frozen=True, slots=True)
class FilteredValue:
    """A value for the tensors whose name contains `filter`, or for all tensors if it is None."""

    value: float | tuple[float, ...]
    filter: str | None = None


class PerTensor:
    """A number, a list over depth, or a list of `{filter, value}`; the first filter that fits wins.

    A list is interpolated over the layers: layer l of L reads the list at x = (m - 1) · l / (L - 1), where m
    is the list's length. Tensors outside the layers use x = 0, the convention of merging methods.

    Raises:
        ValueError: if a value is outside `within`, not finite or of another form, if a list is empty, or if
            an entry follows an entry that matches every tensor.
    """

    __slots__ = ("entries", "within")

    def __init__(
        self, value: Number | Sequence[Any] = 0.0, *, within: tuple[float, float] | None = None
    ) -> None:
        self.within = within
        self.entries = _parse_entries(value)
        for entry in self.entries:
            numbers = entry.value if isinstance(entry.value, tuple) else (entry.value,)
            for number in numbers:
                if within and not within[0] <= number <= within[1]:
                    raise ValueError(f"{number:g} lies outside {within[0]:g} to {within[1]:g}")

    def at(self, name: str, depth: float, default: float | None = None) -> float:
        """Return the number for the tensor `name` at a relative `depth` from 0 (first layer) to 1 (last).

        Raises:
            ValueError: if no filter fits and there is no default.
        """
        fitting_values = (e.value for e in self.entries if e.filter is None or e.filter in name)
        value = next(fitting_values, default)
        if value is None:
            raise ValueError(f"no filter fits the tensor '{name}'; end the list with a plain value")
        if not isinstance(value, tuple):
            return value
        x = (len(value) - 1) * depth
        lower = min(int(x), len(value) - 1)
        upper = min(lower + 1, len(value) - 1)
        return value[lower] + (x - lower) * (value[upper] - value[lower])

    @property
    def filters(self) -> tuple[str, ...]:
        """The filters of all entries, so that a filter that matches nothing can be reported."""
        return tuple(e.filter for e in self.entries if e.filter is not None)

    def times(self, factor: float) -> PerTensor:
        """Return the schedule with every value multiplied by `factor`."""
        return PerTensor(
            [FilteredValue(_scale_value(e.value, factor), e.filter) for e in self.entries]
        )

    def plain(self) -> Any:
        """Return the value as written in YAML."""
        entries: list[dict[str, Any]] = []
        for entry in self.entries:
            value = list(entry.value) if isinstance(entry.value, tuple) else entry.value
            filters = {} if entry.filter is None else {"filter": entry.filter}
            entries.append({**filters, "value": value})
        return entries[0]["value"] if len(entries) == 1 and "filter" not in entries[0] else entries

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self.entries == other.entries

    def __hash__(self) -> int:
        return hash(self.entries)

    def __repr__(self) -> str:
        return f"{self.plain()}"


class PerModel(PerTensor):
    """A PerTensor that each model of a merge may override: `options: {trim: {density: 0.7}}`."""

    __slots__ = ()


def _parse_entries(value: Any) -> tuple[FilteredValue, ...]:
    if isinstance(value, PerTensor):
        return value.entries
    if is_sound_number(value):
        return (FilteredValue(float(value)),)
    if not isinstance(value, Sequence) or isinstance(value, str) or not value:
        raise ValueError(
            f"needs a number, a list of numbers or a list of {{filter, value}}, not {value!r}"
        )
    if all(isinstance(v, Mapping | FilteredValue) for v in value):
        entries = tuple(v if isinstance(v, FilteredValue) else _parse_entry(v) for v in value)
        if any(entry.filter is None for entry in entries[:-1]):
            raise ValueError(
                "the first filter that fits wins, so an entry for all tensors stands last"
            )
        return entries
    return (FilteredValue(_parse_numbers(value)),)


def _parse_entry(entry: Mapping[str, Any]) -> FilteredValue:
    unknown = set(entry) - {"filter", "value"}
    if unknown or "value" not in entry:
        raise ValueError(f"an entry has 'value' and maybe 'filter', not {dict(entry)!r}")
    value, filter_ = entry["value"], entry.get("filter")
    if filter_ is not None and not (isinstance(filter_, str) and filter_):
        raise ValueError(f"a filter is a part of a tensor's name, not {filter_!r}")
    numbers = float(value) if is_sound_number(value) else _parse_numbers(value)
    return FilteredValue(numbers, None if filter_ == "*" else filter_)


def _parse_numbers(value: Any) -> tuple[float, ...]:
    if isinstance(value, str) or not isinstance(value, Sequence) or not value:
        raise ValueError(f"needs numbers, not {value!r}")
    if not all(is_sound_number(v) for v in value):
        raise ValueError(f"needs numbers, not {list(value)!r}")
    return tuple(float(v) for v in value)


def _scale_value(value: float | tuple[float, ...], factor: float) -> float | tuple[float, ...]:
    return tuple(v * factor for v in value) if isinstance(value, tuple) else value * factor
