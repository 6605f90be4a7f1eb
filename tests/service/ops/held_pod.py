"""`python -m tests.service.ops.held_pod URL LIMIT_S`: a process whose pod holds Karpenter off, until it is killed."""

from __future__ import annotations

import sys
import threading

from kubernetes import client

from service.events import Load
from service.ops import pod_marks
from service.ops.cluster import Cluster
from service.ops.kubernetes import KubernetesApi
from tests.service.ops.kube_api import POD


def main() -> None:
    url, limit_s = sys.argv[1:]
    pod_marks.REST_S = 0.0  # type: ignore[misc]  # a test waits for no rest
    pod_marks.WRITE_EVERY_S = 0.05  # type: ignore[misc]
    api = KubernetesApi(client.Configuration(host=url), POD)
    cluster = Cluster(api, float(limit_s), lambda: None, lambda operation, *, failed: None)
    cluster.start()
    cluster.show_load(Load(0, 1, 0.0, 0.0, 0, 1, draining=False))
    threading.Event().wait()


if __name__ == "__main__":
    main()
