"""Reading data sets, captioning them, and the report that `evaluate --json` writes."""

import csv
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from fakes import Echo, NoJudges, Shout, evaluate_folder, picture, profile, sound, unit, use_fakes

from captioners.evaluation.dataset import read_dataset
from captioners.evaluation.report import Report
from captioners.evaluation.significance import compare, read_run
from captioners.evaluation.tables import html_page, text_table, write_csv
from captioners.lab import Lab
from captioners.media import load_media
from captioners.types import CaptionLabError, TokenTrace, from_json

TEXTS = [
    ["a dog in snow", "the dog runs"],
    ["a boat at night", "the dark lake"],
    ["a red car", "a car on a road"],
    ["a tall tree", "trees"],
]
CONTRACT = {
    *(
        "clipscore",
        "ref_clipscore",
        "recall@1",
        "recall@5",
        "recall@10",
        "bleu-1",
        "bleu-2",
        "bleu-3",
        "bleu-4",
        "rouge-l",
        "cider",
    ),
    *("dist-1", "dist-2", "dist-3", "vocabulary", "words", "perplexity"),
}


@pytest.fixture(autouse=True)
def fakes(monkeypatch):
    use_fakes(monkeypatch, Echo, Shout)


@pytest.fixture
def pictures(tmp_path):
    (tmp_path / "images").mkdir()
    lines = []
    for i, captions in enumerate(TEXTS):
        picture(tmp_path / f"images/{i}.png", i)
        lines.append(
            {"image": f"{i}.png", "captions": captions, "split": "dev" if i < 3 else "test", "photographer": "unknown"}
        )
    write_lines(tmp_path / "captions.jsonl", lines)
    return tmp_path


@pytest.fixture
def clips(tmp_path):
    (tmp_path / "audio").mkdir()
    for i in range(3):
        sound(tmp_path / f"audio/{i}.wav", i)
    (tmp_path / "esc50.csv").write_text(
        "filename,fold,category,esc10\n0.wav,1,dog,True\n1.wav,2,crying_baby,False\n2.wav,2,rain,True\n"
    )
    return tmp_path


def write_lines(path, rows):
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


# ---------------------------------------------------------------------------------------------------- the data set


def test_items_come_in_the_files_order_with_split_and_limit(pictures):
    assert [i.id for i in read_dataset(pictures)] == ["0.png", "1.png", "2.png", "3.png"]
    assert [i.id for i in read_dataset(pictures, "test", 5)] == ["3.png"]
    first = read_dataset(pictures, limit=1)[0]
    assert (first.kind, first.references, first.path) == ("image", tuple(TEXTS[0]), pictures / "images" / "0.png")


def test_an_esc50_folder_is_read_as_label_captions_with_folds_as_splits(clips):
    items = read_dataset(clips, split="2")
    assert [i.id for i in items] == ["1.wav", "2.wav"]
    assert items[0].kind == "audio"
    assert any("baby" in r for r in items[0].references)


def test_a_line_may_tell_the_class_of_its_clip(tmp_path):
    lines = [{"audio": "a.wav", "captions": ["a dog barks"], "category": "dog"}, {"audio": "b.wav"}]
    write_lines(tmp_path / "captions.jsonl", lines)
    assert [item.category for item in read_dataset(tmp_path)] == ["dog", ""]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{nonsense", "captions.jsonl, line 2 is not a JSON object"),
        ('{"picture": "x.png"}', "captions.jsonl, line 2 names no file"),
        ('{"image": "x.png", "captions": "one"}', "captions.jsonl, line 2 has captions that are not a list"),
        ('{"image": "0.png", "captions": []}', "captions.jsonl, line 2 repeats '0.png'"),
    ],
)
def test_a_bad_line_of_a_data_set_is_named(tmp_path, line, words):
    write_lines(tmp_path / "captions.jsonl", [{"image": "0.png", "captions": []}, line])
    with pytest.raises(CaptionLabError, match=words):
        read_dataset(tmp_path)


@pytest.mark.parametrize(
    ("split", "limit", "words"),
    [("tset", None, "'tset': choose from dev, test"), (None, 0, "limit = 0 is not possible: give")],
)
def test_a_split_or_limit_that_leaves_nothing_is_refused(pictures, split, limit, words):
    with pytest.raises(CaptionLabError, match=words):
        read_dataset(pictures, split, limit)


def test_a_folder_without_captions_is_refused(tmp_path):
    with pytest.raises(CaptionLabError, match=r"captions\.jsonl or esc50\.csv"):
        read_dataset(tmp_path)


# ------------------------------------------------------------------------------------------------------- methods


def test_the_report_keeps_the_contract(pictures):
    report = json.loads(json.dumps(evaluate_folder(profile(), pictures, ["echo", "shout"])))
    assert [run["method"] for run in report["runs"]] == ["echo", "shout"]
    run = report["runs"][0]
    assert run["n"] == 4
    assert run["settings"]["guidance_scale"] == 1.0
    assert set(run["metrics"]) >= CONTRACT
    assert all(
        set(m) == {"mean", "low", "high"} and m["low"] <= m["mean"] <= m["high"] for m in run["metrics"].values()
    )
    assert [i["id"] for i in run["items"]] == ["0.png", "1.png", "2.png", "3.png"]
    for name in ("clipscore", "ref_clipscore", "rouge-l", "cider", "words", "perplexity", "recall@1", "bleu-4"):
        values = [item["scores"][name] for item in run["items"]]
        if name not in ("perplexity", "bleu-4"):
            assert np.mean(values) == pytest.approx(run["metrics"][name]["mean"])
    assert run["encoders"]["clipscore"] == "hash-8"
    assert run["encoders"]["perplexity"] == "length-lm"
    assert run["calibration"] == {"random": 0.1, "human": 0.9}


def test_all_methods_that_know_the_media_run_unless_some_are_named(pictures, clips):
    (pictures / "captions.jsonl").unlink()
    assert [run["method"] for run in evaluate_folder(profile(), clips)["runs"]] == ["echo"]
    with pytest.raises(CaptionLabError, match="shout cannot caption sound: choose from echo"):
        evaluate_folder(profile(), clips, ["shout"])


def test_captions_do_not_depend_on_the_size_of_batches_and_settings_are_used(pictures):
    def said(**options):
        return [i["caption"] for i in evaluate_folder(profile(), pictures, ["echo"], **options)["runs"][0]["items"]]

    assert said(batch_size=3) == said(batch_size=1) == said()
    assert Echo.batches == [3, 1, 1, 1, 1, 1, 4]
    assert said(settings={"echo": [Echo.spec.settings(seed=5)]}) != said()


def test_items_that_cannot_be_read_are_listed_and_the_rest_is_scored(pictures):
    (pictures / "images/1.png").write_bytes(b"not a picture")
    (pictures / "images/2.png").unlink()
    run = evaluate_folder(profile(), pictures, ["echo"])["runs"][0]
    assert run["n"] == len(run["items"]) == 2
    assert [f["id"] for f in run["failed"]] == ["1.png", "2.png"]
    assert all(f["reason"] for f in run["failed"])


def test_nothing_readable_is_an_error(pictures):
    for i in range(4):
        (pictures / f"images/{i}.png").unlink()
    with pytest.raises(CaptionLabError, match="None of the 4 items can be read"):
        evaluate_folder(profile(), pictures, ["echo"])


def test_a_missing_judge_leaves_its_metrics_out_and_says_so(pictures):
    run = evaluate_folder(profile(NoJudges()), pictures, ["echo"])["runs"][0]
    assert set(run["metrics"]).isdisjoint({"clipscore", "ref_clipscore", "recall@1", "perplexity"})
    assert "cider" in run["metrics"]
    assert any("clipscore" in note and "train image-judge" in note for note in run["notes"])
    assert any("perplexity" in note and "train fluency-judge" in note for note in run["notes"])


def test_items_without_references_leave_the_reference_metrics_out_and_say_so(pictures):
    with (pictures / "captions.jsonl").open("a") as file:
        file.write('{"image": "more.png"}\n')
    picture(pictures / "images/more.png", 9)
    run = evaluate_folder(profile(), pictures, ["echo"])["runs"][0]
    assert set(run["metrics"]).isdisjoint({"cider", "bleu-1", "ref_clipscore"})
    assert run["n"] == 5
    assert any("1 items have none" in note for note in run["notes"])


def test_a_folder_of_pictures_and_sound_is_refused(pictures):
    with (pictures / "captions.jsonl").open("a") as file:
        file.write('{"audio": "x.wav", "captions": []}\n')
    with pytest.raises(CaptionLabError, match="two data sets"):
        evaluate_folder(profile(), pictures)


def test_progress_ends_at_its_total(pictures):
    seen = []
    evaluate_folder(
        profile(), pictures, ["echo", "shout"], batch_size=3, progress=lambda done, total: seen.append((done, total))
    )
    assert seen == [(0, 8), (6, 8), (8, 8)]


# ------------------------------------------------------------------------------------------------- given captions


def test_given_captions_are_scored_in_their_order_and_may_repeat(pictures, tmp_path):
    given = [("2.png", "a red car"), ("0.png", "a dog"), ("2.png", "a car on a road")]
    file = write_lines(tmp_path / "given.jsonl", [{"id": i, "caption": c} for i, c in given])
    run = evaluate_folder(profile(), pictures, captions_file=file)["runs"][0]
    assert run["method"] == "given"
    assert [(i["id"], i["caption"]) for i in run["items"]] == given
    assert run["n"] == 3
    assert Echo.batches == []
    vector = unit(load_media(pictures / "images/2.png").hash)
    expected = 2.5 * max(float(vector @ unit("A photo depicts a car on a road")), 0)
    assert run["items"][2]["scores"]["clipscore"] == pytest.approx(expected, abs=1e-6)
    assert "self-bleu" in run["metrics"]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"id": "nope.png", "caption": "a"}', r"given\.jsonl, line 2 has the id 'nope\.png'"),
        ('{"id": "0.png", "caption"', r"given\.jsonl, line 2 is not a JSON object"),
        ('{"id": "0.png"}', r"given\.jsonl, line 2 is not a caption"),
    ],
)
def test_a_bad_line_of_given_captions_is_named(pictures, line, words):
    file = write_lines(pictures / "given.jsonl", [{"id": "0.png", "caption": "a dog"}, line])
    with pytest.raises(CaptionLabError, match=words):
        evaluate_folder(profile(), pictures, captions_file=file)


def test_given_captions_outside_the_split_are_counted(pictures):
    file = write_lines(pictures / "given.jsonl", [{"id": f"{i}.png", "caption": "a dog"} for i in range(4)])
    run = evaluate_folder(profile(), pictures, split="dev", captions_file=file)["runs"][0]
    assert run["n"] == 3
    assert any(note.startswith("1 given captions are outside") for note in run["notes"])


def test_given_captions_need_no_media_when_there_is_no_matcher(pictures):
    (pictures / "images/0.png").unlink()
    file = write_lines(
        pictures / "given.jsonl", [{"id": "0.png", "caption": "a dog"}, {"id": "1.png", "caption": "a boat"}]
    )
    run = evaluate_folder(profile(NoJudges()), pictures, captions_file=file)["runs"][0]
    assert (run["n"], run["failed"]) == (2, [])


# --------------------------------------------------------------------------------------------------------- output


def test_tables_hold_every_method_metric_and_caption(pictures, tmp_path):
    (pictures / "images/1.png").write_bytes(b"not a picture")
    report = evaluate_folder(profile(), pictures, split="dev")
    report["runs"][0]["items"][0]["caption"] = "a <b>dog</b>"
    report = from_json(Report, report)
    text, page = text_table(report), html_page(report)
    assert "echo" in text.splitlines()[0]
    assert "1 items failed." in text
    assert "1.png failed" in text
    assert "clipscore, ref_clipscore, recall@1, recall@5, recall@10: by hash-8" in text
    assert "a &lt;b&gt;dog" in page
    assert "<b>dog" not in page
    assert "http" not in page
    write_csv(report, tmp_path / "out.csv")
    rows = list(csv.DictReader((tmp_path / "out.csv").open()))
    assert [(r["run"], r["id"]) for r in rows] == [
        ("echo", "0.png"),
        ("echo", "2.png"),
        ("shout", "0.png"),
        ("shout", "2.png"),
    ]
    assert float(rows[0]["clipscore"]) == report.runs[0].items[0].scores["clipscore"]


# ------------------------------------------------------------------------------------------------------- the lab


def test_the_lab_scores_a_caption_by_its_judges(pictures):
    media = load_media(pictures / "images/0.png")
    result = Lab(profile()).results([media], "echo")[0]
    expected = 2.5 * max(float(torch.dot(unit(media.hash), unit("A photo depicts " + result.caption))), 0)
    assert result.scores["clipscore"].value == pytest.approx(expected, abs=1e-6)
    assert result.scores["clipscore"].encoder == "hash-8"
    assert result.scores["perplexity"].value == pytest.approx(np.exp(2))
    assert result.scores["words"].value == 2


def test_a_stream_of_the_lab_ends_with_the_result_of_caption(pictures):
    lab, media = Lab(profile()), load_media(pictures / "images/0.png")
    *before, (last,) = lab.run([media], "echo", [Echo.spec.settings()], live=True)
    assert before
    assert all(step.result is None for (step,) in before)
    assert last.result == lab.results([media], "echo")[0]


def test_the_lab_loads_a_method_once():
    lab = Lab(profile())
    assert lab.method("echo") is lab.method("echo")
    assert [s.id for s in lab.methods()] == ["echo", "shout"]


def test_a_missing_judge_is_a_note_on_the_result(pictures):
    result = Lab(profile(NoJudges())).results([load_media(pictures / "images/0.png")], "echo")[0]
    assert set(result.scores) == {"words"}
    assert len(result.notes) == 2


def test_several_settings_of_one_method_are_several_runs(pictures):
    settings = [Echo.spec.settings(seed=seed) for seed in (5, 0)]
    runs = evaluate_folder(profile(), pictures, ["echo"], {"echo": settings})["runs"]
    assert [run["settings"]["seed"] for run in runs] == [5, 0]
    assert runs[1]["items"] == evaluate_folder(profile(), pictures, ["echo"])["runs"][0]["items"]
    assert runs[0]["items"] != runs[1]["items"]


def test_sound_is_measured_by_its_own_judges(clips):
    run = evaluate_folder(profile(), clips, ["echo"])["runs"][0]
    said = [item["caption"] for item in run["items"]]
    assert run["metrics"]["audibility"]["mean"] == pytest.approx(sum("a" in c for c in said) / len(said))
    assert run["encoders"]["audibility"] == "letter-a"
    assert "named" in run["metrics"]


def test_pictures_are_not_asked_whether_they_can_be_heard(pictures):
    assert not {"audibility", "named"} & set(evaluate_folder(profile(), pictures, ["echo"])["runs"][0]["metrics"])


# ------------------------------------------------------------------------------------------- objects, shapes, people


def test_objects_of_a_data_set_are_measured(pictures):
    lines = [json.loads(line) for line in (pictures / "captions.jsonl").read_text().splitlines()]
    boxes = {"dog": [[0.1, 0.2, 0.3, 0.4]]}
    write_lines(pictures / "captions.jsonl", [{**line, "objects": ["dog"], "boxes": boxes} for line in lines])
    assert read_dataset(pictures)[0].boxes == {"dog": ((0.1, 0.2, 0.3, 0.4),)}
    report = evaluate_folder(profile(), pictures, ["echo"])
    assert {"objects_named", "low"} <= {*report["runs"][0]["metrics"], *report["runs"][0]["metrics"]["objects_named"]}
    # only the first picture's people say "dog"
    assert report["people"]["metrics"]["objects_named"]["mean"] == pytest.approx(1 / 4)


@pytest.mark.parametrize(
    "wrong", [{"size": [0, 5]}, {"size": 5}, {"boxes": {"dog": [[1, 2]]}}, {"boxes": []}, {"objects": 3}]
)
def test_objects_boxes_and_sizes_of_another_shape_are_told(pictures, wrong):
    write_lines(pictures / "captions.jsonl", [{"image": "0.png", "captions": [], **wrong}])
    with pytest.raises(CaptionLabError, match="line 1 has objects, boxes or a size of another shape: write"):
        read_dataset(pictures)


def test_a_squeezed_picture_is_captioned_in_its_own_shape(pictures, monkeypatch):
    shapes = []
    decode = Echo.decode

    def watched(self, media, settings, live):
        shapes.extend(m.data.shape for m in media)
        return decode(self, media, settings, live)

    monkeypatch.setattr(Echo, "decode", watched)
    height, width = load_media(pictures / "images/0.png").data.shape[:2]
    write_lines(
        pictures / "captions.jsonl",
        [{"image": "0.png", "captions": ["a"], "size": [4 * width, 2 * height]}, {"image": "1.png"}],
    )
    evaluate_folder(profile(), pictures, ["echo"], people=False)
    assert shapes == [(height, 2 * width, 3), (height, width, 3)]


def test_people_stand_beside_the_methods_and_are_no_run(pictures):
    report = evaluate_folder(profile(), pictures, ["echo"])
    people = report["people"]
    assert [run["method"] for run in report["runs"]] == ["echo"]
    assert [item["caption"] for item in people["items"]] == [texts[0] for texts in TEXTS]
    assert people["metrics"]["bleu-4"]["mean"] < 0.9  # not against themselves
    assert "people" in text_table(from_json(Report, report)) and "first reference" in html_page(
        from_json(Report, report)
    )


def test_people_can_be_left_out(pictures):
    report = evaluate_folder(profile(), pictures, ["echo"], people=False)
    assert "people" not in report
    assert "first reference" not in html_page(from_json(Report, report))


def test_captions_of_a_class_are_not_called_peoples(clips):
    assert "people" not in evaluate_folder(profile(), clips, ["echo"])


class Pointer(Echo):
    """Says "a dog", of which the second word comes from the upper left."""

    spec = replace(Echo.spec, id="pointer")

    def result(self, caption, values):
        tokens = [TokenTrace(i, token, -1.0, -2.0, -1.0, {}, 0.0, 0.0) for i, token in enumerate((" a", " dog"))]
        return replace(super().result("a dog", values), trace=tokens)

    def score_without(self, media, result, hidden):
        return torch.zeros(len(hidden), 2) - torch.tensor([0.0, 1.0]) * hidden[:, :1]


def test_the_pointing_game_is_played_where_there_are_boxes(pictures, monkeypatch):
    use_fakes(monkeypatch, Pointer)
    with pytest.raises(CaptionLabError, match="has no boxes to point at"):
        evaluate_folder(profile(), pictures, pointing=True)
    boxes = [[[0.0, 0.0, 0.3, 0.5]], [[0.5, 0.5, 0.5, 0.5]], [[0.0, 0.0, 1.0, 1.0]], [[0.0, 0.0, 0.1, 0.1]]]
    lines = [{"image": f"{i}.png", "boxes": {"dog" if i < 3 else "cat": some}} for i, some in enumerate(boxes)]
    write_lines(pictures / "captions.jsonl", lines)
    journal = pictures / "out.journal"
    (run,) = evaluate_folder(profile(), pictures, pointing=True, journal=journal)["runs"]
    assert run["metrics"]["pointing"]["mean"] == pytest.approx(2 / 3)
    assert run["metrics"]["pointing_chance"]["mean"] == pytest.approx((0.15 + 0.25 + 1) / 3, abs=0.01)
    assert run["items"][3]["scores"]["pointing"] is None
    # from what the first one kept
    (again,) = evaluate_folder(profile(), pictures, pointing=True, journal=journal)["runs"]
    assert again["metrics"] == run["metrics"]


def test_a_run_is_compared_with_people(pictures, tmp_path):
    path = tmp_path / "report.json"
    path.write_text(json.dumps(evaluate_folder(profile(), pictures, ["echo"])))
    compared = compare(read_run(str(path)), read_run(f"{path}#people"))
    assert compared.b == "report.json: people"
    assert {"clipscore", "perplexity"} <= {row.metric for row in compared.metrics}
