"""One run at the server, whatever engine drives it: its session, its settings and its files."""
