"""A run as a folder: what is written stays, what is torn goes, and another configuration is refused."""

import json
import os
import platform
import shutil
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest

from asng import __version__
from asng._untrusted import read_json_lines
from asng.runs import CHECKPOINT, METRICS, MetricsFile, Run, make_config, read_config, settings_from_config, write_json

CONFIG = {"experiment": "toy", "rates": (0.05, 0.0005), "seed": 1}
RESULTS = Path(__file__).parents[1] / "results"


def append_to(folder, *appended):
    """Open a run, append records, and return all that it holds."""
    with Run(folder, CONFIG) as run:
        for record in appended:
            run.append(record)
        return run.results()


def test_a_run_opened_again_holds_what_was_appended(tmp_path):
    with Run(tmp_path / "some" / "folder", CONFIG) as run:
        assert run.results() == []
        run.append({"a": 1})
        run.append({"b": [None, 2.5]})
    assert append_to(tmp_path / "some" / "folder") == [{"a": 1}, {"b": [None, 2.5]}]


@pytest.mark.parametrize("torn", ["{", '{"b": 2}', '{"b": "\\u00e4'])
def test_a_torn_last_line_is_dropped_and_the_next_one_stands_alone(tmp_path, torn):
    append_to(tmp_path, {"a": 1})
    with open(tmp_path / "results.jsonl", "a") as file:
        file.write(torn)
    assert append_to(tmp_path) == [{"a": 1}]
    assert append_to(tmp_path, {"c": 3}) == [{"a": 1}, {"c": 3}]
    assert (tmp_path / "results.jsonl").read_text() == '{"a": 1}\n{"c": 3}\n'


def test_a_damaged_line_in_the_middle_is_an_error_that_names_the_file(tmp_path):
    append_to(tmp_path)
    (tmp_path / "results.jsonl").write_text('{"a": 1}\n{"b\n{"c": 3}\n')
    with pytest.raises(ValueError, match=r"results\.jsonl is damaged"):
        append_to(tmp_path)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({**CONFIG, "seed": 2}, "seed: 1 there, 2 here"),
        ({**CONFIG, "rates": (0.1,)}, r"rates: \[0.05, 0.0005\] there, \[0.1\] here"),
        ({**CONFIG, "new": True}, "new: None there, True here"),
        ({"experiment": "toy"}, "seed: 1 there, None here"),
    ],
)
def test_another_configuration_is_refused_with_what_differs_and_the_cure(tmp_path, other, message):
    append_to(tmp_path, {"a": 1})
    with pytest.raises(ValueError, match=message) as refused:
        Run(tmp_path, other)
    assert "use another folder (--out), or delete this one" in str(refused.value)
    assert append_to(tmp_path) == [{"a": 1}]


def test_a_run_of_another_version_is_refused_with_both_versions(tmp_path):
    with Run(tmp_path, {**CONFIG, "version": "0.1.0", "format": 2}):
        pass
    with pytest.raises(ValueError, match=r"version: 0\.1\.0 there, 0\.2\.0 here; new: None there, 3 here"):
        Run(tmp_path, {**CONFIG, "version": "0.2.0", "format": 2, "new": 3})


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"3", b"\xff", b"[" * 10**5])
def test_a_damaged_configuration_is_an_error_that_names_the_file(tmp_path, content):
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(ValueError, match=r"config\.json is damaged"):
        Run(tmp_path, CONFIG)


def test_a_file_is_not_a_folder(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="is a file"):
        Run(tmp_path / "file", CONFIG)


def test_a_folder_in_use_is_refused_by_who_uses_it_and_the_cure(tmp_path):
    with Run(tmp_path, CONFIG) as run:
        with pytest.raises(
            ValueError, match=rf"^{tmp_path} is in use by process {os.getpid()} on .* since "
        ) as refused:
            Run(tmp_path, CONFIG)
        assert str(refused.value).endswith("; wait until it ends, or use another folder (--out)")
        assert read_config(tmp_path)["seed"] == 1  # reading goes on
        run.append({"a": 1})
    assert append_to(tmp_path) == [{"a": 1}]
    assert sorted(os.listdir(tmp_path)) == ["config.json", "environment.jsonl", "results.jsonl"]


def test_a_refused_configuration_leaves_no_lock(tmp_path):
    append_to(tmp_path)
    with pytest.raises(ValueError, match="seed: 1 there, 2 here"):
        Run(tmp_path, {**CONFIG, "seed": 2})
    assert sorted(os.listdir(tmp_path)) == ["config.json", "environment.jsonl"]


def test_a_folder_that_is_removed_is_not_made_again(tmp_path):
    with Run(tmp_path / "run", CONFIG) as run:
        shutil.rmtree(tmp_path / "run")
        with pytest.raises(ValueError, match=r"run was removed while its run went on; start it again"):
            run.append({"a": 1})
    assert os.listdir(tmp_path) == []


def test_a_folder_that_others_use_after_its_removal_is_theirs(tmp_path):
    with Run(tmp_path / "run", CONFIG) as first:
        shutil.rmtree(tmp_path / "run")
        with Run(tmp_path / "run", CONFIG) as second:
            with pytest.raises(ValueError, match="run is in use by process"):
                first.append({"a": 1})
            second.append({"b": 2})
    assert append_to(tmp_path / "run") == [{"b": 2}]


def test_a_folder_that_was_replaced_by_another_run_is_left_alone(tmp_path):
    with Run(tmp_path / "run", CONFIG) as run:
        shutil.rmtree(tmp_path / "run")
        with Run(tmp_path / "run", {**CONFIG, "seed": 2}):
            pass
        with pytest.raises(ValueError, match=r"holds a run of another configuration \(seed: 2 there, 1 here"):
            run.append({"a": 1})
    assert sorted(os.listdir(tmp_path / "run")) == ["config.json", "environment.jsonl"]


def test_lines_are_never_written_through_a_link(tmp_path):
    (tmp_path / "precious").write_text("no line end")
    append_to(tmp_path / "run")
    (tmp_path / "run" / "results.jsonl").symlink_to("../precious")
    with pytest.raises(ValueError, match=r"results\.jsonl is a link; put the file itself there, or use another folder"):
        Run(tmp_path / "run", CONFIG)
    assert (tmp_path / "precious").read_text() == "no line end"


def test_json_files_change_completely_or_not_at_all(tmp_path):
    path = tmp_path / "summary.json"
    write_json(path, {"a": 1})
    with pytest.raises(ValueError, match="JSON compliant"):
        write_json(path, {"a": 2, "b": float("nan")})
    assert json.loads(path.read_text()) == {"a": 1}
    write_json(path, {"a": 3})
    assert json.loads(path.read_text()) == {"a": 3}
    assert [file.name for file in tmp_path.iterdir()] == ["summary.json"]


@pytest.mark.parametrize("found", [None, b"", b'{"n": 0}\n{"n": 1}\n{"n": 2}\n', b'{"n": 9}\n', b"\xff\n5\nnull\n"])
def test_records_are_restored_whatever_the_file_holds(tmp_path, found):
    with Run(tmp_path, CONFIG, METRICS):
        if found is not None:
            (tmp_path / METRICS).write_bytes(found)
    with Run(tmp_path, CONFIG, METRICS) as run:
        run.restore([{"n": 0}, {"n": 1}])
        assert run.results() == [{"n": 0}, {"n": 1}]
        run.append({"n": 7})
    assert (tmp_path / METRICS).read_text() == '{"n": 0}\n{"n": 1}\n{"n": 7}\n'


def test_records_as_they_should_be_are_not_written_again(tmp_path):
    with Run(tmp_path, CONFIG, METRICS) as run:
        run.append({"n": 0})
        before = os.stat(tmp_path / METRICS)
        run.restore([{"n": 0}])
        assert os.stat(tmp_path / METRICS) == before


@pytest.mark.parametrize("name", ["config.json", "results.jsonl", ".asng-lock"])
def test_a_pipe_in_the_folder_is_refused_without_waiting(tmp_path, name):
    append_to(tmp_path, {"a": 1})
    (tmp_path / name).unlink(missing_ok=True)
    os.mkfifo(tmp_path / name)
    with pytest.raises((ValueError, OSError), match=name):
        Run(tmp_path, CONFIG)


def test_a_folder_says_which_run_it_is(tmp_path):
    append_to(tmp_path / "run")
    assert read_config(tmp_path / "run")["experiment"] == "toy"
    with pytest.raises(ValueError, match=r"is not a run: it has no config\.json"):
        read_config(tmp_path)
    with pytest.raises(ValueError, match=r"there is no folder .*nowhere"):
        read_config(tmp_path / "nowhere")
    for damaged in ("{", "[]"):
        (tmp_path / "config.json").write_text(damaged)
        with pytest.raises(ValueError, match="is damaged"):
            read_config(tmp_path)


# Configurations


@dataclass(frozen=True)
class Some:
    count: int = 3
    lr: float = 0.1

    def __post_init__(self) -> None:
        if self.count > 100:
            raise ValueError(f"count must be at most 100, got {self.count}")


def test_a_folder_says_what_it_is_and_gives_the_settings_back(tmp_path):
    there = make_config("cifar10", "search", Some(count=7))
    assert there == {
        "experiment": "cifar10",
        "kind": "search",
        "version": __version__,
        "format": 2,
        "count": 7,
        "lr": 0.1,
    }
    (tmp_path / "config.json").write_text(json.dumps(there))
    (tmp_path / CHECKPOINT).touch()
    assert read_config(tmp_path, "cifar10", needs=CHECKPOINT) == there
    assert settings_from_config(Some, there, tmp_path) == Some(count=7)


@pytest.mark.parametrize(
    ("there", "message"),
    [
        ({"experiment": "inpainting", "kind": "search"}, "is not a run of cifar10: its config.json says 'inpainting'"),
        ({}, "is not a run of cifar10: its config.json says None"),
        (
            {"experiment": "cifar10", "kind": "retrain"},
            r"there is no .*checkpoint\.pt yet; let the run get that far",
        ),
    ],
)
def test_a_folder_of_something_else_is_refused(tmp_path, there, message):
    (tmp_path / "config.json").write_text(json.dumps(there))
    with pytest.raises(ValueError, match=message):
        read_config(tmp_path, "cifar10", needs=CHECKPOINT)


def test_a_finished_run_without_its_checkpoint_is_not_told_to_go_on(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"experiment": "cifar10", "kind": "retrain"}))
    (tmp_path / "summary.json").write_text("{}")
    with pytest.raises(ValueError, match=r"there is no .*checkpoint\.pt, though the run is finished; run it again"):
        read_config(tmp_path, "cifar10", needs=CHECKPOINT)


@pytest.mark.parametrize("wrong", ["six", None, [1], {}, 1.5, True, 10**40])
def test_settings_of_another_type_are_damaged(wrong):
    with pytest.raises(ValueError, match=r"^a/config\.json is damaged \(count is .*, not int\); run it again"):
        settings_from_config(Some, {"count": wrong, "lr": 0.1}, Path("a"))


def test_settings_out_of_their_range_are_damaged():
    message = r"^a/config\.json is damaged \(count must be at most 100, got 101\); run it again in another folder"
    with pytest.raises(ValueError, match=message):
        settings_from_config(Some, {"count": 101, "lr": 0.1}, Path("a"))


def test_a_setting_that_is_not_there_is_damaged():
    with pytest.raises(ValueError, match=r"^a/config\.json is damaged \(it has no 'lr'\); run it again"):
        settings_from_config(Some, {"count": 3}, Path("a"))


@pytest.mark.parametrize(("format", "shown"), [({}, "1"), ({"format": 1}, "1"), ({"format": 3}, "3")])
def test_a_run_of_another_format_is_refused_with_both_versions(tmp_path, format, shown):
    (tmp_path / "config.json").write_text(json.dumps({**CONFIG, "version": "0.0.7", **format}))
    message = rf"is a run of format {shown}, made by asng '0\.0\.7'; this asng, {__version__}, reads format 2: run it"
    with pytest.raises(ValueError, match=message):
        read_config(tmp_path)
    with pytest.raises(ValueError, match=message):
        Run(tmp_path, CONFIG)


def test_a_folder_without_a_version_is_somebody_elses(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"experiment": "mine"}))
    assert read_config(tmp_path) == {"experiment": "mine"}


# What a run was made with


def environment_of(folder):
    return read_json_lines(folder / "environment.jsonl", "")


def test_every_start_adds_a_line_of_versions_machine_and_command(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", ["/home/somebody/bin/asng", "toy", "sweep", "--out", "my runs"])
    with Run(tmp_path, CONFIG, flags={"data": "here"}):
        pass
    (first,) = environment_of(tmp_path)
    assert first["asng"] == __version__
    assert first["numpy"] == np.__version__
    assert first["python"] == platform.python_version()
    assert first["command"] == "asng toy sweep --out 'my runs'"
    assert first["flags"] == {"data": "here"}
    assert datetime.fromisoformat(first["started"]).tzinfo is not None
    assert first["cores"] == os.cpu_count()
    assert platform.node() not in json.dumps({**first, "command": ""}).split('"')


def test_another_environment_is_no_other_run_and_nothing_is_overwritten(tmp_path, monkeypatch):
    append_to(tmp_path, {"a": 1})
    before = (tmp_path / "environment.jsonl").read_bytes()
    monkeypatch.setattr("numpy.__version__", "99")
    assert append_to(tmp_path, {"b": 2}) == [{"a": 1}, {"b": 2}]
    assert (tmp_path / "environment.jsonl").read_bytes().startswith(before)
    assert [each["numpy"] for each in environment_of(tmp_path)] == [environment_of(tmp_path)[0]["numpy"], "99"]


def test_a_torn_line_of_the_environment_is_dropped(tmp_path):
    append_to(tmp_path)
    with open(tmp_path / "environment.jsonl", "a") as file:
        file.write('{"started')
    append_to(tmp_path)
    assert len(environment_of(tmp_path)) == 2


def test_the_environment_is_never_written_through_a_link_or_to_a_pipe(tmp_path):
    for folder in ("link", "pipe"):
        append_to(tmp_path / folder)
        (tmp_path / folder / "environment.jsonl").unlink()
    (tmp_path / "link" / "environment.jsonl").symlink_to("../precious")
    os.mkfifo(tmp_path / "pipe" / "environment.jsonl")
    with pytest.raises(ValueError, match=r"environment\.jsonl is a link; put the file itself there"):
        Run(tmp_path / "link", CONFIG)
    with pytest.raises(ValueError, match=r"environment\.jsonl is not a regular file"):
        Run(tmp_path / "pipe", CONFIG)
    assert not (tmp_path / "precious").exists()


def test_metrics_beside_results_are_restored_and_have_no_nan(tmp_path):
    with Run(tmp_path, CONFIG) as run:
        metrics = MetricsFile(run)
        metrics.append({"epoch": 1, "loss": float("nan")})
        metrics.append({"epoch": 2, "loss": 0.5})
        metrics.restore([{"epoch": 1, "loss": float("nan")}])
        run.append({"result": 1})
    assert (tmp_path / "metrics.jsonl").read_text() == '{"epoch": 1, "loss": null}\n'
    assert (tmp_path / "results.jsonl").read_text() == '{"result": 1}\n'


@pytest.mark.parametrize("config", sorted(RESULTS.rglob("config.json")), ids=lambda path: str(path.parent.name))
def test_the_kept_results_are_of_this_format(config):
    assert read_config(config.parent)
