"""The benchmarks run, in their short form; their figures are read by people."""

import ast
import json
import re
import sys
from pathlib import Path

import pytest

import warm

pytest.importorskip("pytorch_metric_learning")
ROOT = Path(__file__).parents[1]


def run(*arguments: str) -> str:
    done = warm.run(ROOT / "benchmarks" / arguments[0], *arguments[1:])
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_flags_that_docstrings_show_exist() -> None:
    shown = 0
    for path in (ROOT / "benchmarks").glob("*.py"):
        code = path.read_text()
        page = ast.get_docstring(ast.parse(code)) or ""
        for flag in re.findall(r"(?<= --)[\w-]+", "\n".join(re.findall(r"^ +.*benchmarks/.*$", page, re.MULTILINE))):
            shown += 1
            assert f'"--{flag}"' in code or f'("{flag}", ' in code, f"{path.name} --{flag}"
    assert shown > 20


def test_the_table_of_the_losses_has_every_column() -> None:
    lines = run("losses.py", "--smoke", "--losses", "NormalizedSoftmaxLoss", "MultiProxyAnchorLoss").splitlines()
    rows = [line.rsplit(maxsplit=8) for line in lines[2:]]
    assert len(rows) == 4
    for row in rows:
        t3, ours, dense = map(float, row[3:6])
        assert min(t3, ours, dense) > 0
        assert int(row[8]) >= 0
    assert rows[0][6:8] != ["–", "–"]  # one proxy: the other library has this loss
    assert rows[1][6:8] == ["–", "–"]
    row = run("losses.py", "--smoke", "--alone", "--losses", "NormalizedSoftmaxLoss").splitlines()[-1]
    assert row.rsplit(maxsplit=8)[5:8] == ["–", "–", "–"]  # neither the dense form nor the other library


def test_the_errors_of_products() -> None:
    rows = [line.strip("| ").split(" | ") for line in run("precision.py", "--smoke").splitlines()[2:12]]
    assert [row[0] for row in rows] == ["random"] * 5 + ["trained"] * 5
    for start in (0, 5):
        errors = {row[1]: [float(each) for each in row[2:]] for row in rows[start : start + 5]}
        for exact in ("float32", "split"):
            assert errors[exact][1] < 1e-5 < 10 * errors["half"][1] < 1e-1
        assert errors["half"][1] < errors["bfloat16"][1]


def test_what_a_gpu_is_to_measure_is_rehearsed(tmp_path: Path) -> None:
    path = tmp_path / "gpu.json"
    command = ["gpu.py", "--device", "cpu", "--smoke", "--out", str(path)]
    assert re.findall(r"^(\w+): complete$", run(*command), re.MULTILINE) == ["losses", "rest"]
    content = json.loads(path.read_text())
    rows = content["rows"]
    assert not [row for row, found in rows.items() if "failed" in found]
    assert len([row for row in rows if row.startswith("errors")]) == 4
    assert not any(found.get("beyond the bounds") for found in rows.values())
    # A second start measures what is missing; without time, nothing.
    del rows["faces: ours, half"]
    path.write_text(json.dumps(content))
    losses = [*command, "--part", "losses"]
    assert run(*losses, "--seconds", "0").splitlines() == ["losses: left out: faces: ours, half"]
    row, last = run(*losses).splitlines()
    assert row.startswith("faces: ours, half: {")
    assert last == "losses: complete"


def test_the_tables_of_gpus_are_those_of_the_measured_rows() -> None:
    measured = [str(path) for path in sorted((ROOT / "docs" / "measured").glob("gpu-*.json"))]
    assert run("gpu.py", "--tables", *measured).strip() in (ROOT / "docs" / "benchmarks.md").read_text()


def test_thresholds_and_groups_of_photographs() -> None:
    unknown, groups = run("photographs.py", "--smoke").split("\n\n|  | groups")
    learnt_from = [line.split("|")[1].strip() for line in unknown.splitlines()[4:7]]
    assert learnt_from == ["the gallery", "3 classes", "7 classes"]
    assert len(groups.splitlines()) == 8


def test_memory_is_counted() -> None:
    (line,) = run("losses.py", "--smoke", "--memory", "--losses", "MultiProxyAnchorLoss").splitlines()[1:]
    words = line.replace(",", "").split()
    assert words[0] == "MultiProxyAnchorLoss"
    tensors, allowed = (float(words[words.index(name) + 1]) for name in ("tensors", "allowed"))
    assert 0 < tensors < 1.5 * allowed  # of all classes in one chunk, which has more than its two buffers


def test_operations_are_counted() -> None:
    row = run("operations.py", "--cases", "cub").splitlines()[-1]
    step, chunk = (int(cell) for cell in row.strip("| ").split(" | ")[3:])
    assert 0 < step <= 60 < chunk  # the step takes all scores at once


def test_the_tables_of_the_metrics() -> None:
    (line,) = run("metrics.py", "--smoke").splitlines()[2:]
    assert line.split()[0] == "1200"
    assert min(map(float, line.split()[1:])) > 0
    lines = run("metrics.py", "--smoke", "--memory").splitlines()
    assert [line.split(":")[0] for line in lines] == [
        "N=1200, k=100",
        "N=1200, k=300",
        "N=1200, k=100 with MAP and MRR",
    ]
    lines = run("metrics.py", "--smoke", "--peers").splitlines()
    assert [line.split()[1] for line in lines[2::3]] == ["pytorch-metric-learning", "torchmetrics"]


def test_the_table_of_loading() -> None:
    lines = run("loading.py", "--smoke").splitlines()
    rows = [line.strip("| ").split(" | ") for line in lines[-4:]]
    assert [row[:2] for row in rows] == [[name, workers] for name in ("training", "evaluation") for workers in "02"]
    for row in rows:
        files, cache, ratio = map(float, row[2:])
        assert files > 0.5  # rounded to whole images a second, the ratio to hundredths
        assert (cache - 0.5) / (files + 0.5) - 0.005 <= ratio <= (cache + 0.5) / (files - 0.5) + 0.005


@pytest.mark.parametrize("option", ["--networks", "--evaluation"])
def test_the_tables_of_training(option: str) -> None:
    options = [option] if option != "--networks" else []
    lines = run("training.py", "--smoke", *options, "--networks", "convnet").splitlines()
    header, rows = lines[1], [line.strip("| ").split(" | ") for line in lines[3:]]
    names = {"--networks": "training", "--evaluation": "embedding"}
    assert header.startswith(f"| {names[option]} | plain | ")
    assert len(rows) == 1
    for row in rows:
        assert row[0].startswith("convnet")
        assert len(row) == header.count(" | ") + 1
        assert min(map(float, row[1:])) > 0


def test_the_table_of_exported_files() -> None:
    pytest.importorskip("onnxscript")
    header, _, row = run("exporting.py", "--smoke").splitlines()
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[:2] == ["convnet", "onnx int8"]
    assert cells[-1] == "12"
    assert header.count("|") == row.count("|")
    assert float(cells[3]) > 1e-4


def test_the_table_of_sampled_steps() -> None:
    lines = run("sampling.py", "--smoke").splitlines()
    rows = [line.split() for line in lines[2:]]
    assert [row[:2] for row in rows] == [
        [kind, optimizer] for kind in ("data-wise", "class-wise") for optimizer in ("SGD", "AdamW")
    ]
    assert all(min(map(float, row[2:])) > 0 for row in rows)


def test_a_plan_says_what_a_step_of_two_processes_holds_and_moves() -> None:
    lines = re.findall(r"^\w+-wise, .*", run("plan.py", "--smoke"), re.MULTILINE)
    assert len(lines) == 16
    for line in lines:
        held, planned, made, planned_made, moved, planned_moved = map(float, line.split()[-6:])
        assert held > made > 0 < moved
        assert planned == pytest.approx(1, abs=0.05)
        assert planned_made == pytest.approx(1, abs=0.05)  # what a step makes, proxies and their state apart
        assert planned_moved == 1


def test_the_exponents_of_the_costs_of_losses() -> None:
    lines = run("complexity.py", "--smoke", "--losses", "Triplet", "ProxyAnchor", "MPA").splitlines()[2:]
    counted = [re.findall(r"(\S+) \(\S+\)|–", line) for line in lines]
    (triplet, *_), (anchor_m, anchor_c, _), (m, c, p) = ([float(each or "nan") for each in row] for row in counted)
    assert 2.3 < triplet < 3
    assert all(0.75 < each < 1.25 for each in (anchor_m, anchor_c, m, c, p))  # in P, too


def test_recall_as_classes_are_added_to_a_gallery() -> None:
    rows = [line.split() for line in run("incremental.py", "--smoke").splitlines()[2:]]
    assert [(row[0], row[1]) for row in rows] == [("10", "60"), ("20", "120"), ("30", "180")]
    assert rows[0][2] == rows[0][3], "the first classes are all there are"
    for row in rows:
        whole, _, chance = map(float, row[2:5])
        assert 100 >= whole > 2 * chance
    # More to confuse them with: queries whose answers were wrong stay wrong.
    assert float(rows[0][3]) >= float(rows[1][3]) >= float(rows[2][3])


def test_intervals_and_p_values_are_counted() -> None:
    lines = run("intervals.py", "--smoke").splitlines()[1:]
    assert [line.split()[:2] for line in lines] == [["3", "recall@1"], ["3", "map@r"]]
    for line in lines:
        assert all(0 <= float(word) <= 100 for word in line.split()[2:3] + line.split()[-1:])


def test_the_table_of_searches() -> None:
    lines = run("retrieval.py", "--smoke").splitlines()
    rows = [line.strip("| ").split(" | ") for line in lines if line.startswith(("| exact", "| hnsw", "| ivfpq"))]
    assert [row[:2] for row in rows] == [[kind, count] for kind in ("exact", "hnsw", "ivfpq") for count in ("1", "256")]
    for row in rows:
        assert min(map(float, row[2:5])) > 0
        assert float(row[5]) > 0.9
    assert lines[2].startswith("opening: ")
    assert lines[-1].startswith("adding 10,000 more: ")


def test_the_table_of_cleaning() -> None:
    header, row = run("cleaning.py", "--smoke").splitlines()
    assert header.split()[:4] == ["data", "seed", "images", "flipped"]
    name, seed, images, flipped, precision, *counts, recall, of_duplicates, trained, cleaned = row.split()
    assert (name, seed, images, flipped) == ("Glyphs", "0", "288", "14")
    assert len(counts) == 3
    assert all(0 <= float(each) <= 1 for each in (precision, recall, of_duplicates))
    assert min(float(trained), float(cleaned)) > 0


def test_galleries_of_killed_processes_are_whole() -> None:
    lines = run("kills.py", "--moments", "3").splitlines()
    rows = [line.strip("| ").split(" | ") for line in lines[2:]]
    assert [row[0] for row in rows] == ["create", "add", "remove", "index"]
    for row in rows:
        _, _, killed, old, again, new, between = row
        assert int(killed) == int(old) + int(new) == 3
        assert again == old
        assert between == "0"


def test_what_galleries_take(tmp_path: Path) -> None:
    (line,) = run("galleries.py", "--smoke", "--out", str(tmp_path / "taken.csv")).splitlines()
    words = line.split()
    assert words[:4] == ["folder", "exact", "2000", "128"]
    assert all(float(word) > 0 for word in words[4:])
    assert len((tmp_path / "taken.csv").read_text().splitlines()) == 2


@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
def test_the_table_of_serving() -> None:
    (row,) = [line.strip("| ").split(" | ") for line in run("serving.py", "--smoke").splitlines()[3:]]
    assert row[:2] == ["convnet", "16"]
    answers, rate, median, slow, longest = map(float, row[2:7])
    assert answers > 0 < rate
    assert 0 < median <= slow <= longest
