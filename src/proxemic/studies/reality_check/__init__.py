"""The reality check: tune every loss with the same budget, then evaluate each repeatedly on unseen classes.

Musgrave, Belongie, Lim, "A Metric Learning Reality Check", ECCV 2020, as in the warping paper (appendix D, Tables VI to
VIII).
"""

from proxemic.studies.reality_check.run import RealityCheckResult, reality_check

__all__ = ["RealityCheckResult", "reality_check"]
