"""A live view of runs: their files followed while they grow, as a page and as metrics for machines."""
