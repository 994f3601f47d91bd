"""Which chunks are the fastest, and the table of our own ways twice, for the spread between two runs."""

from functools import partial
from itertools import product
from unittest.mock import patch

import torch

from gpu_stages.matrix import add_ceilings, time_step
from gpu_stages.rows import Row, Rows
from gpu_stages.variants import CASES, OURS, SMOKE, Case
from proxemic.losses.scores import plan

SHARES = (0.01, 0.02, 0.05, 0.1, 0.2)
LEAST = (2**23, 2**25, 2**27)
"""Of the scores at once that a plan allows however few the parameters are; 2^25 are 128 MiB."""
WAYS = ("tf32", "half")


def run(rows: Rows, device: torch.device, *, smoke: bool) -> None:
    """All rows of the stage."""
    cases = {"faces": SMOKE["faces"]} if smoke else CASES
    shares, least = (SHARES[:1], LEAST[:1]) if smoke else (SHARES, LEAST)
    add_ceilings(rows, device, smoke=smoke)
    for way, (name, case), share in product(WAYS, cases.items(), shares):
        rows.add(f"share {share}: {name}: {way}", partial(with_share, share, plan._KEPT, case, way, device, rows))
    for way, name, scores in product(WAYS, [name for name in ("sop", "faces") if name in cases], least):
        measured = partial(with_share, plan._SHARE, scores, cases[name], way, device, rows)
        rows.add(f"at least {scores:,} scores: {name}: {way}", measured)
    for number, (name, case), (way, make) in product((1, 2), cases.items(), OURS.items()):
        rows.add(f"run {number}: {name}: {way}", partial(time_step, case, make, device, rows))


def with_share(share: float, scores: int, case: Case, way: str, device: torch.device, rows: Rows) -> Row:
    """A step in chunks of another size."""
    with patch.object(plan, "_SHARE", share), patch.object(plan, "_KEPT", scores):
        return time_step(case, OURS[way], device, rows)
