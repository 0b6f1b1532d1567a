"""A real Ray cluster on this machine, for all tests; runs come and go."""

import os

import pytest

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"

from processes import trainers_left
from ray.cluster_utils import Cluster


@pytest.fixture(scope="session")
def cluster():
    """A head node without a worker, so that any node with workers may be lost."""
    started = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    started.add_node(num_cpus=2)
    yield started
    started.shutdown()
    assert trainers_left() == []
