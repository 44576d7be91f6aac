"""CLIP's text tower on as many positions as the longest text has, instead of always 77."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

if TYPE_CHECKING:
    from open_clip import CLIP


def embed_text(clip: CLIP, ids: Tensor) -> Tensor:
    """ids (n, context) of an open_clip model → (n, d), unit length.

    Attention is causal and the vector is read at a text's end, so what stands behind the longest end changes nothing.
    Models whose tower is built otherwise run whole.
    """
    ends = ids.argmax(-1)  # the end has the highest number
    longest = int(ends.max()) + 1
    if not _reads_the_end(clip):
        vectors: Tensor = clip.encode_text(ids, normalize=True)
        return vectors
    ids, dtype = ids[:, :longest], clip.transformer.get_cast_dtype()
    x = clip.token_embedding(ids).to(dtype) + clip.positional_embedding[:longest].to(dtype)
    x = clip.ln_final(clip.transformer(x, attn_mask=clip.attn_mask[:longest, :longest]))
    x = x[torch.arange(len(x), device=x.device), ends]
    if isinstance(clip.text_projection, nn.Linear):
        x = clip.text_projection(x)
    elif clip.text_projection is not None:
        x = x @ clip.text_projection
    return F.normalize(x, dim=-1)


def _reads_the_end(clip: nn.Module) -> bool:
    return getattr(clip, "text_pool_type", "") == "argmax" and getattr(clip, "attn_mask", None) is not None
