"""The paper's convergence theorem, made testable: known constants, measured runs, the bound, the slope."""
