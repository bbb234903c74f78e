"""Merge two models of one base into a third folder: merge_two_folders.py ONE TWO OUT [T]."""

import sys
from pathlib import Path

from emberge import PerTensor, load_plugins
from emberge.devices import find_machine
from emberge.merging import MergeInput, MergeRequest, merge_checkpoints

one, two, out = (Path(word) for word in sys.argv[1:4])
t = float(sys.argv[4]) if len(sys.argv) > 4 else 0.5

# Components are classes; their options are their fields. `emberge show slerp` documents them.
slerp = load_plugins().find("slerp", "merge strategy").type
request = MergeRequest(
    inputs=(MergeInput(one.name, one), MergeInput(two.name, two)),
    strategy=(slerp(t=PerTensor(t)),),
)
report = merge_checkpoints(request, out, machine=find_machine())
print(f"{len(report.plan.merged)} tensors were merged into {out}")
