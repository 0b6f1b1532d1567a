"""Many runs at once: comparisons, and searches for a key's best value, for Python and for commands."""
