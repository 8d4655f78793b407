"""A search inside PyTorch Lightning: a LightningModule with manual optimization around OneShot.

Needs `pip install pytorch-lightning`. Epochs, batches, logs and checkpoints are Lightning's; one line of
`training_step` searches. The task: the product of two numbers.
"""

import logging
import warnings

import pytorch_lightning as pl
import torch
from torch import nn
from torch.utils.data import DataLoader

from asng import ASNG, nas


class Search(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization, self.state = False, None  # OneShot updates the weights
        width = nas.Width("width", [1, 2, 4, 8, 16])
        ops = [nas.OneOf(f"op{i}", {"relu": nn.ReLU(), "gelu": nn.GELU(), "none": nn.Identity()}) for i in range(2)]
        self.net = nn.Sequential(nas.Linear(2, width), ops[0], nas.Linear(width, width), ops[1], nas.Linear(width, 1))

    def configure_optimizers(self):
        return torch.optim.Adam(self.net.parameters(), lr=1e-2)

    def on_train_start(self):
        arch_optimizer = ASNG(nas.space_of(self.net), seed=0)
        self.oneshot = nas.OneShot(self.net, arch_optimizer, self.optimizers(), self.loss_fn, max_grad_norm=5.0)
        if self.state is not None:  # of a checkpoint, which Lightning loads before there are optimizers
            self.oneshot.load_state_dict(self.state)

    def loss_fn(self, net, x):
        return nn.functional.mse_loss(net(x), x.prod(1, keepdim=True))

    def training_step(self, batch, index):
        step = self.oneshot.step(batch["train"], batch["valid"])
        self.log_dict({"train_loss": step.train_loss, "valid_loss": step.valid_loss}, on_step=False, on_epoch=True)

    def on_save_checkpoint(self, checkpoint):
        checkpoint["oneshot"] = self.oneshot.state_dict()

    def on_load_checkpoint(self, checkpoint):
        self.state = checkpoint["oneshot"]


warnings.filterwarnings("ignore", module="pytorch_lightning")  # such as on the number of workers
logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
torch.manual_seed(0)
loaders = {half: DataLoader(torch.randn(3200, 2), 64, shuffle=True) for half in ("train", "valid")}  # type: ignore
quiet: dict = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
for epochs, checkpoint in ((10, None), (20, "checkpoints/epoch=9-step=500.ckpt")):  # the second part continues
    search, trainer = Search(), pl.Trainer(max_epochs=epochs, **quiet)
    trainer.fit(search, loaders, ckpt_path=checkpoint)
result, x = nas.result(search.oneshot), torch.randn(1000, 2)
print(f"{result}\n\n{trainer.global_step} steps, validation loss {trainer.callback_metrics['valid_loss'].item():.4f}")
print(f"mean squared error: {search.loss_fn(result.model, x).item():.4f}, of the mean {x.prod(1).var():.3f}")
