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


def test_the_image_has_pinned_packages_torch_first_and_a_user_without_rights() -> None:
    (base,) = {line.split()[0] for line in of("FROM")}
    assert re.fullmatch(r"python:3\.11-slim-\w+", base), "the Python that was tested"
    installs = [shlex.split(line) for line in of("RUN") if "pip install" in line]
    assert all("--constraint constraints.txt" in " ".join(words) for words in installs)
    torch, project = installs
    assert torch[-1] == "torch"
    assert {"--no-deps", "--index-url", "$TORCH_INDEX"} <= set(torch)
    assert project[-1].startswith(".")
    arguments = dict(line.split("=", 1) for line in of("ARG"))
    assert arguments["TORCH_INDEX"].endswith("/whl/cpu")
    assert set(arguments["EXTRAS"].split(",")) <= PROJECT["project"]["optional-dependencies"].keys()
    names = [name for name, _ in instructions()]
    final = dict(instructions()[len(names) - 1 - names[::-1].index("FROM") :])
    assert all(int(number) > 1000 for number in final["USER"].split(":"))
    assert [*final].index("USER") > [*final].index("RUN")
    assert (json.loads(final["ENTRYPOINT"]), json.loads(final["CMD"])) == (["emberge"], ["--help"])
    assert final["COPY"] == "--from=build /venv /venv", "no sources and no caches"


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
    for path in (*needed, "constraints.txt", "merge_recipes/boom/demo.yaml"):
        assert not ignored(path), path
    for path in (".git", ".env", "out/model", "tests", "core/.mypy_cache", "core/emberge/a.so"):
        assert ignored(path), path
