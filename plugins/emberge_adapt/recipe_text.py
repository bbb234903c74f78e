"""The recipe of an adaptation as YAML, with a comment at each block that explains why it is there."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

import yaml
from emberge.wording import count_noun

from emberge_adapt.adapt_plan import AdaptPlan
from emberge_adapt.data_facts import COVERED_SHARE

# Steps of the recipe that others read: the merged model, its scores, the report.
MODEL, SCORES, REPORT = "model", "scores", "report"
# The student of the merged model, and the table of tokens' vectors that a static one begins at.
SMALL, TOKENS = "small", "tokens"
# Points that the model may lose on tasks of other domains, and the largest near copies that a split divides.
FORGETTING_LIMIT = 3
_NEAR_COPY = 0.6
# Share of the model's score on the test that the student must have.
KEPT_SHARE = 0.9
# Weight of the loss that keeps texts of scored pairs near their embeddings by the base.
_KEPT_SPACE = 1
_COMMENT_WIDTH = 100


def write_recipe(plan: AdaptPlan) -> str:
    """Return the recipe of the plan; equal plans give equal text. Paths start at the current folder."""
    return "\n".join(_RecipeWriter(plan).lines()) + "\n"


def write_student_start(plan: AdaptPlan) -> str:
    """Return a recipe of the step that a student begins with, on the base, to check it."""
    return "\n".join(_RecipeWriter(plan).student_start_lines()) + "\n"


class _RecipeWriter:
    """The writer of one plan's recipe, block by block."""

    def __init__(self, plan: AdaptPlan) -> None:
        self.plan = plan
        self.members = [f"${step}" for step in plan.member_steps]
        self.parts = "$generated" if plan.data_kind == "documents" else "$parts"
        self.trained_on = "$mined" if plan.mines else "$clean"

    def lines(self) -> Iterator[str]:
        """Yield the recipe."""
        yield from self._write_head()
        yield ""
        yield "steps:"
        for block in (
            self._write_data(),
            self._write_trainings(),
            self._write_merge(),
            self._write_student(),
            self._write_evaluation(),
            self._write_report(),
        ):
            yield from block

    def student_start_lines(self) -> Iterator[str]:
        """Yield a recipe of the student's first step with the base in place of the merged model."""
        base, small = _flow(_escape(self.plan.model)), self.plan.small
        yield "steps:"
        yield f"  {SMALL}:"
        if small is None or small.layers is None:
            yield f"    static_model: {{teacher: {base}}}"
        else:
            yield f"    cut_layers: {{model: {base}, layers: {small.layers}}}"

    # ── what all trainings share ────────────────────────────────────────────────────────────────

    def _write_head(self) -> Iterator[str]:
        plan, training = self.plan, self.plan.training
        source = str(plan.data.get("path", plan.data.get("hub")))
        yield from _comment(
            f"A model adapted to {source} with effort {plan.effort}; written by `emberge adapt`. Change "
            "what you like and run it by `emberge run FILE --out OUT`; steps that are already done in OUT "
            "are not repeated. Relative paths start at the folder of this file."
        )
        yield f"seed: {plan.seed}"
        yield ""
        yield f"x-base: &base {_flow(_escape(plan.model))}"
        yield ""
        if self.plan.learns_scores:
            yield from self._write_kept_space()
            yield ""
        yield from self._write_loss_of_pairs()
        yield ""
        yield from _comment(
            f"The length holds {COVERED_SHARE:.0%} of the texts whole. Few rows are seen several times, so "
            "that a training has enough steps. A fast precision is bfloat16 where the machine multiplies it."
        )
        yield "x-training: &training"
        yield "  model: *base"
        yield f"  data: {self.trained_on}"
        yield f"  loss: {self._write_loss()}"
        if plan.mines or plan.has_negatives:
            yield f"  hard_negatives: {training.hard_negatives}"
        yield f"  learning_rate: {training.learning_rate}"
        yield f"  epochs: {training.epochs}"
        yield f"  max_length: {training.max_length}"
        yield "  precision: fast"
        yield "x-batches: &batches"
        yield f"  batch_shuffle: {{batch_size: {training.batch_size}}}"

    def _write_kept_space(self) -> Iterator[str]:
        guide = f"{{model: *base, max_length: {self.plan.training.max_length}}}"
        yield from _comment(
            "A second loss: the distance of documents from their embeddings by the base, for what the base "
            "knows of other domains (Shen et al., 2020, arXiv:2003.11942)."
        )
        yield f"x-kept: &kept {{keep_space: {{guide: {guide}, weight: {_KEPT_SPACE}}}}}"

    def _write_loss_of_pairs(self) -> Iterator[str]:
        yield from _comment(
            "Both texts of a pair are compared with all texts of the other pairs of their batch (Li et al., "
            "2023, arXiv:2308.03281); equal texts are no negatives."
        )
        yield "x-pairs: &pairs"
        yield "  infonce:"
        yield "    temperature: 0.05"
        yield "    symmetric: true"
        yield "    contrast_anchors: true"
        yield "    contrast_positives: true"
        yield "    mask_equal_text: true"

    def _write_loss(self) -> str:
        if not self.plan.learns_scores:
            return "*pairs"
        return "{default: *pairs, by_task: {sts: [cosent, *kept]}}"

    # ── data ────────────────────────────────────────────────────────────────────────────────────

    def _write_data(self) -> Iterator[str]:
        if self.plan.data_kind == "documents":
            yield from self._write_generation()
        else:
            yield from self._write_split()
        yield from _comment(
            "Without rows that contain a query of the test: its scores would look better than they are.",
            1,
        )
        yield "  clean:"
        tests = [self.parts]
        if self.plan.test is not None:
            tests.append(_flow(self._test_rows()))
        yield "    decontaminate:"
        yield f"      data: {self.parts}"
        yield f"      eval_sets: [{', '.join(tests)}]"
        yield "      drop: queries"
        if self.plan.mines:
            yield ""
            yield from self._write_mining()

    def _write_generation(self) -> Iterator[str]:
        plan = self.plan
        dev, test = (round(rows / plan.rows, 3) for rows in (plan.dev_rows, plan.test_rows))
        yield from _comment(
            "Queries made of the documents' own structure: titles, headings, first sentences, taken out "
            "of the text that they find. The parts are divided by document.",
            1,
        )
        yield "  generated:"
        yield "    generate_queries:"
        yield f"      documents: {_flow(_escape(plan.data['path']))}"
        yield "      by: structure"
        yield f"      dev: {dev:g}"
        yield f"      test: {test:g}"
        yield ""

    def _write_pairs(self) -> Iterator[str]:
        yield from _comment("A row for each query: the documents that were judged relevant.", 1)
        yield "  pairs:"
        options = {**_escape(self.plan.data), "judgements": self.plan.judgements}
        yield f"    beir_pairs: {_flow(options)}"
        yield ""

    def _write_split(self) -> Iterator[str]:
        if self.plan.data_kind == "beir":
            yield from self._write_pairs()
        rows = "$pairs" if self.plan.data_kind == "beir" else _flow(_escape(self.plan.data))
        yield from _comment("Each row once.", 1)
        yield "  unique:"
        yield f"    deduplicate: {{data: {rows}}}"
        yield ""
        held_out = "a part to choose by (dev)"
        if self.plan.test_rows:
            held_out += " and a part to judge by (test)"
        yield from _comment(
            f"The rows to train on, {held_out}. Rows that share a query or a document, or nearly so, are "
            "in one part, so that no part asks for what another has shown.",
            1,
        )
        yield "  parts:"
        test = f", test: {self.plan.test_rows}" if self.plan.test_rows else ""
        yield (
            f"    split: {{data: $unique, rows: {self.plan.dev_rows}{test}, jaccard: {_NEAR_COPY}}}"
        )
        yield ""

    def _write_mining(self) -> Iterator[str]:
        options = [
            "data: $clean",
            f"teacher: {{model: *base, max_length: {self.plan.training.max_length}}}",
            "margin: 0.95",
            "count: 4",
        ]
        if self.plan.has_negatives:
            options.append("existing: keep")
        if self.plan.mining_corpus is not None:
            options.append(f"corpus: {_flow(_escape(self.plan.mining_corpus))}")
        yield from _comment(
            "Documents that the base finds near a query and that do not answer it. What scores above 95 % "
            "of the right document may be right as well, and is left out (NV-Retriever, arXiv:2407.15831).",
            1,
        )
        yield "  mined:"
        yield "    mine_hard_negatives:"
        for option in options:
            yield f"      {option}"

    # ── trainings and merge ─────────────────────────────────────────────────────────────────────

    def _write_trainings(self) -> Iterator[str]:
        yield ""
        if self.plan.effort != "thorough":
            yield from _comment("One training on all rows.", 1)
            yield "  trained:"
            yield "    train: {<<: *training, sampler: [*batches]}"
        else:
            yield from _comment(
                "Three models of 60 % of the rows each, and one of all rows (BOOM, arXiv:2602.05787).",
                1,
            )
            yield "  bag:"
            yield "    foreach: {draw: [1, 2, 3]}"
            share = self.plan.member_shares[0]
            sampler = f"[bagging: {{ratio: {share}, draw: $draw}}, *batches]"
            yield f"    train: {{<<: *training, sampler: {sampler}}}"
            yield "  full:"
            yield "    train: {<<: *training, sampler: [*batches]}"

    def _write_merge(self) -> Iterator[str]:
        members = ", ".join(self.members)
        yield ""
        if self.plan.finds_weights:
            yield from _comment(
                "Weights of the models and the base, by the part to choose by. Where it cannot tell them "
                "apart, the models have equal weights and the base its share, for what they forget; or the "
                "base a half, where the models are not clearly better than it.",
                1,
            )
            yield "  found:"
            yield "    find_weights:"
            yield f"      models: [{members}]"
            yield "      base: *base"
            yield f"      base_share: {self.plan.base_share}"
            yield f"      data: {_flow({'path': self.parts, 'split': 'dev'})}"
            yield f"      max_length: {self.plan.training.max_length}"
            yield f"  {MODEL}:"
            yield f"    merge: {{models: [{members}, *base], weights: $found}}"
        else:
            yield from _comment(
                "Half and half with the base, for what the trainings forget. The part to choose by "
                "cannot tell which weights are better.",
                1,
            )
            yield f"  {MODEL}:"
            yield f"    merge: {{models: [{members}], base: *base, keep: 0.5}}"

    # ── student ─────────────────────────────────────────────────────────────────────────────────

    def _write_student(self) -> Iterator[str]:
        small = self.plan.small
        if small is None:
            return
        yield ""
        start = f"{{layers: {small.layers}}}"
        if small.layers is None:
            yield from _comment(
                "The model's embeddings of single tokens, less their mean; frequent tokens count little. A "
                "text's embedding is their mean (model2vec).",
                1,
            )
            yield f"  {TOKENS}:"
            yield "    static_model:"
            yield f"      teacher: ${MODEL}"
            yield f"      data: {self._student_data()}"
            yield ""
            start = f"{{model: ${TOKENS}}}"
        yield from _comment(
            f"A smaller model ({small.summary}), which learns to give texts the model's vectors. It "
            "needs texts, and no labels (LEAF, arXiv:2509.12539). The model embeds each text once; few texts "
            "are read several times.",
            1,
        )
        yield f"  {SMALL}:"
        yield "    distil:"
        yield f"      teachers: ${MODEL}"
        yield f"      student: {start}"
        yield f"      data: {self._student_data()}"
        yield f"      sampler: {{batch_shuffle: {{batch_size: {small.batch_size}, tail: keep}}}}"
        yield f"      learning_rate: {small.learning_rate}"
        yield f"      epochs: {small.epochs}"
        yield f"      max_length: {self.plan.training.max_length}"
        yield "      precision: fast"
        yield "      dropout: false"

    def _student_data(self) -> str:
        """Return the entries of the texts that the student reads: training rows, and further documents."""
        if self.plan.small is None or not self.plan.small.documents:
            return "$clean"
        documents = {
            "path": _escape(self.plan.mining_corpus),
            "task": "text",
            "limit": self.plan.small.documents,
        }
        return f"[$clean, {_flow(documents)}]"

    # ── scores ──────────────────────────────────────────────────────────────────────────────────

    def _test_rows(self) -> dict[str, Any]:
        """Return the entry of the test's queries and what answers them."""
        if self.plan.test is None:
            return {"path": self.parts, "split": "test"}
        columns = {"columns": dict(self.plan.columns)} if self.plan.columns else {}
        return {"path": _escape(self.plan.test), **columns}

    def _test_entry(self) -> dict[str, Any]:
        """Return the entry of the test with all documents that are searched; a BEIR set has its own."""
        entry = self._test_rows()
        if self.plan.test_kind == "beir":
            return entry
        if self.plan.data_kind == "documents" and self.plan.test is not None:
            entry["documents"] = "$generated"
        elif self.plan.documents is not None:
            entry["documents"] = _escape(self.plan.documents)
        return entry

    def _write_evaluation(self) -> Iterator[str]:
        scored = [f"${MODEL}", *self.members]
        pairs = [f"[${MODEL}, {member}]" for member in self.members]
        if self.plan.small is not None:
            scored.append(f"${SMALL}")
            pairs.append(f"[${SMALL}, ${MODEL}]")
        yield ""
        yield from _comment(
            "Texts of seven other domains, to see what the model forgot; they come with Python.", 1
        )
        yield "  probe:"
        yield "    probe_sets: {queries: 50, documents: 100}"
        yield ""
        yield from _comment(
            "The run ends with exit code 3 if the model is not better than the base on the test by more "
            f"than chance, or may have lost {FORGETTING_LIMIT} points elsewhere"
            + self._describe_student_gate(),
            1,
        )
        yield f"  {SCORES}:"
        yield "    evaluate:"
        yield f"      models: [*base, {', '.join(scored)}]"
        yield "      base: *base"
        yield f"      compare: [{', '.join(pairs)}]"
        yield "      evaluators:"
        yield "        mteb:"
        yield "          data:"
        yield f"          - {_flow(self._test_entry())}"
        yield "          - $probe"
        yield f"          max_length: {self.plan.training.max_length}"
        yield "      require:"
        yield f"      - {{model: ${MODEL}, better_than: *base, tasks: ind}}"
        yield f"      - {{model: ${MODEL}, forgetting: {FORGETTING_LIMIT}}}"
        if self.plan.small is not None:
            yield f"      - {{model: ${SMALL}, keeps: {KEPT_SHARE}, of: ${MODEL}, tasks: ind}}"

    def _describe_student_gate(self) -> str:
        """Return the end of the sentence on the claims."""
        if self.plan.small is None:
            return "."
        return f", or if the smaller model may have less than {KEPT_SHARE:.0%} of its score on the test."

    def _write_report(self) -> Iterator[str]:
        made = ["$generated"] if self.plan.data_kind == "documents" else ["$unique", "$parts"]
        made += ["$clean", *(["$mined"] if self.plan.mines else []), *self.members]
        made += ["$found"] if self.plan.finds_weights else []
        made += [f"${MODEL}"]
        if self.plan.small is not None:
            made += [*([f"${TOKENS}"] if self.plan.small.layers is None else []), f"${SMALL}"]
        made += [f"${SCORES}"]
        yield ""
        yield from _comment("OUT/report/report.html", 1)
        yield f"  {REPORT}:"
        yield "    report:"
        yield f"      title: {_flow(self._title())}"
        yield f"      of: [{', '.join(made)}]"
        yield "      base: *base"

    def _title(self) -> str:
        return (
            f"{self.plan.model.rpartition('/')[2]} adapted to {count_noun(self.plan.rows, 'row')}"
        )


def _flow(value: Any) -> str:
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


def _comment(text: str, level: int = 0) -> Iterator[str]:
    """Yield the text as the lines of a comment, indented by two spaces for each level."""
    start = f"{'  ' * level}# "
    yield from textwrap.wrap(
        " ".join(text.split()),
        _COMMENT_WIDTH,
        initial_indent=start,
        subsequent_indent=start,
        break_long_words=False,
        break_on_hyphens=False,
    )
