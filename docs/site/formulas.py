"""Convert formulas of pages and docstrings to MathML."""

from latex2mathml.converter import convert


def as_mathml(latex: str) -> str:
    """Convert a formula to a block of MathML; GitHub aligns by aligned, latex2mathml by align*."""
    return f'<div class="formula">{convert(latex.replace("aligned}", "align*}"), display="block")}</div>'
