"""Every message of asng.nas has an entry in docs/troubleshooting.md, and every entry is a message."""

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from asng import Real, nas

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "troubleshooting.md"
INTERNAL = {"_Undecided", "WeightsWritten", "KeyboardInterrupt", "refused.with_traceback"}  # caught, or no message
# What these raise is the reason behind `the state does not fit: …`.
OF_STATES = {"load_state_dict", "check_shapes", "check_alike", "_check_parameter_states"}


def text_of(node: ast.AST) -> str:
    """The text of an expression, with "…" where a value is put in."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(map(text_of, parts))
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return text_of(left) + text_of(right)
    return "…"


def literals() -> Iterator[str]:
    """All texts of the package."""
    for path in (ROOT / "asng").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str)):
                yield text_of(node)


def messages_in(tree: ast.AST, *, reasons: bool) -> Iterator[str]:
    """What is raised, returned to be raised, or warned of, outside of functions that check states.

    With `reasons` also texts that are returned or assigned, which say why a step is not captured.
    """
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef) and node.name in OF_STATES:
            continue
        match node:
            case ast.Raise(exc=ast.Call(args=[message, *_]) as call) if ast.unparse(call.func) not in INTERNAL:
                yield text_of(message)
            case ast.Return(value=ast.Call(func=ast.Name(id=name), args=[message, *_])) if name.endswith("Error"):
                yield text_of(message)
            case ast.Call(func=ast.Attribute(attr="warn"), args=[message, *_]):
                yield text_of(message)
            case ast.Call(func=ast.Name(id="Refused" | "Unswitchable"), args=[message, *_]):
                yield text_of(message)
            case ast.Return(value=ast.expr() as text) | ast.Assign(targets=[ast.Name(id="reason")], value=text) if (
                reasons
            ):
                yield text_of(text)
        yield from messages_in(node, reasons=reasons)


def messages() -> list[str]:
    """Texts of all errors and warnings of asng.nas; not those that a function of its own composes."""
    found: list[str] = []
    for path in sorted((ROOT / "asng" / "nas").rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        found += messages_in(tree, reasons=path.parent.name == "_capture")
    return [text for text in found if len(re.findall(r"\w+", text)) > 1]


def entries(*, of_torch: bool) -> dict[str, re.Pattern[str]]:
    """The messages of the page, as patterns; in the first column of a row there may be several."""
    cells = re.findall(r"^\| (`.+?) \| ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    texts = [text for cell in cells if cell.endswith("(torch)") == of_torch for text in re.findall("`(.+?)`", cell)]
    return {text: re.compile(".+".join(map(re.escape, text.split("…"))).removeprefix(".+")) for text in texts}


def test_every_message_of_a_search_has_an_entry():
    patterns = entries(of_torch=False).values()
    assert len(messages()) > 150
    assert [text for text in messages() if not any(pattern.search(text) for pattern in patterns)] == []


def test_every_entry_is_a_message_of_the_package():
    known = list(literals())
    assert [text for text, pattern in entries(of_torch=False).items() if not any(map(pattern.search, known))] == []


def run_static_after_elastic(layer: nn.Module) -> None:
    model = nn.Sequential(nas.Linear(2, nas.Width("w", [4, 8])), layer)
    nas.select(model, {"w": 4})
    model(torch.zeros(3, 2))


def test_messages_of_torch_are_those_that_it_has():
    width, rate = nas.Width("w", [4, 8]), nas.Value("rate", Real(0, 0.5))
    mistakes: dict[str, Callable[[], object]] = {
        "empty(): argument 'size' …": lambda: nn.Linear(width, 2),  # type: ignore[arg-type]
        "'Width' object is not iterable": lambda: nn.LayerNorm(width),
        "'<=' not supported between instances of 'Width' and 'int'": lambda: nn.MultiheadAttention(width, 2),
        "'<' not supported between instances of 'Value' and …": lambda: nn.Dropout(rate),  # type: ignore[arg-type]
        "hidden_size should be of type int, got: Width": lambda: nn.LSTM(4, width),
        "should contain … elements not …": lambda: run_static_after_elastic(nn.BatchNorm1d(8)),
        "mat1 and mat2 shapes cannot be multiplied": lambda: run_static_after_elastic(nn.Linear(8, 2)),
        "element 0 of tensors does not require grad": lambda: torch.autograd.grad(torch.ones(1), torch.ones(1)),
        "mat1 and mat2 must have the same dtype": lambda: run_static_after_elastic(nn.Linear(4, 2).double()),
    }
    patterns = entries(of_torch=True)
    assert patterns.keys() == mistakes.keys()
    for text, make in mistakes.items():
        with pytest.raises((TypeError, RuntimeError), match=patterns[text]):
            make()
