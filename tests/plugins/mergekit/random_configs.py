"""Random configs that mergekit takes: methods, shapes, and parameters at every level, by filter and depth."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import yaml

# Parts of tensor names; each matches something in every model.
_FILTERS = (
    "self_attn",
    "mlp",
    "q_proj",
    "input_layernorm",
    "embed_tokens",
    "lm_head",
    "model.",
    "norm",
)

_WEIGHTED = ("linear", "task_arithmetic", "ties", "breadcrumbs", "breadcrumbs_ties", "multislerp")
_DELTAS = ("task_arithmetic", "ties", "dare_linear", "dare_ties", "della", "della_linear")
_PAIRS = ("slerp", "nearswap", "arcee_fusion", "nuslerp")
_OTHERS = (
    "karcher",
    "model_stock",
    "sce",
    "ram",
    "ramplus_tl",
    "passthrough",
    "linear",
    "multislerp",
)
METHODS = tuple(dict.fromkeys((*_WEIGHTED, *_DELTAS, *_PAIRS, *_OTHERS)))

# What may be set for the whole merge, and how far the numbers go.
_SHARED: Mapping[str, Mapping[str, Any]] = {
    "linear": {"normalize": bool},
    "slerp": {"t": (0.0, 1.2)},
    "nuslerp": {"nuslerp_flatten": bool, "nuslerp_row_wise": bool},
    "multislerp": {"normalize_weights": bool, "eps": (1e-9, 1e-8)},
    "karcher": {"max_iter": int, "tol": (1e-6, 1e-5)},
    "sce": {"int8_mask": bool, "select_topk": (0.2, 1.0)},
    "model_stock": {"filter_wise": bool},
    "arcee_fusion": {},
    "nearswap": {"t": (0.001, 0.02)},
    "passthrough": {},
    "ram": {"epsilon": (0.005, 0.02)},
    "ramplus_tl": {"epsilon": (0.005, 0.02), "r": (0.0, 1.0), "alpha": (0.1, 2.0)},
}
_DELTA_SHARED = {"normalize": bool, "rescale": bool, "lambda": (0.2, 1.5), "int8_mask": bool}
_NEEDED = {"slerp": ("t",), "nearswap": ("t",)}


class RandomConfig(NamedTuple):
    """A config as YAML, and the name in it that mergekit takes or passes over and we must refuse."""

    text: str
    refused: str | None


def random_config(seed: int, models: Sequence[str], layers: int) -> RandomConfig:
    """A config; the same seed gives the same one."""
    draw = _Draw(random.Random(seed), list(models), layers)
    config = draw.config()
    refused = draw.odd(config) if draw.rng.random() < 0.06 else None
    return RandomConfig(yaml.safe_dump(config, sort_keys=False), refused)


class _Draw:
    def __init__(self, rng: random.Random, models: list[str], layers: int) -> None:
        self.rng, self.models, self.layers = rng, models, layers
        self.method = rng.choice(METHODS)

    def config(self) -> dict[str, Any]:
        rng, method = self.rng, self.method
        based = method in (*_DELTAS, *_PAIRS[:3], "breadcrumbs", "breadcrumbs_ties")
        based = based or method in ("model_stock", "sce", "ram", "ramplus_tl")
        optional = method in ("nuslerp", "multislerp", "linear", "karcher")
        based = based or (optional and rng.random() < 0.5)
        config: dict[str, Any] = {"merge_method": method, **self._dtypes()}
        inputs = self._inputs(based)
        if based:
            config["base_model"] = self.models[0]
        if rng.random() < 0.03 and based:
            del config["base_model"]  # now and then something that both must refuse
        if rng.random() < 0.5 or method == "passthrough":
            config["slices"] = [self._slice(inputs, based)]
        else:
            listed = inputs if rng.random() < 0.5 or not based else inputs[1:]
            config["models"] = [self._input(m, based and m == inputs[0]) for m in listed]
        config["parameters"] = self._shared(everything=True)
        if rng.random() < 0.1:
            inner = {k: config.pop(k) for k in ("models", "slices") if k in config}
            config["modules"] = {"default": inner}
        if rng.random() < 0.05:
            bases = (
                ["base"] if "base_model" in config else []
            )  # mergekit takes any model where it has none
            config["tokenizer_source"] = rng.choice(["union", *bases, self.models[1]])
        return config

    def odd(self, config: dict[str, Any]) -> str:
        """Put something in that mergekit does not mind, and say what it is called."""
        parameters = config["parameters"]
        if "slices" in config and self.rng.random() < 0.5:
            config["slices"][0]["residual_weight"] = 0.5
            return "residual_weight"
        if "normalize" in parameters and self.rng.random() < 0.5:
            parameters["normalize"] = [True, False]
            return "normalize"
        name = self.rng.choice(["wieght", "densty", "nomalize", "embed_slerp"])
        parameters[name] = 0.5
        return name

    def _dtypes(self) -> dict[str, str]:
        """What is computed in and stored, none of which rounds."""
        drawn = self.rng.random()
        # The last bits of a float32 decide how often a Karcher mean is refined.
        if drawn < 0.1 or self.method == "karcher":
            return {"dtype": "float64"}
        if drawn < 0.2:
            return {"dtype": "float32", "out_dtype": "float64"}
        return {"dtype": "float32"} if drawn < 0.9 else {}

    def _inputs(self, based: bool) -> list[str]:
        """The base first, where there is one."""
        count = {"passthrough": 1}.get(self.method, self.rng.randint(2, len(self.models) - 1))
        if self.method in _PAIRS:
            count = 2 + (based and self.method == "nuslerp")
            count += self.rng.random() < 0.03
        if self.method == "model_stock":
            count = max(3, count)
        start = 0 if based else 1
        return self.models[start : start + count]

    def _input(self, model: str, base: bool) -> dict[str, Any]:
        entry: dict[str, Any] = {"model": model}
        own = {} if base and self.method != "linear" else self._own()
        if own:
            entry["parameters"] = own
        return entry

    def _own(self) -> dict[str, Any]:
        """Parameters beside one model."""
        names: dict[str, tuple[float, float]] = {}
        if self.method in (*_WEIGHTED, *_DELTAS, "nuslerp"):
            names["weight"] = (0.1, 1.0)
        if self.method in ("ties", "breadcrumbs", "breadcrumbs_ties"):
            names["density"] = (0.3, 1.1)
        if self.method.startswith("breadcrumbs"):
            names["gamma"] = (0.0, 0.2)
        if self.method == "passthrough":
            names["scale"] = (0.1, 2.0)
        return {n: self._setting(r) for n, r in names.items() if self.rng.random() < 0.6}

    def _shared(self, *, everything: bool) -> dict[str, Any]:
        """Parameters of the config, which has `everything` that is needed, or of a slice."""
        known = dict(_SHARED.get(self.method, _DELTA_SHARED))
        found: dict[str, Any] = {}
        for name, kind in known.items():
            needed = everything and name in _NEEDED.get(self.method, ())
            if needed or self.rng.random() < 0.4:
                found[name] = self._value(kind)
        if self.method in (*_WEIGHTED, *_DELTAS, "nuslerp") and everything:
            if self.rng.random() < 0.97:
                found["weight"] = self.rng.choice([0.5, [0.2, 0.9], 1])
        elif self.rng.random() < 0.2:
            found.update(self._own())
        return found

    def _value(self, kind: Any) -> Any:
        if kind is bool:
            if self.rng.random() < 0.1:
                return [
                    {"filter": self.rng.choice(_FILTERS), "value": self.rng.random() < 0.5},
                    {"value": self.rng.random() < 0.5},
                ]
            return self.rng.random() < 0.5
        if kind is int:
            return self.rng.randint(1, 12)
        return self._setting(kind)

    def _setting(self, within: tuple[float, float]) -> Any:
        """A number, several over depth, or either by filter."""
        kind = self.rng.random()
        if kind < 0.05:
            return f"{self._number(within):.3e}"
        if kind < 0.5:
            return self._number(within)
        if kind < 0.75:
            return [self._number(within) for _ in range(self.rng.randint(2, 5))]
        chosen = self.rng.sample(_FILTERS, self.rng.randint(1, 2))
        entries: list[dict[str, Any]] = [
            {"filter": name, "value": self._simple(within)} for name in chosen
        ]
        if self.rng.random() < 0.7:
            last = {"value": self._simple(within)}
            entries.append(last if self.rng.random() < 0.8 else {"filter": "*", **last})
        elif len(entries) == 1 and self.rng.random() < 0.3:
            return entries[0]
        return entries

    def _simple(self, within: tuple[float, float]) -> Any:
        if self.rng.random() < 0.7:
            return self._number(within)
        return [self._number(within) for _ in range(2)]

    def _number(self, within: tuple[float, float]) -> float:
        return round(self.rng.uniform(*within), 12 if within[1] < 1e-3 else 4)

    def _slice(self, inputs: list[str], based: bool) -> dict[str, Any]:
        """All layers of each input."""
        sources = [
            {**self._input(m, based and m == inputs[0]), "layer_range": [0, self.layers]}
            for m in inputs
        ]
        one: dict[str, Any] = {"sources": sources}
        if self.rng.random() < 0.3:
            one["parameters"] = self._shared(everything=False)
        if based and self.rng.random() < 0.2:
            one["base_model"] = self.rng.choice(inputs)
        return one
