"""The decisions of any model as nested boxes: what was chosen, how likely it is, and what it holds.

The tree is the one that `SearchResult.save` writes; without it, names such as `layer1.kernel` are one.
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from asng._html import Html, element, format_number, is_normal
from asng.report._read import RunData, dicts_in, is_number

MAX_DEPTH, MAX_NODES, MAX_CHIPS = 40, 2000, 16


class Node(NamedTuple):
    """A decision, or a group of them, with the decisions in its options or blocks."""

    name: str
    inside: dict[str, list["Node"]]
    range: tuple[float, float] | None = None
    is_log: bool = False


def tree_of(run: RunData) -> list[Node]:
    """The tree of a run's decisions; all decisions that are not in it follow at its end."""
    nodes = _parse(run.summary.get("tree"), 0, [MAX_NODES])
    shown = {node.name for node in flatten(nodes)}
    return _filter(nodes, run) + _group({name: name for name in run.values if name not in shown}, 0)


def _filter(nodes: list[Node], run: RunData) -> list[Node]:
    """The nodes of decisions that the run has values of."""
    known = [node for node in nodes if node.name in run.values]
    return [node._replace(inside={label: _filter(part, run) for label, part in node.inside.items()}) for node in known]


def flatten(nodes: list[Node]) -> list[Node]:
    """All nodes of a tree."""
    return [each for node in nodes for each in (node, *(n for part in node.inside.values() for n in flatten(part)))]


def _parse(data: Any, depth: int, left: list[int]) -> list[Node]:
    """The nodes of an untrusted file; items that are no nodes are left out."""
    nodes = []
    for each in dicts_in(data) if depth < MAX_DEPTH else []:
        left[0] -= 1
        if left[0] < 0 or not isinstance(each.get("name"), str):
            continue
        inside: Any = each["inside"] if isinstance(each.get("inside"), dict) else {}
        parts = {label: _parse(part, depth + 1, left) for label, part in inside.items()}
        ends = _parse_range(each.get("range"))
        nodes.append(Node(each["name"], parts, ends, ends is not None and ends[0] > 0 and each.get("log") is True))
    return nodes


def _parse_range(data: Any) -> tuple[float, float] | None:
    is_range = isinstance(data, list) and len(data) == 2 and all(map(is_number, data)) and data[0] < data[1]
    return (data[0], data[1]) if is_range else None


def _group(names: Mapping[str, str], depth: int) -> list[Node]:
    """Names by their first parts, such as `layer1` of `layer1.kernel`; a part of one name alone makes no group."""
    groups: dict[str, dict[str, str]] = {}
    for whole, rest in names.items():
        groups.setdefault(rest.partition(".")[0], {})[whole] = rest.partition(".")[2]
    nodes = []
    for first, members in groups.items():
        if len(members) == 1 or depth >= MAX_DEPTH or not all(members.values()):
            nodes += [Node(whole, {}) for whole in members]
        else:
            nodes.append(Node(first, {"": _group(members, depth + 1)}))
    return nodes


def running_decisions(run: RunData) -> set[str]:
    """The decisions in options and blocks that run."""
    names, rest = set[str](), tree_of(run)
    while rest:
        node = rest.pop()
        names.add(node.name)
        value = run.values.get(node.name)
        rest += [each for label, part in node.inside.items() if _is_active(node, label, value) for each in part]
    return names - run.inactive


def _is_active(node: Node, label: str, value: Any) -> bool:
    """Whether an option or a block runs under the value of its decision."""
    if not label:
        return True
    is_counted = node.range is not None and label.isdecimal() and is_number(value)
    return int(label[:9]) <= value if is_counted else label == str(value)


def draw_tree(run: RunData) -> Html:
    """The nested boxes."""
    return element("ul", *(_decision_box(node, run) for node in tree_of(run)), class_="tree")


def _decision_box(node: Node, run: RunData) -> Html:
    value, parameters = run.values.get(node.name), run.final_distribution.get(node.name, {})
    is_idle = node.name in run.inactive
    head = [element("span", node.name, class_="name")]
    if node.name in run.values:
        head.append(element("b", format_number(value)))
    if is_idle:
        head.append(element("span", "no effect", class_="soft"))
    parts = [element("div", *head, class_="head")]
    if is_normal(parameters):
        parts.append(_track(node, parameters, value))
    elif parameters:
        parts.append(_chips(parameters, value))
    parts += [_part(node, label, part, value, run) for label, part in node.inside.items() if part]
    is_large = any(node.inside.values())
    return element("li", *parts, class_=f"box{' idle' if is_idle else ''}{' large' if is_large else ''}")


def _part(node: Node, label: str, nodes: list[Node], value: Any, run: RunData) -> Html:
    """The decisions inside an option or a block; folded where it does not run."""
    inner = element("ul", *(_decision_box(each, run) for each in nodes), class_="tree")
    title = f"block {label}" if node.range is not None else label
    if not label:
        return inner
    if _is_active(node, label, value):
        return element("div", element("div", title, class_="soft"), inner, class_="part")
    return element("details", element("summary", f"{title}, not used"), inner, class_="part off")


def _chips(parameters: Mapping[str, float], value: Any) -> Html:
    """Choices, each filled as far as it is likely; of many the likely ones."""
    likely = sorted(parameters.items(), key=lambda pair: -pair[1])[:MAX_CHIPS]
    kept = [pair for pair in parameters.items() if pair in likely]
    chips = [
        element(
            "li",
            element("b", choice) if choice == str(value) else choice,
            f" {probability:.2f}",
            class_="on" if choice == str(value) else None,
            style=f"--p:{100 * min(max(probability, 0.0), 1.0):.0f}%",
        )
        for choice, probability in kept
    ]
    more = len(parameters) - len(kept)
    return element("ul", *chips, element("li", f"{more} others") if more else None, class_="chips")


def _track(node: Node, parameters: Mapping[str, float], value: Any) -> Html:
    """The range of a number, with the band of one standard deviation around the mean, and the value."""
    mean, spread = parameters["mean"], spread_of(abs(parameters["std"]), node.is_log)
    text = f"mean {format_number(mean)} {'×/÷' if node.is_log else '±'} {format_number(spread)}"
    words = element("span", text, class_="soft")
    if node.range is None or not (mean > 0 if node.is_log else True):
        return words

    def percent(number: float) -> float:
        low, high, at = (math.log(each) if node.is_log else each for each in (*node.range, number))  # type: ignore[misc]
        return 100 * min(max((at - low) / (high - low), 0.0), 1.0)

    band = (mean / spread, mean * spread) if node.is_log else (mean - spread, mean + spread)
    left, right = map(percent, band)
    marks = [element("span", class_="band", style=f"left:{left:.1f}%;width:{right - left:.1f}%")]
    if is_number(value) and (value > 0 or not node.is_log):
        marks.append(element("span", class_="mark", style=f"left:{percent(value):.1f}%"))
    ends = [element("span", format_number(end), class_="soft") for end in node.range]
    track = element(
        "span", ends[0], element("span", *marks, class_="line"), ends[1], class_="track", aria_hidden="true"
    )
    return element("div", track, words)


def spread_of(std: float, is_log: bool) -> float:
    """A standard deviation as it is shown: of a logarithm, the factor that it stands for.

    >>> spread_of(2.0, False), spread_of(0.0, True)
    (2.0, 1.0)
    """
    return math.exp(min(std, 100.0)) if is_log else std
