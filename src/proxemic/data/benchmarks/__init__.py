"""The data sets of the papers, and In-Shop, read from their original archives with their official splits."""

from proxemic.data.benchmarks.benchmark import AbsentError, Benchmark, Official
from proxemic.data.benchmarks.cars import Cars196
from proxemic.data.benchmarks.cub import CUB200
from proxemic.data.benchmarks.facts import Facts, OriginalFile
from proxemic.data.benchmarks.fashion_mnist import FashionMNIST
from proxemic.data.benchmarks.in_shop import InShop
from proxemic.data.benchmarks.preparing import prepare
from proxemic.data.benchmarks.sop import StanfordOnlineProducts

BENCHMARKS: tuple[type[Benchmark], ...] = (CUB200, Cars196, StanfordOnlineProducts, InShop, FashionMNIST)

__all__ = [
    "BENCHMARKS",
    "CUB200",
    "AbsentError",
    "Benchmark",
    "Cars196",
    "Facts",
    "FashionMNIST",
    "InShop",
    "Official",
    "OriginalFile",
    "StanfordOnlineProducts",
    "prepare",
]
