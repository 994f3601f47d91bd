"""Draw docs/results/*.svg, the losses of each data set by MAP@R with intervals: ``python docs/make_dots.py``.

The colours follow the page's scheme, and docs/experiments/kept is the only source; a test compares the two.
"""

import sys
from pathlib import Path

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS / "experiments"))
import compare  # noqa: E402
from _experiments import KEPT, Kept  # noqa: E402

DATA_SETS = ("cars-features", "cars-pretrained", "glyphs-small", "omniglot")
BASE = "softmax"
LEFT, RIGHT, TOP, STEP, WIDTH = 196, 24, 34, 20, 520
STYLE = (
    "text{font:13px system-ui,sans-serif;fill:#333}line{stroke:#767676}.grid{stroke:#ddd}.base{stroke-dasharray:4 3}"
    "circle{fill:#1565c0}.softmax{fill:#c62828}"
    "@media(prefers-color-scheme:dark){text{fill:#ddd}.grid{stroke:#444}circle{fill:#82aaf5}.softmax{fill:#f28b7d}}"
)


def main() -> None:
    """Draw all."""
    for dataset in DATA_SETS:
        (DOCS / "results" / f"{dataset}.svg").write_text(drawn(dataset), encoding="utf-8")


def drawn(dataset: str) -> str:
    """Draw the losses of a data set as an SVG picture, the best first, and a line through the softmax."""
    table = compare.means(compare.runs_of(Kept(KEPT, dataset)))
    place = table.columns.index("MAP@R")
    rows = [(str(row[0]), *map(float, str(row[place]).split(" ± "))) for row in table.rows]
    low, high = min(mean - half for _, mean, half in rows), max(mean + half for _, mean, half in rows)
    step = next(step for step in (0.5, 1, 2, 5, 10) if (high - low) / step <= 6)
    ticks = [step * number for number in range(int(low // step), int(-(-high // step)) + 1)]
    bottom = TOP + STEP * len(rows)

    def x(value: float) -> float:
        return round(LEFT + (value - ticks[0]) / (ticks[-1] - ticks[0]) * (WIDTH - LEFT - RIGHT), 1)

    parts = [f'<text x="{x(tick)}" y="14" text-anchor="middle">{tick:g}</text>' for tick in ticks]
    parts += [f'<line class="grid" x1="{x(tick)}" x2="{x(tick)}" y1="20" y2="{bottom}"/>' for tick in ticks]
    base = next(x(mean) for name, mean, _ in rows if name == BASE)
    parts += [f'<line class="base" x1="{base}" x2="{base}" y1="20" y2="{bottom}"/>']
    for place, (name, mean, half) in enumerate(rows):
        y = TOP + STEP * place
        kind = ' class="softmax"' if name == BASE else ""
        parts += [
            f'<text x="{LEFT - 14}" y="{y + 4}" text-anchor="end">{SHORT.get(name, name)}</text>',
            f'<line x1="{x(mean - half)}" x2="{x(mean + half)}" y1="{y}" y2="{y}"/>',
            f'<circle{kind} cx="{x(mean)}" cy="{y}" r="4"><title>{name}: {mean:.2f} ± {half:.2f}</title></circle>',
        ]
    size = f'viewBox="0 0 {WIDTH} {bottom}" width="{WIDTH}" height="{bottom}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size}>\n<style>{STYLE}</style>\n' + "\n".join(parts) + "\n</svg>\n"
    )


SHORT = {
    "euclidean-softmax-two-phases": "euclidean, two phases",
    "warp-off-first-attracting": "warp-off-first, attracting",
    "warp-attracting": "warp, attracting",
}


if __name__ == "__main__":
    main()
