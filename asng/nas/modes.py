"""Training mode that respects a model's own `train()`."""

from torch import nn


def set_training(model: nn.Module) -> None:
    """Put a model into training mode; in one that is, only call `train()` of modules whose class overrides it.

    By such a method a module keeps a part of itself, usually a pretrained one, in evaluation mode. A new model is in
    training mode although `train()` was never called. Modules that were put into evaluation mode explicitly stay in it.
    """
    if not model.training:
        model.train()
        return
    for module in model.modules():
        if module.training and type(module).train is not nn.Module.train:
            module.train()
