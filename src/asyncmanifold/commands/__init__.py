"""What the command line does."""
