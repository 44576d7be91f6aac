"""A sweep's page draws every setting once, along the right control, and needs nothing from elsewhere."""

import re

import pytest
from fakes import Echo, evaluate_folder, picture, profile, use_fakes

from captioners.cli import main
from captioners.evaluation.figures import along_figure, series, sweep_page, swept, trade_figure
from captioners.evaluation.report import Interval, ItemReport, Report, RunReport


def run(cider: float, recall: float, **settings) -> RunReport:
    metrics = {name: Interval(v, v - 0.1, v + 0.2) for name, v in (("cider", cider), ("recall@1", recall))}
    return RunReport("mc-diffusion", settings, 1, metrics, [ItemReport("0.png", f"caption {cider}", {"cider": cider})])


GRID = [
    run(s / 10 + (g == "mcs"), -s, guidance=g, guidance_scale=s, seed=0)
    for s in (3.0, 1.0, 2.0)
    for g in ("cfg", "mcs")
]


def test_the_control_with_the_most_values_is_the_axis_and_the_others_are_lines():
    assert swept(GRID) == ["guidance_scale", "guidance"]
    along, lines = series(GRID)
    assert along == "guidance_scale"
    assert list(lines) == ["guidance = cfg", "guidance = mcs"]
    assert [r.settings["guidance_scale"] for r in lines["guidance = mcs"]] == [1.0, 2.0, 3.0]


def test_means_and_intervals_are_drawn_for_every_metric():
    figure = along_figure(GRID)
    cider = [trace for trace in figure.data if trace.yaxis == "y2"]
    assert [a.text for a in figure.layout.annotations] == ["recall@1", "CIDEr"]
    assert list(cider[1].x) == [1.0, 2.0, 3.0]
    assert list(cider[1].y) == pytest.approx([1.1, 1.2, 1.3])
    assert list(cider[1].error_y.array) == pytest.approx([0.2] * 3)


def test_a_trade_has_a_point_for_each_setting():
    first, second = trade_figure(GRID, "cider", "recall@1").data
    assert list(first.x) == pytest.approx([0.1, 0.2, 0.3])
    assert list(first.y) == [-1.0, -2.0, -3.0]
    assert list(second.text) == ["1.0", "2.0", "3.0"]


def test_the_page_holds_figures_captions_and_command_and_loads_nothing():
    page = sweep_page(Report("d", None, GRID, command="python -m captioners sweep <DIR>"))
    assert "python -m captioners sweep &lt;DIR&gt;" in page
    assert page.count('class="plotly-graph-div"') == 2
    assert "caption 1.1" in page
    assert not re.search(r"<(script|link)[^>]*(src|href)=", page)


def test_a_sweep_of_one_picture_has_a_run_for_each_value_and_no_recall(tmp_path, monkeypatch, capsys):
    use_fakes(monkeypatch, Echo)
    monkeypatch.setattr("captioners.lab.load_profile", lambda *_: profile())
    picture(tmp_path / "one.png", 0)
    page = tmp_path / "out.html"
    assert (
        main(["sweep", str(tmp_path / "one.png"), "--method", "echo", "--over", "seed=0,1,2", "--html", str(page)]) == 0
    )
    assert "clipscore" in capsys.readouterr().out
    assert "sweep" in page.read_text()
    report = evaluate_folder(profile(), tmp_path / "one.png", ["echo"])
    assert [item["id"] for item in report["runs"][0]["items"]] == ["one.png"]
    assert not {"recall@1", "cider"} & set(report["runs"][0]["metrics"])
