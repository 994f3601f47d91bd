"""Studies: what is done with many runs, or with a finished one.

`comparison` trains recipes over seeds and compares them, `tuning` searches for hyper-parameters, `reality_check` does
both for several losses alike; all three are directories of many runs (`directories`), which `jobs` trains. `evaluate`
and `verify` measure finished runs, `corrupted` evaluates them on corrupted images, and `finished` opens them again.
Each module is imported when it is used: tuning needs Optuna.
"""

from typing import TYPE_CHECKING

from proxemic.studies.loading import load_loss

if TYPE_CHECKING:
    from proxemic.studies import comparison, reality_check, tuning  # noqa: TC004 - submodules, when they are named

__all__ = ["comparison", "load_loss", "reality_check", "tuning"]
