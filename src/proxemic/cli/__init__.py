"""The command line. This file imports nothing heavy: a command's work is imported when it is called."""

import argparse
import io
import os
import re
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

from proxemic import __version__
from proxemic.allocator import keep_freed_memory
from proxemic.cli import (
    analyze,
    calibrate,
    clean,
    cluster,
    compare,
    datasets,
    demo,
    embed,
    evaluate,
    export,
    gallery,
    plan,
    reality_check,
    recipes,
    recognize,
    report,
    search,
    serve,
    train,
    tune,
    verify,
)
from proxemic.errors import OutOfMemory, UserError, UserNote, is_out_of_memory
from proxemic.files import readable
from proxemic.safe_path import safe_path

__all__ = ["main"]

_LATER = 3.0  # seconds in which the first process says the same, before torchrun ends it because this one has ended
TOGETHER = ("train", "embed")
"""What several processes, started by torchrun or srun, do together."""
COMMANDS = (
    train,
    evaluate,
    report,
    embed,
    calibrate,
    clean,
    gallery,
    search,
    recognize,
    serve,
    cluster,
    export,
    compare,
    reality_check,
    tune,
    demo,
    analyze,
    verify,
    plan,
    datasets,
    recipes,
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; 0 when it is done, 2 with one sentence on standard error when it cannot be.

    Raises:
        SystemExit: As argparse; of code 1 where a check was done and has found images that cannot be read.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):  # file names may be no text
        sys.stdout.reconfigure(errors="backslashreplace")
    parser = build_parser()
    words, flags = _take_flags(sys.argv[1:] if argv is None else argv)
    if any(word == "" or re.fullmatch(r"--[\w-]+=", word) for word in words):
        # Of a shell variable that is not set. As a path it would mean the current folder, which gallery delete deletes.
        parser.error("An argument is empty: leave it out, or give a value, such as . for the current folder.")
    arguments, rest = parser.parse_known_args(words)
    # Recipes are text, and libraries that write files into a run take no other names.
    for word in (*flags, str(getattr(arguments, "out", ""))):
        if readable(word) != word:
            parser.error(f"{readable(word)} is not in UTF-8: give another name, or a link with one.")
    # A class that a flag names comes before the values that other flags give it.
    rest += flags
    if rest and not arguments.takes_flags:
        parser.error(f"{rest[0]} is not known here: see proxemic {arguments.command} --help.")
    if "TORCHELASTIC_RUN_ID" in os.environ and int(os.environ["WORLD_SIZE"]) > 1 and arguments.command not in TOGETHER:
        parser.error(
            f"{arguments.command} is for one process: start it without torchrun, which is for {' and '.join(TOGETHER)}."
        )
    keep_freed_memory()
    try:
        with safe_path(), _notes_as_lines(), _readers_may_leave():
            arguments.run(arguments, rest)
    except KeyboardInterrupt:
        return _fail(UserError("Stopped at once; what was not yet saved is lost."), arguments)
    except (UserError, ValueError, OSError) as error:
        return _fail(error, arguments)
    except (MemoryError, ModuleNotFoundError, RuntimeError) as error:
        if is_out_of_memory(error):
            reason = " ".join(str(error).split())[:200].rstrip(".")
            return _fail(OutOfMemory(f"The memory is not enough ({reason}): lower the batch size."), arguments)
        # Ours name what to install, see `proxemic.extras`, and those of pathlib the link.
        if "pip install" not in str(error) and not str(error).startswith("Symlink loop"):
            raise
        return _fail(error, arguments)
    return 0


def build_parser() -> argparse.ArgumentParser:
    """All commands with their flags."""
    parser = _Parser(
        prog="proxemic",
        description="Proxy-based deep metric learning: train an embedding, evaluate it on unseen classes.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"proxemic {__version__}")
    parser.add_argument("--traceback", action="store_true", help="show where in the code an error came from")
    parser.add_argument(
        "--print-completion",
        default=argparse.SUPPRESS,  # no argument of the commands
        action=_PrintCompletion,
        choices=("bash", "zsh", "tcsh"),
        help="print a script by which a shell completes commands, flags, recipes and files",
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for command in COMMANDS:
        command.add_parser(commands)
    return parser


def _take_flags(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Part the flags of recipes, as ``--data.root photos``, from the words that argparse knows.

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
    """Says what is wrong in one sentence, without the usage that `--help` prints."""

    def error(self, message: str) -> NoReturn:
        if "TORCHELASTIC_RUN_ID" in os.environ and os.environ.get("RANK", "0") != "0":
            time.sleep(_LATER)
            self.exit(2)
        self.exit(2, f"{self.prog}: {message}\n")


@contextmanager
def _notes_as_lines() -> Iterator[None]:
    """Have our own warnings printed as one line, without the place in the code that Python adds."""

    def format_note(message: Warning | str, category: type[Warning], *place: Any) -> str:
        return f"proxemic: {message}\n" if issubclass(category, UserNote) else before(message, category, *place)

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


class _PrintCompletion(argparse.Action):
    """Prints a script and ends, as `--version` does."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, *_: Any) -> None:
        from proxemic.cli.completion import completion

        try:
            script = completion(parser, values)
        except ModuleNotFoundError as error:  # it says what to install
            parser.error(str(error))
        with _readers_may_leave():
            print(script)
        parser.exit()


def _fail(error: Exception, arguments: argparse.Namespace) -> int:
    if arguments.traceback:
        raise error
    sentence = " ".join(str(error).split())
    print(f"proxemic: {sentence}", file=sys.stderr)
    return 2
