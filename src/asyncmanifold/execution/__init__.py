"""Where jobs are trained: in this process, in others of this machine, on a Ray cluster."""
