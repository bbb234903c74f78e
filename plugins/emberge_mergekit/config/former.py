"""Names that earlier releases of mergekit read and the present one passes over, with what to do instead."""

from __future__ import annotations

from collections.abc import Mapping

FORMER_KEYS: Mapping[str, str] = {
    "out_path": "give this document a 'name', by which others take it as a model, and say --out",
    "input_model_parameters": "give each model its 'parameters'",
}
FORMER_PARAMETERS: Mapping[str, str] = {
    "embed_slerp": "the vocabulary's rows are merged like any others, as 'tokenizer' lines them up",
    "lambda_": "it is 'lambda'",
}

# It saves mergekit memory and changes no result, and configs have it with methods that never knew it.
HARMLESS = "int8_mask"
