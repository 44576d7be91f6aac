"""BERTScore: equal to the reference package on the same small model, and a judge like the others."""

import pytest
from tiny_hub import save_bert

from captioners.metrics.base import CaptionSet, measure
from captioners.profiles.base import ProfileError
from captioners.profiles.hub.model_loader import ModelLoader
from captioners.profiles.hub.roles import Source
from captioners.profiles.hub.texts import BertTexts

CAPTIONS = ["a dog runs", "two dogs play with a ball in the snow", "a man on a bicycle"]
REFERENCES = [
    ["a black dog is running", "the dog runs"],
    ["a dog", "children play"],
    ["the man rides", "a boat on a lake at night"],
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_bert(tmp_path_factory.mktemp("bert") / "text-judge", 9)


def judge(folder, layer: int = 1) -> BertTexts:
    return BertTexts(
        ModelLoader(
            {"text-judge": Source(str(folder), family="transformers", layer=layer)}, "cpu", announce=lambda words: None
        )
    )


@pytest.mark.parametrize("layer", [1, 2])
def test_it_is_that_of_the_reference_package(folder, layer):
    from bert_score import score

    expected = score(CAPTIONS, REFERENCES, model_type=str(folder), num_layers=layer, device="cpu")[2].tolist()
    ours = measure(CaptionSet(list("abc"), CAPTIONS, REFERENCES, texts=judge(folder, layer)))["bertscore"]
    assert ours.items == pytest.approx(expected, abs=1e-5)
    assert ours.encoder.endswith(f"layer {layer}")


def test_a_copy_scores_one_and_an_empty_caption_zero(folder):
    rows = CaptionSet(["a", "b"], ["a dog runs", ""], [["a dog runs"], ["a dog runs"]], texts=judge(folder))
    assert measure(rows)["bertscore"].items == pytest.approx([1.0, 0.0], abs=1e-6)


def test_a_layer_that_is_not_there_is_told(folder):
    with pytest.raises(ProfileError, match="has 2 layers, not 17: name another layer"):
        judge(folder, 17)
