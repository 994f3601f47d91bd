"""Runs of several processes equal those of one, can be resumed after a kill, and explain failures."""

import json
import os
import re
import shutil
import signal
import time
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file

import warm
from command_line import TERMINAL, Here, assert_refused
from images import write_folder, write_recipe
from together import (
    JOB_SCRIPT,
    SLOW_SGD,
    TWO_PHASES,
    assert_same,
    finish,
    history,
    interrupt_after,
    losses,
    proxemic_together,
    start_together,
    wait_for_checkpoint,
)


def test_sharded_proxies_end_where_replicated_ones_do_and_near_those_of_one_process(
    recipe: Path, together: Path, tmp_path: Path
) -> None:
    flags = ["train", "--recipe", recipe, *TWO_PHASES]
    replicated = proxemic_together(2, *flags, "--out", tmp_path / "replicated")
    assert [result.returncode for result in replicated] == [0, 0], replicated
    assert_same(tmp_path / "replicated", together)
    (alone,) = proxemic_together(1, *flags, "--out", tmp_path / "alone")
    assert alone.returncode == 0, alone.stderr
    torch.testing.assert_close(losses(together), losses(tmp_path / "alone"), rtol=1e-4, atol=0)
    assert [row["phase"] for row in history(together)] == ["1", "1", "2", "2"]  # at their plateaus, on all alike
    ours, theirs = (load_file(run / "loss.safetensors")["proxies"] for run in (together, tmp_path / "alone"))
    torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)


def test_what_looks_at_all_training_images_sees_on_each_process_what_one_sees(recipe: Path, tmp_path: Path) -> None:
    callbacks = "[proxemic.training.DistanceToProxy, proxemic.training.Snapshots]"
    # Of the first process more batches than of the others, the last of which is a short one.
    flags = ["--training.callbacks", callbacks, "--training.epochs", "1", "--evaluation.batch_size", "7", *SLOW_SGD]
    flags += ["--evaluation.start", "true"]
    places, distances, starts = [], [], []
    for world in (1, 3):
        run = tmp_path / str(world)
        results = proxemic_together(world, "train", "--recipe", recipe, "--out", run, *flags)
        assert not any(result.returncode for result in results), results
        places.append(load_file(run / "snapshots" / "epoch-0000.safetensors"))
        distances += [float(row["avg_dtp"]) for row in history(run)]
        metrics = json.loads((run / "metrics.json").read_text())
        starts.append([metrics[name] for name in ("validation_start", "validation_untrained", "start", "untrained")])
    assert places[0].keys() == places[1].keys()
    for name, of_one in places[0].items():
        assert torch.equal(places[1][name], of_one), name
    assert distances[1] == pytest.approx(distances[0], rel=1e-4)
    assert starts[1] == starts[0]


def test_sharded_proxies_of_a_start_that_is_kept_are_whole(recipe: Path, tmp_path: Path) -> None:
    # Equal starts, as there is no head, and rates that change no digit.
    flags = ["--model.head", "none", "--model.embedding_size", "64", "--model.freeze_batch_norm", "true"]
    flags += ["--evaluation.start", "true", "--optim.lr", "1e-12", "--optim.loss_lr", "1e-12"]
    for world, layout in ((1, "replicated"), (2, "sharded")):
        words = ["train", "--recipe", recipe, "--out", tmp_path / layout, "--training.epochs", "1"]
        results = proxemic_together(world, *words, *flags, "--proxies", layout)
        assert not any(result.returncode for result in results), results
        assert json.loads((tmp_path / layout / "metrics.json").read_text())["kept"] == "untrained"
    ours, theirs = (load_file(tmp_path / layout / "loss.safetensors") for layout in ("sharded", "replicated"))
    assert torch.equal(ours["proxies"], theirs["proxies"])
    assert len(list((tmp_path / "sharded" / "checkpoints").glob("proxies-*"))) == 1


def test_what_a_loss_draws_all_processes_draw_alike(recipe: Path, tmp_path: Path) -> None:
    pairs = tmp_path / "pairs.yaml"
    document = yaml.safe_load(recipe.read_text())
    document["loss"] = {
        "class_path": "proxemic.losses.PairwiseLoss",
        "init_args": {
            "loss": {"class_path": "pytorch_metric_learning.losses.TripletMarginLoss"},
            "miner": {"class_path": "pytorch_metric_learning.miners.DistanceWeightedMiner"},
        },
    }
    pairs.write_text(yaml.safe_dump(document))
    for world in (1, 2):
        flags = ["train", "--recipe", pairs, *SLOW_SGD, "--batches.images_per_class", "2", "--training.epochs", "2"]
        results = proxemic_together(world, *flags, "--out", tmp_path / str(world))
        assert not any(result.returncode for result in results), results
    torch.testing.assert_close(losses(tmp_path / "1"), losses(tmp_path / "2"), rtol=1e-4, atol=0)


def test_sampled_classes_averages_and_margins_resume_in_the_middle_of_an_epoch(recipe: Path, tmp_path: Path) -> None:
    flags = [
        *("--proxies", "sharded", "--loss", "CurricularFaceLoss", "--loss.sample_rate", "0.3"),
        *("--batches.images_per_class", "2", "--batches.micro_batches", "2", "--training.epochs", "2"),
        *("--training.average.decay", "0.9", "--loss.proxies_per_class", "2"),
        *("--training.start_proxies", "k_means", "--training.spread_after", "1"),
    ]
    whole, run = tmp_path / "whole", tmp_path / "stopped"
    assert [r.returncode for r in proxemic_together(2, "train", "--recipe", recipe, *flags, "--out", whole)] == [0, 0]
    saving = ["--training.checkpoint_minutes", "0"]
    processes = start_together(2, "train", "--recipe", recipe, *flags, *saving, "--out", run)
    interrupt_after(processes, run)
    assert [result.returncode for result in finish(processes)] == [2, 2]
    assert not (run / "metrics.json").exists()
    assert [result.returncode for result in proxemic_together(2, "train", "--resume", run)] == [0, 0]
    assert_same(run, whole)


NOT_SHARED = """
import os, sys
from proxemic.cli import main

os.chdir(sys.argv[1 + int(os.environ["RANK"])])
sys.exit(main(["train", *sys.argv[3:]]))
"""


def test_machines_that_do_not_share_the_run_directory_are_told(recipe: Path, tmp_path: Path) -> None:
    folders = [tmp_path / "one", tmp_path / "other"]
    for folder in folders:
        folder.mkdir()
    words = ["--recipe", recipe, "--out", "run"]
    for result in finish(start_together(2, *folders, *words, program=("-c", NOT_SHARED))):
        said = "run is not the same folder for all processes: give --out or --resume one that all machines share."
        assert (result.returncode, result.stderr) == (2, f"proxemic: {said}\n")
    assert not list(tmp_path.rglob("*.tmp"))


def test_what_is_wrong_ends_all_processes_with_a_sentence(recipe: Path, tmp_path: Path) -> None:
    diverging = ["--optim.lr", "1e30", "--optim.schedule", "null"]
    results = proxemic_together(2, "train", "--recipe", recipe, "--out", tmp_path / "run", *diverging)
    for result in results:
        assert_refused(result, ["became nan"])
    assert "became nan" in (tmp_path / "run" / "diverged.txt").read_text()


def test_other_commands_are_for_one_process(recipe: Path, here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"TORCHELASTIC_RUN_ID": "tests", "WORLD_SIZE": "2", "RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    assert_refused(here("compare", recipe), ["is for one process: start it without torchrun, which is for train"])


def test_torchrun_names_a_killed_process_and_the_run_resumes(recipe: Path, together: Path, tmp_path: Path) -> None:
    run = tmp_path / "killed"
    flags = ["--proxies", "sharded", *TWO_PHASES, "--training.checkpoint_minutes", "0"]
    words = ["train", "--recipe", str(recipe), "--out", str(run), *flags]
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    process = warm.Process(*launcher, "-m", "proxemic", *words, environment={**TERMINAL, "OMP_NUM_THREADS": "1"})
    while not (run / "checkpoints" / "last.ckpt").exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    workers = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    assert len(workers) == 2
    killed = max(map(int, workers))
    (rank,) = re.findall("\\0RANK=(.)", Path(f"/proc/{killed}/environ").read_text())
    os.kill(killed, signal.SIGKILL)
    began = time.monotonic()
    output = "".join(process.communicate(timeout=120))
    assert time.monotonic() - began < 60
    assert process.returncode != 0
    root_cause = output.partition("Root Cause")[2]
    assert re.search(rf"rank +: {rank} ", root_cause), output
    assert f"exitcode  : -9 (pid: {killed})" in root_cause
    (sentence,) = {line for line in output.splitlines() if line.startswith("proxemic: ")}
    assert "Another process of the run ended" in sentence
    assert "--resume" in sentence
    # A kill may leave proxies that are complete, but that no checkpoint came to name, and incomplete ones.
    folder = next((run / "checkpoints").glob("proxies-*[0-9]"))
    for name in ("proxies-9999", "proxies-9999.tmp"):
        shutil.copytree(folder, folder.with_name(name))
    assert [result.returncode for result in proxemic_together(2, "train", "--resume", run)] == [0, 0]
    assert_same(run, together)


def test_an_image_that_one_process_cannot_read_is_named(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "images")
    recipe = write_recipe(tmp_path / "tiny.yaml", folder)
    run = tmp_path / "run"
    flags = ["--training.epochs", "1000", "--training.checkpoint_minutes", "0", "--batches.workers", "1"]
    processes = start_together(2, "train", "--recipe", recipe, "--out", run, *flags)
    wait_for_checkpoint(processes, run)
    for image in folder.rglob("*.png"):
        image.write_bytes(b"no image")
    results = finish(processes)
    assert all(result.returncode for result in results)
    assert any(re.search(rf"{folder}.*\.png", result.stderr) for result in results)


def test_slurm_asks_a_process_that_srun_has_not_started(recipe: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    words = ["train", "--recipe", recipe, "--out", run, "--training.epochs", "1000", "--batches.workers", "1"]
    processes = [warm.Process("-m", "proxemic", *words, environment=TERMINAL | JOB_SCRIPT)]
    interrupt_after(processes, run, signal.SIGUSR1)
    results = finish(processes)
    assert [result.returncode for result in results] == [2], results
    assert results[0].stderr.endswith(f"everything is saved: continue with proxemic train --resume {run}\n")


def test_where_slurm_is_installed_nothing_is_said_of_it(
    recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "srun").touch(mode=0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    here = Here(capsys, monkeypatch)
    result = here("train", "--recipe", recipe, "--out", tmp_path / "run", "--training.epochs", "1")
    assert (result.returncode, result.stderr) == (0, "")


def test_what_loads_images_is_killed(recipe: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    flags = ["--training.epochs", "1000", "--batches.workers", "1"]
    processes = start_together(2, "train", "--recipe", recipe, "--out", run, *flags)
    wait_for_checkpoint(processes, run)
    loader, *_ = Path(f"/proc/{processes[1].pid}/task/{processes[1].pid}/children").read_text().split()
    os.kill(int(loader), signal.SIGKILL)
    results = finish(processes)
    for words in ("that loads images was killed", "lower batches.workers", f"proxemic train --resume {run}"):
        assert words in results[1].stderr


ALIKE = """
import os, sys
from pathlib import Path
from proxemic import files
from proxemic.cli import main

rank = os.environ["RANK"]
# By the clock, the second may be another.
files.new_directory = lambda _: Path(f"run-{rank}")
minutes = "0" if rank == "1" else "1000"
sys.exit(main(["train", "--recipe", sys.argv[1], "--training.epochs", "1", "--training.checkpoint_minutes", minutes]))
"""


def test_processes_whose_clocks_differ_write_alike(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    results = finish(start_together(2, recipe, program=("-c", ALIKE)))
    assert [result.returncode for result in results] == [0, 0], results
    assert [path.name for path in tmp_path.iterdir()] == ["run-0"]
