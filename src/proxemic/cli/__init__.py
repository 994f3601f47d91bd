"""The command line. This file imports nothing heavy: a command's work is imported when it is called."""

import argparse
import difflib
import io
import os
import re
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from itertools import groupby, islice, pairwise
from pathlib import Path
from typing import Any, NoReturn

from proxemic import __version__
from proxemic.allocator import keep_freed_memory
from proxemic.cli.derive import Command, summary_of
from proxemic.errors import OutOfMemory, UserError, UserNote, is_out_of_memory
from proxemic.files import printable, readable
from proxemic.safe_path import safe_path

__all__ = ["main"]

TOGETHER = ("train", "embed")
"""What several processes, started by torchrun or srun, do together."""
Addresses = Mapping[str, "str | tuple[str, Addresses]"]


def _in(module: str, *names: str) -> dict[str, str]:
    return {name: f"{module}:{name.replace('-', '_')}" for name in names}


_GROUPS: Mapping[str, Addresses] = {
    "start": _in("proxemic.cli.runs", "demo", "train", "evaluate", "report"),
    "search": {
        "gallery": (
            "Keep pictures with their vectors, to be searched",
            {
                **_in("proxemic.cli.gallery", "create", "add", "remove", "relabel", "decisions", "apply", "suggest"),
                **_in("proxemic.cli.gallery", "info", "delete", "verify", "index", "export"),
                "import": "proxemic.cli.gallery:import_",
            },
        ),
        **_in("proxemic.cli.pictures", "search", "recognize", "calibrate", "serve", "improve", "clean", "cluster"),
        **_in("proxemic.cli.pictures", "embed", "export"),
    },
    "research": {
        **_in("proxemic.cli.studies", "compare", "tune", "reality-check"),
        "analyze": (
            "Understand losses and embeddings: every action answers one question",
            {
                **_in("proxemic.analyze", "characteristics", "forces", "gap", "gradients", "landscape", "sweep"),
                **_in("proxemic.analyze", "theorems", "toy", "trajectories", "local-centers", "robustness"),
                "map": "proxemic.analyze:embedding_map",
            },
        ),
        **_in("proxemic.cli.runs", "verify"),
        **_in("proxemic.cli.plan", "plan"),
    },
    "data": {
        "datasets": (
            "Get the papers' data sets; look at images before training on them",
            _in("proxemic.cli.datasets", "list", "prepare", "check"),
        ),
        "recipes": (
            "List the recipes, show every value of one, or explain a key",
            _in("proxemic.cli.recipes", "list", "show", "explain"),
        ),
    },
}

COMMANDS: Addresses = {name: address for group in _GROUPS.values() for name, address in group.items()}
"""The address of the function that each command calls; several actions are described in one line."""

_EXAMPLES = """examples:
  see what it does, in minutes and without a download
    proxemic demo
  search photographs without training
    proxemic gallery create shop PHOTOS && proxemic search shop PICTURE
  train on your own photographs: a folder with a folder for each class
    proxemic train --recipe own-pretrained --data.root PHOTOS
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; 0 when it is done, 2 with one sentence on standard error when it cannot be.

    Raises:
        SystemExit: As argparse; of code 1 where a check was done and has found images that cannot be read.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):  # file names may be no text
        sys.stdout.reconfigure(errors="backslashreplace")
    words, flags = _take_flags(sys.argv[1:] if argv is None else argv)
    try:
        return _run(words, flags)
    except KeyboardInterrupt:
        error: Exception = UserError("Stopped at once; what was not yet saved is lost.")
    except (UserError, ValueError, OSError) as refused:
        error = refused
    except (MemoryError, ModuleNotFoundError, RuntimeError) as defect:
        error = defect
        if is_out_of_memory(defect):
            reason = " ".join(str(defect).split())[:200].rstrip(".")
            error = OutOfMemory(f"The memory is not enough ({reason}): lower the batch size.")
        # Ours name what to install, see `proxemic.extras`, and those of pathlib the link.
        elif "pip install" not in str(defect) and not str(defect).startswith("Symlink loop"):
            raise
    if "--traceback" in words:
        raise error
    print(f"proxemic: {printable(' '.join(str(error).split()))}", file=sys.stderr)
    return 2


def _run(words: Sequence[str], flags: Sequence[str]) -> int:
    parser = build_parser()
    if any(word == "" or re.fullmatch(r"--[\w-]+=", word) for word in words):
        # Of a shell variable that is not set. As a path it would mean the current folder, which gallery delete deletes.
        parser.error("An argument is empty: leave it out, or give a value, such as . for the current folder.")
    arguments, rest = parser.parse_known_args(words)
    values = vars(arguments)
    chosen, shell, _ = values.pop("parser"), values.pop("print_completion", None), values.pop("traceback", None)
    if shell is not None:
        from proxemic.cli.completion import completion

        with _readers_may_leave():
            print(completion(build_parser(whole=True), shell))
        return 0
    command = chosen.command
    if command is None and not rest:  # there are several actions
        chosen.print_help()
        return 0
    # Recipes are text, and libraries that write files into a run take no other names.
    for word in (*flags, str(values.get("out", ""))):
        if readable(word) != word:
            parser.error(f"{readable(word)} is not in UTF-8: give another name, or a link with one.")
    if command is not None:
        # A class that a flag names comes before the values that other flags give it.
        rest = [*_take_words(chosen, rest, values), *flags]
    if command is not None and ("overrides" in command.takes or (rest and "data_root" in command.takes)):
        from proxemic.recipes.flags import read_flags

        overrides, rest = read_flags(rest), []
        if "overrides" in command.takes:
            values["overrides"] = overrides
        else:
            values["data_root"] = overrides.pop("data.root", None)
            rest = [f"--{name}" for name in overrides]
    if rest or command is None:
        parser.error(f"{rest[0]} is not known here: see {chosen.prog} --help.")
    _, name, *actions = chosen.prog.split()
    if "TORCHELASTIC_RUN_ID" in os.environ and int(os.environ["WORLD_SIZE"]) > 1 and name not in TOGETHER:
        parser.error(f"{name} is for one process: start it without torchrun, which is for {' and '.join(TOGETHER)}.")
    keep_freed_memory()
    with safe_path(), _notes_as_lines(), _readers_may_leave():
        _call(command, values, actions)
    return 0


def _take_words(parser: "_Parser", rest: Sequence[str], values: dict[str, Any]) -> list[str]:
    """Assign words that argparse leaves after the flags to the list that they continue; return the other words."""
    words: list[str] = []
    others: list[str] = []
    for before, word in pairwise(["", *rest]):
        is_value = before.startswith("--") and "=" not in before
        (others if word.startswith("-") or is_value else words).append(word)
    command = parser.command
    assert command is not None
    if words and {"overrides", "recipe"} <= command.takes and "recipe" not in command.words:
        word = words[0]
        meant = f"--recipe own-pretrained --data.root {word}" if Path(word).is_dir() else f"--recipe {word}"
        parser.error(f"{word} needs its flag: write {parser.prog} {meant}.")
    # argparse leaves out a list that may be empty once flags follow the word before it.
    many = {action.dest for action in parser._actions if action.nargs in ("*", "+")}
    if not words or not many.intersection(command.words[-1:]):
        return words + others
    values[command.words[-1]] = [*values.get(command.words[-1], []), *words]
    return others


def _call(command: Command, values: dict[str, Any], actions: Sequence[str]) -> None:
    """Call the function of a command; what an analysis returns is printed."""
    module, _, name = command.address.partition(":")
    words = [values.pop(word) for word in command.words if word in values]
    is_analysis = module == "proxemic.analyze"
    if is_analysis:
        print(f"Analysing: {actions[0]}", file=sys.stderr, flush=True)  # before what takes seconds to import
        if "report" in command.takes:
            values["report"] = partial(print, flush=True)  # hours may pass between two lines
    result = getattr(import_module(module), name)(*words, **values)
    if is_analysis:
        print(result)
        for _, files in groupby(result.written, key=lambda path: path.with_suffix("")):
            print(f"Wrote {', '.join(map(str, files))}")


def build_parser(*, whole: bool = False) -> "_Parser":
    """Build the parser of all commands; the flags of each are declared once it is chosen, unless all are wanted."""
    parser = _Parser(prog="proxemic", address=COMMANDS)
    parser.description = "Proxy-based deep metric learning: train an embedding, evaluate it on unseen classes."
    parser.epilog, parser.formatter_class = _EXAMPLES, argparse.RawDescriptionHelpFormatter
    parser.add_argument("--version", action="version", version=f"proxemic {__version__}")
    parser.add_argument("--traceback", action="store_true", help="show where in the code an error came from")
    parser.add_argument(
        "--print-completion",
        choices=("bash", "zsh", "tcsh"),
        help="print a script by which a shell completes commands, flags, recipes and files",
    )
    if whole:
        parser.fill(whole=True)
    return parser


def _take_flags(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Separate the flags of recipes, such as ``--data.root photos``, from the words that argparse knows.

    It would take the value of a flag that it does not know for a word of the command's own.
    """
    own: list[str] = []
    flags: list[str] = []
    wants_value = False
    for word in words:
        is_flag = re.match(r"--[A-Za-z_]\w*\.", word) is not None
        is_value = wants_value and not word.startswith("--")
        (flags if is_flag or is_value else own).append(word)
        wants_value = is_flag and "=" not in word
    return own, flags


class _Parser(argparse.ArgumentParser):
    """Parses a command, or one of several actions, and says what is wrong in one sentence.

    Args:
        address: The function that the command calls, or its actions.
    """

    def __init__(self, *, address: str | Addresses, **settings: Any) -> None:
        super().__init__(allow_abbrev=False, argument_default=argparse.SUPPRESS, **settings)
        self._address: str | Addresses | None = address
        self.command: Command | None = None
        self._choices: Sequence[argparse.Action] = ()

    def format_help(self) -> str:
        """Format the help; that of the whole program lists the commands by group."""
        if self.prog != "proxemic":
            return super().format_help()
        formatter, listed = self._get_formatter(), iter(self._choices)
        formatter.add_usage(self.usage, self._actions, self._mutually_exclusive_groups)
        formatter.add_text(self.description)
        for title, group in _GROUPS.items():
            formatter.start_section(title)
            formatter.add_arguments([*islice(listed, len(group))])
            formatter.end_section()
        formatter.start_section("options")
        formatter.add_arguments(self._optionals._group_actions)
        formatter.end_section()
        formatter.add_text(self.epilog)
        return formatter.format_help()

    def fill(self, *, whole: bool = False) -> None:
        """Declare the flags of the command, or its actions, and those of each if the whole is wanted."""
        address, self._address = self._address, None
        if isinstance(address, str):
            self.command = Command(address)
            self.command.fill(self)
        elif address is not None:
            actions = self.add_subparsers(metavar="COMMAND" if self.prog == "proxemic" else "ACTION")
            self._choices = actions._choices_actions
            for name, item in address.items():
                summary, inner = (summary_of(item), item) if isinstance(item, str) else item
                added = actions.add_parser(name, help=summary, description=f"{summary}.", address=inner)
                if whole:
                    added.fill(whole=True)

    def parse_known_args(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, args: Any = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        """Parse, and keep the parser of the command that was chosen as ``parser``."""
        self.fill()
        namespace, rest = super().parse_known_args(args, namespace)
        vars(namespace).setdefault("parser", self)
        return namespace, rest

    def error(self, message: str) -> NoReturn:
        """End with the message as one sentence, without the usage that ``--help`` prints."""
        if given := re.fullmatch(r"argument (\S+): invalid choice: '(.*)' \(choose from (.*)\)", message, re.DOTALL):
            near = difflib.get_close_matches(given[2], re.findall(r"'([^']*)'", given[3]), n=1)
            name = "" if given[1].isupper() else f"{given[1]} "
            message = f"{name}{given[2]!r} is not known here: "
            message += f"did you mean {near[0]}?" if near else f"choose from {given[3]}."
        self.exit(2, f"{self.prog}: {printable(message)}\n")


@contextmanager
def _notes_as_lines() -> Iterator[None]:
    """Print our own warnings as one line, without the place in the code that Python adds."""

    def format_note(message: Warning | str, category: type[Warning], *place: Any) -> str:
        is_ours = issubclass(category, UserNote)
        return f"proxemic: {printable(str(message))}\n" if is_ours else before(message, category, *place)

    before, warnings.formatwarning = warnings.formatwarning, format_note
    try:
        yield
    finally:
        warnings.formatwarning = before


@contextmanager
def _readers_may_leave() -> Iterator[None]:
    """End the block without an error when the reader of our output, head for one, has had enough."""
    try:
        yield
        print(end="", flush=True)  # else a closed pipe is noticed when the interpreter exits
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
