"""Every call by which a library loads a model, a tokenizer or a pickle is listed, and runs no code."""

from __future__ import annotations

import ast
import functools
import re
import tomllib
from pathlib import Path

import pytest
import yaml

from tests.support.sources import CORE, PLUGINS, ROOT, imports, python_files

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
    "BuildTokenizer": {"trust_remote_code": False},
    "torch.load": {"weights_only": True},
}
# The calls there are; a new one is added here by whoever has looked at it.
CALLS = {
    "core/emberge/model_folder/tokenizers.py": ["AutoTokenizer.from_pretrained"],
    "core/emberge/model_folder/parameter_count.py": ["AutoModel.from_config"],
    "core/emberge/recipes/run/step_result.py": ["SentenceTransformer"],
    "core/emberge/tensor_files/pickles.py": ["torch.load"],
    "core/emberge/testing/training.py": ["SentenceTransformer"],
    "plugins/emberge_data/steps/cross_encoder.py": ["CrossEncoder"],
    "plugins/emberge_data/steps/generate/local_author.py": [
        "kind.from_pretrained",
        "AutoConfig.from_pretrained",
        "AutoTokenizer.from_pretrained",
    ],
    "plugins/emberge_encoder/kinds/stock_loading.py": ["stock_class"],
    "plugins/emberge_encoder/random_model.py": ["loader.from_config"],
    "plugins/emberge_encoder/token_head.py": ["loader.from_config"],
    "plugins/emberge_encoder/trunk_weights.py": [
        "loader.from_pretrained",
        "AutoModel.from_config",
    ],
    "plugins/emberge_export/programs.py": ["SentenceTransformer"],
    "plugins/emberge_export/static_export.py": ["SentenceTransformer"],
    "plugins/emberge_mergekit/recipe/embeddings.py": ["BuildTokenizer"],
}
# Functions that run what they read, and modules that are nothing else.
NEVER = ("yaml.unsafe_load", "yaml.full_load", "yaml.load_all", "torch.hub.load", "eval", "exec")
NO_MODULES = {"pickle", "dill", "cloudpickle", "joblib", "marshal", "shelve"}
# Collectives of torch that send pickles.
PICKLING = re.compile(r"\b(all_gather|gather|broadcast|scatter|send|recv)_object(_list)?$")
FILES = [*python_files(CORE), *python_files(PLUGINS)]


@functools.cache
def calls(file: Path) -> tuple[tuple[str, ast.Call], ...]:
    """The calls of a file with the function's name as it is written."""
    nodes = ast.walk(ast.parse(file.read_text("utf-8")))
    return tuple((ast.unparse(node.func), node) for node in nodes if isinstance(node, ast.Call))


def rule_of(function: str) -> dict[str, object] | None:
    return RULES.get(function) or RULES.get(function.rpartition(".")[2])


def given(call: ast.Call) -> dict[str, object]:
    """The arguments of a call that are written as constants, by name."""
    return {
        str(one.arg): one.value.value
        for one in call.keywords
        if isinstance(one.value, ast.Constant)
    }


def named(file: Path) -> str:
    return file.relative_to(ROOT).as_posix()


def loading(file: Path) -> list[tuple[str, ast.Call]]:
    """The calls that open a folder; a SentenceTransformer of given modules opens none."""
    found = [(name, call) for name, call in calls(file) if rule_of(name) is not None]
    return [(n, c) for n, c in found if c.args or not any(k.arg == "modules" for k in c.keywords)]


def test_the_list_has_every_loading_call() -> None:
    found = {named(file): [name for name, _ in loading(file)] for file in FILES}
    assert {file: names for file, names in found.items() if names} == CALLS


@pytest.mark.parametrize("file", CALLS)
def test_a_loading_call_runs_no_code_and_fetches_nothing(file: str) -> None:
    for name, call in loading(ROOT / file):
        missing = (rule_of(name) or {}).items() - given(call).items()
        # mergekit's tokenizers come from the folders that it is given.
        assert not missing, f"{file}:{call.lineno}: {name} without {dict(missing)}"


def test_nothing_is_ever_trusted() -> None:
    for file in FILES:
        for name, call in calls(file):
            where = f"{named(file)}:{call.lineno}: {name}"
            for word, safe in (("trust_remote_code", False), ("allow_pickle", False)):
                values = [one.value for one in call.keywords if one.arg == word]
                assert all(isinstance(v, ast.Constant) and v.value is safe for v in values), where
            assert name not in NEVER, where
            assert not PICKLING.search(name), where
            if name in ("np.load", "numpy.load"):
                assert len(call.args) <= 2, f"{where}: the third argument is allow_pickle"


# The third reads words of yes and no as texts, and is a SafeLoader otherwise.
LOADERS = ("yaml.BaseLoader", "yaml.SafeLoader", "_NoStaysText")


def test_yaml_is_read_by_loaders_that_build_nothing() -> None:
    for file in FILES:
        for name, call in calls(file):
            if name in ("yaml.load", "yaml.compose", "yaml.compose_all", "yaml.parse"):
                (loader,) = (k.value for k in call.keywords if k.arg == "Loader")
                assert ast.unparse(loader) in LOADERS, named(file)


def test_modules_that_run_what_they_read_are_not_imported() -> None:
    for file in FILES:
        roots = {found.module.partition(".")[0] for found in imports(file, file.parent)}
        assert not roots & NO_MODULES, named(file)


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
