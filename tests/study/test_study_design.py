"""Question files, folders, and how a study is prepared, taken up again and reported on the command line."""

import json

import fakes
import pytest

from captioners.cli import main
from captioners.lab import Lab
from captioners.study.design import CHECK_EVERY, QUESTIONS, SHARE, make_design, read_design
from captioners.study.preparing import Preparation, read_folder, study_id
from captioners.study.store import Store
from captioners.types import CaptionLabError, from_json, to_json
from captioners.ui import serve
from captioners.ui.runtime.studio import Studio
from captioners.ui.study_page import prepare_study, user_store
from captioners.ui.tabs.ballot import leaderboard_html, media_html, reveal
from captioners.ui.tabs.vote import unmasked


@pytest.fixture
def folder(tmp_path):
    """Three pictures, a sound and something else."""
    (tmp_path / "files").mkdir()
    for i in range(3):
        fakes.picture(tmp_path / "files" / f"{i}.png", i)
    fakes.sound(tmp_path / "files" / "clip.wav", 3)
    (tmp_path / "files" / "notes.txt").write_text("neither picture nor sound")
    return tmp_path / "files"


@pytest.fixture
def ask(tmp_path):
    """ask(toml) writes a question file."""

    def write(text: str):
        file = tmp_path / "questions.toml"
        file.write_text(text, encoding="utf-8")
        return file

    return write


def given(path, captions: dict[str, str]) -> None:
    path.write_text("\n".join(json.dumps({"id": k, "caption": v}) for k, v in captions.items()), encoding="utf-8")


# ---------------------------------------------------------------------------------------------------------- designs


def test_without_a_file_every_method_meets_itself_unguided():
    design = read_design(None, "pictures")
    assert (design.title, design.questions, design.share, design.check_every) == (
        "pictures",
        QUESTIONS,
        SHARE,
        CHECK_EVERY,
    )
    assert ("cfg", "cfg unguided") in design.comparisons
    settings = {s.name: s.settings for s in design.systems}
    assert settings["cfg"]["guidance_scale"] > settings["cfg unguided"]["guidance_scale"] == 1
    assert from_json(type(design), json.loads(json.dumps(to_json(design)))) == design


def test_methods_values_and_files_are_compared(ask, tmp_path):
    methods = read_design(ask('compare = "methods"\nmethods = ["cfg", "classifier", "mc-diffusion"]'), "")
    assert methods.comparisons == (("cfg", "classifier"), ("cfg", "mc-diffusion"), ("classifier", "mc-diffusion"))
    values = read_design(ask('methods = ["cfg"]\nover = { guidance_scale = [1, 2, 3] }'), "")
    assert values.comparisons[0] == ("cfg guidance_scale=1", "cfg guidance_scale=2")
    assert len(values.comparisons) == 3
    for name in "ab":
        given(tmp_path / f"{name}.jsonl", {"0.png": f"{name} says", "1.png": name})
    files = read_design(
        ask('captions = ["a.jsonl", "b.jsonl"]\n[[question]]\nid = "true"\ntext = "Which is true?"'), ""
    )
    assert files.comparisons == (("a", "b"),)
    assert [q.id for q in files.questions] == ["true"]
    both = make_design("", ["guidance", "methods"], ["cfg", "classifier"])
    assert [s.name for s in both.systems].count("cfg") == 1
    assert len(both.comparisons) == 3


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("nonsense", "is not TOML"),
        ('colour = "red"', "unknown entry 'colour'"),
        ('share = "many"', "not of the right kind"),
        ("share = true", "not of the right kind"),
        ("share = -1", "whole numbers from 0"),
        ("check_every = 1", "check_every not 1"),
        ('compare = "moods"', "choose from guidance, methods, values, files"),
        ('compare = ["guidance", 3]', "a list of texts"),
        ('compare = "methods"\nmethods = ["cfg"]', "nothing to compare"),
        ('methods = ["nobody"]', "no method called 'nobody'"),
        ('compare = "values"', "one control with two values"),
        ("over = { mood = [1, 2] }", "control called 'mood'"),
        ('methods = ["cfg"]\nover = { guidance_scale = [1, 99] }', "guidance_scale = 99"),
        ('methods = ["cfg"]\nover = { guidance_scale = [2, 2] }', "same name"),
        ('captions = ["one.jsonl"]', "two files"),
        ('captions = ["one.jsonl", "two.jsonl"]', "cannot be read"),
        ("question = 3", r"\[\[question\]\]"),
        ('[[question]]\nid = "x"', "an id and a text"),
        ('[[question]]\nid = "x"\ntext = "X?"\n[[question]]\nid = "x"\ntext = "Y?"', "same id"),
    ],
)
def test_a_mistake_in_a_question_file_is_told(ask, text, sentence):
    with pytest.raises(CaptionLabError, match=sentence):
        read_design(ask(text), "")


def test_a_folder_holds_pictures_and_sounds(folder, tmp_path):
    assert [(i.name, i.kind) for i in read_folder(folder)] == [
        ("0.png", "image"),
        ("1.png", "image"),
        ("2.png", "image"),
        ("clip.wav", "audio"),
    ]
    (tmp_path / "empty").mkdir()
    with pytest.raises(CaptionLabError, match="no picture and no sound"):
        read_folder(tmp_path / "empty")
    with pytest.raises(CaptionLabError, match="There is no folder"):
        read_folder(tmp_path / "nowhere")


def test_a_folder_with_captions_holds_what_they_name(folder, tmp_path):
    (tmp_path / "data" / "images").mkdir(parents=True)
    fakes.picture(tmp_path / "data" / "images" / "dog.png", 1)
    (tmp_path / "data" / "captions.jsonl").write_text('{"image": "dog.png", "captions": []}')
    assert [(i.name, i.path.is_file()) for i in read_folder(tmp_path / "data")] == [("dog.png", True)]


def test_other_files_or_questions_are_another_study(folder):
    design, inputs = read_design(None, "x"), read_folder(folder)
    first = study_id(design, inputs, "embedded")
    assert first == study_id(read_design(None, "x"), read_folder(folder), "embedded")
    assert first != study_id(design, inputs, "hub")
    assert first != study_id(read_design(None, "y"), inputs, "embedded")
    fakes.picture(folder / "0.png", 77)
    assert first != study_id(design, read_folder(folder), "embedded")


# ------------------------------------------------------------------------------------------------------- preparation


class Captions:
    """Captions by method and scale; counts how often it is asked."""

    def __init__(self):
        self.lab, self.asked = Lab(fakes.profile()), 0

    def results(self, media, method, settings):
        self.asked += 1
        return [
            self.lab.score(fakes.Echo(None).result(f"{method} {media.kind} at {s['guidance_scale']}", s), media)
            for s in settings
        ]


@pytest.fixture
def echo(monkeypatch):
    fakes.use_fakes(monkeypatch, fakes.Echo, fakes.Shout)
    return make_design("Echo", ["values"], ["echo"], over={"guidance_scale": [1, 2]}, check_every=0)


def test_every_input_is_captioned_once_even_when_the_study_is_started_again(folder, echo, tmp_path):
    captions, inputs = Captions(), read_folder(folder)
    store = Store(str(tmp_path / "votes.sqlite"))
    first = Preparation(store, echo, inputs, "fake", captions)
    assert first.prepare_next()
    assert first.prepare_next()
    store.close()  # stopped half-way
    store = Store(str(tmp_path / "votes.sqlite"))
    second = Preparation(store, echo, inputs, "fake", captions)
    assert second.done == 2
    while second.prepare_next():
        pass
    assert captions.asked == len(inputs)
    assert store.count_pairs(second.study.id) == len(inputs)
    ballot = store.ballot(second.study, store.join(second.study.id))
    assert {"clipscore", "perplexity"} <= set(ballot.scores[0])
    assert "was echo guidance_scale=" in reveal(ballot)


def test_captions_that_are_the_same_are_not_asked_about(folder, monkeypatch, ask, tmp_path):
    fakes.use_fakes(monkeypatch, fakes.Echo)
    for name in "ab":
        given(tmp_path / f"{name}.jsonl", {"0.png": "the same", "1.png": f"by {name}"})
    file = ask('captions = ["a.jsonl", "b.jsonl"]')
    studio = Studio(lambda: Lab(fakes.profile()))
    made = prepare_study(str(folder), str(file), None, "fake", studio)
    assert made.store.count_pairs(made.study.id) == 1
    assert (folder / "votes.sqlite").is_file()  # without a store the votes lie beside the files
    for name in "ab":
        given(tmp_path / f"{name}.jsonl", {"0.png": "the same"})
    with pytest.raises(CaptionLabError, match="No two captions"):
        prepare_study(str(folder), str(file), None, "fake", studio)


# ------------------------------------------------------------------------------------------------- page and commands


def test_an_answer_is_unmasked():
    said = [unmasked(c, swapped) for swapped in (False, True) for c in ("A", "B", "no difference")]
    assert said == ["a", "b", "neither", "b", "a", "neither"]
    with pytest.raises(CaptionLabError, match="Answer every question"):
        unmasked(None, False)


def test_a_picture_leaves_its_name_and_its_data_behind(folder):
    picture, sound = (media_html(i) for i in (read_folder(folder)[0], read_folder(folder)[-1]))
    assert picture.startswith('<img class="cl-media" alt="what is captioned" src="data:image/jpeg')
    assert "data:audio/mpeg" in sound
    assert "png" not in picture


def test_the_leaderboard_is_hidden_until_ten_votes():
    board = [
        {
            "text": "Which?",
            "votes": 12,
            "strengths": [{"system": "<x>", "strength": 0.5, "low": 0.1, "high": 0.9, "group": 0}],
        }
    ]
    assert "opens after 10 votes: you have 9" in leaderboard_html(9, ())
    html = leaderboard_html(10, board)
    assert "&lt;x&gt;" in html
    assert "<x>" not in html


def test_the_store_of_who_gave_none_is_the_users_own(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    user_store().close()
    assert (tmp_path / "caption-lab" / "votes.sqlite").is_file()
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "file"))
    user_store().add_study("s", make_design("", ["guidance"]))
    assert "give --store FILE" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [(["--study", "nowhere"], "There is no folder nowhere"), (["--questions", "q.toml"], "give --study FOLDER too")],
)
def test_app_py_tells_of_a_mistake_in_a_study(arguments, sentence, capsys):
    with pytest.raises(SystemExit):
        serve.main([*arguments, "--device", "cpu"])
    assert sentence in capsys.readouterr().err


def test_the_command_line_reports_links_and_forgets(folder, echo, tmp_path, capsys):
    where = str(tmp_path / "votes.sqlite")
    store = Store(where)
    made = Preparation(store, echo, read_folder(folder), "fake", Captions())
    while made.prepare_next():
        pass
    raters = [store.join(made.study.id) for _ in range(3)]
    for rater in raters:
        ballot = store.ballot(made.study, rater)
        while ballot:
            ballot = store.vote(made.study, rater, ballot.position, {q.id: "b" for q in QUESTIONS})
    store.close()
    outputs = {kind: tmp_path / f"out.{kind}" for kind in ("json", "csv", "html")}
    assert (
        main(["study", "report", where, *(part for kind, path in outputs.items() for part in (f"--{kind}", str(path)))])
        == 0
    )
    said = capsys.readouterr().out
    assert "echo guidance_scale=2: strength" in said
    report = json.loads(outputs["json"].read_text())
    assert report["questions"][0]["wins"][0]["b_wins"] == 12
    assert report["raters"] == 3
    assert "<svg" in outputs["html"].read_text()
    assert outputs["csv"].read_text().count("\n") == 25
    assert not [
        r for r in raters if r in outputs["csv"].read_text() + outputs["html"].read_text() + outputs["json"].read_text()
    ]
    assert main(["study", "links", where]) == 0
    assert f"results={made.study.secret}" in capsys.readouterr().out
    assert main(["study", "forget", where, "--rater", raters[0]]) == 0
    assert capsys.readouterr().out == "4 ballots deleted.\n"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["report", "nowhere.sqlite"], "There is no store nowhere.sqlite"),
        (["forget", "STORE"], "give --rater"),
        (["forget", "STORE", "--rater", "nobody"], "There is no rater 'nobody'"),
        (["report", "STORE", "--study", "other"], "no study 'other'"),
        (["report", "STORE", "--json", "no/where/out.json"], "cannot be written"),
        (["retort", "STORE"], "invalid choice"),
    ],
)
def test_the_command_line_tells_of_mistakes(arguments, sentence, tmp_path, capsys):
    store = Store(str(tmp_path / "votes.sqlite"))
    store.add_study("s", make_design("S", ["guidance"]))
    store.close()
    assert main(["study", *(str(tmp_path / "votes.sqlite") if a == "STORE" else a for a in arguments)]) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert error.count("\n") == 1
