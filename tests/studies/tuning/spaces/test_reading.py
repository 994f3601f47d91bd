"""Files of search spaces, read and refused."""

from pathlib import Path
from typing import Any

import pytest

from proxemic.errors import UserError
from proxemic.studies.tuning.spaces import default_space, load_space, pin, read_stages

RATE = {"optim.lr": {"factor": 10}}

WRONG: list[tuple[list[Any], str]] = [
    ([], "holds no stages"),
    ([{"serach": {}}], "has no search"),
    ([{"search": RATE, "trails": 1}], "no key trails; allowed are search, fixed, start_from, trials"),
    ([{"search": RATE, "trials": 2}], "trials is 2, but must be the stage's part"),
    ([{"search": RATE, "trials": 0.9}, {"search": RATE, "trials": 0.9}], "add up to more than 1"),
    ([{"search": RATE, "start_from": "best"}], "only the last of several stages"),
    ([{"search": RATE, "start_from": "best.yaml"}], "start_from is 'best.yaml', but must be best"),
    ([{"search": RATE}, {"search": {"batches.size": {"choices": [8]}}, "start_from": "best"}], "batches.size, but"),
    ([{"search": RATE, "fixed": ["loss.alpha"]}], "fixed is .* must map"),
    ([{"search": {"optim.lr": 0.1}}], r"optim\.lr is 0\.1, but must give low and high, or factor, or choices"),
    ([{"search": {"optim.lr": {"low": 1}}}], "'high'"),
    ([{"search": {"optim.lr": {"low": 2, "high": 1}}}], "low is 2 and high is 1: swap them"),
    ([{"search": {"optim.lr": {"low": 0, "high": 1, "log": True}}}], "log needs a low above 0"),
    ([{"search": {"optim.lr": {"low": 0, "high": "big"}}}], "high is 'big', but must be a number"),
    ([{"search": {"optim.lr": {"low": 1, "hgih": 2}}}], "no key hgih beside low; allowed are high, log"),
    ([{"search": {"optim.lr": {"factor": 0}}}], "division"),
    ([{"search": {"optim.lr": {"factor": [2, 1]}}}], "swap them"),
    ([{"search": {"optim.lr": {"choices": []}}}], "choices is empty"),
    ([{"search": {"k": {"low": 0.5, "high": 2, "int": True}}}], "not whole"),
    ([{"search": {"k": {"low": 1, "high": 2, "grid": [3]}}}], "grid holds 3"),
    ([{"search": {"k": {"low": 1, "high": 2, "points": 0}}}], "points is 0"),
    ([{"search": {"k": {"low": 1, "high": 2, "step": 0}}}], "step is 0"),
]


def test_a_space_that_is_wrong() -> None:
    for content, words in WRONG:
        with pytest.raises(UserError, match=words) as refusal:
            read_stages(content, "mine.yaml")
        assert str(refusal.value).startswith("mine.yaml")


def test_names_of_spaces(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"'ProxyAncorLoss' \(did you mean ProxyAnchorLoss\?\)"):
        load_space("ProxyAncorLoss")
    with pytest.raises(UserError, match="not a readable YAML file"):
        load_space(str(tmp_path / "mine.yaml"))
    (tmp_path / "mine.yaml").write_text("search: {}\n")
    with pytest.raises(UserError, match="must be a list of stages"):
        load_space(str(tmp_path / "mine.yaml"))
    with pytest.raises(
        UserError, match=r"no search space for the loss mine.ProxyAnchorLoss: give one with --space FILE"
    ):
        default_space({"loss": {"class_path": "mine.ProxyAnchorLoss"}})


def test_a_loss_inside_that_has_no_space_is_not_searched() -> None:
    pairs = {"class_path": "proxemic.losses.PairwiseLoss", "init_args": {"loss": "mine.Loss"}}
    assert default_space({"loss": pairs}) == load_space("PairwiseLoss")


def test_what_overrides_give_is_not_searched() -> None:
    content = load_space("MultiProxyAnchorLoss")
    left, pinned = pin(content, ["loss.alpha"])
    assert pinned == ["loss.alpha"]
    assert {*left[0]["search"], "loss.alpha"} == {*content[0]["search"]} != {*left[0]["search"]}
    assert pin(content, ["loss", "seed"]) == (content, [])
    with pytest.raises(UserError, match=r"Flags give loss\.f1, which the search space sets itself"):
        pin(load_space("WarpedSoftmaxLoss"), ["loss.f1"])
    left, pinned = pin(load_space("WarpedSoftmaxLoss"), ["loss.alpha"])
    assert pinned == ["loss.alpha"]  # of the second stage, which searched it
