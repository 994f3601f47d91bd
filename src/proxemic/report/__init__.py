"""Reports: pages about runs, comparisons and galleries, which work offline."""

from proxemic.report.comparison import write_comparison_report
from proxemic.report.gallery import write_gallery_report
from proxemic.report.judged import Judged, judge_run
from proxemic.report.queries import draw_queries
from proxemic.report.write import write_report

__all__ = [
    "Judged",
    "draw_queries",
    "judge_run",
    "write_comparison_report",
    "write_gallery_report",
    "write_report",
]
