"""Curves of a search for TensorBoard: `pip install 'asng[tensorboard]'`, then `tensorboard --logdir FOLDER`."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from asng._files import as_path
from asng._html import is_normal
from asng._untrusted import escape_controls


class TensorBoard:
    """Writes the records of a search for TensorBoard; pass it to `nas.search` as `callback`.

    After every epoch it writes all numbers of the record (losses, metrics, delta, seconds), the probabilities of every
    decision, the mean entropy of the choices in bits, and the most likely architecture as text, if it has changed. It
    ignores single steps. A resumed search continues in the same folder.

    Args:
        folder: Folder of the event files, such as `runs/mine/tensorboard`; it is created.

    Raises:
        ValueError: The folder is not a path, or its name is not valid UTF-8, which TensorBoard needs.
        ImportError: tensorboard is not installed.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     board = TensorBoard(folder)  # nas.search(..., callback=board) calls it after every epoch
    ...     board({"epoch": 1, "train_loss": 0.5})
    ...     board.close()
    ...     len(list(Path(folder).glob("events.out.*")))
    1
    """

    def __init__(self, folder: str | Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ImportError(f"{error}; TensorBoard needs pip install 'asng[tensorboard]'") from None
        self._make_writer, self._folder = SummaryWriter, as_path(folder, "folder")
        try:
            str(self._folder).encode()
        except UnicodeEncodeError:
            raise ValueError(f"TensorBoard writes to no folder like {self._folder}; give it a name in UTF-8") from None
        self._writer: Any = None
        self._shown = ""  # the newest architecture

    def __call__(self, record: Any) -> None:
        """Write the record of an epoch; what is none, as a `Step`, is passed over."""
        if not isinstance(record, Mapping):
            return
        step = next((int(record[name]) for name in ("step", "epoch", "checkpoint") if name in record), 0)
        if self._writer is None:  # what a killed process wrote of this step and later ones is hidden
            self._writer = self._make_writer(str(self._folder), purge_step=step)
        for name, number in _scalars(record).items():
            self._writer.add_scalar(escape_controls(name), number, step)
        likely = _most_likely(record.get("distribution") or {})
        if likely and likely != self._shown:
            self._writer.add_text("architecture", likely, step)
            self._shown = likely
        self._writer.flush()

    def close(self) -> None:
        """Close the event file; further records open another."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None


def _scalars(record: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a record by their names, and those of its distribution."""
    scalars = {name: value for name, value in record.items() if _is_number(value)}
    entropies = []
    for name, parameters in (record.get("distribution") or {}).items():
        kind = "distribution" if is_normal(parameters) else "probability"
        scalars |= {f"{kind}/{name}/{key}": value for key, value in parameters.items() if _is_number(value)}
        if kind == "probability" and all(map(_is_number, parameters.values())):
            entropies.append(-sum(p * math.log2(p) for p in parameters.values() if p > 0))
    return scalars | ({"entropy": sum(entropies) / len(entropies)} if entropies else {})


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _most_likely(distribution: Mapping[str, Mapping[str, Any]]) -> str:
    """The likeliest choice of every decision, or its mean, as a table of Markdown."""
    rows = []
    for name, parameters in distribution.items():
        if is_normal(parameters):
            rows.append((name, f"{parameters['mean']:.4g}"))
        elif all(map(_is_number, parameters.values())):
            rows.append((name, max(parameters, key=lambda choice: parameters[choice])))
    cells = [[escape_controls(cell).replace("|", r"\|") for cell in row] for row in rows]
    return (
        "\n".join(f"| {' | '.join(row)} |" for row in (("decision", "choice"), ("---", "---"), *cells)) if rows else ""
    )
