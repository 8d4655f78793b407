"""Learning rate, weight decay and augmentation chosen by Optuna (`pip install optuna`); each trial is a search."""

from typing import Any

import optuna
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits  # type: ignore[import-untyped]
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from asng import nas
from asng.integrations.optuna import ASNGSampler


def make_net():
    width = nas.Width("width", [16, 32, 64, 128])
    activation = nas.OneOf("activation", {"relu": nn.ReLU(), "tanh": nn.Tanh()})
    return nn.Sequential(nn.Flatten(), nas.Linear(64, width), activation, nas.Linear(width, 10))


def judge(model, batch):
    return F.cross_entropy(model(batch[0]), batch[1])


def objective(trial):
    lr, weight_decay = (trial.suggest_float(name, 1e-4, 1.0, log=True) for name in ("lr", "weight_decay"))
    strength = trial.suggest_float("augmentation", 0.0, 0.3)

    def loss(net, batch):
        maps = torch.eye(2, 3) + strength * torch.randn(len(batch[0]), 2, 3)
        grid = F.affine_grid(maps, batch[0].shape, align_corners=False)
        return judge(net, (F.grid_sample(batch[0], grid, align_corners=False), batch[1]))

    def prune(record):
        if not isinstance(record, nas.Step):  # but that of an epoch
            trial.report(record["score"], record["epoch"])
            return trial.should_prune()

    torch.manual_seed(0)
    net = make_net()
    sgd = torch.optim.SGD(net.parameters(), lr, momentum=0.9, weight_decay=weight_decay)
    kinds: dict[str, Any] = {"judge": judge, "weight_optimizer": sgd, "callback": prune}
    found = nas.search(net, train, valid, loss, epochs=15, progress=False, **kinds)
    if len(found.history) < 15:
        raise optuna.TrialPruned
    accuracy = (found.model.eval()(x[1200:]).argmax(1) == y[1200:]).float().mean().item()
    trial.set_user_attr("found", {**found.values, "accuracy": accuracy})
    return nas.score(net, found.values, [(x[600:1200], y[600:1200])], judge)


digits, order = load_digits(), torch.randperm(1797, generator=torch.Generator().manual_seed(0))
x, y = torch.tensor(digits.images[order, None] / 16).float(), torch.tensor(digits.target)[order]
train, valid = (DataLoader(TensorDataset(x[a : a + 600], y[a : a + 600]), 50, shuffle=True) for a in (0, 600))
optuna.logging.set_verbosity(optuna.logging.WARNING)
study = optuna.create_study(sampler=ASNGSampler(seed=0), pruner=optuna.pruners.MedianPruner(n_warmup_steps=3))
study.optimize(objective, n_trials=25)
pruned = [trial.state.name for trial in study.trials].count("PRUNED")
print(f"{pruned} of 25 trials were pruned; the best: {study.best_params}, {study.best_trial.user_attrs}")
