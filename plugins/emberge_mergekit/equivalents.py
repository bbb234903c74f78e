"""Strategies of emberge that compute what mergekit's methods compute, with their options.

The functions in this module state the options whose defaults differ between emberge and mergekit; tests
check every method. If no strategy can express a setting exactly, mergekit's own code is called, by the
strategy `mergekit`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from emberge_mergekit.settings import Setting, Settings

_RANDOM_NOTE = "elements are drawn at random: as many stay as with mergekit, but not the same ones"
_PARAMETER_LIMITS = {"density": (0.0, 1.0), "gamma": (0.0, 1.0), "epsilon": (0.0, 0.5)}


@dataclass(frozen=True)
class Link:
    """One link of a strategy, or a named chain of links; an option is a plain value or a `Setting`."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def with_options(self, **options: Any) -> Link:
        """Return a copy of the link with more options."""
        return replace(self, options={**self.options, **options})


@dataclass(frozen=True)
class Equivalent:
    """Links that compute a mergekit method, the links that receive each model's options, and notes."""

    links: tuple[Link, ...]
    link_options: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Link and option for each parameter that differs by model."""
    notes: tuple[str, ...] = ()

    def takes(self, settings: Settings) -> bool:
        """Return whether a model's settings are within the limits of emberge's options."""
        return all(
            _is_within(settings[name], *_PARAMETER_LIMITS[name])
            for name in settings.keys() & self.link_options
        )


class _InexactError(Exception):
    """A setting that no strategy of emberge expresses."""


@dataclass(frozen=True)
class _SharedParameters:
    """Settings of the whole merge, read as what a strategy accepts; raises _InexactError if it cannot."""

    settings: Settings
    has_base: bool

    def plain(self, name: str, default: Any) -> Any:
        """Return one value for all tensors."""
        setting = self.settings.get(name, ())
        if not setting:
            return default
        _require(len(setting) == 1 and setting[0].covers_all and len(setting[0].values) == 1)
        return setting[0].values[0]

    def require(self, name: str, value: Any) -> None:
        """Require that a parameter has its default `value`."""
        _require(self.plain(name, value) == value)

    def require_plain(self, name: str) -> None:
        """Require that a parameter has at most one value, for all tensors."""
        self.plain(name, None)

    def read_options(self, **names: str) -> dict[str, Setting]:
        """Return the config's settings as options under new names: `scale="lambda"` reads `lambda`."""
        return {
            option: self.settings[name] for option, name in names.items() if name in self.settings
        }

    def read_share(self, name: str) -> dict[str, Setting]:
        """Return a setting whose numbers are from 0 to 1 as the option of its name."""
        _require(_is_within(self.settings.get(name, ()), 0, 1))
        return self.read_options(**{name: name})

    def read_sum_options(self) -> dict[str, Setting]:
        """Return the options of a sum of deltas."""
        self.require_plain("normalize")
        return self.read_options(scale="lambda", normalize="normalize")


def _require(exact: bool) -> None:
    if not exact:
        raise _InexactError


def _is_within(setting: Setting, least: float, most: float) -> bool:
    return all(least <= float(value) <= most for entry in setting for value in entry.values)


def find_equivalent(method: str, settings: Settings, *, has_base: bool) -> Equivalent | None:
    """Return the links that compute a method with these settings; None if it cannot be computed exactly."""
    if method not in _MAPPERS:
        return None
    try:
        mapped = _MAPPERS[method](_SharedParameters(settings, has_base))
    except _InexactError:
        return None
    return mapped if isinstance(mapped, Equivalent) else Equivalent((mapped,))


def _map_linear(shared: _SharedParameters) -> Link:
    shared.require_plain("normalize")
    return Link("linear", shared.read_options(normalize="normalize"))


def _map_slerp(shared: _SharedParameters) -> Equivalent:
    link = Link("slerp", shared.read_share("t")).with_options(linear_threshold=0.9995)
    return Equivalent((link,), notes=("mergekit walks straight above a cosine of 0.9995",))


def _map_nuslerp(shared: _SharedParameters) -> Link:
    shared.require("nuslerp_flatten", True)
    return Link("nuslerp")


def _map_multislerp(shared: _SharedParameters) -> Link:
    shared.require("normalize_weights", True)
    shared.require("eps", 1e-8)
    link = Link("multi_slerp").with_options(mode="projected")
    return link.with_options(space="deltas") if shared.has_base else link


def _map_karcher(shared: _SharedParameters) -> Link:
    steps, tolerance = shared.plain("max_iter", 10), shared.plain("tol", 1e-5)
    return Link("karcher").with_options(max_iter=steps, tol=tolerance)


def _map_ties(shared: _SharedParameters) -> Equivalent:
    own = {"density": ("trim", "density")}
    if not shared.plain("rescale", False):
        return Equivalent((Link("ties", shared.read_sum_options()),), own)
    links = (
        Link("trim").with_options(density=1.0),
        Link("rescale").with_options(rescale_mode="l1"),
        Link("sign_consensus", shared.read_sum_options()),
    )
    return Equivalent(links, own)


def _build_chain_mapper(
    name: str, trimming: str, *parameters: str, rescale: bool, notes: tuple[str, ...] = ()
) -> Callable[[_SharedParameters], Equivalent]:
    """Return a function that maps settings to the chain `name`, which drops, rescales and adds deltas."""

    def make(shared: _SharedParameters) -> Equivalent:
        link = Link(name, shared.read_sum_options())
        rescales = shared.plain("rescale", rescale)
        if rescales != rescale:
            link = link.with_options(rescale_mode="l1" if rescales else "none")
        return Equivalent((link,), {p: (trimming, p) for p in ("density", *parameters)}, notes)

    return make


def _build_drop_mapper(
    name: str, trimming: str, *parameters: str
) -> Callable[[_SharedParameters], Equivalent]:
    return _build_chain_mapper(name, trimming, *parameters, rescale=True, notes=(_RANDOM_NOTE,))


def _map_sce(shared: _SharedParameters) -> Link:
    return Link("sce", shared.read_share("select_topk")).with_options(least_energy=1e-6)


def _map_model_stock(shared: _SharedParameters) -> Link:
    shared.require("filter_wise", False)
    return Link("model_stock").with_options(clamp=False)


_MAPPERS: Mapping[str, Callable[[_SharedParameters], Link | Equivalent]] = {
    "linear": _map_linear,
    "slerp": _map_slerp,
    "nuslerp": _map_nuslerp,
    "multislerp": _map_multislerp,
    "karcher": _map_karcher,
    # It drops nothing: rescale is nothing.
    "task_arithmetic": lambda shared: Link("task_arithmetic", shared.read_sum_options()),
    "ties": _map_ties,
    "dare_linear": _build_drop_mapper("dare_linear", "drop"),
    "dare_ties": _build_drop_mapper("dare_ties", "drop"),
    "della": _build_drop_mapper("della", "drop_by_rank", "epsilon"),
    "della_linear": _build_drop_mapper("della_linear", "drop_by_rank", "epsilon"),
    "breadcrumbs": _build_chain_mapper("breadcrumbs", "trim_outliers", "gamma", rescale=False),
    "breadcrumbs_ties": _build_chain_mapper(
        "breadcrumbs_ties", "trim_outliers", "gamma", rescale=False
    ),
    "sce": _map_sce,
    "model_stock": _map_model_stock,
    "passthrough": lambda shared: Link("passthrough", shared.read_options(scale="scale")),
}
