"""A result names the weights that made it: no more, whatever else has been loaded, and no fewer, whatever was remembered."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from captioners import registry
from captioners.provenance import note, noted, noting

MADE_OF = {
    "cfg": {"image-encoder", "cfg"},
    "classifier": {"image-encoder", "image-ranker", "caption-lm", "visibility"},
    "mc-diffusion": {"image-encoder", "image-vq", "mc-diffusion"},
    "prefix-diffusion": {"image-encoder", "image-ranker", "prefix-diffusion"},
}


@pytest.mark.parametrize("name", MADE_OF)
def test_a_result_names_what_was_used_for_it_and_nothing_else(embedded, picture, sound, name):
    method = registry.load(name, embedded)
    short = method.spec.settings(**({"max_tokens": 3} if method.spec.listens_to("max_tokens") else {"num_steps": 5}))
    heard = method.caption(sound, short)  # by now the parts for sound are loaded too
    assert "audio-encoder" in heard.weights
    for _ in range(2):  # the second time the picture's features are remembered
        assert set(method.caption(picture, short).weights) == MADE_OF[name]


def test_a_language_model_is_named_when_it_is_asked(cfg, picture):
    asked = cfg.caption(picture, cfg.spec.settings(max_tokens=3, lm_weight=0.5))
    assert set(asked.weights) == {"image-encoder", "cfg", "caption-lm"}
    assert set(cfg.caption(picture, cfg.spec.settings(max_tokens=3)).weights) == {"image-encoder", "cfg"}


def test_a_run_keeps_its_notes_apart_from_others_and_across_threads():
    def run(name):
        for part in ("first", "second"):
            note(part, name)
            yield noted()

    one, two = noting(run("one")), noting(run("two"))
    with ThreadPoolExecutor(1) as other:
        assert [next(one), other.submit(next, two).result()] == [{"first": "one"}, {"first": "two"}]
        assert [other.submit(next, one).result(), next(two)] == [{"first": "one", "second": "one"}, {"first": "two", "second": "two"}]
    note("third", "outside of any run")
    assert noted() == {}
