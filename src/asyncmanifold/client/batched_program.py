"""The loss and the gradient of several models, each on its own batch, with one forward and backward pass.

What torch does in a step is written down once the shape of its tensors has come often enough, and then
repeated without the module's Python code, ``vmap`` and autograd: most of the time of a small model.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

STEPS_BEFORE_TRACE, MOST_TRACES = 16, 16
"""Writing a step down takes as long as about a hundred plain steps: only for shapes that come again."""

JobBatch = tuple[Any, Any]
Program = Callable[..., tuple[Tensor, ...]]


class BatchedProgram:
    """Differentiates the loss of many models of one structure, whose parameters are stacked."""

    def __init__(self, module: nn.Module, loss: Callable[[Any, Any], Tensor]) -> None:
        self._module, self._loss = module, loss
        self._names = [name for name, each in module.named_parameters() if each.requires_grad]
        self._uses: Counter[object] = Counter()
        self._traces: dict[object, Program] = {}

    def differentiate(self, parameters: list[Tensor], batches: list[JobBatch]) -> tuple[Tensor, list[Tensor]]:
        """Return the loss of each model on its batch, and the gradients, stacked like the parameters."""
        sizes = [len(_first_tensor(inputs)) for inputs, _ in batches]
        inputs = _stack([inputs for inputs, _ in batches], max(sizes))
        if min(sizes) != max(sizes):
            return self._differentiate_padded(parameters, inputs, [targets for _, targets in batches], sizes)
        given, form = tree_flatten((inputs, _stack([targets for _, targets in batches], sizes[0])))

        def plain(*tensors: Tensor) -> tuple[Tensor, ...]:
            count = len(self._names)
            gradients, losses = vmap(grad_and_value(self._model_loss))(
                list(tensors[:count]), *tree_unflatten(list(tensors[count:]), form)
            )
            return losses, *gradients

        shape = (str(form), *((each.shape, each.dtype) for each in given))
        if (program := self._traces.get(shape)) is None:
            program = plain
            self._uses[shape] += 1
            if self._uses[shape] == STEPS_BEFORE_TRACE and len(self._traces) < MOST_TRACES:
                self._traces[shape] = program = _traced(plain, [*parameters, *given])
        with torch.no_grad():
            losses, *gradients = program(*parameters, *given)
        return losses, gradients

    def _differentiate_padded(
        self, parameters: list[Tensor], inputs: Any, targets: list[Any], sizes: list[int]
    ) -> tuple[Tensor, list[Tensor]]:
        leaves = [each.detach().requires_grad_() for each in parameters]
        losses = self._losses(vmap(self._forward)(leaves, inputs), targets, sizes)
        found = torch.autograd.grad(losses.sum(), leaves, allow_unused=True)
        gradients = [
            torch.zeros_like(leaf) if gradient is None else gradient
            for leaf, gradient in zip(leaves, found, strict=True)
        ]
        return losses.detach(), gradients

    def _model_loss(self, parameters: list[Tensor], inputs: Any, targets: Any) -> Tensor:
        return self._loss(self._forward(parameters, inputs), targets)

    def _forward(self, parameters: list[Tensor], inputs: Any) -> Any:
        named = dict(zip(self._names, parameters, strict=True))
        if isinstance(inputs, Mapping):
            return functional_call(self._module, named, kwargs=dict(inputs))
        return functional_call(self._module, named, (inputs,))

    def _losses(self, outputs: Any, targets: list[Any], sizes: list[int]) -> Tensor:
        """Return the loss of each job on its own examples, without those that pad its batch."""
        members: dict[int, list[int]] = defaultdict(list)
        for place, size in enumerate(sizes):
            members[size].append(place)
        found: dict[int, Tensor] = {}
        for size, places in members.items():
            own = tree_map(lambda tensor, rows=places, most=size: tensor[rows, :most], outputs)
            values = vmap(self._loss)(own, _stack([targets[place] for place in places], size))
            found |= dict(zip(places, values.unbind(), strict=True))
        return torch.stack([found[place] for place in range(len(sizes))])


def _traced(plain: Program, tensors: list[Tensor]) -> Program:
    """Return the program as a list of operations for tensors of these shapes, if that does the same."""
    try:
        graph = make_fx(plain)(*tensors)
        _leave_out_views(graph)
        with torch.no_grad():
            pairs = zip(graph(*tensors), plain(*tensors), strict=True)
        does_the_same = all(torch.allclose(one, other, rtol=1e-3, equal_nan=True) for one, other in pairs)
    except Exception:  # tracing is an experimental part of torch, and the plain program is always right
        return plain
    return graph if does_the_same else plain


def _leave_out_views(graph: GraphModule) -> None:
    """Remove views in the shape that a tensor has already: half of what ``vmap`` does."""
    aten = torch.ops.aten
    reshaping = (aten.expand.default, aten.view.default, aten._unsafe_view.default)
    for node in graph.graph.nodes:
        source: Any = node.args[0] if node.args else None
        if node.target in reshaping and source.meta["val"].shape == node.meta["val"].shape:
            node.replace_all_uses_with(source)
        elif node.target is aten.transpose.int is source.target and source.args[1:] == node.args[1:]:
            node.replace_all_uses_with(source.args[0])
    graph.graph.eliminate_dead_code()
    graph.recompile()


def _stack(values: list[Any], most: int) -> Any:
    """Return the jobs' batches as one, each padded to ``most`` examples by copies of its first one."""

    def join(*tensors: Tensor) -> Tensor:
        return torch.stack([tensor if len(tensor) == most else _padded(tensor, most) for tensor in tensors])

    return join(*values) if isinstance(values[0], Tensor) else tree_map(join, *values)


def _padded(tensor: Tensor, most: int) -> Tensor:
    return torch.cat([tensor, tensor[:1].expand(most - len(tensor), *tensor.shape[1:])])


def _first_tensor(inputs: Any) -> Tensor:
    """Return any tensor of a batch's inputs: all have one row per example."""
    tensor: Tensor = next(iter(inputs.values())) if isinstance(inputs, Mapping) else inputs
    return tensor
