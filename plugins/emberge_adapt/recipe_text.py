"""The recipe of an adaptation as YAML: the template `recipe.yaml.j2` filled with a plan."""

from __future__ import annotations

import functools
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from emberge_adapt.adapt_plan import MOST_SEARCHED_DOCUMENTS, AdaptPlan
from emberge_adapt.data_facts import COVERED_SHARE

if TYPE_CHECKING:
    from jinja2 import Template

# Steps of the recipe whose results the outcome reads: rows, weights, the merged model, scores, report.
CLEAN, FOUND, MODEL, SCORES, REPORT = "clean", "found", "model", "scores", "report"
# Points that the model may lose on tasks of other domains.
FORGETTING_LIMIT = 3
_TEMPLATE = Path(__file__).with_name("recipe.yaml.j2")
_COMMENT_WIDTH = 100


def write_recipe(plan: AdaptPlan) -> str:
    """Return the recipe of the plan; equal plans give equal text. Paths start at the current folder."""
    members = [f"${step}" for step in plan.member_steps]
    is_generated = plan.data_kind == "documents"
    source = plan.data_entry.get("path") or plan.data_entry["hub"]
    return _load_template().render(
        plan=plan,
        source=source,
        training=plan.training,
        members=members,
        parts="$generated" if is_generated else "$parts",
        covered_share=f"{COVERED_SHARE:.0%}",
        test_rows=_write_flow(_build_test_rows(plan)),
        test_entry=_write_flow(_build_test_entry(plan)),
        forgetting_limit=FORGETTING_LIMIT,
        title=_write_flow(
            _escape(
                f"{plan.model.rpartition('/')[2]} adapted to {source.rstrip('/').rpartition('/')[2]}"
            )
        ),
        reported=[
            *(["$generated"] if is_generated else ["$unique", "$parts"]),
            "$clean",
            *(["$mined"] if plan.mines else []),
            *members,
            *(["$found"] if plan.finds_weights else []),
            "$model",
            "$scores",
        ],
    )


@functools.cache
def _load_template() -> Template:
    from jinja2 import Environment, StrictUndefined

    environment = Environment(
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True, undefined=StrictUndefined
    )
    environment.filters.update(
        comment=_write_comment, literal=lambda value: _write_flow(_escape(value))
    )
    return environment.from_string(_TEMPLATE.read_text("utf8"))


def _build_test_rows(plan: AdaptPlan) -> dict[str, Any]:
    """Return the entry of the test's queries and what answers them."""
    if plan.test is None:
        return {
            "path": "$generated" if plan.data_kind == "documents" else "$parts",
            "split": "test",
        }
    columns = {"columns": dict(plan.columns)} if plan.columns else {}
    return {"path": _escape(plan.test), **columns}


def _build_test_entry(plan: AdaptPlan) -> dict[str, Any]:
    """Return the entry of the test with all documents that are searched."""
    entry = _build_test_rows(plan)
    if plan.data_kind == "documents" and plan.test is not None:
        entry["documents"] = "$generated"
    elif plan.documents is not None:
        entry["documents"] = _escape(plan.documents)
    elif plan.searches_all_rows and plan.test is None:
        entry["documents"] = "$unique"
        if plan.row_documents > MOST_SEARCHED_DOCUMENTS:
            entry["limit_corpus"] = MOST_SEARCHED_DOCUMENTS
    return entry


def _write_flow(value: Any) -> str:
    """Return a value as YAML in one line."""
    text = yaml.safe_dump(
        value, default_flow_style=True, width=2**31, sort_keys=False, allow_unicode=True
    )
    return text.removesuffix("\n").removesuffix("\n...")


def _escape(value: Any) -> Any:
    """Return a value whose texts a recipe reads as they are: a dollar sign would name a step."""
    if isinstance(value, str):
        return value.replace("$", "$$")
    if isinstance(value, Mapping):
        return {key: _escape(child) for key, child in value.items()}
    return value


def _write_comment(text: str, level: int = 0) -> str:
    """Return the text as the lines of a comment, indented by two spaces for each level."""
    start = f"{'  ' * level}# "
    lines = textwrap.wrap(
        " ".join(text.split()),
        _COMMENT_WIDTH,
        initial_indent=start,
        subsequent_indent=start,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return "\n".join(lines) + "\n"
