"""Where jobs are trained: in this process, in worker processes, or on a Ray cluster."""
