"""A result names the weights that made it: no more, whatever else has been loaded, and no fewer, whatever was
remembered.
"""

from concurrent.futures import ThreadPoolExecutor

import pytest

from captioners import registry
from captioners.run_record import RunRecord, current_run, record_weights, recorded

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


def test_a_run_keeps_its_record_apart_from_others_and_across_threads():
    def run(name):
        for part in ("first", "second"):
            record_weights(part, name)
            yield dict(current_run().weights)

    one, two = recorded(run("one"), RunRecord()), recorded(run("two"), RunRecord())
    with ThreadPoolExecutor(1) as other:
        assert [next(one), other.submit(next, two).result()] == [{"first": "one"}, {"first": "two"}]
        assert [other.submit(next, one).result(), next(two)] == [
            {"first": "one", "second": "one"},
            {"first": "two", "second": "two"},
        ]
    record_weights("third", "outside of any run")
    with pytest.raises(RuntimeError, match="decode"):
        current_run()


def test_the_seconds_of_a_batch_are_divided_among_its_inputs(cfg, draw):
    pictures = [draw(i) for i in range(3)]
    alone = cfg.caption_batch(pictures, [cfg.spec.settings(max_tokens=3)] * 3)
    assert alone[0].seconds["decode"] == alone[2].seconds["decode"] > 0
    assert alone[0].calls == alone[2].calls
