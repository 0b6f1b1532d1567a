"""The loss around one update of a run: the paper's Figure 1, from the run's own models."""
