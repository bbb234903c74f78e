"""Strategies of emberge that compute what mergekit's methods compute, with their options.

The tables in this module have the options whose defaults differ between emberge and mergekit; tests check
every method. If no strategy can express a setting exactly, mergekit's own code is called, by the strategy
`mergekit`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from emberge_mergekit.recipe.parameters import Setting

RANDOM = "elements are drawn at random: as many stay as with mergekit, but not the same ones"


@dataclass(frozen=True)
class LinkOption:
    """Option of a link: a value or setting, and the config line that it comes from (0: no line)."""

    value: Any
    line: int = 0


@dataclass(frozen=True)
class Link:
    """One link of a strategy, or a named chain of links."""

    name: str
    options: Mapping[str, LinkOption] = field(default_factory=dict)

    def having(self, **options: Any) -> Link:
        """Return a copy of the link with more options that come from no line of the config."""
        return replace(
            self, options={**self.options, **{k: LinkOption(v) for k, v in options.items()}}
        )


@dataclass(frozen=True)
class Equivalent:
    """Links that compute a mergekit method, the links that receive each model's options, and notes."""

    links: tuple[Link, ...]
    link_options: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Link and option for each parameter that differs by model."""
    notes: tuple[str, ...] = ()


class ConvertedSettings:
    """Settings of the whole merge, converted to what a strategy accepts."""

    def __init__(self, settings: Mapping[str, Setting], *, based: bool, sliced: bool) -> None:
        self.settings = settings
        self.based = based
        self.sliced = sliced
        self.exact = True
        """True if every setting read so far could be expressed."""

    def plain(self, name: str, default: Any) -> Any:
        """Return one value for all tensors."""
        setting = self.settings.get(name, ())
        if not setting:
            return default
        if len(setting) > 1 or not setting[0].all or isinstance(setting[0].value, tuple):
            self.exact = False
            return default
        return setting[0].value

    def options(
        self, within: tuple[float, float] | None = None, **ours: str
    ) -> dict[str, LinkOption]:
        """Return the config's settings as options under new names: `scale="lambda"` reads `lambda`."""
        renamed: dict[str, LinkOption] = {}
        for option, name in ours.items():
            setting = self.settings.get(name, ())
            if setting:
                renamed[option] = LinkOption(setting, setting[0].line)
                self.exact = self.exact and _is_within(setting, within)
        return renamed

    def number(self, option: str, name: str) -> dict[str, LinkOption]:
        """Return a setting with one plain number as an option; empty if the config does not set it."""
        value = self.plain(name, None)
        return {} if value is None else {option: LinkOption(value, self.settings[name][0].line)}


def _is_within(setting: Setting, within: tuple[float, float] | None) -> bool:
    values = [v for e in setting for v in (e.value if isinstance(e.value, tuple) else (e.value,))]
    return within is None or all(within[0] <= float(v) <= within[1] for v in values)


def equivalent(
    method: str, settings: Mapping[str, Setting], *, based: bool, sliced: bool
) -> Equivalent | None:
    """Return the links that compute a method with these settings; None if it cannot be computed exactly."""
    map_method = _MAPPERS.get(method)
    if map_method is None:
        return None
    merge_settings = ConvertedSettings(settings, based=based, sliced=sliced)
    match = map_method(merge_settings)
    return match if merge_settings.exact else None


def _map_linear(given: ConvertedSettings) -> Equivalent:
    return Equivalent((Link("linear", given.number("normalize", "normalize")),))


def _map_slerp(given: ConvertedSettings) -> Equivalent:
    link = Link("slerp", given.options(within=(0, 1), t="t")).having(linear_threshold=0.9995)
    return Equivalent((link,), notes=("mergekit walks straight above a cosine of 0.9995",))


def _map_nuslerp(given: ConvertedSettings) -> Equivalent:
    given.exact = given.plain("nuslerp_flatten", True) is True and given.exact
    return Equivalent((Link("nuslerp"),))


def _map_multislerp(given: ConvertedSettings) -> Equivalent:
    standard = given.plain("normalize_weights", True) is True and given.plain("eps", 1e-8) == 1e-8
    given.exact = given.exact and standard
    link = Link("multi_slerp").having(mode="projected")
    return Equivalent((link.having(space="deltas") if given.based else link,))


def _map_karcher(given: ConvertedSettings) -> Equivalent:
    steps, tolerance = given.plain("max_iter", 10), given.plain("tol", 1e-5)
    return Equivalent((Link("karcher").having(max_iter=steps, tol=tolerance),))


def _map_task_arithmetic(given: ConvertedSettings) -> Equivalent:
    options = {**given.options(scale="lambda"), **given.number("normalize", "normalize")}
    return Equivalent((Link("task_arithmetic", options),))  # it drops nothing: rescale is nothing


def _map_ties(given: ConvertedSettings) -> Equivalent:
    options = {**given.options(scale="lambda"), **given.number("normalize", "normalize")}
    owned = {"density": ("trim", "density")}
    if not given.plain("rescale", False):
        return Equivalent((Link("ties", options),), owned)
    links = (
        Link("trim").having(density=1.0),
        Link("rescale").having(rescale_mode="l1"),
        Link("sign_consensus", options),
    )
    return Equivalent(links, owned)


def _build_chain_mapper(
    name: str, trimming: str, more: str | None = None, *, rescale: bool, random: bool
) -> Callable[[ConvertedSettings], Equivalent]:
    """Return a function that maps settings to the chain `name`, which drops, rescales and adds deltas."""

    def make(given: ConvertedSettings) -> Equivalent:
        options = {**given.options(scale="lambda"), **given.number("normalize", "normalize")}
        link = Link(name, options)
        rescales = given.plain("rescale", rescale)
        if rescales != rescale:
            link = link.having(rescale_mode="l1" if rescales else "none")
        owned = {p: (trimming, p) for p in ("density", more) if p}
        return Equivalent((link,), owned, (RANDOM,) if random else ())

    return make


def _map_sce(given: ConvertedSettings) -> Equivalent:
    options = given.options(within=(0, 1), select_topk="select_topk")
    return Equivalent((Link("sce", options).having(least_energy=1e-6),))


def _map_model_stock(given: ConvertedSettings) -> Equivalent:
    given.exact = given.plain("filter_wise", False) is False and given.exact
    return Equivalent((Link("model_stock").having(clamp=False),))


def _map_passthrough(given: ConvertedSettings) -> Equivalent:
    # In mergekit a filter by layer number means the model's own layer, but in emberge the result's layer.
    numbered = any(
        any(c.isdigit() for c in e.filter or "") for e in given.settings.get("scale", ())
    )
    given.exact = not (given.sliced and numbered)
    return Equivalent((Link("passthrough", given.options(scale="scale")),))


_MAPPERS: Mapping[str, Callable[[ConvertedSettings], Equivalent]] = {
    "linear": _map_linear,
    "slerp": _map_slerp,
    "nuslerp": _map_nuslerp,
    "multislerp": _map_multislerp,
    "karcher": _map_karcher,
    "task_arithmetic": _map_task_arithmetic,
    "ties": _map_ties,
    "dare_linear": _build_chain_mapper("dare_linear", "drop", rescale=True, random=True),
    "dare_ties": _build_chain_mapper("dare_ties", "drop", rescale=True, random=True),
    "della": _build_chain_mapper("della", "drop_by_rank", "epsilon", rescale=True, random=True),
    "della_linear": _build_chain_mapper(
        "della_linear", "drop_by_rank", "epsilon", rescale=True, random=True
    ),
    "breadcrumbs": _build_chain_mapper(
        "breadcrumbs", "trim_outliers", "gamma", rescale=False, random=False
    ),
    "breadcrumbs_ties": _build_chain_mapper(
        "breadcrumbs_ties", "trim_outliers", "gamma", rescale=False, random=False
    ),
    "sce": _map_sce,
    "model_stock": _map_model_stock,
    "passthrough": _map_passthrough,
}
