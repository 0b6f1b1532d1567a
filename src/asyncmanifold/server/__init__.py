"""The server's rules: pure functions of flat vectors, with no engine inside."""
