"""The example's app with nodes that misbehave as their node config says."""
