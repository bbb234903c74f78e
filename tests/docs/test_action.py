"""The action file for CI: bash runs its steps as a service does, on an open gate and on a shut one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.docs.pages import DOCS, blocks
from tests.support.commands import environment
from tests.support.places import ROOT

ACTION = yaml.safe_load((ROOT / "action.yml").read_text("utf-8"))
STEPS = ACTION["runs"]["steps"]
RECIPE = """
seed: 0
steps:
  soup:
    merge: {models: [ONE, TWO], strategy: linear}
  scores:
    evaluate:
      models: [ONE, $soup]
      evaluators: {mteb: {data: datasets.yaml}}
      require:
      - {model: $soup, CLAIM: ONE, tasks: all, margin: 100}
"""
CATALOGUE = (
    "format: 1\neval:\n- {name: sim, dir: sim, task: sts, domain: in, score_range: [0, 5]}\n"
)


def test_every_input_and_its_use_are_known() -> None:
    used = {word for step in STEPS for word in step.get("env", {}).values()}
    assert used == {f"${{{{ inputs.{name} }}}}" for name in ACTION["inputs"]}
    assert all(step["shell"] == "bash" for step in STEPS)


def test_the_workflow_of_the_docs_names_no_account_but_githubs() -> None:
    (text,) = [block.code for block in blocks(DOCS / "howto" / "gates.md") if "uses:" in block.code]
    used = [step for step in yaml.safe_load(text)["jobs"]["gate"]["steps"] if "uses" in step]
    assert {step["uses"].partition("/")[0] for step in used} == {"actions", "<owner>"}
    assert used[-1]["with"].keys() <= ACTION["inputs"].keys()


@pytest.mark.slow
@pytest.mark.parametrize(("claim", "code"), [("not_worse_than", 0), ("better_than", 3)])
def test_the_gate_of_a_job(berts: list[Path], tmp_path: Path, claim: str, code: int) -> None:
    (tmp_path / "sim").mkdir()
    rows = [
        {"query": f"sort the list {'again ' * i}", "pos": ["sort a list"], "pos_scores": [5.0 - i]}
        for i in range(5)
    ]
    (tmp_path / "sim" / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "datasets.yaml").write_text(CATALOGUE)
    text = RECIPE.replace("ONE", str(berts[0])).replace("TWO", str(berts[1]))
    (tmp_path / "recipe.yaml").write_text(text.replace("CLAIM", claim))
    place = {
        "RECIPE": "recipe.yaml",
        "OUT": "out",
        "OPTIONS": "--workers 1",
        "GITHUB_STEP_SUMMARY": str(tmp_path / "page.md"),
        "GITHUB_OUTPUT": str(tmp_path / "outputs"),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    (tmp_path / "page.md").write_text("before\n")
    codes = [
        subprocess.run(
            ["bash", "-e", "-c", step["run"]], env=environment(**place), cwd=tmp_path, check=False
        ).returncode
        for step in STEPS[1:]  # the first installs emberge
    ]
    assert codes == [0, code]
    page = (tmp_path / "page.md").read_text()
    assert page.startswith("before\n## recipe.yaml: ")
    assert "95% intervals" in page
    assert (tmp_path / "outputs").read_text() == "summary=emberge-summary.md\n"
