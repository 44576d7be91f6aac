"""Our decoding of large models against their own libraries': the same architecture, the same random weights, one thread
pool.

open_clip's `generate` runs the prefix again for every token; transformers' `guidance_scale` runs the model twice for
every token.
"""

from __future__ import annotations

import logging
from copy import deepcopy

from captioners.bench.contest import Work, contest
from captioners.profiles.base import Profile

TOKENS = 20


def mend_open_clip() -> None:
    """Hands open_clip 3.3.0 the names that it fails to import beside transformers 5, so that its greedy `generate`
    runs.
    """
    from open_clip import coca_model
    from transformers.generation import logits_process, stopping_criteria

    names = ("LogitsProcessorList", "MinLengthLogitsProcessor", "RepetitionPenaltyLogitsProcessor")
    for module, classes in (
        (logits_process, names),
        (stopping_criteria, ("MaxLengthCriteria", "StoppingCriteriaList")),
    ):
        for name in classes:
            setattr(coca_model, name, getattr(module, name))
    coca_model.GENERATION_TYPES = {**coca_model.GENERATION_TYPES, "top_k": logits_process.TopKLogitsWarper}
    coca_model._has_transformers = True


@contest(
    "coca_vs_open_clip",
    "CoCa ViT-B-32 on the CPU, picture and 20 greedy tokens, against open_clip's generate",
    "caption",
)
def coca(profile: Profile) -> tuple[Work, Work]:
    """Both encode the picture once; random weights."""
    import open_clip
    import torch

    from captioners.nets.coca import CocaDecoder
    from captioners.nets.refit import for_few_rows

    mend_open_clip()
    torch.manual_seed(0)
    logging.disable(logging.WARNING)  # it warns of random weights, which are meant here
    reference = open_clip.create_model("coca_ViT-B-32").eval()
    logging.disable(logging.NOTSET)
    # open_clip leaves this projection unset
    torch.nn.init.normal_(reference.text_decoder.text_projection, std=reference.text_decoder.width**-0.5)
    refitted = deepcopy(reference)
    for_few_rows(refitted, refitted.visual)
    decoder = CocaDecoder(refitted).eval()
    picture = torch.randn(1, 3, 224, 224)
    start, end = 49406, 49407

    @torch.no_grad()
    def ours() -> int:
        _, grid = refitted.visual(picture)
        condition = decoder.condition({"image": grid}, torch.tensor([0]))
        ids, past = torch.tensor([[start]]), None
        for _ in range(TOKENS):
            with torch.inference_mode():  # as method 1 has it
                logits, past = decoder(ids, condition, past)
                logits[..., end] = -torch.inf
                ids = logits[:, -1:].argmax(-1)
        return 1

    def peer() -> int:
        reference.generate(
            picture,
            generation_type="top_k",
            top_k=1,
            seq_len=TOKENS + 1,
            min_seq_len=TOKENS,
            sot_token_id=start,
            eos_token_id=end,
        )
        return 1

    return ours, peer


@contest(
    "cfg_vs_transformers",
    "guided GPT-2 (124 M), both branches in one batch, vs transformers' guidance_scale",
    "caption",
    repeats=5,
)
def cfg(profile: Profile) -> tuple[Work, Work]:
    """20 greedy tokens after a prompt of 8; the unconditional branch begins with the prompt's last token, as
    transformers has it.
    """
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    from captioners import guidance
    from captioners.nets.gpt2 import Gpt2

    torch.manual_seed(0)
    reference = GPT2LMHeadModel(GPT2Config(bos_token_id=None, eos_token_id=None)).eval()
    refitted = Gpt2(deepcopy(reference)).eval()
    prompt = torch.randint(0, 50000, (1, 8))

    @torch.no_grad()
    def ours() -> int:
        ids = prompt.repeat(2, 1)
        mask = torch.ones_like(ids, dtype=torch.bool)
        mask[1, :-1] = False
        past = None
        for _ in range(TOKENS):
            logits, past = refitted(ids, past, mask)
            cond, uncond = logits[:, -1].log_softmax(-1)
            ids = guidance.cfg(cond, uncond, 2.0).argmax().expand(2, 1)
            mask = torch.cat([mask, mask[:, -1:]], 1)
        return 1

    def peer() -> int:
        reference.generate(prompt, max_new_tokens=TOKENS, do_sample=False, guidance_scale=2.0, pad_token_id=0)
        return 1

    return ours, peer
