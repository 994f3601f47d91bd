"""Training runs as a whole: trained by worker processes, evaluated, verified, and opened again to be looked at.

`Job` and `Workers` train many; `evaluate` and `verify` measure what they are worth; `finished` opens runs for analyses,
`groups` gathers repetitions with other seeds, and `corrupted` evaluates on corrupted pictures.
"""

from proxemic.protocols.runs.evaluate import evaluate
from proxemic.protocols.runs.jobs import Job, Workers, run_job
from proxemic.protocols.runs.verify import Verification, verify

__all__ = ["Job", "Verification", "Workers", "evaluate", "run_job", "verify"]
