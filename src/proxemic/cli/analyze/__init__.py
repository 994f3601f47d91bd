"""``proxemic analyze``: one file per subcommand, which declares its flags."""

import argparse
from functools import partial
from itertools import groupby

from proxemic.cli.analyze import (
    characteristics,
    forces,
    gap,
    gradients,
    landscape,
    local_centers,
    robustness,
    sweep,
    theorems,
    toy,
    trajectories,
)
from proxemic.cli.analyze import map as embedding_map

__all__ = ["SUBCOMMANDS", "add_parser"]

SUBCOMMANDS = (
    characteristics,
    forces,
    gap,
    gradients,
    landscape,
    sweep,
    theorems,
    toy,
    trajectories,
    local_centers,
    robustness,
    embedding_map,
)


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Declare the command and its subcommands."""
    parser = commands.add_parser(
        "analyze",
        help="understand losses and embeddings",
        description="Understand losses and embeddings: every subcommand answers one question.",
        allow_abbrev=False,
    )
    parser.set_defaults(run=lambda *_: parser.print_help(), takes_flags=False)
    subcommands = parser.add_subparsers(dest="action", metavar="ACTION")
    for subcommand in SUBCOMMANDS:
        takes_flags = subcommand is sweep
        name = "embedding_map" if subcommand is embedding_map else subcommand.__name__.rpartition(".")[2]
        subcommand.add_parser(subcommands).set_defaults(run=partial(_run, name), takes_flags=takes_flags)


def _run(name: str, arguments: argparse.Namespace, flags: list[str]) -> None:
    """Call the function of `proxemic.analyze`; its arguments have the names under which the flags are stored."""
    from proxemic import analyze

    frame = {"traceback", "command", "action", "run", "takes_flags"}
    options = {key: value for key, value in vars(arguments).items() if key not in frame}
    if "run_directory" in options:
        options["run"] = options.pop("run_directory")
    if name == "sweep":
        from proxemic.cli.compare import read_seeds
        from proxemic.recipes.flags import read_flags

        options["seeds"] = None if arguments.seeds is None else read_seeds(arguments.seeds)
        options["report"] = partial(print, flush=True)  # hours pass between two lines
        options["overrides"] = read_flags(flags)
    result = getattr(analyze, name)(**options)
    print(result)
    for _, files in groupby(result.written, key=lambda path: path.with_suffix("")):
        print(f"Wrote {', '.join(str(path) for path in files)}")
