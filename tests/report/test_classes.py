"""The section of confused classes."""

from judged import judged_rows
from proxemic.report.classes import confused


def test_pairs_are_shown_with_pictures() -> None:
    section = confused(judged_rows([0, 1] * 8, names=["<i>a", "b&b"], spread=5.0))
    assert section is not None
    assert "For 4 of 16 queries, the nearest image shows another class, in 1 pair of classes." in section.html
    assert section.html.count("<img") == 4
    assert "<h3>&lt;i&gt;a and b&amp;b</h3>" in section.html
    assert "<i>" not in section.html


def test_good_classes_are_not_confused() -> None:
    section = confused(judged_rows([0, 1] * 8, spread=0.01))
    assert section is not None
    assert "For 0 of 16 queries, the nearest image shows another class.<" in section.html


def test_one_class_cannot_be_confused() -> None:
    assert confused(judged_rows([0, 0, 0])) is None
