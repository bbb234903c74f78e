"""Train three members on bags of the data and merge them: train_members_and_merge.py MODEL DATA OUT."""

import sys
from pathlib import Path

from emberge import check_recipe, load_plugins, parse_recipe, run_recipe

RECIPE = """
steps:
  members:
    foreach: {{draw: [1, 2, 3]}}
    train:
      model: {model}
      data: {data}
      sampler: [{{bagging: {{ratio: 0.6, draw: $draw}}}}, {{batch_shuffle: {{batch_size: 16}}}}]
      loss: infonce
  merged:
    merge: {{models: $members, weights: size, strategy: multi_slerp}}
"""

model, data, out = sys.argv[1:]
plugins = load_plugins()
recipe = parse_recipe(RECIPE.format(model=model, data=data), plugins)
report = check_recipe(
    recipe, plugins
)  # every problem that configs, headers and data heads can show
report.raise_errors()
results = run_recipe(recipe, Path(out), plugins)
print(f"{len(results) - 1} members were merged into {results['merged']}")
