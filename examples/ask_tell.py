"""A black box of mixed variables: ask for candidates, evaluate them any way you like, tell the losses."""

import math

import asng


def loss(activation, layers, lr):
    """Stands for a training run; it is best with gelu, 5 layers and a learning rate of 0.001."""
    return {"relu": 1.0, "tanh": 2.0, "gelu": 0.0}[activation] + abs(layers - 5) / 3 + abs(math.log10(lr) + 3)


optimizer = asng.minimizer(
    {
        "activation": asng.Categorical(["relu", "tanh", "gelu"]),
        "layers": asng.Integer(1, 12),
        "lr": asng.Real(1e-5, 1e-1, log=True),
    },
    evaluations=300,
    seed=0,
)
for _ in range(300 // optimizer.population_size):
    candidates = optimizer.ask()
    optimizer.tell(candidates, [loss(**candidate.values) for candidate in candidates])

print("most likely:", optimizer.mode())
print("best so far:", optimizer.best)
