"""What is done with trainings and trained runs: comparisons, tuning, the reality check, evaluation and verification.

Each sub-package exports its function and its results. It is imported only where it is named: tuning needs Optuna.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from proxemic.protocols import comparison, reality_check, runs, tuning  # noqa: TC004 - submodules, when they are named

__all__ = ["comparison", "reality_check", "runs", "tuning"]
