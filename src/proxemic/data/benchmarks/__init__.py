"""Published data sets, read from their original archives; their official splits are checked by counts.

Each data set is a `Benchmark`. `list_benchmarks`, `prepare` (fetch, verify, unpack and count) and `check_benchmark` are
the functions behind the command `proxemic datasets`.
"""

from proxemic.data.benchmarks.benchmark import AbsentError, Benchmark, Facts, Official, OriginalFile
from proxemic.data.benchmarks.cars import Cars196
from proxemic.data.benchmarks.catalogue import (
    BENCHMARKS,
    BenchmarkReport,
    BenchmarkStatus,
    check_benchmark,
    list_benchmarks,
    prepare,
)
from proxemic.data.benchmarks.cub import CUB200
from proxemic.data.benchmarks.fashion_mnist import FashionMNIST
from proxemic.data.benchmarks.in_shop import InShop
from proxemic.data.benchmarks.omniglot import Omniglot
from proxemic.data.benchmarks.sop import StanfordOnlineProducts

__all__ = [
    "BENCHMARKS",
    "CUB200",
    "AbsentError",
    "Benchmark",
    "BenchmarkReport",
    "BenchmarkStatus",
    "Cars196",
    "Facts",
    "FashionMNIST",
    "InShop",
    "Official",
    "Omniglot",
    "OriginalFile",
    "StanfordOnlineProducts",
    "check_benchmark",
    "list_benchmarks",
    "prepare",
]
