"""The hub profile's models at their real sizes, random weights, against their own libraries: BLIP's captions, CLIP's
text tower, GPT-2's many continuations of one text.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from captioners.bench.contest import Work, contest
from captioners.bench.peers import TOKENS
from captioners.profiles.base import Profile

TEXTS = 64
PROMPT, CONTINUATIONS, PIECES = 260, 64, 3  # tokens of twenty captions; what is scored for one token of a captioner
CAPTION = "a black and white dog plays with a red ball in the grass"  # 13 positions, its start and end included


@contest(
    "text_tower_trimmed",
    f"CLIP ViT-B-32 on {TEXTS} captions, as many positions as the longest has, against all 77",
    "caption",
    repeats=5,
)
def text_tower(profile: Profile) -> tuple[Work, Work]:
    """What method 2 does for every token, and every judge for every caption."""
    import open_clip
    import torch
    from open_clip.tokenizer import SimpleTokenizer

    from captioners.nets.clip_text import embed_text

    torch.manual_seed(0)
    clip = open_clip.CLIP(**open_clip.get_model_config("ViT-B-32")).eval()
    ids = SimpleTokenizer()([CAPTION] * TEXTS)

    @torch.no_grad()
    def ours() -> int:
        return len(embed_text(clip, ids))

    @torch.no_grad()
    def peer() -> int:
        return len(clip.encode_text(ids, normalize=True))

    return ours, peer


@contest(
    "gpt2_cache_shared_vs_copied",
    f"GPT-2 on {CONTINUATIONS} continuations of {PIECES} tokens behind {PROMPT}, which share the cache of these, "
    "against a copy for each",
    "continuation",
    repeats=5,
)
def shared_cache(profile: Profile) -> tuple[Work, Work]:
    """How method 1 asks GPT-2 about the captioner's likely tokens; what is saved above all is memory."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    from captioners.nets.gpt2 import Gpt2

    torch.manual_seed(0)
    lm = Gpt2(GPT2LMHeadModel(GPT2Config()).eval()).eval()
    prompt = torch.randint(0, lm.config.vocab, (1, PROMPT))
    ids = torch.randint(0, lm.config.vocab, (CONTINUATIONS, PIECES))
    with torch.inference_mode():
        past = lm(prompt)[1]
    mask = torch.ones(1, PROMPT, dtype=torch.bool)

    @torch.inference_mode()
    def ours() -> int:
        return len(lm.branches(ids.reshape(1, -1), past, mask, [[PIECES] * CONTINUATIONS])[0]) // PIECES

    @torch.inference_mode()
    def peer() -> int:
        copies = [(k.repeat(CONTINUATIONS, 1, 1, 1), v.repeat(CONTINUATIONS, 1, 1, 1)) for k, v in past]
        return len(lm(ids, copies)[0])

    return ours, peer


@contest(
    "blip_vs_transformers",
    f"BLIP base on the CPU, {TOKENS} greedy tokens of an encoded picture, against transformers' generate",
    "caption",
    repeats=3,
)
def blip(profile: Profile) -> tuple[Work, Work]:
    """The picture is encoded once for all of its captions, and by the same code: what is raced is what follows. Random
    weights.
    """
    return _blip(guided=False)


@contest(
    "blip_guided_vs_transformers",
    f"guided BLIP base, {TOKENS} tokens of an encoded picture, both branches in one batch, "
    "against transformers' decoder run twice for every token",
    "caption",
    repeats=3,
)
def guided_blip(profile: Profile) -> tuple[Work, Work]:
    """transformers has no guidance for BLIP: its decoder is called with the picture and with a blank one, each with
    its own cache.
    """
    return _blip(guided=True)


def _blip(guided: bool) -> tuple[Work, Work]:
    import torch
    from transformers import BlipConfig, BlipForConditionalGeneration

    from captioners import guidance
    from captioners.nets.from_transformers import blip_decoder

    torch.manual_seed(0)
    reference = BlipForConditionalGeneration(BlipConfig()).eval()
    decoder = blip_decoder(deepcopy(reference)).eval()
    text = reference.config.text_config
    start, end = text.bos_token_id, text.sep_token_id
    with torch.inference_mode():
        grid = reference.vision_model(torch.randn(1, 3, 384, 384)).last_hidden_state

    @torch.inference_mode()
    def ours() -> int:
        rows = torch.tensor([0])
        condition = decoder.condition({"image": grid}, rows)[rows]  # as method 1 asks for them
        if guided:
            condition = condition.joined(condition.removed())
        ids, past = torch.full((1 + guided, 1), start), None
        for _ in range(TOKENS):
            logits, past = decoder(ids, condition, past)
            ids = best(*logits[:, -1]).expand(1 + guided, 1)
        return 1

    def best(cond: torch.Tensor, uncond: torch.Tensor | None = None) -> torch.Tensor:
        scores = cond if uncond is None else guidance.cfg(cond.log_softmax(-1), uncond.log_softmax(-1), 2.0)
        return scores.index_fill(0, torch.tensor([end]), -torch.inf).argmax()

    @torch.inference_mode()
    def plain() -> int:
        reference.text_decoder.generate(  # as its own `generate` calls it
            torch.tensor([[start]]),
            encoder_hidden_states=grid,
            encoder_attention_mask=torch.ones(grid.shape[:2], dtype=torch.long),
            eos_token_id=end,
            pad_token_id=text.pad_token_id,
            max_new_tokens=TOKENS,
            min_new_tokens=TOKENS,
            do_sample=False,
        )
        return 1

    @torch.inference_mode()
    def twice() -> int:
        contexts: list[torch.Tensor] = [grid, torch.zeros_like(grid)]
        caches: list[Any] = [None, None]
        ids = torch.tensor([[start]])
        for _ in range(TOKENS):
            branches = []
            for i in range(2):
                out = reference.text_decoder(
                    ids, encoder_hidden_states=contexts[i], past_key_values=caches[i], use_cache=True
                )
                caches[i] = out.past_key_values
                branches.append(out.logits[0, -1])
            ids = best(*branches).expand(1, 1)
        return 1

    return ours, twice if guided else plain
