"""The tiny task for worker processes, which learn of the pretended device when they import this module."""

import torch
from torch import nn

import pretended
import tiny

pretended.register()
torch.__future__.set_swap_module_params_on_conversion(True)


def build_model() -> nn.Module:
    return tiny.make_model()


def make_task():
    from dataclasses import replace

    return replace(tiny.make_task(), model=build_model)
