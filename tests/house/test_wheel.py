"""The wheel holds everything that a user of pip needs, and works where emberge's sources are not."""

from __future__ import annotations

import tomllib
import zipfile
from pathlib import Path

import pytest

from tests.house.project import plugin_packages
from tests.support import tiny
from tests.support.commands import python
from tests.support.installed import build_wheel, emberge, fresh_venv
from tests.support.places import ROOT
from tests.support.sources import CORE, EXAMPLES, PLUGINS, python_files
from tests.support.tolerance import assert_combined

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel without kernels, which takes a tenth of the time to build."""
    return build_wheel(ROOT, tmp_path_factory.mktemp("plain"), EMBERGE_BUILD_KERNELS="never")


@pytest.fixture(scope="module")
def names(plain: Path) -> set[str]:
    return names_in(plain)


def names_in(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_the_wheel_holds_every_module_and_template(names: set[str]) -> None:
    modules = {f"emberge/{f.relative_to(CORE)}" for f in python_files(CORE)}
    for package in plugin_packages():
        modules |= {str(f.relative_to(PLUGINS)) for f in python_files(package)}
    assert modules <= names
    templates = (PLUGINS / "emberge_report/templates").iterdir()
    assert {"emberge/py.typed", *(str(f.relative_to(PLUGINS)) for f in templates)} <= names


def test_the_wheel_holds_the_recipes_and_the_example_plugin(names: set[str]) -> None:
    recipes = (ROOT / "merge_recipes").rglob("*.yaml")
    assert {
        f"emberge/merge_recipes/{f.relative_to(ROOT / 'merge_recipes')}" for f in recipes
    } <= names
    example = EXAMPLES / "third_party_plugin"
    expected = [example / "pyproject.toml", example / "README.md", *python_files(example)]
    assert {
        f"emberge/examples/third_party_plugin/{f.relative_to(example)}" for f in expected
    } <= names


def test_the_wheel_holds_the_licence_and_nothing_by_accident(names: set[str]) -> None:
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)
    tops = {name.split("/")[0] for name in names if ".dist-info/" not in name}
    assert tops == {"emberge", *(package.name for package in plugin_packages())}
    assert not [n for n in names if "__pycache__" in n or n.endswith(".pyc") or "_cache/" in n]


LIBRARY = "emberge/numerics/native/row_kernels.so"


def test_a_wheel_without_kernels_is_for_any_platform(plain: Path, names: set[str]) -> None:
    assert plain.name.endswith("-py3-none-any.whl")
    assert LIBRARY.replace(".so", ".c") in names
    assert LIBRARY not in names


@pytest.mark.slow
def test_a_wheel_with_kernels_is_for_its_platform_and_has_them_beside_all_else(
    wheel: Path, names: set[str]
) -> None:
    found = names_in(wheel)
    assert (LIBRARY in found) is not wheel.name.endswith("-py3-none-any.whl")
    assert found - {LIBRARY} == names


def test_the_wheel_names_every_first_party_plugin_as_an_entry_point(plain: Path) -> None:
    with zipfile.ZipFile(plain) as archive:
        (file,) = (n for n in archive.namelist() if n.endswith(".dist-info/entry_points.txt"))
        text = archive.read(file).decode()
    entries = PROJECT["entry-points"]["emberge"]
    assert sorted(entries.values()) == [f"{package.name}.hooks" for package in plugin_packages()]
    assert all(f"{name} = {package}" in text for name, package in entries.items())
    assert "emberge = emberge.cli.main:main" in text


@pytest.mark.slow
def test_an_installed_wheel_lists_checks_runs_and_writes_plugins(
    wheel: Path, tmp_path: Path
) -> None:
    installed = fresh_venv(tmp_path / "venv", wheel)
    where = python(
        "-c",
        "import emberge; print(emberge.__file__)",
        executable=installed / "python",
        cwd=tmp_path,
    )
    assert Path(where.stdout.strip()).is_relative_to(tmp_path / "venv")

    assert "boom/demo" in emberge(installed, "recipes", cwd=tmp_path)
    printed = emberge(installed, "recipes", "boom/demo", cwd=tmp_path)
    assert printed.strip() == (ROOT / "merge_recipes/boom/demo.yaml").read_text("utf-8").strip()
    assert emberge(installed, "list", cwd=tmp_path) == python("-m", "emberge", "list").stdout

    for seed in (1, 2):
        tiny.checkpoint(tmp_path / f"model{seed}", seed=seed)
    (tmp_path / "soup.yaml").write_text(
        "steps:\n  soup:\n    merge: {models: [./model1, ./model2], strategy: linear}\n"
    )
    emberge(installed, "check", "soup.yaml", cwd=tmp_path)
    emberge(installed, "run", "soup.yaml", "--out", "out", cwd=tmp_path)
    assert_mean(tmp_path / "out" / "soup", tmp_path / "model1", tmp_path / "model2")

    emberge(installed, "new-plugin", "mine", cwd=tmp_path)
    assert (tmp_path / "emberge-mine" / "emberge_mine" / "keep_norm.py").is_file()


def assert_mean(merged: Path, *parents: Path) -> None:
    """Every tensor of the merged model is the mean of its parents', and the folder embeds text."""
    from safetensors.torch import load_file
    from sentence_transformers import SentenceTransformer

    one, two = (load_file(parent / "model.safetensors") for parent in parents)
    result = load_file(merged / "model.safetensors")
    assert set(result) == set(one)
    for name, tensor in result.items():
        assert_combined(tensor, [one[name], two[name]], [0.5, 0.5])
    assert SentenceTransformer(str(merged), device="cpu").encode(["a list"]).shape == (1, 32)
