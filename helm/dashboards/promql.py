"""Expressions over the pods that the variables choose, put together from parts that are always meant alike."""

from __future__ import annotations

CHOSEN = 'namespace=~"$namespace", pod=~"$pod"'
# Pods that load have no `soloist_info` yet, from which the variable `pod` is made: where they matter, the namespace
# alone chooses.
IN_NAMESPACE = 'namespace=~"$namespace"'


def series(name: str, *matchers: str, chosen: str = CHOSEN) -> str:
    """`name` of the chosen pods; `matchers` such as `state="used"` choose among its series."""
    return f"{name}{{{', '.join((chosen, *matchers))}}}"


def rate(name: str, *matchers: str) -> str:
    """Growth a second. Grafana makes the interval four scrapes long or more, so that it is never empty."""
    return f"rate({series(name, *matchers)}[$__rate_interval])"


def grown(name: str, *matchers: str, chosen: str = CHOSEN) -> str:
    """Growth over all of the time shown."""
    return f"increase({series(name, *matchers, chosen=chosen)}[$__range])"


def total(expression: str, *labels: str) -> str:
    """The sum over pods, one for each value of `labels`."""
    return f"sum by ({', '.join(labels)}) ({expression})" if labels else f"sum({expression})"


def quantile(q: float, histogram: str, *labels: str, over: str = "$__rate_interval") -> str:
    """The `q` quantile of all pods' observations together, or of each value of `labels`; NaN without observations.

    Buckets are added up before the quantile is taken: a mean of pods' quantiles would be no quantile.
    """
    buckets = f"rate({series(histogram + '_bucket')}[{over}])"
    return f"histogram_quantile({q:g}, {total(buckets, *labels, 'le')})"


def share(part: str, whole: str) -> str:
    """`part` of `whole`, 0 to 1; nothing where the whole is 0, which is no share of anything."""
    return f"{part} / ({whole} > 0)"
