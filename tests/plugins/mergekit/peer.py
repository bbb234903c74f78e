"""The same config run by mergekit and by us, on tiny Llamas, and what each made of it."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import yaml
from emberge import Machine, Plugins, check_recipe, load_plugins, run_recipe
from emberge.recipes import Recipe
from emberge_merge import read_merge_file
from safetensors.torch import load_file
from torch import Tensor

from tests.support import tiny
from tests.support.result_folders import folders
from tests.support.tolerance import likely

LAYERS = 4
State = dict[str, Tensor]


def llama(
    folder: Path,
    *,
    seed: int = 0,
    like: Path | None = None,
    added: tuple[str, ...] = (),
    **config: Any,
) -> Path:
    """A tiny causal Llama, with `like` a noisy sibling of that one; `added` are tokens that it has more."""
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    folder.mkdir(parents=True)
    size = tiny.write_tokenizer(folder)
    torch.manual_seed(seed)
    settings = {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 64,
        "pad_token_id": 0,
        "bos_token_id": 2,
        "eos_token_id": 3,
        "tie_word_embeddings": False,
        **config,
    }
    with quietly():
        model = LlamaForCausalLM(LlamaConfig(vocab_size=size, **settings))
        if like is not None:
            state = LlamaForCausalLM.from_pretrained(like).state_dict()
            noisy = {k: v + 0.02 * torch.randn_like(v) for k, v in state.items()}
            model.load_state_dict(noisy)
        if added:
            tokenizer = AutoTokenizer.from_pretrained(folder)
            tokenizer.add_tokens(list(added))
            tokenizer.save_pretrained(folder)
            model.resize_token_embeddings(len(tokenizer))
        model.save_pretrained(folder)
    return folder


def family(root: Path) -> dict[str, Path]:
    """BASE, and A, B and C, which are siblings of a model tuned from it."""
    found = {"BASE": llama(root / "base")}
    tuned = llama(root / "tuned", seed=9, like=found["BASE"])
    for seed, name in enumerate("ABC"):
        found[name] = llama(root / name.lower(), seed=seed, like=tuned)
    return found


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Without other packages' warnings, log lines and progress bars, which are not what is tested."""
    loggers = [logging.getLogger(name) for name in (None, "mergekit", "transformers")]
    before = [logger.level for logger in loggers]
    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        for logger in loggers:
            logger.setLevel(logging.CRITICAL)
        try:
            yield
        finally:
            for logger, level in zip(loggers, before, strict=True):
                logger.setLevel(level)


def state_of(folder: Path) -> State:
    """All tensors of a model's folder."""
    return {k: v for f in sorted(folder.glob("*.safetensors")) for k, v in load_file(f).items()}


def theirs(text: str, out: Path) -> Path:
    """What mergekit makes of a config, run in this process; paths in it are whole ones."""
    with quietly():
        from mergekit.config import MergeConfiguration
        from mergekit.merge import MergeOptions, run_merge

        config = MergeConfiguration.model_validate(yaml.safe_load(text))
        options = MergeOptions(
            quiet=True, write_model_card=False, lora_merge_cache=str(out.parent / "adapted")
        )
        with torch.no_grad():
            run_merge(config, str(out), options)
    return out


_PLUGINS: list[Plugins] = []


def plugins() -> Plugins:
    """All installed plugins but those that print."""
    if not _PLUGINS:
        _PLUGINS.append(load_plugins())
    return _PLUGINS[0]


def checked(text: str, folder: Path) -> Recipe:
    """The config as a recipe that was checked; it is written into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "config.yml"
    path.write_text(text, encoding="utf-8")
    recipe = read_merge_file(path, plugins())
    check_recipe(recipe, plugins()).raise_errors()
    return recipe


def ours(text: str, folder: Path) -> Path:
    """What we make of the same config."""
    recipe = checked(text, folder)
    with quietly():
        results = folders(
            run_recipe(recipe, folder / "out", plugins(), machine=Machine(workers=1), quiet=True)
        )
    return results[recipe.steps[-1].id].resolve()


def assert_same(found: State, expected: State, *, within: float | None = None) -> None:
    """Both have the same tensors, each as near as `within` of its largest element.

    By default as near as float32 sums over a whole tensor are: many methods measure one.
    """
    assert found.keys() == expected.keys(), found.keys() ^ expected.keys()
    for name, tensor in expected.items():
        assert found[name].shape == tensor.shape, f"{name}: {found[name].shape}, {tensor.shape}"
        assert found[name].dtype == tensor.dtype, f"{name}: {found[name].dtype}"
        largest = float(tensor.double().abs().max()) or 1.0
        off = float((found[name].double() - tensor.double()).abs().max()) / largest
        allowed = 2 * likely(max(8, tensor.numel())) if within is None else within
        assert off <= allowed, f"{name} is off by {off:.1e}"


def check_against_mergekit(
    text: str, folder: Path, *, within: float | None = None
) -> tuple[Path, Path]:
    """Run a config both ways and compare the weights; (ours, mergekit's)."""
    made, other = ours(text, folder / "ours"), theirs(text, folder / "theirs")
    assert_same(state_of(made), state_of(other), within=within)
    return made, other
