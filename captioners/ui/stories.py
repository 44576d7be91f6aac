"""What About tells of the methods that are shipped: how each works, where it fails, and what to cite.

A method that has no story here speaks for itself, by the words at the top of its file.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Story:
    """One method, told to a visitor."""

    works: str  # five sentences
    fails: str
    cite: str  # BibTeX


STORIES = {
    "cfg": Story(
        "The captioner was trained with its input left out now and then, so it knows both how likely a word is for this input and how "
        "likely it is in any caption. Before each word it is asked both ways, and the difference is exaggerated γ times. Words that would "
        "fit every picture lose, words that only this one calls for win. A language model may be given a say as well, with weight w, to "
        "pull the caption back to how people write. At γ = 1 and w = 0 nothing is left but the plain captioner.",
        "Pushed too far it says the most telling word again and again, because nothing in the formula wants a sentence: CLIPScore hardly "
        "falls while perplexity goes up many times over.",
        """@inproceedings{kornblith2023guiding,
  title     = {Guiding Image Captioning Models Toward More Specific Captions},
  author    = {Kornblith, Simon and Li, Lala and Wang, Zirui and Nguyen, Thao},
  booktitle = {ICCV},
  year      = {2023},
  note      = {arXiv:2307.16686}
}""",
    ),
    "classifier": Story(
        "A language model that has never seen or heard anything writes the caption. Before each word its memory of the words so far is "
        "moved by a few steps of gradient descent. One term of the loss asks a classifier whether what is said can be heard, or seen; "
        "one asks a matcher whether it fits the input; one keeps the words likely. The word is then taken from the moved model. No part "
        "but the matcher was trained on inputs with their captions.",
        "It knows the input only by the matcher's word on half-finished sentences: an early wrong word is never taken back, and the "
        "sentence is talked round to it. It is the slowest of the four.",
        """@article{shaulov2025classifier,
  title   = {Classifier-Guided Captioning Across Modalities},
  author  = {Shaulov, Ariel and Shaharabany, Tal and Shaar, Eitan and Chechik, Gal and Wolf, Lior},
  journal = {arXiv:2501.03183},
  year    = {2025}
}""",
    ),
    "mc-diffusion": Story(
        "The input becomes a grid of discrete tokens, and the caption begins as a row of blanks. Step by step the model fills in the words "
        "it is surest of, looking at all positions at once. It is asked twice, with the whole grid and with some of its cells masked, and "
        "what the hidden cells contribute is exaggerated γ times. A partly masked input is a closer comparison than none at all. The "
        "length is decided before the first word.",
        "Positions are filled without knowing each other: words are doubled or do not agree, and a caption that was measured too short or "
        "too long is squeezed or padded.",
        """@misc{zhou-masked,
  title  = {Image Captioning via Masked Conditional Diffusion},
  author = {Zhou, Jiayi and Li, Chen and Tang, Huidong and Kamei, Sayaka and Jiang, Shuai and Morimoto, Yasuhiko}
}""",
    ),
    "prefix-diffusion": Story(
        "A caption is a row of word vectors, and it begins as noise. Behind a prefix made of the picture or the sound the noise is taken "
        "away step by step until every vector lies at a word. Many captions start from many noises in one batch, and a matcher picks the "
        "one that fits best. This choice is what guides here: the unguided caption is the first of them. Pushing away from the model "
        "without its prefix is possible too, which the paper does not do.",
        "The vectors settle on words one by one, so grammar suffers first: articles go missing and words are doubled, which a matcher "
        "does not mind.",
        """@inproceedings{liu2024prefix,
  title     = {Prefix-diffusion: A Lightweight Diffusion Model for Diverse Image Captioning},
  author    = {Liu, Guisheng and Li, Yi and Fei, Zhengcong and Fu, Haiyan and Luo, Xiangyang and Guo, Yanqing},
  booktitle = {LREC-COLING},
  year      = {2024},
  note      = {arXiv:2309.04965}
}""",
    ),
}
