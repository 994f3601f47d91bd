"""``proxemic.verify``: how its result is reported; its figures are tested with the command."""

import json

from proxemic.metrics.verification import OperatingPoint, OperatingPoints, VerificationAccuracy, VerificationMetrics
from proxemic.studies.verify import Verification


def test_each_column_shows_what_its_head_says() -> None:
    sets: dict[str, VerificationMetrics] = {}
    for name, up in (("lfw", 0.0), ("cfp_fp", 0.125)):
        points = OperatingPoints({1e-3: OperatingPoint(threshold=1.7, tar=0.25 + up, far=0.0009)})
        accuracy = VerificationAccuracy(0.75 + up, 0.03, (0.78 + up, 0.72 + up), (1.0, 1.5))
        sets[name] = VerificationMetrics(accuracy, 0.5 + up, 0.41, 1.6, points, pairs=1800, same=600)
    verification = Verification("run", "data", "euclidean", flip=True, sets=sets)
    assert verification.text("csv").splitlines() == [
        "set,pairs,accuracy,std,threshold,auc,tar@far=0.001",
        "lfw,1800,0.75,0.03,1.25,0.5,0.25",
        "cfp_fp,1800,0.875,0.03,1.25,0.625,0.375",
        "mean,,0.8125,,,0.5625,0.3125",
    ]
    *_, lfw, cfp_fp, mean = verification.text("markdown").splitlines()
    assert lfw == "| LFW | 1,800 | 75.00 ± 3.00 | 1.2500 | 50.00 | 25.00 |"
    assert cfp_fp == "| CFP-FP | 1,800 | 87.50 ± 3.00 | 1.2500 | 62.50 | 37.50 |"
    assert mean == "| mean |  | 81.25 |  | 56.25 | 31.25 |"
    assert json.loads(verification.text("json"))["sets"]["lfw"] == {
        "pairs": 1800,
        "same": 600,
        "accuracy": 0.75,
        "std": 0.03,
        "accuracies": [0.78, 0.72],
        "thresholds": [1.0, 1.5],
        "auc": 0.5,
        "eer": 0.41,
        "tar@far=0.001": 0.25,
    }


def test_a_rate_that_needs_more_pairs_is_not_given() -> None:
    for same, measured in ((600, True), (601, False)):  # of 1,600 pairs: 1,000 and 999 different ones
        point = OperatingPoints({1e-3: OperatingPoint(threshold=1.7, tar=0.25, far=0.0)})
        accuracy = VerificationAccuracy(0.75, 0.03, (0.78, 0.72), (1.0, 1.5))
        metrics = VerificationMetrics(accuracy, 0.5, 0.41, 1.6, point, pairs=1600, same=same)
        found = Verification("run", "data", "euclidean", flip=True, sets={"mine.csv": metrics})
        assert json.loads(found.text("json"))["sets"]["mine.csv"]["tar@far=0.001"] == (0.25 if measured else None)
        assert found.text("csv").splitlines()[1].endswith(",0.5,0.25" if measured else ",0.5,")
        assert ("| 25.00 |" in found.text("markdown")) == measured
        assert ("| – |" in found.text("markdown")) != measured
        note = "A FAR of 0.001 needs 1,000 different pairs, but there are 999."
        assert (note in found.text()) != measured
