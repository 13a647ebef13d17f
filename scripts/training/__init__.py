"""Training of the learned prior: scenes, simulated snapshots of them, and the loop."""
