"""Training for the hub profile, over any folder with captions.jsonl: `python -m captioners train PART --profile hub
--data DIR --out DIR`.

What a model learns is the forward pass of one module, so that several GPUs (`accelerate launch -m captioners train …`)
and mixed precision work on it as on any other. The output is loaded with `--checkpoint`.
"""
