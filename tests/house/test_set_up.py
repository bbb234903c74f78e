"""What `make` sets up is what this was tested with: constraints, extras, targets."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import PackageNotFoundError, packages_distributions, version

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.house.project import sources
from tests.support import skips
from tests.support.places import ROOT
from tests.support.sources import TESTS

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
LINES = [
    line
    for line in (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    if line.strip() and not line.startswith("#")
]
PINNED = {canonicalize_name(name): pin for name, _, pin in (line.partition("==") for line in LINES)}


def requirements() -> list[Requirement]:
    project = PROJECT["project"]
    lists = [project["dependencies"], *project["optional-dependencies"].values()]
    return [Requirement(line) for one in lists for line in one]


def test_constraints_are_exact_versions_and_nothing_else() -> None:
    assert [line for line in LINES if not re.fullmatch(r"[\w.-]+==[\w.!]+", line)] == []
    assert len(PINNED) == len(LINES), "a package twice"


def test_every_requirement_is_pinned_to_a_version_it_allows() -> None:
    pins = {one: PINNED[canonicalize_name(one.name)] for one in requirements()}
    assert [str(one) for one, pin in pins.items() if not one.specifier.contains(pin)] == []


def test_requirements_have_lower_bounds_alone() -> None:
    operators = {spec.operator for requirement in requirements() for spec in requirement.specifier}
    assert operators == {">="}
    assert all(requirement.specifier for requirement in requirements())


def test_the_tests_run_on_the_versions_that_are_pinned() -> None:
    other = {}
    for name, pin in PINNED.items():
        try:
            installed = Version(version(name)).public
        except PackageNotFoundError:
            continue  # needed on another platform
        if installed != pin:
            other[name] = f"{installed} is installed, {pin} is pinned"
    assert other == {}


def packages_skipped_without() -> dict[str, str]:
    """Return modules without which tests are skipped, each with a file that says so."""
    return {
        found[1]: source.place
        for source in sources(TESTS)
        for found in re.finditer(r"importorskip\(\s*[\"'](\w+)", source.text)
    }


def test_no_test_is_skipped_for_a_package_that_make_could_install() -> None:
    modules = packages_skipped_without()
    lists = PROJECT["project"]["optional-dependencies"]
    installed = {
        canonicalize_name(Requirement(line).name)
        for line in (*PROJECT["project"]["dependencies"], *lists["dev"])
    }
    packages = packages_distributions()
    owners = {m: {canonicalize_name(d) for d in packages.get(m, [])} for m in modules}
    assert {"s3fs", "onnx"} & modules.keys()
    assert {m: place for m, place in modules.items() if not owners[m] & installed} == {}


def test_only_what_a_machine_lacks_is_a_reason_to_skip() -> None:
    fine = ("needs a CUDA device", "needs the data sets in ../shared/data beside the project")
    wrong = ("s3fs is not installed", "could not import 's3fs': No module named 's3fs'")
    reasons = [skips.reason_of(("file.py", 3, f"Skipped: {one}")) for one in (*fine, *wrong)]
    assert {*skips.not_allowed(reasons)} == {*wrong}
    assert skips.STRICT in (ROOT / ".ci" / "run").read_text("utf-8")


def test_make_has_a_target_for_everything_the_readme_promises() -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    for target in (
        "demo",
        "test",
        "test-all",
        "docs",
        "lint",
        "bench",
        "gpu",
        "mutants",
    ):
        assert re.search(rf"^([\w-]+ )*{target}( [\w-]+)*:", makefile, re.MULTILINE), target


def test_each_push_runs_the_quick_tests_and_each_night_and_release_all_of_them() -> None:
    assert "exec make test <" in (ROOT / ".ci" / "run").read_text("utf-8")
    workflows = ROOT / ".github" / "workflows"
    on_push, on_tag = (workflows / name for name in ("test.yml", "test-all.yml"))
    assert "run: make test TORCH" in on_push.read_text("utf-8")
    for word in ("run: make test-all TORCH", "schedule:", 'tags: ["v*"]', skips.STRICT):
        assert word in on_tag.read_text("utf-8")


def test_the_build_needs_what_the_build_backend_is() -> None:
    (backend,) = (Requirement(line) for line in PROJECT["build-system"]["requires"])
    assert backend.name in {requirement.name for requirement in requirements()}
