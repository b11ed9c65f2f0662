"""A worker on one of several hosts with one fault, to show that the fault is caught: FAULT JOB FOLDER."""

from __future__ import annotations

import sys
from typing import Any

sys.path.append(sys.argv.pop())
FAULT = sys.argv.pop(1)

from gpucheck.smoke import worker_cluster  # noqa: E402


class NotSummed(worker_cluster.ClusterTraining):
    """This host sends its gradients, and goes on with its own instead of the sum."""

    def combine(self, gradients: list[Any]) -> Any:
        super().combine(gradients)
        return [self.hosts * gradient for gradient in gradients]


class OtherData(worker_cluster.ClusterTraining):
    """This host trains on the first shard, as host 0 does."""

    def samples(self, step: int, shard: Any) -> Any:
        return super().samples(step, worker_cluster.Shard(0, shard.count))


FAULTS = {"not-summed": NotSummed, "other-data": OtherData}

worker_cluster.main(FAULTS[FAULT])
