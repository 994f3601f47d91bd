import os
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import warm
from command_line import TERMINAL
from images import write_folder
from proxemic.data import Preprocessing, read_image
from proxemic.data.embeddings import read_embeddings
from proxemic.models import ModelConfig, build_model, save_model
from proxemic.retrieval import Embedder, EmbedStage, embed_to_file, list_pictures

# Kills one of the processes that embed when the first part has come, then uses the stage of Ray Data.
PROGRAM = """
import os, signal, sys
from pathlib import Path
import numpy as np
from proxemic.retrieval import EmbedStage, embed_to_file
from proxemic.retrieval.vectors import ray_stage
from proxemic.runs.kept import Keeping

ray = ray_stage.import_ray()
init, add, killed = ray.init, Keeping.add, []
ray_stage._TOGETHER = 4
folder = Path(sys.argv[1])

def small(address, **settings):
    return init(address, num_cpus=2, object_store_memory=80_000_000, **settings)

def kill_one(*words):
    add(*words)
    for process in Path("/proc").glob("[0-9]*") if not killed else ():
        try:
            ours = os.environ["OF_THIS_TEST"].encode() in (process / "environ").read_bytes()
            if ours and (process / "cmdline").read_bytes().startswith(b"ray::_Worker"):
                killed.append(int(process.name))
        except OSError:
            pass
    for number in killed[:1]:
        os.kill(number, signal.SIGKILL)
        killed[:] = [0, number] if number else killed

def kill_once(*words):
    kill_one(*words) if not killed else add(*words)

ray.init, Keeping.add = small, kill_once
shutdown, ray.shutdown = ray.shutdown, lambda: None  # to start once is slow enough
written = embed_to_file(folder / "photos", folder / "ray.parquet", folder / "model", batch_size=4, engine="ray")
print(written.rows, len(killed))
again = embed_to_file(folder / "photos", folder / "again.parquet", folder / "model", batch_size=4, engine="ray")
assert (again.rows, again.embedded) == (40, 0)
ray.data.DataContext.get_current().enable_progress_bars = False
images = ray.data.read_images(str(folder / "photos"), include_paths=True)
rows = images.map_batches(EmbedStage, fn_constructor_args=(str(folder / "model"),), batch_size=8, concurrency=1)
rows = sorted(rows.take_all(), key=lambda row: row["path"])
np.save(folder / "stage.npy", np.stack([row["embedding"] for row in rows]))
shutdown()
"""


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ray")
    write_folder(folder / "photos", classes=5, images=8, size=16)
    save_model(
        folder / "model",
        build_model(ModelConfig("convnet", 4, width=8, image_size=16)),
        vars(Preprocessing(size=16, resize=None)),
    )
    return folder


def test_the_stage_embeds_a_column(photos: Path) -> None:
    stage = EmbedStage(str(photos / "model"))
    names = list_pictures(photos / "photos").names[:6]
    expected = Embedder.load(photos / "model").embed(names).numpy()
    arrays = np.stack([np.asarray(read_image(name)) for name in names])
    found = stage({"image": arrays, "label": np.arange(6)})
    assert [*found] == ["label", "embedding"]
    np.testing.assert_array_equal(found["embedding"], expected)
    found = EmbedStage(str(photos / "model"), "path")({"path": np.array(names, object)})
    assert found["path"].tolist() == [*names]
    np.testing.assert_array_equal(found["embedding"], expected)


@pytest.mark.skipif(sys.platform != "linux", reason="processes are found in /proc")
def test_a_cluster_embeds_all_though_a_worker_is_killed(photos: Path) -> None:
    pytest.importorskip("ray")
    environment = {**TERMINAL, "OF_THIS_TEST": str(photos), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    environment |= {"PROXEMIC_CACHE": str(photos / "cache"), "PROXEMIC_CACHE_GB": "1"}
    (photos / "here").mkdir()
    for name in ("numpy", "torch", "json", "yaml"):  # the processes import nothing from where the command is run
        (photos / "here" / f"{name}.py").write_text(f"open({str(photos / 'sprung')!r}, 'w')")
    done = warm.run("-c", PROGRAM, photos, environment=environment, cwd=photos / "here")
    assert done.returncode == 0, done.stderr
    assert not (photos / "sprung").exists()
    assert done.stdout.split()[-2:] == ["40", "2"], done
    embed_to_file(photos / "photos", photos / "local.parquet", photos / "model", batch_size=4, workers=0)
    local = read_embeddings(photos / "local.parquet").embeddings
    for name in ("ray.parquet", "again.parquet"):
        torch.testing.assert_close(read_embeddings(photos / name).embeddings, local, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(torch.from_numpy(np.load(photos / "stage.npy")), local)
