"""Training runs: `Workers` train many `Job`, `evaluate` and `verify` measure them, and `finished` opens them again.

`groups` collects runs that differ in their seed alone, and `corrupted` evaluates runs on corrupted images.
"""

from proxemic.protocols.runs.evaluate import evaluate
from proxemic.protocols.runs.jobs import Job, Workers, run_job
from proxemic.protocols.runs.loading import load_loss
from proxemic.protocols.runs.verify import Verification, verify

__all__ = ["Job", "Verification", "Workers", "evaluate", "load_loss", "run_job", "verify"]
