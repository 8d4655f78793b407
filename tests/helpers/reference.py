"""The algorithm of one run, slow and obvious: the paper's formulas with loops, nothing taken from the library's own."""

import math

from asng import Categorical, Integer

CLEAR = 1e-12  # smaller entries of a gradient are rounding


def slow_utilities(losses):
    losses = [loss if math.isfinite(loss) else math.inf for loss in losses]
    n, quarter = len(losses), math.ceil(len(losses) / 4)
    slots = [(k < quarter) - (k >= n - quarter) for k in range(n)]
    ranked = sorted(losses)
    return [
        sum(slot for slot, other in zip(slots, ranked, strict=True) if other == loss) / losses.count(loss)
        for loss in losses
    ]


class Reference:
    """One run on raw draws: per variable a list of probabilities, or [mean, second moment]."""

    def __init__(self, space, alpha=1.5, delta_init=1.0, delta_max=math.inf):
        self.space, self.alpha, self.delta_init, self.delta_max = list(space.values()), alpha, delta_init, delta_max
        self.bounds = [None if isinstance(v, Categorical) else self._bounds(v) for v in self.space]
        free = [v for v in self.space if isinstance(v, Categorical) and len(v.choices) > 1]
        self.smallest = [self._smallest(v, len(free)) if v in free else 0.0 for v in self.space]
        self.n_theta = sum(len(v.choices) - 1 for v in free) + 2 * sum(b is not None for b in self.bounds)
        self.theta = [
            [1 / len(v.choices)] * len(v.choices)
            if b is None
            else [(b[0] + b[1]) / 2, ((b[0] + b[1]) / 2) ** 2 + b[3] ** 2]
            for v, b in zip(self.space, self.bounds, strict=True)
        ]
        self.path = [[0.0] * len(t) for t in self.theta]
        self.gamma, self.divisor = 0.0, max(1.0, delta_init / math.sqrt(self.n_theta))

    @staticmethod
    def _bounds(variable):
        """Lowest and highest mean, smallest and largest deviation of raw draws."""
        if isinstance(variable, Integer):
            return variable.low, variable.high, 0.25, (variable.high - variable.low) / 2
        return -1.0, 1.0, 0.002, 1.0

    @staticmethod
    def _smallest(variable, n):
        m = len(variable.choices)
        return 1 / (n * (m - 1)) if n * (m - 1) > m else 1 / (2 * m)

    def direction(self, xs, losses, active=None):
        """G and v per variable; where one is not active in a draw, that draw is left out."""
        lam, gradient, white = len(losses), [], []
        for i, (theta, bounds) in enumerate(zip(self.theta, self.bounds, strict=True)):
            counts = [True] * lam if active is None else [row[i] for row in active]
            utilities = [u if counted else 0.0 for u, counted in zip(slow_utilities(losses), counts, strict=True)]
            if bounds is None:
                g = [
                    sum(u * ((x[i] == j) - theta[j]) for u, x in zip(utilities, xs, strict=True)) / lam
                    for j in range(len(theta))
                ]
                g = [value if abs(value) > CLEAR else 0.0 for value in g]
                last, total = theta[-1], sum(g[:-1])
                v = [
                    g[j] / math.sqrt(theta[j]) + math.sqrt(theta[j]) * total / (last + math.sqrt(last))
                    for j in range(len(theta) - 1)
                ] + [0.0]
            else:
                mean, var = theta[0], theta[1] - theta[0] ** 2
                ys = [x[i] - mean for x in xs]
                a = sum(u * y for u, y in zip(utilities, ys, strict=True)) / lam
                q = sum(u * (y * y - var) for u, y in zip(utilities, ys, strict=True)) / lam
                b = q + 2 * mean * a
                g = [value if abs(value) > CLEAR else 0.0 for value in (a, b)]
                d = 1 / (math.sqrt(2) * var**1.5)
                trace = (2 * mean**2 + var + 1 / 2) / var**2
                fisher = (a / var - mean * q / var**2, q / (2 * var**2))
                v = [(f + d * c) / math.sqrt(trace + 2 * d) for f, c in zip(fisher, (a, b), strict=True)]
            gradient.append(g)
            white.append(v)
        return gradient, white

    def project(self, i, theta):
        if self.bounds[i] is not None:
            low, high, std_min, std_max = self.bounds[i]
            mean = min(max(theta[0], low), high)
            return [mean, min(max(theta[1], mean**2 + std_min**2), mean**2 + std_max**2)]
        if len(theta) == 1:
            return [1.0]
        smallest = self.smallest[i]
        theta = [max(p, smallest) for p in theta]
        total = sum(theta)
        return [p + (1 - total) / (total - len(theta) * smallest) * (p - smallest) for p in theta]

    def update(self, xs, losses, active=None):
        """One update of ASNG."""
        gradient, white = self.direction(xs, losses, active)
        if not any(any(g) for g in gradient):
            return
        norm = math.sqrt(sum(v * v for row in white for v in row))
        delta = self.delta_init / self.divisor
        beta = delta / math.sqrt(self.n_theta)
        self.move([[delta / norm * g for g in row] for row in gradient])
        self.path = [
            [(1 - beta) * s + math.sqrt(beta * (2 - beta)) * v / norm for s, v in zip(*rows, strict=True)]
            for rows in zip(self.path, white, strict=True)
        ]
        self.gamma = (1 - beta) ** 2 * self.gamma + beta * (2 - beta)
        squared = sum(s * s for row in self.path for s in row)
        divisor = self.divisor * math.exp(beta * (self.gamma - squared / self.alpha))
        self.divisor = min(max(divisor, self.delta_init / math.sqrt(self.n_theta)), self.delta_max)

    def move(self, change):
        self.theta = [
            self.project(i, [t + c for t, c in zip(theta, change[i], strict=True)])
            for i, theta in enumerate(self.theta)
        ]

    def flat(self, rows):
        """In the order of the library: all probabilities, then all means, then all second moments."""
        numeric = [row for row, bounds in zip(rows, self.bounds, strict=True) if bounds is not None]
        categorical = [p for row, bounds in zip(rows, self.bounds, strict=True) if bounds is None for p in row]
        return [*categorical, *(row[0] for row in numeric), *(row[1] for row in numeric)]
