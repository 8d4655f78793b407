"""The example in the README runs as it stands, and finds what it looks for."""

import re
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"


def test_the_first_example_runs_and_finds_the_optimum(capsys):
    (example,) = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.DOTALL)
    names: dict = {}
    exec(example, names)
    assert names["optimizer"].mode()["activation"] == "tanh"
    assert names["optimizer"].mode()["layers"] == 3
    assert abs(names["optimizer"].mode()["rate"] - 0.01) < 0.002
    assert "tanh" in capsys.readouterr().out
    assert len(example.splitlines()) <= 25
