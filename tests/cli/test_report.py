"""``proxemic report``, and the report that ``proxemic train`` ends with."""

import json
import shutil
from pathlib import Path

from command_line import Here, assert_refused
from proxemic.files import read_json


def test_the_report_of_two_runs(here: Here, run: Path, tmp_path: Path) -> None:
    result = here("report", run, run, "--out", tmp_path / "two.html")
    assert result.returncode == 0, result.stderr
    assert result.stdout == f"Wrote {tmp_path}/two.html\n"
    page = (tmp_path / "two.html").read_text()
    assert f"{100 * read_json(run / 'metrics.json')['test']['map@r']:.2f}" in page
    assert '<td class="right">+0.00</td><td class="right">–</td><td class="right">1.000</td>' in page


def test_training_ends_with_the_report(here: Here, copy: Path) -> None:
    made = here("train", "--resume", copy, pictures=True)
    assert "Report" not in made.stdout
    (copy / "report.html").unlink()  # as if training had been killed before its end
    made = here("train", "--resume", copy, pictures=True)
    *_, following, report, worst, search, seconds = made.stdout.splitlines()
    assert (following, report) == ("Next:", f"Report: {copy}/report.html")
    assert worst == f"See where it fails: proxemic evaluate {copy} --worst 20 --pictures worst.html"
    assert search.startswith(("Search your photos with it: ", "Tune its hyper-parameters: "))
    assert seconds.startswith("Seconds: ")
    assert (copy / "report.html").is_file()


def test_a_report_that_fails_does_not_fail_the_training(here: Here, copy: Path) -> None:
    (copy / "report.html").unlink()
    (copy / "report.html").mkdir()
    (copy / "metrics.json").write_bytes((copy / "metrics.json").read_bytes())  # which is newer
    made = here("train", "--resume", copy, pictures=True)
    assert made.returncode == 0
    said = next(line for line in made.stdout.splitlines() if line.startswith("The report was not written: "))
    assert said.endswith(f"Write it with proxemic report {copy}")


def test_the_report_of_a_run_whose_pictures_are_gone(here: Here, copy: Path, tmp_path: Path) -> None:
    recipe = copy / "recipe.yaml"
    root = read_json(copy / "classes.json")["root"]
    recipe.write_text(recipe.read_text().replace(root, str(tmp_path / "gone")))
    made = here("report", copy)
    assert made.returncode == 0, made.stderr
    assert "what the run has recorded, without images" in made.stderr
    assert "without its images there are no intervals" in (copy / "report.html").read_text()


def test_the_report_on_pictures_of_another_folder(
    here: Here, run: Path, shelf: Path, folder: Path, tmp_path: Path
) -> None:
    trained = read_json(run / "classes.json")["train"][0]
    for number, path in enumerate(sorted(folder.iterdir())[:5]):
        shutil.copytree(path, tmp_path / "people" / f"person {number}")
    shutil.copytree(folder / trained, tmp_path / "people" / trained)
    found = json.loads(here("evaluate", run, "--data.root", tmp_path / "people", "--json").stdout)["all"]
    made = here("report", run, "--data.root", tmp_path / "people", "--out", tmp_path / "people.html")
    assert made.returncode == 0, made.stderr
    assert f"{run} was trained on 1 of the 6 classes that are shown." in made.stderr
    page = (tmp_path / "people.html").read_text()
    assert "person 4" in page
    assert "all: 6 classes" in page
    assert f"{100 * found['map@r']:.2f}" in page
    assert not (run / "people.html").exists()
    assert_refused(here("report", run, "--data.root", tmp_path / "gone"), ["gone", "does not exist"])
    assert_refused(here("report", run, "--data.strict", "true"), ["--data.strict is not known here"])
    assert_refused(here("report", shelf / "shop", "--data.root", tmp_path), ["--data.root is for a run"])


def test_what_is_refused(here: Here, run: Path, tmp_path: Path) -> None:
    assert_refused(here("report", tmp_path), [str(tmp_path), "neither a run", "nor a gallery"])
    assert_refused(here("report", run, "--model", run), ["--model is for a gallery"])
    assert_refused(here("report", run, "--out", tmp_path / "report.pdf"), ["report.pdf", ".html"])
