"""The page's first example is chosen by how visibly guidance helps."""

from fakes import Echo, picture, profile, use_fakes

from captioners.evaluation.first_example import Card, Showing, ranked, show, text
from captioners.lab import Lab
from captioners.media import load_media


def card(gain: float, same: bool = False) -> Card:
    return Card("cfg", "a dog", "a dog" if same else "a cat", gain)


def test_a_caption_that_does_not_change_or_gets_worse_is_no_help():
    assert [c.helps for c in (card(0.2), card(0.2, same=True), card(-0.1))] == [True, False, False]


def test_the_file_on_which_the_most_cards_improve_comes_first():
    few, many = Showing("few", [card(3.0), card(-1.0)]), Showing("many", [card(0.1), card(0.3)])
    assert ranked([few, many]) == [many, few]
    assert many.worth == (2, 0.2)
    assert text([few, many]).startswith("many: guidance helps on 2 of 2 cards, by 0.20")


def test_a_file_is_captioned_with_and_without_guidance(monkeypatch, tmp_path):
    use_fakes(monkeypatch, Echo)
    picture(tmp_path / "0.png", 0)
    (only,) = show(Lab(profile()), load_media(tmp_path / "0.png")).cards
    assert (only.method, only.gain) == ("echo", 0.0)
    assert only.guided == only.unguided
