"""Statistics of models (Fisher information, Gram matrices, norms of changes), and the verb `diff`."""

from __future__ import annotations

from emberge import make_hook
from emberge.plugin_verbs import Verb, VerbOption

_MODEL_HELP = "./folder, owner/name@revision or pkg:module"


register_steps = make_hook(
    measure_statistics="emberge_statistics.measure_statistics:MeasureStatistics"
)
register_verbs = make_hook(
    diff=Verb(
        group="look",
        summary="compare two models' weights layer by layer: cosine, distance, changes, signs",
        examples="emberge diff ./a ./b\nemberge diff ./a ./b --base me/base",
        options=(
            VerbOption("first", _MODEL_HELP, "MODEL"),
            VerbOption("second", _MODEL_HELP, "MODEL"),
            VerbOption("--base", "compare their changes from it, too", "MODEL"),
        ),
        run="emberge_statistics.weight_sums:run_verb",
        machine=True,
    )
)
