import torch
from hypothesis import settings

settings.register_profile("asyncmanifold", deadline=None, max_examples=40, derandomize=True)
settings.load_profile("asyncmanifold")
torch.set_num_threads(1)
