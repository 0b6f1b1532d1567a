"""One run at the server, for any engine: its session, its settings and its files."""
