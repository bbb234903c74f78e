"""The Dockerfile keeps what its page promises: pins, torch first, a user without rights, one entry point."""

from __future__ import annotations

import fnmatch
import json
import re
import shlex
import tomllib

from tests.support.places import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
TEXT = (ROOT / "Dockerfile").read_text("utf-8")


def instructions() -> list[tuple[str, str]]:
    """The file's instructions in order, each with its arguments on one line."""
    code = "\n".join(line for line in TEXT.splitlines() if not line.startswith("#"))
    lines = code.replace("\\\n", " ").splitlines()
    return [(line.split()[0], line.split(maxsplit=1)[1]) for line in lines if line.strip()]


def of(word: str) -> list[str]:
    return [arguments for one, arguments in instructions() if one == word]


def ignored(path: str) -> bool:
    """Whether `.dockerignore` keeps a path out; the last pattern that fits it or its parents decides."""
    out = False
    parts = path.split("/")
    parents = ["/".join(parts[: n + 1]) for n in range(len(parts))]
    for line in (ROOT / ".dockerignore").read_text("utf-8").splitlines():
        pattern = line.lstrip("!")
        if not pattern or pattern.startswith("#"):
            continue
        names = parents if "**/" not in pattern else [*parents, *parts]
        if any(fnmatch.fnmatchcase(one, pattern.removeprefix("**/")) for one in names):
            out = not line.startswith("!")
    return out


def test_every_base_is_a_slim_image_of_the_python_that_was_tested() -> None:
    bases = {line.split()[0] for line in of("FROM")}
    (base,) = bases
    assert re.fullmatch(r"python:3\.11-slim-\w+", base)


def test_torch_is_installed_first_and_alone_from_the_index_of_its_cpu_build() -> None:
    (index,) = (line for line in of("ARG") if line.startswith("TORCH_INDEX"))
    assert index.endswith("/whl/cpu")
    installs = [shlex.split(line) for line in of("RUN") if "pip install" in line]
    first, second = installs
    assert first[-1] == "torch"
    assert {"--no-deps", "--index-url", "$TORCH_INDEX"} <= set(first)
    assert second[-1].startswith(".")


def test_every_package_is_pinned_by_the_constraints() -> None:
    for line in of("RUN"):
        assert "pip install" not in line or "--constraint constraints.txt" in line


def test_the_image_runs_emberge_as_a_user_without_rights() -> None:
    names = [name for name, _ in instructions()]
    last = len(names) - 1 - names[::-1].index("FROM")
    final = instructions()[last:]
    ((user,),) = [[arguments] for name, arguments in final if name == "USER"]
    uid, gid = user.split(":")
    assert int(uid) > 1000
    assert int(gid) > 1000
    assert [name for name, _ in final].index("USER") > [name for name, _ in final].index("RUN")
    assert json.loads(of("ENTRYPOINT")[-1]) == ["emberge"]
    assert json.loads(of("CMD")[-1]) == ["--help"]
    copies = [arguments for name, arguments in final if name == "COPY"]
    assert copies == ["--from=build /venv /venv"], "no sources and no caches"


def test_all_that_the_wheel_is_built_of_is_copied_and_nothing_else_is_sent() -> None:
    copied = [
        source for line in of("COPY") if not line.startswith("--") for source in line.split()[:-1]
    ]
    assert all((ROOT / source).exists() for source in copied)
    wheel = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]
    needed = [*wheel["packages"], *wheel["force-include"], "pyproject.toml", "hatch_build.py"]
    needed += [PROJECT["project"]["readme"], *PROJECT["project"]["license-files"]]
    for path in needed:
        assert any(path == one or path.startswith(f"{one}/") for one in copied), path
        assert not ignored(path), path
    for path in ("constraints.txt", "core/emberge/cli/main.py", "merge_recipes/boom/demo.yaml"):
        assert not ignored(path), path


def test_what_the_image_does_not_need_stays_out_of_it() -> None:
    paths = (".git", ".env", "out/model", "tests", "core/.mypy_cache", "core/emberge/__pycache__")
    assert [path for path in (*paths, "core/emberge/kernels.so") if not ignored(path)] == []


def test_every_extra_of_the_image_exists() -> None:
    (extras,) = (line.partition("=")[2] for line in of("ARG") if line.startswith("EXTRAS"))
    assert set(extras.split(",")) <= PROJECT["project"]["optional-dependencies"].keys()
