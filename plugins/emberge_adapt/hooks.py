"""One command from a team's own data to a better model: `emberge adapt`.

A line that writes the recipe of an adaptation, or reads its outcome, belongs here; what the recipe's steps do
belongs to their plugins.
"""

from __future__ import annotations

from pathlib import Path

from emberge import WholeNumber, make_hook
from emberge.plugin_verbs import Verb, VerbOption, build_number_reader

register_verbs = make_hook(
    adapt=Verb(
        group="start",
        summary="adapt a model to your own data: train, merge with the base, test, report",
        examples="emberge adapt pairs.csv --out out/faq\n"
        "emberge adapt pairs.csv --columns query=question,document=answer --out out/faq\n"
        "emberge adapt pairs.jsonl --documents docs.jsonl --test real_queries.csv --out out/faq\n"
        "emberge adapt ./handbook --model BAAI/bge-base-en-v1.5 --effort thorough --out out/handbook\n"
        "emberge adapt hub:sentence-transformers/natural-questions --effort quick --out out/nq\n"
        "emberge adapt pairs.csv --print > adapt.yaml",
        options=(
            VerbOption(
                "data",
                "a file of pairs (.csv, .tsv, .jsonl, .parquet), a folder of documents (.txt, .md, "
                ".html), a catalogue, or hub:owner/name",
                "DATA",
            ),
            VerbOption("--out", "where results go", "DIR", Path),
            VerbOption(
                "--model",
                "the base: ./folder, owner/name@revision or pkg:module (default: all-MiniLM-L6-v2)",
                "MODEL",
            ),
            VerbOption(
                "--effort",
                "quick: one training; normal (default): one of two passes; thorough: three of "
                "60 %% and one of all",
                "NAME",
                default="normal",
            ),
            VerbOption(
                "--columns",
                "query=…,document=… (also negative, score, label), where names are unusual",
                "PART=COLUMN",
                repeated=True,
            ),
            VerbOption("--documents", "further documents that the test searches through", "FILE"),
            VerbOption(
                "--test", "real queries and their documents, instead of a held-out part", "FILE"
            ),
            VerbOption("--seed", "default: 0", "N", build_number_reader(WholeNumber), default=0),
            VerbOption("--print", "print the recipe, to keep and edit, and run nothing"),
        ),
        run="emberge_adapt.adapt_run:run_verb",
        machine=True,
        resumes=True,
    )
)
