"""The numbers that a step sends to its graph, and those that it reads from it."""

from collections.abc import Sequence

import torch


class StaticNumbers:
    """Tensors in memory that a graph holds: one copy sends all that passes read.

    Args:
        n: Candidates in each half.
        groups: Param groups of the weight optimizer.
        columns: Numbers of an architecture.
        metrics: Max metrics of a pass.
        device: Where the graph runs.

    Attributes:
        lrs: A learning rate for each param group (groups,).
        is_missing: 1 for a pass without a candidate (2 n,): those that train, then those that judge.
        trained: The candidates that train ().
        rows: The architecture of each pass (2 n, columns).
        outputs: The loss and the metrics of each pass (2 n, 1 + metrics).
    """

    def __init__(self, n: int, groups: int, columns: int, metrics: int, device: torch.device) -> None:
        self._n, passes = n, 2 * n
        sizes = [2 * groups, passes, 1, passes * columns]  # learning rates are float64, each as two int32
        self._inputs = torch.zeros(sum(sizes), dtype=torch.int32, device=device)
        self._sent = torch.zeros_like(self._inputs, device="cpu")
        if device.type == "cuda":
            self._sent = self._sent.pin_memory()
        lrs, self.is_missing, trained, rows = torch.split(self._inputs, sizes)
        self.lrs, self.trained, self.rows = lrs.view(torch.float64), trained[0].fill_(n), rows.view(passes, columns)
        self.outputs = torch.zeros(passes, 1 + metrics, dtype=torch.float64, device=device)

    def send(self, lrs: Sequence[float], train: Sequence[list[int]], valid: Sequence[list[int]]) -> None:
        """Send the learning rates and the architectures of both halves, of n candidates at most."""
        numbers = [int(at >= len(half)) for half in (train, valid) for at in range(self._n)]
        numbers.append(len(train))
        for half in (train, valid):
            numbers += [number for row in half for number in row]
            numbers += [0] * ((self._n - len(half)) * self.rows.shape[1])
        rates = torch.tensor(lrs, dtype=torch.float64, device="cpu")
        torch.cat([rates.view(torch.int32), torch.tensor(numbers, dtype=torch.int32, device="cpu")], out=self._sent)
        self._inputs.copy_(self._sent, non_blocking=True)
