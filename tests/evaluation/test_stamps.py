"""Another domain: stamps become a folder that `evaluate` reads."""

from PIL import Image

from captioners.evaluation import stamps
from captioners.evaluation.dataset import read_dataset


def stamp(folder, name, sentence):
    folder.mkdir(parents=True, exist_ok=True)
    Image.new("RGBA", (40, 30), (255, 0, 0, 0)).save(folder / f"{name}.png")
    (folder / f"{name}.txt").write_text(f"{sentence}\nde.utf8=Etwas.\n", encoding="utf-8")


def test_photographs_become_a_data_set_over_white(tmp_path):
    source = tmp_path / "stamps"
    stamp(source / "animals" / "birds", "magpie", "A magpie.")
    stamp(source / "animals" / "cartoon", "duck", "A duck.")
    assert stamps.write(source, tmp_path / "out") == 1
    (item,) = read_dataset(tmp_path / "out")
    assert (item.id, item.references) == ("animals-birds-magpie.jpg", ("A magpie.",))
    assert Image.open(item.path).getpixel((5, 5)) == (255, 255, 255)


def test_a_missing_package_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(stamps, "STAMPS", tmp_path)
    assert stamps.main([str(tmp_path / "out")]) == 2
    assert "tuxpaint-stamps-default" in capsys.readouterr().err
    assert stamps.main([]) == 2
