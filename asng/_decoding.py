"""A space compiled: many raw draws become values at once."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from asng._ragged import MAX_REPEATED, Array
from asng._variable import Variable, check_space, stable_repr
from asng.families import Choices, Family

TABLE = 4096  # the most values of a variable that are looked up


class Space:
    """Names and variables in order, compiled so that many draws are decoded at once."""

    def __init__(self, variables: Mapping[str, Variable]) -> None:
        check_space(variables)
        self.names, self.variables = tuple(variables), tuple(variables.values())
        self.marginals = tuple(variable.marginal() for variable in self.variables)
        self._template: dict[str, Any] = dict.fromkeys(self.names)
        self._compile()

    def _compile(self) -> None:
        """Choices and small integers are looked up in one table; the other variables decode themselves."""
        table: list[Any] = []
        bounds = []  # of the raw draw, and the position in the table that belongs to 0
        self._others = []
        for column, (variable, marginal) in enumerate(zip(self.variables, self.marginals, strict=True)):
            values, low = variable.values(), 0
            if values is None or isinstance(marginal, Family) or len(values) > TABLE or len(table) > 100 * TABLE:
                self._others.append(column)
                values = (None,)
            else:
                low = int(marginal.low)
            bounds.append((low, low + len(values) - 1, len(table) - low))
            table.extend(values)
        self._table = np.fromiter(table, dtype=object, count=len(table))  # leaves arrays and tensors as they are
        # Lowest, highest, and where in the table its row begins; as often as there were draws last, if these were few.
        self._bounds = np.array(bounds, dtype=float).T[:, None]
        is_choice = [isinstance(marginal, Choices) for marginal in self.marginals]
        self._choices_only = all(is_choice) and not self._others  # which have one row each in the table

    def decode(self, x: Array) -> list[dict[str, Any]]:
        """Raw draws (n, variables) to n dicts of plain values, in the order of the space."""
        bounds = self._bounds
        if bounds.shape[1] != len(x):  # NumPy takes longer to broadcast a small array than to compute with it
            bounds = bounds[:, :1]
            if x.size <= MAX_REPEATED:
                bounds = self._bounds = bounds.repeat(len(x), axis=1)
        index = x if self._choices_only else np.rint(np.minimum(np.maximum(x, bounds[0]), bounds[1]))  # half to even
        places = (index + bounds[2]).astype(np.intp)
        rows = self._table[places].tolist()
        for column in self._others:
            decode = self.variables[column].decode
            for row, number in zip(rows, x[:, column].tolist(), strict=True):
                row[column] = decode(number)
        decoded, names, template = [], self.names, self._template
        for row in rows:
            values = template.copy()  # has its size already, so that it need not grow
            values.update(zip(names, row))  # noqa: B905 (strict costs time in every ask)
            decoded.append(values)
        return decoded

    def to_external(self, parameters: Iterable[Any]) -> dict[str, Any]:
        """The parameters of all variables, as `Family.describe` lists them, in the user's units, by name."""
        rows = zip(self.names, self.variables, parameters, strict=True)
        return {name: variable.to_external(each) for name, variable, each in rows}

    def describe(self) -> list[list[str]]:
        """Names and variables in order, as text that is equal for equal spaces, also in another process."""
        rows = zip(self.names, self.variables, strict=True)
        return [[name, stable_repr(variable) + variable._units] for name, variable in rows]
