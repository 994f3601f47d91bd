"""Reports: pages about runs and comparisons, which open without a network."""

from proxemic.report.judged import Judged, Neighbours, judge_run
from proxemic.report.write import write_report

__all__ = ["Judged", "Neighbours", "judge_run", "write_report"]
