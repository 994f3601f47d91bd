"""The command line. This file imports nothing heavy: a command is imported when it is called."""

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
from itertools import groupby, islice
from pathlib import Path
from typing import Any, NoReturn

from proxemic import __version__
from proxemic.allocator import keep_freed_memory
from proxemic.cli.derive import Command, summary_of
from proxemic.cli.notes import shown
from proxemic.errors import OutOfMemory, UserError, UserNote, is_out_of_memory
from proxemic.extras import optional_dependency
from proxemic.files import readable
from proxemic.safe_path import safe_path

__all__ = ["main"]

TOGETHER = ("train", "embed")
"""The commands that several processes, started by torchrun or srun, can share."""
Addresses = Mapping[str, "str | tuple[str, Addresses]"]


def _in(module: str, *names: str) -> dict[str, str]:
    return {name: f"{module}:{name.replace('-', '_')}" for name in names}


_GROUPS: Mapping[str, Addresses] = {
    "start": _in("proxemic.cli.runs", "demo", "train", "evaluate", "report"),
    "search": {
        "gallery": (
            "Keep photos with their embeddings, and search them",
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
        **_in("proxemic.cli.cache", "cache"),
    },
}

COMMANDS: Addresses = {name: address for group in _GROUPS.values() for name, address in group.items()}
"""The import path of each command's function; or, for a command with actions, its summary and the actions."""

_EXAMPLES = """examples:
  see what it does, in minutes and without a download
    proxemic demo
  search photos without training
    proxemic gallery create shop PHOTOS && proxemic search shop PHOTO
  train on your own photos: a folder with a folder for each class
    proxemic train --recipe own-pretrained --data.root PHOTOS
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; return 0, or 2 after printing one sentence to standard error if the command failed.

    Args:
        argv: The words of the command; None takes those of this process.

    Raises:
        SystemExit: As argparse; with code 1 if a check found damage or unreadable images.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):  # file names need not be valid text
        sys.stdout.reconfigure(errors="backslashreplace")
    words = sys.argv[1:] if argv is None else argv
    try:
        return _run(words)
    except KeyboardInterrupt:
        error: Exception = UserError("Stopped at once; what was not yet saved is lost.")
    except (UserError, ValueError, OSError) as refused:
        error = refused
    except (MemoryError, ModuleNotFoundError, RuntimeError) as defect:
        error = defect
        if is_out_of_memory(defect):
            reason = " ".join(str(defect).split())[:200].rstrip(".")
            error = OutOfMemory(f"The memory is not enough ({reason}): lower the batch size.")
        # Our errors name the missing package (`proxemic.extras`), and those of pathlib the link.
        elif "pip install" not in str(defect) and not str(defect).startswith("Symlink loop"):
            raise
    if "--traceback" in words:
        raise error
    print(f"proxemic: {shown(' '.join(str(error).split()))}", file=sys.stderr)
    return 2


def _run(words: Sequence[str]) -> int:
    parser = build_parser()
    arguments, rest = parser.parse_known_args(words)
    values = vars(arguments)
    chosen: _Parser = values.pop("parser")
    shell, _ = values.pop("print_completion", None), values.pop("traceback", None)
    if shell is not None:
        with optional_dependency("train"):
            import shtab
        with _readers_may_leave():
            print(shtab.complete(build_parser(whole=True), shell))
        return 0
    if rest:
        chosen.refuse(rest[0])
    if chosen.command is None:
        chosen.print_help()
        return 0
    # Recipes, and libraries that write files into a run, only take names in UTF-8.
    for word in map(str, (*values.get("overrides", {}).values(), values.get("out", ""))):
        if readable(word) != word:
            parser.error(f"{readable(word)} is not in UTF-8: give another name, or a link with one.")
    _, name, *actions = chosen.prog.split()
    if "TORCHELASTIC_RUN_ID" in os.environ and int(os.environ["WORLD_SIZE"]) > 1 and name not in TOGETHER:
        parser.error(f"{name} is for one process: start it without torchrun, which is for {' and '.join(TOGETHER)}.")
    keep_freed_memory()
    with safe_path(), _notes_as_lines(), _readers_may_leave():
        _call(chosen.command, values, actions)
    return 0


def _call(command: Command, values: dict[str, Any], actions: Sequence[str]) -> None:
    """Call the function of a command; print the result of an analysis."""
    module, _, name = command.address.partition(":")
    words = [values.pop(word) for word in command.words if word in values]
    is_analysis = module == "proxemic.analyze"
    if is_analysis:
        print(f"Analysing: {actions[0]}", file=sys.stderr, flush=True)  # before seconds of imports
        if "report" in command.takes:
            values["report"] = partial(print, flush=True)  # hours may pass between two lines
    result = getattr(import_module(module), name)(*words, **values)
    if is_analysis:
        print(result)
        for _, files in groupby(result.written, key=lambda path: path.with_suffix("")):
            print(f"Wrote {', '.join(map(str, files))}")


def build_parser(*, whole: bool = False) -> "_Parser":
    """Build the parser of all commands; with `whole`, declare all flags at once, not only those of a chosen command."""
    parser = _Parser(prog="proxemic", address=COMMANDS)
    parser.description = "Proxy-based deep metric learning: train an embedding, evaluate it on unseen classes."
    parser.epilog, parser.formatter_class = _EXAMPLES, argparse.RawDescriptionHelpFormatter
    parser.add_argument("--version", action="version", version=f"proxemic {__version__}")
    parser.add_argument("--traceback", action="store_true", help="show where in the code an error came from")
    parser.add_argument(
        "--print-completion",
        choices=("bash", "zsh", "tcsh"),
        help="print a script by which a shell completes commands and flags",
    )
    if whole:
        parser.fill(whole=True)
    return parser


class _Parser(argparse.ArgumentParser):
    """Parse a command, or one of its actions; errors are one sentence.

    Args:
        address: The import path of the command's function, or the actions.
    """

    def __init__(self, *, address: str | Addresses, **settings: Any) -> None:
        super().__init__(allow_abbrev=False, argument_default=argparse.SUPPRESS, **settings)
        self._address: str | Addresses | None = address
        self.command: Command | None = None
        self._choices: Sequence[argparse.Action] = ()

    def format_help(self) -> str:
        """Format the help; the help of the whole program lists the commands by group."""
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
        """Declare the flags of the command, or its actions; with `whole`, also the flags of each action."""
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
        """Parse words and flags; store the command's parser as ``parser``, and flags of a recipe as ``overrides``."""
        if self.command is not None:  # `parse_known_intermixed_args` parses flags, then words
            return super().parse_known_args(args, namespace)
        self.fill()
        if self.command is None:
            namespace, rest = super().parse_known_args(args, namespace)
            vars(namespace).setdefault("parser", self)
            return namespace, rest
        found: dict[str, Any] = {"parser": self}
        if "overrides" in self.command.takes:
            from proxemic.recipes.flags import take_flags

            found["overrides"], args = take_flags(args, self._option_string_actions)
        if any(word == "" or re.fullmatch(r"--[\w.-]+=", word) for word in args):
            # A shell variable may be unset. As a path, it would mean the current folder, which gallery delete deletes.
            self.error("An argument is empty: leave it out, or give a value, such as . for the current folder.")
        # Python 3.11 loses a -- between flags and words.
        parse = super().parse_known_args if "--" in args else self.parse_known_intermixed_args
        namespace, rest = parse(args, namespace)
        vars(namespace).update(found)
        return namespace, rest

    def refuse(self, word: str) -> NoReturn:
        """Exit with a sentence about a word that no command, word or flag takes."""
        command = self.command
        if command and not word.startswith("-") and {"overrides", "recipe"} <= command.takes - {*command.words}:
            meant = f"--recipe own-pretrained --data.root {word}" if Path(word).is_dir() else f"--recipe {word}"
            self.error(f"{word} needs its flag: write {self.prog} {meant}.")
        self.error(f"{word} is not known here: see {self.prog} --help.")

    def error(self, message: str) -> NoReturn:
        """Exit with one sentence, without the usage that ``--help`` prints."""
        if given := re.fullmatch(r"argument (\S+): invalid choice: '(.*)' \(choose from (.*)\)", message, re.DOTALL):
            near = difflib.get_close_matches(given[2], re.findall(r"'([^']*)'", given[3]), n=1)
            name = "" if given[1].isupper() else f"{given[1]} "
            message = f"{name}{given[2]!r} is not known here: "
            message += f"did you mean {near[0]}?" if near else f"choose from {given[3]}."
        self.exit(2, f"{self.prog}: {shown(message)}\n")


@contextmanager
def _notes_as_lines() -> Iterator[None]:
    """Print our own warnings as one line, without the code line that Python adds."""

    def format_note(message: Warning | str, category: type[Warning], *place: Any) -> str:
        is_ours = issubclass(category, UserNote)
        return f"proxemic: {shown(str(message))}\n" if is_ours else before(message, category, *place)

    before, warnings.formatwarning = warnings.formatwarning, format_note
    try:
        yield
    finally:
        warnings.formatwarning = before


@contextmanager
def _readers_may_leave() -> Iterator[None]:
    """End the block silently if the reader of our output, such as head, closes the pipe."""
    try:
        yield
        print(end="", flush=True)  # otherwise a closed pipe is noticed when the interpreter exits
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
