"""Reading and switching of causal and bidirectional attention in a model's config.json."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, Literal

from emberge import CheckpointError
from emberge.architectures import read_model_types
from emberge.wording import join_some

Attention = Literal["as is", "causal", "bidirectional"]

# Kinds of layers, by transformers' names, that carry a state from one token to the next.
_ONE_WAY_LAYERS = frozenset({"linear_attention", "conv", "hybrid", "hybrid_sliding"})
_ATTENTION_KEY = "use_bidirectional_attention"


def is_causal(config: Mapping[str, Any]) -> bool:
    """Return whether a config describes a model that attends to earlier tokens only."""
    declared = read_declared_attention(config)
    if declared != "as is":
        return declared == "causal"
    if config.get("is_encoder_decoder"):
        return False  # of those it is the encoder that embeds
    text = _find_text_config(config)
    return _is_language_model(text) or (text is not config and _is_language_model(config))


def read_declared_attention(config: Mapping[str, Any]) -> Attention:
    """Return the attention (causal or bidirectional) that a config states; `as is` if the class decides.

    The class may ignore the config; only a test of the model shows its actual attention.
    """
    text = _find_text_config(config)
    flag = text.get(_ATTENTION_KEY)
    if text.get("is_causal") is False or flag == "all" or (flag and _is_gemma(text)):
        return "bidirectional"
    return "causal" if text.get("is_causal") is True else "as is"


def switch_attention(config: Mapping[str, Any], attention: Attention) -> dict[str, Any]:
    """Return the config with the given attention, set so that plain loaders of the saved folder apply it.

    The generic switch is `is_causal` of the text config. Only Gemma 3 has a different switch, which also
    halves the window when a model is built; with both switches the window would be halved wrongly. The keys
    of a model that is already bidirectional are not changed.

    Raises:
        CheckpointError: if some layers would ignore the switch; if a Gemma 3 has both switches, or a window
            that would change by saving and loading.
    """
    changed_config = copy.deepcopy(dict(config))
    if attention != "as is":
        if config.get("is_encoder_decoder"):
            raise CheckpointError(
                f"'{config.get('model_type')}' is an encoder-decoder, whose encoder is bidirectional, so "
                "there is no attention to switch; leave it as it is, or take a causal language model"
            )
        _set_attention(_find_text_config(changed_config), attention)
    if read_declared_attention(changed_config) == "bidirectional":
        _refuse_hybrid(changed_config)
        _refuse_wrong_window(_find_text_config(changed_config))
    return changed_config


def _set_attention(text: Any, attention: Attention) -> None:
    if not _is_gemma(text):
        text["is_causal"] = attention == "causal"
    elif attention == "causal":
        text |= {"is_causal": True, _ATTENTION_KEY: False}
    elif text.get("is_causal") is not False:
        text.pop("is_causal", None)
        text[_ATTENTION_KEY] = True


def _is_gemma(text: Mapping[str, Any]) -> bool:
    """Return whether a config is that of a Gemma 3, which has a different switch."""
    return text.get("model_type") in ("gemma3", "gemma3_text")


def _find_text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the text part of a composite config, which has the switch; else the config itself.

    The config of a routed model (a mixture of experts) has the dense model's config as `inner`.
    """
    inner = config.get("text_config") or config.get("inner")
    return inner if isinstance(inner, Mapping) else config


def _is_language_model(config: Mapping[str, Any]) -> bool:
    """Return whether a model type generates text from left to right."""
    kind = str(config.get("model_type", ""))
    if kind in read_model_types("MODEL_FOR_MASKED_LM_MAPPING_NAMES"):
        return bool(config.get("is_decoder"))
    names = {kind, kind.removesuffix("_text")}
    generating = ("MODEL_FOR_CAUSAL_LM_MAPPING_NAMES", "MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES")
    return any(names & read_model_types(table) for table in generating)


def _refuse_hybrid(config: Mapping[str, Any]) -> None:
    """Refuse a hybrid model, in which some layers always attend to earlier tokens only."""
    # None for a class without such a list.
    layers = [*(getattr(load_text_config(config), "layer_types", None) or ())]
    one_way_layers = [f"{i} ({name})" for i, name in enumerate(layers) if name in _ONE_WAY_LAYERS]
    if one_way_layers:
        kind = _find_text_config(config).get("model_type")
        raise CheckpointError(
            f"'{kind}' is a hybrid: {len(one_way_layers)} of its {len(layers)} layers "
            f"read earlier tokens alone, however attention is set: {join_some(one_way_layers, 3)}; "
            "take a model whose layers all have attention, or keep this one causal (no is_causal: "
            "false, and pooling: last)"
        )


def load_text_config(config: Mapping[str, Any]) -> Any:
    """Return transformers' config object of a text model; None if there is no class or the config is invalid.

    Some files have old names of values, or an interval (every n-th layer has attention) in place of a list;
    the object has the list and the new names.
    """
    from transformers import CONFIG_MAPPING

    inner = config.get("inner")
    whole = inner if isinstance(inner, Mapping) else config
    kind = str(whole.get("model_type", ""))
    if kind not in CONFIG_MAPPING:
        return None
    try:
        return CONFIG_MAPPING[kind].from_dict(dict(whole)).get_text_config()
    except Exception:  # each class refuses in its own way, and again where the model is loaded
        return None


def _refuse_wrong_window(text: Mapping[str, Any]) -> None:
    if not _is_gemma(text) or not text.get(_ATTENTION_KEY):
        return
    if text.get("is_causal") is False:
        raise CheckpointError(
            f"a Gemma 3 with both is_causal: false and {_ATTENTION_KEY} gets a window that neither of them "
            "means; take is_causal out of config.json"
        )
    window = text.get("sliding_window") or 0
    if window % 2:
        raise CheckpointError(
            f"its sliding window of {window} is odd, and a bidirectional Gemma 3 halves it: "
            "make it even in config.json"
        )
