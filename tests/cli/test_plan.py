"""``proxemic plan``."""

import pytest

from command_line import Here, assert_refused

MILLION = ("--classes", "1000000", "--dim", "512", "--proxies", "1", "--batch", "1024", "--processes", "8")


def rows(text: str) -> dict[str, list[str]]:
    """The cells of all tables by the first one."""
    lines = [line.strip("│").split("│") for line in text.splitlines() if line.startswith("│")]
    return {first.strip(): [cell.strip() for cell in cells] for first, *cells in lines}


def test_a_plan_says_what_is_held_and_moved(here: Here) -> None:
    result = here("plan", *MILLION)
    assert result.returncode == 0, result.stderr
    assert "1,000,000 classes with 1 proxy of 512, data-wise, a batch of 1,024 on 8 processes" in result.stdout
    found = rows(result.stdout)
    assert found["proxies"] == ["2.05 GB", "256 MB", "2.05 GB"]
    assert found["at most at once"] == ["12.3 GB", "1.54 GB", "12.3 GB"]
    assert found["gradient of the proxies"] == ["1.79 GB", "–", "3.58 GB"]  # of the second table, of what moves
    assert found["in all"] == ["1.8 GB", "3.7 MB", "3.58 GB"]
    assert "fits" not in result.stdout


def test_one_layout_and_one_process(here: Here) -> None:
    found = rows(here("plan", *MILLION, "--layout", "sharded", "--class-wise").stdout)
    assert found["proxies"] == ["256 MB", "2.05 GB"]
    assert found["scores"] == ["7.18 KB", "–"]
    alone = here("plan", "--classes", "100", "--dim", "64", "--batch", "32").stdout
    assert rows(alone)["proxies"] == ["25.6 KB", "25.6 KB"]
    assert "received" not in alone
    few = rows(here("plan", "--classes", "10", "--dim", "2", "--batch", "4").stdout)
    assert few["proxies"] == ["80 B", "80 B"]


def test_which_settings_fit(here: Here) -> None:
    lines = here("plan", *MILLION, "--memory", "5GB").stdout.splitlines()
    cells = [[cell.strip() for cell in line.strip("│").split("│")] for line in lines if line.startswith("│")]
    fits = {tuple(row[:4]): row[-1] for row in cells if row[-1] in ("yes", "no")}
    assert fits["replicated", "1", "adamw", "8"] == "no"
    assert fits["sharded", "1", "adamw", "8"] == "yes"
    assert fits["replicated", "0.1", "sgd-momentum", "8"] == "yes"
    assert fits["replicated", "1", "sgd-momentum", "8"] == "no"
    assert fits["sharded", "1", "adamw", "16"] == "yes"
    assert "None of these fits into 1 MB: take more processes" in here("plan", *MILLION, "--memory", "1MB").stdout


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--memory", "80"), ["--memory is 80", "80GB"]),
        (("--memory", "80 apples"), ["--memory is 80 apples", "80GB"]),
        (("--optimizer", "lion"), ["lion", "adamw"]),
        (("--sample-rate", "2"), ["sample_rate is 2.0"]),
        (("--processes", "0"), ["processes is 0", "at least 1"]),
    ],
)
def test_bad_values_are_one_sentence(here: Here, flags: tuple[str, str], words: list[str]) -> None:
    assert_refused(here("plan", *MILLION, *flags), words)


def test_a_gallery(here: Here) -> None:
    result = here("plan", "--gallery", "1000000000", "--dim", "128", "--memory", "256GB")
    assert result.returncode == 0, result.stderr
    assert "1,000,000,000 rows of 128 numbers; machines of 256 GB" in result.stdout
    lines = [[cell.strip() for cell in line.strip("│").split("│")] for line in result.stdout.splitlines()]
    found = {tuple(cells[:2]): cells[2:] for cells in lines if len(cells) == 8}
    memory, machines = found["folder", "exact"][:2]
    assert 512 < float(memory.removesuffix(" GB")) < 900  # of vectors alone 512 GB
    assert machines in ("3", "4")
    assert {"hnsw", "ivfpq"} <= {index for store, index in found if store == "folder"}


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--gallery", "1000", "--batch", "8"), ["--batch belongs to a loss"]),
        (("--gallery", "1000", "--class-wise"), ["--class-wise belongs to a loss"]),
        (("--gallery", "0"), ["--gallery is 0", "from 1"]),
        (("--gallery", "1000", "--classes", "10"), ["--classes", "--gallery"]),
        (("--classes", "10"), ["--batch 128"]),
        ((), ["--classes", "--gallery"]),
    ],
)
def test_bad_values_of_galleries(here: Here, flags: tuple[str, ...], words: list[str]) -> None:
    assert_refused(here("plan", "--dim", "128", *flags), words)
