"""Method 4 of random weights, small enough to be followed by hand, and what its samplers should say, written down in a
plain loop.
"""

from collections import Counter

import torch
from fakes import restless, small_models

from captioners import guidance
from captioners.decoding import generator
from captioners.methods.prefix_diffusion import PrefixDiffusion
from captioners.nets.encoders import Features
from captioners.nets.regions import region_cells
from captioners.nets.rounding import TokenKinds, best_sequences
from captioners.nets.schedules import alpha_bars

SHAPES = {"image": (49, 16), "audio": (20, 12)}  # cells and their width


def encode(media) -> list[Features]:
    grids = [torch.randn(SHAPES[m.kind], generator=generator(0, m, 7)) for m in media]
    return [Features(grid, grid.mean(0)) for grid in grids]


def small(tokenizer, regions: int) -> PrefixDiffusion:
    net = restless(len(tokenizer), regions)
    return PrefixDiffusion(small_models(tokenizer, encode=encode, prefix_denoiser=lambda: net))


def settings(method, **values):
    return method.spec.settings(**{"num_steps": 6, "num_candidates": 3, **values})


def texts(result) -> Counter:
    return Counter(c.caption for c in result.candidates)


@torch.no_grad()
def plain_loop(method, media, values) -> str:
    """One candidate by hand: DDIM in closed form with its fresh noise, two branches, no batch, no scheduler."""
    method_models, model = method.models, method.models.prefix_denoiser()
    kinds, source = TokenKinds.of(method_models.tokenizer), generator(values["seed"], media, 0)
    paper = values["order"] == "paper"
    eta, strength = float(paper) if values["eta"] is None else values["eta"], values["temperature"]
    torch.rand(model.config.words, generator=source)  # the length's draw, not needed: the length is given
    tags, order = torch.tensor([method_models.start_token(media.kind)]), torch.tensor([0])
    grid = method_models.encode([media])[0].grid
    pooled = torch.stack([grid[cells].mean(0) for cells in region_cells(media.kind)[: model.config.regions]])
    full = model.prefix({media.kind: pooled[None]}, order, tags)
    none = model.prefix({}, order, tags)
    n, count = values["length"] + 3, torch.tensor([values["length"]])

    def noise():
        return strength * torch.randn(model.config.canvas, model.config.embed, generator=source)[None, :n]

    x, levels = noise(), alpha_bars(values["schedule"])
    times = [999 - i * (1000 // values["num_steps"]) for i in range(values["num_steps"])]
    believed, forbidden = None, ~(kinds.begins | kinds.goes_on)
    forbidden[kinds.end] = False
    for t, s in zip(times, [*times[1:], None], strict=True):
        believed = believed if model.legible(levels[t]) else None
        cond, uncond = (
            model(x, levels[t][None], p, count, believed).masked_fill(forbidden, -torch.inf) for p in (full, none)
        )
        logp = guidance.normalise(guidance.cfg(cond, uncond, values["guidance_scale"]))
        x0 = believed = logp.exp() @ model.table()
        if values["clamp"] == "on" or (paper and values["clamp"] == "auto"):
            x0 = model.table()[logp.argmax(-1)]
        a, b = levels[t], torch.tensor(1.0) if s is None else levels[s]
        sigma = eta * ((1 - b) / (1 - a) * (1 - a / b)).sqrt()
        x = b.sqrt() * x0 + (1 - b - sigma**2).clamp(min=0).sqrt() * (x - a.sqrt() * x0) / (1 - a).sqrt()
        x = x + sigma * noise() if eta else x
    # the likeliest words stay wherever the length allows it
    kept = logp.scatter(-1, logp.argmax(-1, keepdim=True), 0.0)
    return method_models.tokenizer.decode(best_sequences(kept, kinds, count)[0].tolist())
