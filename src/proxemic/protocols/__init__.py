"""What is done with many runs, or with a finished one: comparisons, searches, reality checks, evaluation.

`comparison` trains recipes over seeds and compares them, `tuning` searches for hyper-parameters, `reality_check` does
both for several losses alike; all three are directories of many runs (`directories`). `runs` trains, evaluates,
verifies and opens single runs. They share `statistics`, `beside_paper` and `recipe_content`. Each is imported where it
is named: tuning needs Optuna.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from proxemic.protocols import comparison, reality_check, runs, tuning  # noqa: TC004 - submodules, when they are named

__all__ = ["comparison", "reality_check", "runs", "tuning"]
