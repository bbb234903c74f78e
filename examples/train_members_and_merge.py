"""Train three members on bags of the data and merge them: train_members_and_merge.py MODEL DATA OUT."""

import sys

from emberge import run_recipe

model, data, out = sys.argv[1:]
recipe = {
    "steps": {
        "members": {
            "foreach": {"draw": [1, 2, 3]},  # three independent steps
            "train": {
                "model": model,
                "data": data,
                "sampler": [
                    {"bagging": {"ratio": 0.6, "draw": "$draw"}},
                    {"batch_shuffle": {"batch_size": 16}},
                ],
                "loss": "infonce",
            },
        },
        "merged": {"merge": {"models": "$members", "weights": "size", "strategy": "multi_slerp"}},
    }
}
results = run_recipe(recipe, out)  # checked first: every problem that headers and first rows show
print(f"{len(results) - 1} members were merged into {results['merged'].path}")
