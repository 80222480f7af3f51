"""From plan to running engines: reconcile and lifecycle are pure, apply does it."""
