"""One place steps an optimizer, and one room runs forward passes of models.

Calls are told by their names, in the source of the core and the plugins.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.sources import CORE, PLUGINS, ROOT, python_files

# Modules that may make an optimizer, and that may step it.
MAKES_OPTIMIZERS = "core/emberge/training/loop/optimizer.py"
STEPS_OPTIMIZERS = "core/emberge/training/loop/trainer.py"

# Room that runs forward passes, and calls elsewhere that are none, or of what is no encoder of ours.
RUNS_MODELS = "core/emberge/encoding/"
EXCEPTIONS = {
    "core/emberge/ranks/fsdp.py": "finds the modules that a pass calls; ranks are below encoding",
    "core/emberge/testing/training.py": "compares with the library that a saved folder is for",
    "plugins/emberge_data/steps/cross_encoder.py": "a library's cross-encoder has no vectors",
    "plugins/emberge_data/steps/generate/local_author.py": "writes text, which has no vectors",
    "plugins/emberge_encoder/attention.py": "asks a bare model of transformers which way it attends",
    "plugins/emberge_encoder/packed_rows.py": "part of an encoder: its call of transformers' model",
    "plugins/emberge_encoder/text_model.py": "part of an encoder: its call of transformers' model",
    "plugins/emberge_encoder/token_head.py": "tries whether a bare model's head is whole",
    "plugins/emberge_export/parity.py": "runs exported files in other libraries' runtimes",
    "plugins/emberge_moe/routed_encoder.py": "an encoder around another, whose calls are the other's",
    "plugins/emberge_train/losses/sentence_transformers.py": "calls a loss, not a model",
}
METHODS = {
    "_call_impl",
    "encode_document",
    "encode_query",
    "functional_call",
    "states",
    "states_and_auxiliary",
}
ENCODERS = {"encoder", "_encoder"}
# What a library's model is called with.
LIBRARY_METHODS = {"encode", "predict"}
FEATURES = {"features", "inputs"}


def called(node: ast.Call) -> str:
    """Last word of what is called: `encoder` of `self.encoder(features)`."""
    return getattr(node.func, "attr", getattr(node.func, "id", ""))


def receiver(node: ast.Call) -> str:
    """Word before that: `optimizer` of `self.optimizer.step()`."""
    owner = getattr(node.func, "value", None)
    return getattr(owner, "attr", getattr(owner, "id", ""))


def makes_optimizer(node: ast.AST) -> bool:
    if isinstance(node, ast.ImportFrom):
        return (node.module or "").startswith("torch.optim") or (
            node.module == "torch" and any(alias.name == "optim" for alias in node.names)
        )
    return isinstance(node, ast.Call) and ast.unparse(node.func).startswith("torch.optim.")


def steps_optimizer(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and called(node) == "step" and "optim" in receiver(node)


def runs_model(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return False
    name, words = called(node), {keyword.arg for keyword in node.keywords}
    given_features = any(
        keyword.arg is None and getattr(keyword.value, "id", "") in FEATURES
        for keyword in node.keywords
    )
    if isinstance(node.func, ast.Attribute) and name in METHODS:
        return True
    if name in LIBRARY_METHODS and "show_progress_bar" in words:
        return True
    return name in ENCODERS or name == "functional_call" or given_features or "input_ids" in words


@functools.cache
def calls_and_imports(file: Path) -> tuple[ast.Call | ast.ImportFrom, ...]:
    nodes = ast.walk(ast.parse(file.read_text("utf-8")))
    return tuple(node for node in nodes if isinstance(node, ast.Call | ast.ImportFrom))


def places(found: Callable[[ast.AST], bool], *roots: Path) -> Iterator[str]:
    """Lines, as `path:line`, of calls and imports that a function is true of."""
    for file in python_files(*roots):
        for node in calls_and_imports(file):
            if found(node):
                yield f"{file.relative_to(ROOT).as_posix()}:{node.lineno}"


@pytest.mark.slow
def test_one_module_makes_optimizers_and_one_steps_them() -> None:
    made = {place.partition(":")[0] for place in places(makes_optimizer, CORE, PLUGINS)}
    assert made == {MAKES_OPTIMIZERS}
    stepped = list(places(steps_optimizer, CORE, PLUGINS))
    assert len(stepped) == 1
    assert stepped[0].startswith(f"{STEPS_OPTIMIZERS}:")


def test_only_encoding_runs_forward_passes() -> None:
    elsewhere = [
        place
        for place in places(runs_model, CORE, PLUGINS)
        if not place.startswith(RUNS_MODELS) and place.partition(":")[0] not in EXCEPTIONS
    ]
    assert elsewhere == [], "take token_states, forward or TextEmbedder of emberge.encoding"


def test_exceptions_are_needed_and_the_room_has_passes() -> None:
    files = {place.partition(":")[0] for place in places(runs_model, CORE, PLUGINS)}
    assert sorted(set(EXCEPTIONS) - files) == []
    assert any(file.startswith(RUNS_MODELS) for file in files)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("self.encoder(features, layers)", True),
        ("encoder(encoder.collate(texts))", True),
        ("inner.states(features)", True),
        ("model(input_ids=ids).logits", True),
        ("functional_call(module, given, (features,))", True),
        ("cross.predict(pairs, show_progress_bar=False)", True),
        ("encoder.collate(texts)", False),
        ("text.encode('utf-8')", False),
        ("states(folder)", False),
        ("(trunk if plain else other)(**inputs)", True),
        ("mteb.evaluate(task, show_progress_bar=False)", False),
    ],
)
def test_passes_are_told_from_other_calls(line: str, expected: bool) -> None:
    assert any(runs_model(node) for node in ast.walk(ast.parse(line))) == expected


@pytest.mark.parametrize(
    ("line", "made", "stepped"),
    [
        ("torch.optim.SGD(weights, lr=0.1)", True, False),
        ("from torch.optim import Adam", True, False),
        ("from torch import nn, optim", True, False),
        ("self._optimizer.step()", False, True),
        ("writing.step()", False, False),
        ("def take(optimizer: torch.optim.Optimizer): ...", False, False),
    ],
)
def test_optimizers_are_told_from_other_things(line: str, made: bool, stepped: bool) -> None:
    nodes = list(ast.walk(ast.parse(line)))
    assert any(map(makes_optimizer, nodes)) == made
    assert any(map(steps_optimizer, nodes)) == stepped
