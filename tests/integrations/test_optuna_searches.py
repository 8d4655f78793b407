"""Studies of Optuna in which each trial is a short one-shot search, pruned by what its callback reports."""

from typing import Any

import pytest
import torch

optuna = pytest.importorskip("optuna", minversion="5")

from asng import nas  # noqa: E402
from asng.integrations.optuna import ASNGSampler  # noqa: E402
from tests.helpers.examples import EXAMPLES, check_tuning, run  # noqa: E402
from tests.helpers.searches import Net, batches, cross_entropy  # noqa: E402

EPOCHS = 3


def objective(trial):
    torch.manual_seed(0)
    model = Net()
    lr = trial.suggest_float("lr", 1e-4, 1.0, log=True)
    weight_decay = trial.suggest_float("weight_decay", 1e-5, 1e-2, log=True)
    weight_optimizer = torch.optim.SGD(model.parameters(), lr=lr, weight_decay=weight_decay)
    losses: list[float] = []

    def report(record):
        if isinstance(record, nas.Step):
            return False
        losses.append(record["valid_loss"])
        trial.report(losses[-1], len(losses))
        return trial.should_prune()

    train, valid = batches(5, 1), batches(5, 2)
    options: dict[str, Any] = {"weight_optimizer": weight_optimizer, "callback": report, "progress": False}
    nas.search(model, train, valid, cross_entropy, epochs=EPOCHS, **options)
    if len(losses) < EPOCHS:
        raise optuna.TrialPruned
    return losses[-1]


@pytest.mark.filterwarnings("ignore:the search was too short")
def test_searches_are_pruned_and_a_study_on_sqlite_continues(tmp_path):
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    for n_trials in (6, 6):
        study = optuna.create_study(
            storage=f"sqlite:///{tmp_path}/study.db",
            study_name="searches",
            sampler=ASNGSampler(seed=0),
            pruner=optuna.pruners.MedianPruner(n_startup_trials=3),
            load_if_exists=True,
        )
        study.optimize(objective, n_trials=n_trials)
    states = [trial.state.name for trial in study.trials]
    assert len(states) == 12
    assert set(states) == {"COMPLETE", "PRUNED"}
    complete = [trial for trial in study.trials if trial.state.name == "COMPLETE"]
    assert study.best_value == min(trial.value for trial in complete)
    assert all(len(trial.intermediate_values) == EPOCHS for trial in complete)


@pytest.mark.long
def test_the_example_of_tuning_finds_what_it_says(tmp_path):
    check_tuning(run([str(next(path for path in EXAMPLES if path.stem == "tuning"))], tmp_path))
