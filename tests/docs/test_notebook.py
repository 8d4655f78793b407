"""The notebook runs from top to bottom, shows what it says, and is stored without outputs."""

import json
from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).parents[2] / "examples" / "first_search.ipynb"
SECONDS = 120  # of one thread; processor time, so that other programs do not count


def test_the_notebook_is_stored_without_outputs():
    cells = [cell for cell in json.loads(NOTEBOOK.read_text())["cells"] if cell["cell_type"] == "code"]
    assert len(cells) > 10
    assert all((cell["outputs"], cell["execution_count"]) == ([], None) for cell in cells)


@pytest.mark.long
@pytest.mark.filterwarnings("default")  # of Jupyter's own
def test_the_notebook_runs_in_two_minutes_and_shows_tables_and_figures(tmp_path):
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    resource = pytest.importorskip("resource")  # of POSIX systems
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    client = nbclient.NotebookClient(notebook, timeout=5 * SECONDS, resources={"metadata": {"path": str(tmp_path)}})
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    client.execute()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert 1 < after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < SECONDS
    shown = {
        cell.source: [kind for output in cell.outputs for kind in output.get("data", {})]
        for cell in notebook.cells
        if cell.cell_type == "code"
    }
    tables = [source.splitlines()[-1] for source, kinds in shown.items() if "text/html" in kinds]
    assert tables == ["result", "result.arch_optimizer  # the distribution", "best", "front"]
    assert sum("image/png" in kinds for kinds in shown.values()) == 4
    assert not any(output.output_type == "error" for cell in notebook.cells for output in cell.get("outputs", []))
    assert "digits" in (tmp_path / "report.html").read_text(encoding="utf-8")
