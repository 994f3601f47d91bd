"""How the subcommands print what was found."""

from proxemic.analyze import Analysis

__all__ = ["print_analysis"]


def print_analysis(result: Analysis) -> None:
    """Print the summary, and which files were written."""
    print(result)
    print(f"Wrote {', '.join(map(str, result.written))}")
