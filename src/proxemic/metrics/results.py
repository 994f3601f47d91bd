"""Results of retrieval: averages, values per query and per class, and confidence intervals."""

import math
from collections.abc import Mapping
from functools import partial
from types import MappingProxyType

from jaxtyping import Bool, Float64, Int64, Shaped
from torch import Tensor

from proxemic.metrics.arrays import as_integers
from proxemic.metrics.clustering import ClusteringMetrics
from proxemic.metrics.confidence import AveragedOver, Interval, bootstrap_intervals, bootstrap_statistic
from proxemic.metrics.contingency import weighted_ami, weighted_nmi


class RetrievalMetrics(dict[str, float]):
    """Metric values in [0, 1] by name, with values per query and chance levels as attributes.

    Args:
        values: The averages.
        per_query: Values `[queries]` by metric, NaN for a query without a relevant item.
        labels: Class of each query.
        average: Whether values are averages over queries or over classes.
        clustering: The k-means clustering, if NMI was requested.
        chance: Expected values for random rankings, and for random clusters of the same sizes.
        expected: Expected values `[queries]` by metric for a random ranking.
    """

    def __init__(
        self,
        values: Mapping[str, float],
        *,
        per_query: Mapping[str, Float64[Tensor, "queries"]],
        labels: Int64[Tensor, "queries"],
        average: AveragedOver = "queries",
        clustering: ClusteringMetrics | None = None,
        chance: Mapping[str, float] = MappingProxyType({}),
        expected: Mapping[str, Float64[Tensor, "queries"]] = MappingProxyType({}),
    ) -> None:
        super().__init__(values)
        self.per_query = dict(per_query)
        self.labels = labels
        self.average: AveragedOver = average
        self.clustering = clustering
        self.chance = dict(chance)
        self.expected = dict(expected)

    @property
    def evaluated(self) -> Bool[Tensor, "queries"]:
        """Whether each query has a relevant item, and so a value."""
        return ~next(iter(self.per_query.values())).isnan()

    @property
    def queries(self) -> int:
        """Number of queries that were evaluated."""
        return int(self.evaluated.sum())

    @property
    def left_out(self) -> int:
        """Number of queries without a relevant item."""
        return len(self.labels) - self.queries

    def per_class(self) -> dict[int, dict[str, float]]:
        """Compute the means of each class, by label in ascending order; classes without an evaluated query are absent.

        >>> from proxemic.metrics import retrieval_metrics
        >>> metrics = retrieval_metrics(torch.eye(4)[[0, 0, 1, 2, 3]], torch.tensor([5, 5, 7, 7, 9]), recall_at=(1,))
        >>> {label: row["recall@1"] for label, row in metrics.per_class().items()}
        {5: 1.0, 7: 0.0}
        """
        return {label: means(values) for label, values in by_class(self.per_query, self.labels).items()}

    def by_group(self, groups: Shaped[Tensor, "..."]) -> dict[int, "RetrievalMetrics"]:
        """Compute the metrics of groups of queries, which still search the whole gallery; without clustering.

        Args:
            groups: `[queries]`, the group of each query as an integer, below 0 for none.

        Returns:
            Metrics by group in ascending order; groups without an evaluated query are absent.

        Raises:
            ValueError: If ``groups`` is not one integer per query.

        >>> from proxemic.metrics import retrieval_metrics
        >>> metrics = retrieval_metrics(torch.eye(4)[[0, 0, 1, 2]], torch.tensor([5, 5, 7, 7]), recall_at=(1,))
        >>> {group: part["recall@1"] for group, part in metrics.by_group(torch.tensor([0, 1, 1, 1])).items()}
        {0: 1.0, 1: 0.333...}
        """
        groups, parts = as_integers("groups", groups, len(self.labels), "query").cpu(), {}
        for group in groups[self.evaluated & (groups >= 0)].unique().tolist():
            chosen = groups == group
            labels = self.labels[chosen]
            values = {name: item[chosen] for name, item in self.per_query.items()}
            expected = {name: item[chosen] for name, item in self.expected.items()}
            parts[group] = RetrievalMetrics(
                averages(values, labels, self.average),
                per_query=values,
                labels=labels,
                average=self.average,
                chance=averages(expected, labels, self.average),
                expected=expected,
            )
        return parts

    def intervals(self, *, level: float = 0.95, resamples: int = 2000, seed: int = 0) -> dict[str, Interval]:
        """Compute intervals of all values by `bootstrap_intervals`, and of NMI and AMI by `bootstrap_statistic`.

        Every resample computes NMI and AMI from the same clusters; AMI, which is slow, uses a tenth of the resamples.
        The arguments are those of `bootstrap_intervals`.
        """
        intervals = bootstrap_intervals(
            self.per_query, self.labels, average=self.average, level=level, resamples=resamples, seed=seed
        )
        if self.clustering is None:
            return intervals
        table = self.clustering.table
        statistics = {
            "nmi": (partial(weighted_nmi, table), resamples),
            "nmi_geometric": (partial(weighted_nmi, table, average="geometric"), resamples),
            "ami": (partial(weighted_ami, table), -(-resamples // 10)),
        }
        return intervals | {
            name: bootstrap_statistic(statistic, len(table), level=level, resamples=times, seed=seed)
            for name, (statistic, times) in statistics.items()
        }


def averages(
    values: Mapping[str, Float64[Tensor, "queries"]], labels: Int64[Tensor, "queries"], average: AveragedOver
) -> dict[str, float]:
    """Compute the mean of each metric over the queries, or over the classes' means."""
    parts = [values] if average == "queries" else by_class(values, labels).values()
    averages = [means(part) for part in parts]
    return {name: math.fsum(average[name] for average in averages) / len(averages) for name in values}


def by_class(
    values: Mapping[str, Float64[Tensor, "queries"]], labels: Int64[Tensor, "queries"]
) -> dict[int, dict[str, Float64[Tensor, "some"]]]:
    """Return the values of the evaluated queries by class, in ascending order of labels."""
    known = ~next(iter(values.values())).isnan()
    labels, order = labels[known].sort(stable=True)
    classes, counts = labels.unique_consecutive(return_counts=True)
    parts = {name: value[known][order].split(counts.tolist()) for name, value in values.items()}
    return {label: {name: part[place] for name, part in parts.items()} for place, label in enumerate(classes.tolist())}


def means(values: Mapping[str, Float64[Tensor, "some"]]) -> dict[str, float]:
    """Compute the mean of each metric over the queries that have a value."""
    # fsum rounds once, so the mean does not depend on the order of the queries.
    known = {name: value[~value.isnan()].tolist() for name, value in values.items()}
    return {name: math.fsum(item) / len(item) for name, item in known.items()}
