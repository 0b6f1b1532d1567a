import os

import torch
from hypothesis import settings

settings.register_profile("asyncmanifold", deadline=None, max_examples=40, derandomize=True)
settings.load_profile("asyncmanifold")
torch.set_num_threads(1)


def pretend_to_sync(file) -> None:
    """Fail on a closed file as a sync does, and do not wait for the disk: nobody cuts the power in a test."""
    os.fstat(file if isinstance(file, int) else file.fileno())


os.fsync = os.fdatasync = pretend_to_sync
