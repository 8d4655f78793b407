"""Training steps of networks without decisions, for all trainings from scratch."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from asng.fused._compile import compile_ahead
from asng.fused._dispatch import SideStream
from asng.fused._sgd import TiledSGD, has_kernels_for
from asng.nas._capture.update import unsupported_reason
from asng.nas._preserve import snapshot
from asng.nas._training import load_optimizer


class TrainStep:
    """Training steps of a static model; on a GPU captured once as a CUDA graph, the weight update included.

    Args:
        model: A network without decisions, in training mode. On a GPU, whatever changes from step to step has to be
            in tensors: parameters, buffers, the batch.
        optimizer: Any torch optimizer of its parameters; on a GPU a fused one. Its learning rate becomes a tensor
            there, which `set_lr` fills.
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
        self._clips_in_update = not half and all(group.get("fused") for group in optimizer.param_groups)
        self._sgd = (
            TiledSGD(optimizer, max_grad_norm) if self._clips_in_update and has_sgd_kernels_for(optimizer) else None
        )
        self._captured: tuple[Any, tuple[Tensor, ...], Tensor] | None = None
        if self._device.type == "cuda" and not all(group["fused"] for group in optimizer.param_groups):
            raise ValueError(f"on a GPU {type(optimizer).__name__} must be fused to be captured; give fused=True")
        self._move_lr()

    def __call__(self, batch: tuple[Tensor, ...]) -> Tensor:
        """One step; returns the loss, on the device."""
        return self._replay(batch) if self._device.type == "cuda" else self._step(batch)

    def _step(self, batch: tuple[Tensor, ...]) -> Tensor:
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast(
            self._device.type, dtype=self._amp_dtype, enabled=self._amp_dtype is not None, cache_enabled=False
        ):
            loss = self._loss_fn(self.model, batch)
        if self._clips_in_update:
            loss.backward()  # type: ignore[no-untyped-call]
            SideStream.join_all(parameter.grad for parameter in self._parameters)
            self._clip_and_update()
            return loss.detach()
        self._scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        SideStream.join_all(parameter.grad for parameter in self._parameters)
        self._scaler.unscale_(self.optimizer)
        nn.utils.clip_grad_norm_(self._parameters, self._max_grad_norm)
        self._scaler.step(self.optimizer)
        self._scaler.update(self._scale)
        return loss.detach()

    def _clip_and_update(self) -> None:
        """Clip while updating: a fused optimizer divides gradients by its `grad_scale`.

        Both attributes are how `torch.amp.GradScaler` speaks to fused optimizers. Most SGDs have faster kernels.
        """
        if self._sgd is not None:
            self._sgd.step()
            return
        optimizer: Any = self.optimizer
        gradients = [parameter.grad for parameter in self._parameters if parameter.grad is not None]
        norm = nn.utils.get_total_norm(gradients)
        optimizer.grad_scale = torch.clamp((norm + 1e-6) / self._max_grad_norm, min=1.0).float()
        optimizer.found_inf = (~norm.isfinite()).float()
        optimizer.step()
        del optimizer.grad_scale, optimizer.found_inf

    def _replay(self, batch: tuple[Tensor, ...]) -> Tensor:
        if self._captured is None:
            self._captured = self._capture(tuple(tensor.clone() for tensor in batch))
        graph, inputs, loss = self._captured
        for static, tensor in zip(inputs, batch, strict=True):
            if static.shape != tensor.shape:  # copy_ would broadcast
                raise ValueError(f"batches must keep their shape, {tuple(static.shape)}, got {tuple(tensor.shape)}")
            static.copy_(tensor)
        graph.replay()
        return loss.clone()

    def _capture(self, inputs: tuple[Tensor, ...]) -> tuple[Any, tuple[Tensor, ...], Tensor]:
        """A graph of a step on the inputs, and its loss; no weight moves."""
        cuda: Any = torch.cuda
        stream = cuda.Stream()
        stream.wait_stream(cuda.current_stream())
        with cuda.stream(stream), preserve_buffers_and_rng(self.model), self._preserve_weights(), SideStream.allow():
            with compile_ahead():  # what the graph will launch: beside others, there are other kernels
                self._step(inputs)
            for _ in range(3):  # libraries choose their kernels in the first calls
                self._step(inputs)
        cuda.current_stream().wait_stream(stream)
        graph = cuda.CUDAGraph()
        with preserve_buffers_and_rng(self.model), SideStream.allow(), cuda.graph(graph):
            loss = self._step(inputs)
        if self._sgd is not None:
            self._sgd.fill_table()
        return graph, inputs, loss

    @contextmanager
    def _preserve_weights(self) -> Iterator[None]:
        """Restore parameters, the optimizer's state and the loss scale on exit; a state that is new becomes zero."""
        parameters, state, scaler = self._parameters, self.optimizer.state, self._scaler.state_dict()
        weights = [parameter.detach().clone() for parameter in parameters]
        before = {p: {name: tensor.clone() for name, tensor in state[p].items()} for p in parameters if p in state}
        try:
            yield
        finally:
            with torch.no_grad():
                torch._foreach_copy_(parameters, weights)
                for parameter in parameters:
                    for name, tensor in state[parameter].items():
                        old = before.get(parameter, {}).get(name)
                        tensor.zero_() if old is None else tensor.copy_(old)
            self._scaler.load_state_dict(scaler)

    def _move_lr(self) -> None:
        """On a GPU, make the learning rates tensors that a graph reads."""
        if self._device.type == "cuda":
            for group in self.optimizer.param_groups:
                group["lr"] = torch.tensor(float(group["lr"]), device=self._device)

    def state_dict(self) -> dict[str, Any]:
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scaler": self._scaler.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        load_optimizer(self.optimizer, state["optimizer"])
        self._scaler.load_state_dict(state["scaler"])
        self._move_lr()
        self._captured = None  # the optimizer has another state now


def has_sgd_kernels_for(optimizer: torch.optim.Optimizer) -> bool:
    """Whether an optimizer is an SGD whose step kernels of our own can take."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    is_dense: Any = torch.ops.aten.is_non_overlapping_and_dense
    return (
        type(optimizer) is torch.optim.SGD
        and unsupported_reason(optimizer) is None
        and all(has_kernels_for(parameter) and is_dense(parameter) for parameter in parameters)
    )


@contextmanager
def preserve_buffers_and_rng(model: nn.Module) -> Iterator[None]:
    """Restore a model but for its weights, such as batch statistics, and torch's RNG state on exit.

    >>> norm = nn.BatchNorm1d(2)
    >>> with preserve_buffers_and_rng(norm):
    ...     passed = norm(torch.randn(8, 2))
    >>> norm.running_mean, norm.num_batches_tracked
    (tensor([0., 0.]), tensor(0))
    """
    devices = {tensor.device for tensor in (*model.parameters(), *model.buffers()) if tensor.is_cuda}
    with torch.random.fork_rng(devices, device_type="cuda"), snapshot(model.modules()):
        yield
