"""Every call by which a library loads a model, a tokenizer or a pickle is listed, and runs no code."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tests.house.project import Rule, Source, findings, sources
from tests.support.places import ROOT
from tests.support.sources import CORE, PLUGINS

Found = Iterator[tuple[int, str]]
SAFE = {"local_files_only": True, "trust_remote_code": False}
# Each function that loads, and the arguments it must be given.
RULES: dict[str, dict[str, object]] = {
    "from_pretrained": SAFE,
    "from_config": {"trust_remote_code": False},
    "SentenceTransformer": SAFE,
    "CrossEncoder": SAFE,
    "SparseEncoder": SAFE,
    "MultiVectorEncoder": SAFE,
    "stock_class": SAFE,
    "torch.load": {"weights_only": True},
}
# The calls there are; a new one is added here by whoever has looked at it.
CALLS = {
    "core/emberge/recipes/run/step_result.py": ["SentenceTransformer"],
    "core/emberge/testing/backbones.py": ["SentenceTransformer"],
    "plugins/emberge_adapt/adapt_plan.py": ["AutoModel.from_config"],
    "plugins/emberge_encoder/stock/stock_loading.py": ["stock_class"],
    "plugins/emberge_encoder/random_model.py": ["loader.from_config"],
    "plugins/emberge_encoder/text/trunk_weights.py": ["loader.from_pretrained"],
    "plugins/emberge_encoder/text/tokenizer.py": ["AutoTokenizer.from_pretrained"],
    "plugins/emberge_export/model_exporter.py": ["SentenceTransformer"],
    "plugins/emberge_publish/adapters_folder.py": [
        "AutoConfig.from_pretrained",
        "AutoModel.from_config",
    ],
    "plugins/emberge_hub/pickles.py": ["torch.load"],
}
# Functions that run what they read, and modules that are nothing else.
NEVER = {
    *("yaml.unsafe_load", "yaml.full_load", "yaml.load_all", "torch.hub.load", "eval", "exec"),
}
# A plugin file is code that the user names, and is run as it is on disk.
PLUGIN_FILES = ("core/emberge/plugins.py", "exec")
NO_MODULES = {"pickle", "dill", "cloudpickle", "joblib", "marshal", "shelve"}
# Collectives of torch that send pickles.
PICKLING = re.compile(r"\b(all_gather|gather|broadcast|scatter|send|recv)_object(_list)?$")
# The third reads words of yes and no as texts, and is a SafeLoader otherwise.
LOADERS = {"yaml.BaseLoader", "yaml.SafeLoader", "_NoStaysText"}
FILES = sources(CORE, PLUGINS)


def rule_of(function: str) -> dict[str, object] | None:
    return RULES.get(function) or RULES.get(function.rpartition(".")[2])


def given(call: ast.Call, name: str) -> Any:
    """Return the value of an argument that is written as a constant."""
    value = next((one.value for one in call.keywords if one.arg == name), None)
    return getattr(value, "value", None)


def loading(source: Source) -> list[tuple[str, ast.Call]]:
    """Return the calls that open a folder; a SentenceTransformer of given modules opens none."""
    found = [(name, call) for name, call in source.calls if rule_of(name) is not None]
    return [(n, c) for n, c in found if c.args or not any(k.arg == "modules" for k in c.keywords)]


def loads_by_itself(source: Source) -> Found:
    """Yield loading calls without an argument that keeps code from running or files from being fetched."""
    for name, call in loading(source):
        for word, safe in (rule_of(name) or {}).items():
            if given(call, word) is not safe:
                yield call.lineno, f"{name} without {word}={safe}"


def trusts(source: Source) -> Found:
    """Yield calls that may run what they read."""
    for name, call in source.calls:
        for word in ("trust_remote_code", "allow_pickle"):
            if any(k.arg == word for k in call.keywords) and given(call, word) is not False:
                yield call.lineno, f"{name} with {word}"
        if (name in NEVER or PICKLING.search(name)) and (source.place, name) != PLUGIN_FILES:
            yield call.lineno, name
        if name in ("np.load", "numpy.load") and len(call.args) > 2:
            yield call.lineno, f"{name}: the third argument is allow_pickle"
        if name in ("yaml.load", "yaml.compose", "yaml.compose_all", "yaml.parse"):
            loaders = [ast.unparse(k.value) for k in call.keywords if k.arg == "Loader"]
            if len(loaders) != 1 or loaders[0] not in LOADERS:
                yield call.lineno, f"{name} by {loaders}, which may build objects"
    for found in source.imports:
        if found.module.partition(".")[0] in NO_MODULES:
            yield found.line, f"imports {found.module}, which runs what it reads"


def test_the_list_has_every_loading_call() -> None:
    found = {source.place: [name for name, _ in loading(source)] for source in FILES}
    assert {file: names for file, names in found.items() if names} == CALLS


@pytest.mark.parametrize("rule", [loads_by_itself, trusts])
def test_no_call_runs_code_or_fetches_anything(rule: Rule) -> None:
    found = findings(rule, FILES)
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("rule", "line", "count"),
    [
        (loads_by_itself, "AutoModel.from_pretrained(a, local_files_only=True)", 1),
        (loads_by_itself, "SentenceTransformer(a, **given)", 2),
        (loads_by_itself, "SentenceTransformer(modules=modules)", 0),
        (loads_by_itself, "torch.load(a)", 1),
        (loads_by_itself, "torch.load(a, weights_only=True)", 0),
        (trusts, "load(a, trust_remote_code=True)", 1),
        (trusts, "np.load(a, None, True)", 1),
        (trusts, "np.load(a, allow_pickle=False)", 0),
        (trusts, "yaml.load(text, Loader=yaml.Loader)", 1),
        (trusts, "yaml.compose(text, Loader=yaml.SafeLoader)", 0),
        (trusts, "dist.broadcast_object_list(a)", 1),
        (trusts, "eval(text)", 1),
        (trusts, "import pickle", 1),
    ],
)
def test_the_rule_finds_a_planted_call(rule: Rule, line: str, count: int) -> None:
    assert len(findings(rule, [Source("core/emberge/new.py", line)])) == count


def test_libraries_that_run_a_local_folders_code_are_not_admitted() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    bounds = dict(one.partition(">=")[::2] for one in project["dependencies"])
    # Before 6.0 a module in modules.json was imported from the folder, whatever trust_remote_code was.
    assert int(bounds["sentence-transformers"].partition(".")[0]) >= 6
    assert "fsspec" in bounds


def test_the_action_installs_what_was_tested() -> None:
    action = yaml.safe_load((ROOT / "action.yml").read_text("utf-8"))
    (line,) = [s["run"] for s in action["runs"]["steps"] if "pip install" in s["run"]]
    assert '--constraint "$GITHUB_ACTION_PATH/constraints.txt"' in line
