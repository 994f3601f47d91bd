"""Parsers derived from functions: the words that they take, and the arguments that reach the functions."""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from command_line import Here, assert_refused
from proxemic.cli import build_parser


def arguments_of(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Iterate over the arguments of a parser and its subparsers."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for choice in dict.fromkeys(action.choices.values()):
                yield from arguments_of(choice)
        else:
            yield action


def test_every_argument_says_what_it_means() -> None:
    assert not [action for action in arguments_of(build_parser(whole=True)) if not action.help]


def test_words_for_programmers_are_not_shown(here: Here) -> None:
    for command in ("cluster", "tune", "verify", "analyze map", "gallery create"):
        shown = " ".join(here(*command.split(), "--help").stdout.split())
        assert "`" not in shown
        assert " None " not in shown
    assert "By default k-means if the number of groups is given" in " ".join(here("cluster", "--help").stdout.split())
    assert "(default: 64)" in here("cluster", "--help").stdout


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Calls of what works, which here does nothing."""
    calls: list[tuple[Any, ...]] = []

    class Nothing:
        written: tuple[Path, ...] = ()

        def summary(self) -> str:
            return "nothing"

    def work(*words: object, **options: object) -> Nothing:
        options.pop("report", None)
        calls.append((*words, options))
        return Nothing()

    for name in ("retrieval.curation.clustering.cluster", "analyze._robustness.robustness", "analyze._sweep.sweep"):
        monkeypatch.setattr(f"proxemic.{name}", work)
    return calls


@pytest.mark.parametrize(
    ("words", "call"),
    [
        ("cluster a b", (["a", "b"], None, {})),
        ("cluster a --groups 3 b --model m", (["a", "b"], "m", {"groups": 3})),
        ("cluster --groups 3 -- -a", (["-a"], None, {"groups": 3})),
        ("cluster a --rate 0.5 --min-size=2 --out o", (["a"], None, {"rate": 0.5, "min_size": 2, "out": "o"})),
        (
            "analyze robustness r --severities 1,3 --corruptions a,b,a",
            (["r"], {"severities": [1, 3], "corruptions": ["a", "b"]}),
        ),
        (
            "analyze sweep --loss A own --vary x=1 --vary y=2 --out o --seeds 2 --loss.alpha 3 --optim.lr=1",
            (
                "own",
                {"vary": ["x=1", "y=2"], "out": "o", "seeds": [0, 1]}
                | {"overrides": {"loss": "A", "loss.alpha": "3", "optim.lr": "1"}},
            ),
        ),
    ],
)
def test_only_what_is_given_reaches_the_function(
    words: str, call: tuple[Any, ...], called: list[tuple[Any, ...]], here: Here
) -> None:
    result = here(*words.split())
    assert result.returncode == 0, result.stderr
    assert called == [call]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("cluster", ["SOURCE"]),
        ("cluster a --groups many", ["--groups", "'many'"]),
        ("cluster a --method kmean", ["--method", "'kmean'", "did you mean kmeans?"]),
        ("cluster a --colour red", ["--colour is not known here: see proxemic cluster --help"]),
        ("gallery sell shop", ["'sell' is not known here"]),
        ("analyze robustness r --severities mild", ["--severities", "1,3,5"]),
    ],
)
def test_what_is_refused(words: str, told: list[str], here: Here) -> None:
    assert_refused(here(*words.split()), told)
