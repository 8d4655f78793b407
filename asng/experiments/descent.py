"""Training steps of networks without decisions, for all trainings from scratch."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn


class TrainStep:
    """Training steps of a static model; on a GPU captured once as a CUDA graph and replayed.

    Args:
        model: A network without decisions, in training mode.
        optimizer: Any torch optimizer of its parameters.
        loss_fn: (model, batch) -> scalar; a batch is a tuple of tensors, always of the same shapes.
        max_grad_norm: Largest norm of the gradient.
        amp_dtype: Type of mixed precision.

    A gradient that is not finite leaves the weights as they are.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        loss_fn: Callable[[nn.Module, tuple[Tensor, ...]], Tensor],
        *,
        max_grad_norm: float,
        amp_dtype: torch.dtype | None = None,
    ) -> None:
        self.model, self.optimizer = model, optimizer
        self._loss_fn, self._max_grad_norm, self._amp_dtype = loss_fn, max_grad_norm, amp_dtype
        self._parameters = [p for group in optimizer.param_groups for p in group["params"]]
        self._device = self._parameters[0].device
        # Only float16 needs to be scaled; but this is also what skips a step without a wait for the GPU.
        half = amp_dtype is torch.float16
        self._scaler = torch.amp.GradScaler(self._device.type, init_scale=2.0**16 if half else 1.0)
        self._scale = None if half else 1.0
        self._recorded: tuple[Any, tuple[Tensor, ...], Tensor] | None = None

    def __call__(self, batch: tuple[Tensor, ...]) -> Tensor:
        """One step; returns the loss, on the device."""
        loss = self._replay(batch) if self._device.type == "cuda" else self._forward_backward(batch)
        self._scaler.unscale_(self.optimizer)
        nn.utils.clip_grad_norm_(self._parameters, self._max_grad_norm)
        self._scaler.step(self.optimizer)
        self._scaler.update(self._scale)
        return loss

    def reset_graph(self) -> None:
        """Capture the graph again at the next step: something else than weights and batch has changed."""
        self._recorded = None

    def _forward_backward(self, batch: tuple[Tensor, ...]) -> Tensor:
        """The loss, with its gradient in the parameters."""
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast(
            self._device.type, dtype=self._amp_dtype, enabled=self._amp_dtype is not None, cache_enabled=False
        ):
            loss = self._loss_fn(self.model, batch)
        self._scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def _replay(self, batch: tuple[Tensor, ...]) -> Tensor:
        if self._recorded is None:
            with preserve_buffers_and_rng(self.model):  # the capture must not change results
                self._recorded = self._record(tuple(tensor.clone() for tensor in batch))
        graph, inputs, loss = self._recorded
        for static, tensor in zip(inputs, batch, strict=True):
            if static.shape != tensor.shape:  # copy_ would broadcast
                raise ValueError(f"batches must keep their shape, {tuple(static.shape)}, got {tuple(tensor.shape)}")
            static.copy_(tensor)
        graph.replay()
        return loss.clone()

    def _record(self, inputs: tuple[Tensor, ...]) -> tuple[Any, tuple[Tensor, ...], Tensor]:
        """A graph from the inputs to the loss; the gradients of the parameters are from now on those that it writes."""
        cuda: Any = torch.cuda
        side_stream = cuda.Stream()
        side_stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side_stream):
            for _ in range(3):  # libraries choose their kernels in the first calls
                self._forward_backward(inputs)
        torch.cuda.current_stream().wait_stream(side_stream)
        self.optimizer.zero_grad(set_to_none=True)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            loss = self._forward_backward(inputs)
        return graph, inputs, loss

    def state_dict(self) -> dict[str, Any]:
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scaler": self._scaler.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self._scaler.load_state_dict(state["scaler"])


@contextmanager
def preserve_buffers_and_rng(model: nn.Module) -> Iterator[None]:
    """Restore a model's buffers, such as batch statistics, and torch's RNG state on exit; gradients are not restored.

    >>> norm = nn.BatchNorm1d(2)
    >>> with preserve_buffers_and_rng(norm):
    ...     passed = norm(torch.randn(8, 2))
    >>> norm.running_mean, norm.num_batches_tracked
    (tensor([0., 0.]), tensor(0))
    """
    holders = [module._buffers for module in model.modules()]  # a pass may also replace them
    before = [(buffers, name, b, b.clone()) for buffers in holders for name, b in buffers.items() if b is not None]
    devices = {tensor.device for tensor in (*model.parameters(), *model.buffers()) if tensor.is_cuda}
    try:
        with torch.random.fork_rng(devices, device_type="cuda"):
            yield
    finally:
        with torch.no_grad():
            for buffers, name, buffer, value in before:
                buffers[name] = buffer.copy_(value)
