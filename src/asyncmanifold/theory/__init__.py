"""A test of the paper's convergence theorem: known constants, measured runs, the bound, the slope."""
