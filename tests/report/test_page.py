"""Reports: what a page holds, and that its numbers are those of the files."""

import base64
import json
import statistics
import subprocess
import sys

import pytest

from asng import report
from asng.report._curves import thin
from tests.helpers.report_pages import SEEDS, Page, values_of, write_run


@pytest.fixture(scope="module")
def seeds(tmp_path_factory):
    return Page(report.write(SEEDS, tmp_path_factory.mktemp("page") / "seeds.html"))


@pytest.fixture(scope="module")
def seed0(tmp_path_factory):
    return Page(report.write(SEEDS[:1], tmp_path_factory.mktemp("page") / "seed0.html"))


def records_of(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def write(tmp_path, *folders):
    return Page(report.write(folders, tmp_path / "report.html"))


# The page


def test_a_page_loads_nothing_and_runs_its_own_script_alone(seeds):
    assert not any("src" in attributes for _, attributes in seeds.elements)
    assert all((link["href"] or "").startswith("#") for link in seeds.tags("a"))
    assert [tag for tag, own in seeds.elements if "href" in own] == ["a"] * len(seeds.tags("a"))
    assert "url(http" not in seeds.source
    assert "@import" not in seeds.source
    (policy,) = seeds.tags("meta", **{"http-equiv": "Content-Security-Policy"})
    assert policy["content"].startswith(
        "default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-"
    )


def test_a_page_names_its_language_and_has_one_heading(seeds):
    assert seeds.tags("html", lang="en")
    assert len(seeds.tags("h1")) == 1
    assert seeds.tags("meta", name="viewport")
    ids = [attributes["id"] for _, attributes in seeds.elements if "id" in attributes]
    assert len(ids) == len(set(ids))


def test_the_same_runs_give_the_same_page(tmp_path):
    first, second = (report.write(SEEDS, tmp_path / name).read_bytes() for name in ("a.html", "b.html"))
    assert first == second


def test_three_searches_of_100_epochs_take_less_than_300_kb(seeds):
    assert len(seeds.source.encode()) < 300_000


def test_a_report_is_written_without_torch_and_matplotlib(tmp_path):
    program = f"""
import sys
from asng import report
report.write([{str(SEEDS[0])!r}], {str(tmp_path / "report.html")!r})
print(*{{"torch", "matplotlib", "jinja2"}} & set(sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


# Curves


@pytest.mark.parametrize(
    ("title", "curve", "metric"),
    [("Loss", "train", "train_loss"), ("Loss", "valid", "valid_loss"), ("Accuracy", "valid", "valid_accuracy")],
)
def test_curves_are_the_numbers_of_the_records(seed0, title, curve, metric):
    records = records_of(SEEDS[0])
    drawn = seed0.curves(title)[curve]
    assert drawn["step"] == [record["step"] for record in records]
    assert drawn["y"] == pytest.approx([record[metric] for record in records], rel=1e-5)
    assert drawn["time"][-1] == pytest.approx(sum(record["seconds"] for record in records), rel=1e-5)


def test_the_step_size_is_drawn_on_a_logarithmic_axis(seed0):
    chart = seed0.charts["Step size"]
    assert chart["log"]
    assert chart["curves"][0]["y"][0] == pytest.approx(records_of(SEEDS[0])[0]["delta"], rel=1e-5)


def test_changed_decisions_are_counted_from_one_record_to_the_next(seed0):
    before, after = (record["architecture"] for record in records_of(SEEDS[0])[:2])
    (curve,) = seed0.charts["Changed decisions"]["curves"]
    assert curve["y"][0] == sum(a != b for a, b in zip(before, after, strict=True)) > 0


def test_several_seeds_have_a_mean_and_a_spread(seeds):
    losses = [records_of(folder)[-1]["valid_loss"] for folder in SEEDS]
    curve = seeds.curves("Loss")["valid"]
    assert curve["y"][-1] == pytest.approx(statistics.mean(losses), rel=1e-5)
    assert curve["spread"][-1] == pytest.approx(statistics.stdev(losses), rel=1e-5)
    faint = {name for name, each in seeds.curves("Loss").items() if each["faint"]}
    assert {"valid, seed0", "valid, seed1", "valid, seed2"} <= faint


def test_runs_of_other_settings_are_not_averaged(tmp_path):
    records = [{"epoch": 1, "train_loss": 0.5}]
    for seed, method in enumerate(["asng", "asng", "sng"]):
        write_run(tmp_path / f"run{seed}", {"experiment": "mine", "seed": seed, "method": method}, records)
    page = write(tmp_path, *(tmp_path / f"run{seed}" for seed in range(3)))
    names = {name for name, curve in page.curves("Loss").items() if not curve["faint"]}
    assert names == {"method asng train", "method sng train"}


def test_seeds_of_unequal_length_are_averaged_where_all_have_numbers(tmp_path):
    for seed, length in enumerate([3, 2]):
        records = [{"epoch": epoch, "train_loss": epoch + seed} for epoch in range(1, length + 1)]
        write_run(tmp_path / f"run{seed}", {"experiment": "mine", "seed": seed}, records)
    curve = write(tmp_path, tmp_path / "run0", tmp_path / "run1").curves("Loss")["train"]
    assert (curve["step"], curve["y"]) == ([1, 2], [1.5, 2.5])


def test_a_curve_says_in_words_where_it_begins_and_ends(tmp_path):
    run = write_run(tmp_path / "run", records=[{"epoch": e, "train_loss": 4.0 / e} for e in (1, 2, 4)])
    (plot,) = write(tmp_path, run).tags("div", class_="plot")
    assert "train goes from 4 to 1, within 1 to 4" in plot["aria-label"]


def test_the_sweep_of_the_toy_problem_is_drawn_over_its_step_sizes(tmp_path):
    points = [
        {"method": "ASNG", "lr": 0.05, "alpha": 1.5, "step": step, "measure": measure}
        for step, measure in [(1.0, 100.0), (0.1, 200.0), (0.01, None)]
    ]
    run = write_run(tmp_path / "run", {"experiment": "toy", "kind": "sweep"}, summary={"points": points})
    (curve,) = write(tmp_path, run).charts["Learning rate 0.05"]["curves"]
    assert (curve["step"], curve["y"]) == ([0.1, 1.0], [200.0, 100.0])


# Probabilities


def distribution_records(probabilities):
    return [
        {"epoch": epoch, "distribution": {"op": {"conv": p, "skip": 1 - p}, "width": {"mean": 8.0 + epoch, "std": 2.0}}}
        for epoch, p in enumerate(probabilities, start=1)
    ]


def test_probabilities_are_drawn_over_time_for_each_decision(tmp_path):
    run = write_run(
        tmp_path / "run", records=distribution_records([0.5, 0.75, 0.875]), architecture=values_of(op="conv", width=11)
    )
    page = write(tmp_path, run)
    assert {name: curve["y"] for name, curve in page.curves("op").items()} == {
        "conv": [0.5, 0.75, 0.875],
        "skip": [0.5, 0.25, 0.125],
    }
    width = page.curves("width")["mean"]
    assert (width["y"], width["spread"]) == ([9.0, 10.0, 11.0], [2.0, 2.0, 2.0])


def test_records_without_distributions_are_named_once_instead_of_probabilities_over_time(seeds):
    text = seeds.text("Probabilities over time")
    assert text.count("The records of this search hold no distributions") == 1
    assert "the last one is shown with the architecture" in text


def test_entropy_falls_from_1_as_a_search_decides(tmp_path):
    run = write_run(tmp_path / "run", records=distribution_records([0.5, 0.75, 1.0]))
    (curve,) = write(tmp_path, run).charts["Entropy"]["curves"]
    assert curve["y"] == pytest.approx([1.0, 0.811278, 0.0], abs=1e-6)


def test_the_final_probabilities_stand_beside_the_decisions(tmp_path):
    run = write_run(
        tmp_path / "run", records=distribution_records([0.5, 0.75]), architecture=values_of(op="conv", width=11)
    )
    text = write(tmp_path, run).text("Architecture")
    assert "op conv conv 0.750 skip 0.250" in text
    assert "width 11 mean 10, standard deviation 2" in text


# Tables


def test_the_overview_has_the_last_numbers_and_their_means(seeds):
    text, records = seeds.text("Overview"), [records_of(folder)[-1] for folder in SEEDS]
    for record in records:
        assert f"{record['valid_loss']:.4g}" in text
    accuracies = [record["valid_accuracy"] for record in records]
    assert f"{statistics.mean(accuracies):.4f} ± {statistics.stdev(accuracies):.4f}" in text
    assert "finished, 100 of 100 epochs" in text


def test_settings_seed_version_machine_and_command_are_given(seed0):
    text, summary = seed0.text("Settings"), json.loads((SEEDS[0] / "summary.json").read_text())
    assert "population size 2" in text
    assert "version 0.1.0" in text
    assert "seed 0" in text
    assert summary["machine"] in text
    assert "asng cifar10 search --population-size 2 --lr 0.025" in text


def test_the_newest_start_is_given_with_its_versions_machine_and_command(tmp_path):
    run = write_run(tmp_path / "run")
    lines = [{"command": f"asng digits search {start}", "cpu": "Z80", "python": "3.11"} for start in ("old", "new")]
    (run / "environment.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    text = write(tmp_path, run).text("Settings")
    assert "command asng digits search new cpu Z80 python 3.11" in text
    assert "search old" not in text


def test_settings_in_which_runs_differ_are_marked(seeds):
    assert len(seeds.tags("mark")) >= 3  # their seeds


def test_an_unfinished_run_says_how_far_it_is(tmp_path):
    run = write_run(tmp_path / "run", records=[{"epoch": 1, "train_loss": 1.0}])
    text = write(tmp_path, run).text("Overview")
    assert "1 of 4 epochs" in text
    assert "finished" not in text


def test_results_and_baselines_are_averaged_by_their_kind(tmp_path):
    run = write_run(tmp_path / "run")
    lines = [{"seed": s, "kind": "random", "accuracy": a} for s, a in enumerate([0.5, 0.75])]
    lines.append({"seed": 0, "kind": "found", "accuracy": 0.875})
    (run / "results.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    text = write(tmp_path, run).text("Results and baselines")
    assert "kind accuracy: 0.5 to 0.875 number accuracy random 2 0.62 ± 0.18 found 1 0.8750" in text


def test_limits_stand_beside_what_was_found(tmp_path):
    records = [{"epoch": 1, "feasible": 0.25}, {"epoch": 2, "feasible": 1.0}]
    config = {"experiment": "mine", "max_params": 5000}
    run = write_run(tmp_path / "run", config, records, summary={"parameters": 4321, "feasible": True})
    assert "run parameters ≤ 5,000 4,321 yes 25% 100%" in write(tmp_path, run).text("Limits")


def test_a_test_of_a_run_is_part_of_the_overview(tmp_path):
    run = write_run(tmp_path / "run", evaluation={"kind": "search", "steps": 10, "test_accuracy": 0.8914})
    assert "0.8914" in write(tmp_path, run).text("Overview")


def test_limits_of_a_saved_search_have_names_bounds_and_costs(tmp_path):
    limits = [{"name": "Flops", "at_least": 10, "at_most": 4000, "cost": 2240.0}, {"name": "Latency", "at_most": 0.01}]
    text = write(tmp_path, write_run(tmp_path / "run", summary={"limits": limits, "feasible": True})).text("Limits")
    assert "run Flops ≥ 10 and ≤ 4,000 2,240 yes" in text
    assert "run Latency ≤ 0.01 yes" in text


def test_a_pareto_front_is_drawn_and_listed(tmp_path):
    points = [{"score": 0.5, "costs": [10], "values": {"width": 4}}, {"score": 0.25, "costs": [20], "values": {}}]
    front = {"measures": ["parameters"], "points": points, "others": [{"score": 0.75, "costs": [15]}, {"score": None}]}
    page = write(tmp_path, write_run(tmp_path / "run", summary={"front": front}))
    drawn = page.curves("Score over parameters")
    assert (drawn["front"]["step"], drawn["front"]["y"]) == ([10, 20], [0.5, 0.25])
    assert drawn["front"]["labels"] == ["width 4", ""]
    assert (drawn["others"]["step"], drawn["others"]["y"]) == ([15], [0.75])
    assert "score parameters values 0.5 10 width 4 0.25 20" in page.text("Pareto front")


def test_a_folder_of_several_seeds_is_several_runs(tmp_path):
    config = {"experiment": "digits", "kind": "search", "version": "0.1.0", "format": 2, "seed": 3, "lr": 0.1}
    run = write_run(tmp_path / "run", config)
    lines = []
    for seed, accuracy in [(3, 0.5), (4, 0.75)]:
        lines.append({"seed": seed, "kind": "search", "values": {"op": f"op{seed}"}, "certainty": 0.5})
        lines.append({"seed": seed, "kind": "found", "accuracy": accuracy, "parameters": 10})
    (run / "results.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    page = write(tmp_path, run)
    assert "run seed 3 finished 3 0.5000 10 0.5000 run seed 4 finished 4 0.7500 10 0.5000" in page.text("Overview")
    assert "0.62 ± 0.18" in page.text("Overview")
    assert "op op3" in page.text("Architecture")
    assert "asng digits search --seed 3 --lr 0.1 --seeds 2" in page.text("Settings")


@pytest.mark.parametrize(("lines", "text"), [(5, "finished, 5 of 5 results"), (1, "run 1 of 5 results")])
def test_a_run_is_finished_when_it_has_all_of_its_results(lines, text, tmp_path):
    config = {"experiment": "digits", "kind": "tune", "version": "0.1.0", "format": 2, "trials": 2}
    run = write_run(tmp_path / "run", config, summary={"accuracy": 0.5})
    (run / "results.jsonl").write_text('{"kind": "tuned"}\n' * lines)
    pages = write(tmp_path, run, write_run(tmp_path / "other"))
    assert text in pages.text("Overview")


def test_searches_that_count_epochs_alone_are_drawn_over_epochs(tmp_path):
    page = write(tmp_path, write_run(tmp_path / "run", records=[{"epoch": e, "train_loss": 1.0} for e in (1, 2)]))
    assert page.charts["Loss"]["x"] == "epoch"


@pytest.mark.parametrize(("units", "shown"), [(["epoch", "epoch"], "epochs"), (["step", "epoch"], "steps")])
def test_the_switch_of_the_axis_names_the_unit_that_all_runs_have(units, shown, tmp_path):
    runs = []
    for number, unit in enumerate(units):
        records = [{unit: n, "train_loss": 1.0, "seconds": 1.0} for n in (1, 2)]
        runs.append(write_run(tmp_path / str(number), {"seed": number}, records=records))
    assert f"<span>{shown}</span></label>" in write(tmp_path, *runs).source


# Pictures

PNG = b"\x89PNG\r\n\x1a\n" + bytes(100)


def test_pictures_of_the_users_own_are_embedded(tmp_path):
    run = write_run(tmp_path / "run")
    (run / "restored-mine.png").write_bytes(PNG)
    (run / "pictures").mkdir()
    (run / "pictures" / "grid.png").write_bytes(PNG)
    page = write(tmp_path, run)
    sources = [image["src"] for image in page.tags("img")]
    assert sources == [f"data:image/png;base64,{base64.b64encode(PNG).decode()}"] * 2
    assert all(image["alt"] for image in page.tags("img"))


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("restored.png", PNG, "it shows faces of the data, and the terms of CelebA forbid to pass its images on"),
        ("restored-celeba.png", PNG, "the terms of CelebA forbid to pass its images on"),
        ("restored-text.png", b"<svg onload=alert(1)>", "it is not a PNG file"),
        ("restored-large.png", PNG + bytes(300_000), "it has 300,108 bytes"),
    ],
)
def test_other_pictures_are_named_and_not_embedded(name, content, why, tmp_path):
    run = write_run(tmp_path / "run")
    (run / name).write_bytes(content)
    page = write(tmp_path, run)
    assert page.tags("img") == []
    assert f"{name} is not embedded: {why}" in page.text("Pictures")


# Size


def test_long_runs_are_thinned_to_less_than_2_mb(tmp_path):
    names = [f"train_metric{index}" for index in range(30)]
    records = [{"epoch": epoch, **dict.fromkeys(names, epoch**0.5)} for epoch in range(1, 5001)]
    page = write(tmp_path, write_run(tmp_path / "run", records=records))
    assert len(page.source.encode()) < 2_000_000
    curve = page.curves("Metric0")["train"]
    assert len(curve["step"]) <= 1000
    assert (curve["step"][0], curve["step"][-1]) == (1, 5000)


def test_thinning_keeps_peaks():
    numbers = [0.0] * 10_000
    numbers[1234], numbers[7777] = 5.0, -5.0
    kept = thin(numbers, 100)
    assert len(kept) <= 100
    assert {0, 1234, 7777, 9999} <= set(kept)


def test_more_runs_than_fit_a_page_are_refused_in_one_line(tmp_path):
    config = {f"setting{index}": "x" * 290 for index in range(200)}
    run = write_run(tmp_path / "run", config, summary=config)
    with pytest.raises(ValueError, match="a page of these 40 runs is larger than 2,000,000 bytes; report fewer"):
        report.write([run] * 40, tmp_path / "report.html")


def test_of_too_many_decisions_the_first_are_shown(tmp_path):
    values = {f"decision{index}": "x" * 200 for index in range(1500)}
    runs = [write_run(tmp_path / f"run{index}", architecture=values_of(**values)) for index in range(10)]
    page = write(tmp_path, *runs)
    assert len(page.source.encode()) < 2_000_000
    assert "run9 has 1,500 decisions; the first 100 are shown." in page.text("Warnings")
    assert "decision99" in page.text("Architecture")
    assert "decision100" not in page.text("Architecture")


# Wrong input


def test_folders_are_a_list_of_runs(tmp_path):
    with pytest.raises(ValueError, match="folders must be a list of folders, got 'runs/one'; give"):
        report.write("runs/one", tmp_path / "report.html")
    with pytest.raises(ValueError, match="there are no folders; give those of one or more runs"):
        report.write([], tmp_path / "report.html")
    with pytest.raises(ValueError, match=r"is not a run: it has no config\.json"):
        report.write([tmp_path], tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()
