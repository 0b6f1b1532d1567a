"""Digests of small runs, or of single operations, as JSON: the program that runs as other processors."""

import hashlib
import json
import sys

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

UNARY = (
    *("rsqrt", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "asin", "acos"),
    *("atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf", "erfc", "erfinv", "sigmoid"),
    *("lgamma", "digamma", "reciprocal", "sqrt"),
)
NUMPY = (
    *("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "arctan", "sinh", "cosh"),
    *("tanh", "arcsinh", "sqrt", "cbrt"),
)
random = np.random.Generator(np.random.PCG64(0))


def digest(*values: object) -> str:
    found = hashlib.sha256()
    for value in values:
        array = value.detach().numpy() if isinstance(value, Tensor) else np.asarray(value)
        found.update(np.ascontiguousarray(array).tobytes())
    return found.hexdigest()[:16]


def normal(*shape: int, dtype: type = np.float32) -> Tensor:
    return torch.from_numpy(random.standard_normal(shape).astype(dtype))


def operations() -> dict[str, str]:
    found = {}
    for dtype in (np.float32, np.float64):
        made = elementwise(dtype) | reductions(dtype) | matrices(dtype) | numpy_functions(dtype)
        found |= {f"{name}.{np.dtype(dtype).name}": value for name, value in made.items()}
    return found | random_numbers() | networks() | optimizers()


def elementwise(dtype: type) -> dict[str, str]:
    x, y = normal(1003, dtype=dtype), normal(1003, dtype=dtype)
    positive, unit = x.abs() + 1.01, 0.98 * torch.sigmoid(x) + 0.01
    arguments = dict.fromkeys(("asin", "acos", "atanh", "erfinv"), unit)
    arguments |= dict.fromkeys(
        ("sin", "cos", "tan", "sinh", "cosh", "tanh", "atan", "asinh", "exp", "erf"), x
    )
    found = {name: digest(getattr(torch, name)(arguments.get(name, positive))) for name in UNARY}
    more = {
        "pow": positive**1.7,
        "atan2": torch.atan2(x, y),
        "hypot": torch.hypot(x, y),
        "div": x / y,
        "lerp": torch.lerp(x, y, 0.3),
        "add": x.clone().add_(y, alpha=0.37),
        "addcmul": torch.addcmul(x, y, positive, value=0.3),
        "addcdiv": torch.addcdiv(x, y, positive, value=0.3),
        "gelu": F.gelu(x),
        "gelu-tanh": F.gelu(x, approximate="tanh"),
        "silu": F.silu(x),
        "softplus": F.softplus(x),
        "elu": F.elu(x),
        "mish": F.mish(x),
        "logsigmoid": F.logsigmoid(x),
    }
    return found | {name: digest(value) for name, value in more.items()}


def reductions(dtype: type) -> dict[str, str]:
    x, y = normal(1003, dtype=dtype), normal(1003, dtype=dtype)
    found = {
        "sum": x.sum(),
        "sum-rows": x[:1000].view(10, 100).sum(0),
        "std": x.std(),
        "norm": torch.linalg.vector_norm(x),
        "cumsum": x.cumsum(0),
        "softmax": x.softmax(0),
        "log-softmax": x.log_softmax(0),
        "logsumexp": x.logsumexp(0),
        "dot": torch.dot(x, y),
        "fft": torch.view_as_real(torch.fft.rfft(x)),
    }
    return {name: digest(value) for name, value in found.items()}


def matrices(dtype: type) -> dict[str, str]:
    found = {}
    for inner in (1, 3, 10, 64, 129, 300):
        one, two = normal(37, inner, dtype=dtype), normal(inner, 53, dtype=dtype)
        batch = torch.bmm(one.expand(4, 37, inner), two.expand(4, inner, 53))
        linear = F.linear(one, two.T, normal(53, dtype=dtype))
        found[f"matmul-{inner}"] = digest(one @ two, one @ two[:, 0], batch, linear)
    square = normal(12, 12, dtype=dtype)
    positive = square @ square.T + 12.0 * torch.eye(12, dtype=square.dtype)
    return found | {
        "svd": digest(*torch.linalg.svd(square)),
        "qr": digest(*torch.linalg.qr(square)),
        "eigh": digest(*torch.linalg.eigh(positive)),
        "solve": digest(torch.linalg.solve(positive, square)),
        "cholesky": digest(torch.linalg.cholesky(positive)),
        "inverse": digest(torch.linalg.inv(positive)),
    }


def numpy_functions(dtype: type) -> dict[str, str]:
    x, y = (random.standard_normal(1003).astype(dtype) for _ in range(2))
    positive = np.abs(x) + dtype(0.01)
    found = {name: getattr(np, name)(positive if name.startswith(("log", "sqrt")) else x) for name in NUMPY}
    square = x[:900].reshape(30, 30)
    found |= {"pow": np.power(positive, y), "sum": x.sum(), "std": x.std(), "cumsum": np.cumsum(x)}
    found |= {"dot": np.dot(x, y), "matmul": square @ square, "norm": np.linalg.norm(x)}
    found |= {"eigenvalues": np.linalg.eigvals(square[:6, :6]), "roots": np.roots(x[:6])}
    return {f"numpy-{name}": digest(value) for name, value in found.items()}


def random_numbers() -> dict[str, str]:
    torch.manual_seed(3)
    found: dict[str, object] = {
        "randn": torch.randn(1000),
        "rand": torch.rand(1000),
        "exponential": torch.empty(1000).exponential_(),
        "permutation": torch.randperm(1000),
        "bernoulli": torch.empty(1000).bernoulli_(0.3),
        "truncated-normal": nn.init.trunc_normal_(torch.empty(1000)),
    }
    for name in ("lognormal", "exponential", "standard_normal", "rayleigh"):
        found[f"numpy-{name}"] = getattr(random, name)(size=500)
    found |= {"numpy-gamma": random.gamma(0.3, size=500), "numpy-dirichlet": random.dirichlet([0.3] * 10, 50)}
    return {f"random-{name}": digest(value) for name, value in found.items()}


class LastOutput(nn.Module):
    def __init__(self, cell: type[nn.Module]) -> None:
        super().__init__()
        self.cell, self.head = cell(6, 10, batch_first=True), nn.Linear(10, 5)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.cell(inputs)[0][:, -1])


def trained(model: nn.Module, inputs: Tensor) -> str:
    """Return the digest of a model after two steps of SGD."""
    optimizer, targets = torch.optim.SGD(model.parameters(), lr=0.05), torch.arange(len(inputs)) % 5
    for _ in range(2):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
    return digest(loss, *model.state_dict().values())


def networks() -> dict[str, str]:
    torch.manual_seed(0)
    found = {}
    for channels, width, kernel, features in (
        (1, 28, 5, 2304),
        (3, 16, 3, 784),
        (8, 12, 3, 400),
        (32, 7, 3, 64),
    ):
        layers = (
            nn.Conv2d(channels, 16, kernel),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(features, 5),
        )
        inputs = normal(16, channels, width, width)
        found[f"convolution-{channels}-{width}"] = trained(nn.Sequential(*layers), inputs)
    depthwise = nn.Sequential(
        *(nn.Conv2d(8, 16, 3, padding=1, stride=2), nn.BatchNorm2d(16), nn.ReLU()),
        *(
            nn.Conv2d(16, 16, 3, groups=16, padding=1),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(16, 5),
        ),
    )
    found["depthwise"] = trained(depthwise, normal(16, 8, 12, 12))
    last = depthwise.to(memory_format=torch.channels_last)
    found["channels-last"] = trained(last, normal(16, 8, 12, 12).to(memory_format=torch.channels_last))
    norms = nn.Linear(64, 32), nn.LayerNorm(32), nn.GELU(), nn.RMSNorm(32), nn.Dropout(0.1), nn.Linear(32, 5)
    found["perceptron"] = trained(nn.Sequential(*norms), normal(16, 64))
    groups = (
        nn.Conv2d(3, 8, 3),
        nn.GroupNorm(2, 8),
        nn.SiLU(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(128, 5),
    )
    found["group-norm"] = trained(nn.Sequential(*groups), normal(16, 3, 10, 10))
    layer = nn.TransformerEncoderLayer(24, 4, 48, batch_first=True, dropout=0.1)
    found["transformer"] = trained(nn.Sequential(layer, nn.Flatten(), nn.Linear(264, 5)), normal(16, 11, 24))
    for name, cell in (("gru", nn.GRU), ("rnn", nn.RNN)):  # QEMU 7.2 crashes in oneDNN's LSTM
        found[name] = trained(LastOutput(cell), normal(16, 7, 6))
    return found


def optimizers() -> dict[str, str]:
    found = {}
    for name, settings in (("adam", {}), ("adam-fused", {"fused": True})):
        torch.manual_seed(1)
        layer = nn.Linear(64, 20)
        optimizer = torch.optim.Adam(layer.parameters(), lr=0.01, **settings)
        for _ in range(3):
            optimizer.zero_grad()
            layer(normal(8, 64)).square().mean().backward()
            optimizer.step()
        found[name] = digest(layer.weight)
    return found


def runs() -> dict[str, str]:
    """Return the digest of every method's model on a tiny task, and of one run on digits."""
    from asyncmanifold import METHODS, LocalTraining, Run, Schedule, simulate
    from asyncmanifold.tasks.digits import Digits
    from golden import model_digest, record_digests
    from tiny import CLOCK, TRAINING, make_run, make_task

    found = {}
    for name in METHODS:
        made = simulate(make_task(), name, training=TRAINING, schedule=CLOCK, run=make_run(12))
        found[name] = model_digest(made.model) + record_digests(made.trace)[-1]
    training = LocalTraining(point_epochs=1, curve_epochs=1, batch_size=16, local_lr=0.003)
    run, task = Run(updates=8, evaluate_every=8), Digits(clients=8).build(0)
    made = simulate(task, "asyncbezier", training=training, schedule=Schedule(concurrency=6), run=run)
    found["digits"] = model_digest(made.model)
    return found


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(runs() if sys.argv[1:] == ["runs"] else operations()), flush=True)
