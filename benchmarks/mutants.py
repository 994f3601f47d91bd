"""Change functions of the package at random, one at a time, and list the changes that no test notices.

    make mutants
    uv run python benchmarks/mutants.py --count 60 --seed 1
    uv run python benchmarks/mutants.py --first 17 --count 1    # one of them again

A change swaps an operator, moves a number by one, leaves out an argument, a decorator or a statement, or negates a
condition: what a slip would do. It is made in a copy of the repository. The tests are those that ran the function, by
the contexts that `make coverage` records; for a function that only other processes run, those that name it, and those
of its module. A test that fails must pass without the change.
"""

import ast
import os
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import coverage

from measure import command

ROOT = Path(__file__).parents[1]
COMPARISONS = [(ast.Lt, ast.LtE), (ast.Gt, ast.GtE), (ast.Eq, ast.NotEq), (ast.In, ast.NotIn), (ast.Is, ast.IsNot)]
PAIRS = [*COMPARISONS, (ast.And, ast.Or), (ast.Add, ast.Sub), (ast.Mult, ast.Div)]
SWAPS: dict[type[ast.AST], Any] = {**dict(PAIRS), **{other: one for one, other in PAIRS}}
INVISIBLE = {"encoding", "strict"}  # UTF-8 is the default on Linux; zip's strict is an assertion
Function = ast.FunctionDef | ast.AsyncFunctionDef
Change = tuple[ast.AST, str]


def changes(function: Function) -> Iterator[Change]:
    """Yield the nodes of a function that may change, with the text that replaces them."""
    text = ast.unparse
    for decorator in function.decorator_list:
        if "grad" in text(decorator) or "cache" in text(decorator):
            yield decorator, "(lambda f: f)"
    for node in (item for statement in function.body for item in _walk(statement)):
        match node:
            case ast.Compare(left=left, ops=[op], comparators=others):
                yield node, f"({text(ast.Compare(left, [SWAPS[type(op)]()], others))})"
            case ast.BinOp(left=left, op=op, right=right) if type(op) in SWAPS:
                yield node, f"({text(ast.BinOp(left, SWAPS[type(op)](), right))})"
            case ast.BoolOp(op=op, values=values):
                yield node, f"({text(ast.BoolOp(SWAPS[type(op)](), values))})"
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                yield node, f"bool({text(operand)})"
            case ast.Constant(value=bool() as value):
                yield node, str(not value)
            case ast.Constant(value=int() | float() as value):
                yield node, str(value + 1)
            case ast.Call(func=func, args=args, keywords=[*_, ast.keyword(arg=str() as last)] as keywords) if (
                last not in {"device", *INVISIBLE}
            ):
                yield node, f"{text(func)}({', '.join(map(text, [*args, *keywords[:-1]]))})"
            case ast.IfExp(test=test) | ast.If(test=test, orelse=[_]):
                yield test, f"not ({text(test)})"
            case ast.If(body=[ast.Raise()], orelse=[]) | ast.Expr(value=ast.Call()):
                yield node, "pass"


def _walk(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a node and all below it, but not assertions, nor formatted strings: Python 3.11 misplaces their parts."""
    if not isinstance(node, ast.JoinedStr | ast.Assert) and getattr(node, "arg", "") not in INVISIBLE:
        yield node
        for child in ast.iter_child_nodes(node):
            yield from _walk(child)


def functions() -> Iterator[tuple[Path, Function, str]]:
    """Yield the files and functions of the package that can be changed, with the names by which tests know them."""
    for path in sorted((ROOT / "src").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            for child in ast.iter_child_nodes(node):
                if isinstance(child, Function) and any(changes(child)):
                    yield path.relative_to(ROOT), child, node.name if isinstance(node, ast.ClassDef) else child.name


def changed(source: str, node: ast.AST, text: str) -> str:
    """Return the source with another text in the place of a node, whose columns are counted in bytes."""
    lines = source.encode().splitlines(keepends=True)
    first, last = vars(node)["lineno"] - 1, vars(node)["end_lineno"] - 1
    after = lines[last][vars(node)["end_col_offset"] :]
    lines[first : last + 1] = [lines[first][: vars(node)["col_offset"]] + text.encode() + after]
    return b"".join(lines).decode()


def _parses(source: str) -> bool:
    try:
        return bool(ast.parse(source))
    except SyntaxError:
        return False


def tests_of(path: Path, node: ast.AST, function: Function, name: str, data: coverage.CoverageData) -> list[str]:
    """Return the tests that run a node, or else its function, in their own process, or the files that are about it."""
    by_line, contexts = data.contexts_by_lineno(str(ROOT / path)), set[str]()
    for place in (node, function):
        lines = range(vars(place)["lineno"], vars(place)["end_lineno"] + 1)
        contexts = contexts or {context for line in lines for context in by_line.get(line, ()) if context}
    tests = []
    for context in sorted(contexts):
        module, _, test = context.rpartition(".")
        file = ROOT / f"{module.replace('.', '/')}.py"
        if file.exists() and f"def {test}(" in file.read_text(encoding="utf-8"):  # not one that has gone since
            tests.append(f"{file.relative_to(ROOT)}::{test}")
    if not tests:
        module = path.stem.strip("_")
        texts = {file: file.read_text(encoding="utf-8") for file in sorted((ROOT / "tests").rglob("test_*.py"))}
        about = [file for file in texts if file.stem == f"test_{module}" or re.search(rf"\b{name}\b", texts[file])]
        tests = [str(file.relative_to(ROOT)) for file in about[:10]]
    mirrored = f"test_{path.stem}.py::"
    # Its doctests, too: last, as pytest then binds the names of its package to modules.
    return [*sorted(tests, key=lambda test: mirrored not in test)[:60], str(path)]


def failing(tree: Path, tests: list[str]) -> str:
    """Return the first test that fails, an empty text if none does."""
    words = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--no-header", *tests]
    environment = {**os.environ, "PYTHONPATH": str(tree / "src")}
    try:
        result = subprocess.run(words, cwd=tree, env=environment, capture_output=True, text=True, timeout=900)
    except subprocess.TimeoutExpired:
        return "the time, 15 minutes"
    found = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", result.stdout, re.MULTILINE)
    return found[1] if found else "" if result.returncode in (0, 5) else f"pytest ends with {result.returncode}"


def _write(path: Path, source: str) -> None:
    path.write_text(source, encoding="utf-8")
    for compiled in path.parent.glob(f"__pycache__/{path.stem}.*"):  # which may have the same time and size
        compiled.unlink()


def main(*, count: int = 60, first: int = 0, seed: int = 1, data: str = ".cache/coverage/data") -> None:
    """Change as many functions, drawn by their lines, and print what becomes of each change, from a number on."""
    contexts = coverage.CoverageData(str(ROOT / data))
    contexts.read()
    tree = ROOT / ".cache" / "mutants" / str(first)
    shutil.rmtree(tree, ignore_errors=True)
    for name in subprocess.check_output(["git", "ls-files"], cwd=ROOT, text=True).splitlines():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tree / name)
    found = [*functions()]
    weights = [(function.end_lineno or 0) - function.body[0].lineno + 1 for _, function, _ in found]
    survivors = []
    for number in range(first, first + count):
        rng = random.Random(f"{seed} {number}")
        path, function, name = rng.choices(found, weights)[0]
        source = (ROOT / path).read_text(encoding="utf-8")
        choices = [*changes(function)]
        rng.shuffle(choices)
        node, text = next(choice for choice in choices if _parses(changed(source, *choice)))  # no elif without its if
        before = " ".join((ast.get_source_segment(source, node) or "").split())
        what = f"{number}. {path}:{vars(node)['lineno']} {function.name}: {before}  →  {text}"
        tests = tests_of(path, node, function, name, contexts)
        _write(tree / path, changed(source, node, text))
        killer = failing(tree, tests)
        _write(tree / path, source)
        if "::" in killer and failing(tree, [killer, str(path)]):
            killer = f"{killer}, which fails without the change, too"
        print(f"{what}\n   {killer or f'SURVIVES {len(tests)} tests'}", flush=True)
        survivors += [] if killer else [what]
    print(f"\n{len(survivors)} of {count} survive:", *survivors, sep="\n")


if __name__ == "__main__":
    command(main)
