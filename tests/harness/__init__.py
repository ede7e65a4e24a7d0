"""A real Kubernetes for the tests: built from Go modules, run in namespaces, gone without a trace.

    options = ClusterOptions(nodes=(NodeOptions(name="node-a", gpu_minors=(0, 1)),))
    with Cluster(options) as cluster:
        cluster.kubectl("get", "nodes")

The same from a shell: `python -m tests.harness up`. docs: tests/harness/README.md.
"""

from tests.harness.cluster import Cluster
from tests.harness.errors import ComponentError, HarnessError
from tests.harness.options import ClusterOptions, NodeOptions

__all__ = ["Cluster", "ClusterOptions", "ComponentError", "HarnessError", "NodeOptions"]
