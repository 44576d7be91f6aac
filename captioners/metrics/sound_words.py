"""Which words name a sound: for measuring alone, and written apart from the tables that training captions were found with.

An entry lists beginnings of words; `a+b` wants a word of each in one caption.
"""

from __future__ import annotations

import re
from functools import lru_cache

VOICE = "speak spoke speech talk voice says said saying convers narrat monolog announc exclaim shout yell whisper"
TUNE = (
    "music song melod tune orchestra band instrument sing sang beat rap guitar piano drum violin saxophone jazz blues rock metal reggae "
    "disco pop"
)

SOUND_WORDS = {
    "airplane": "airplane aeroplane aircraft plane jet airliner",
    "breathing": "breath inhal exhal pant gasp sniff",
    "brushing_teeth": "toothbrush teeth tooth brush scrub",
    "can_opening": "can+open can+pop can+crack soda fizz tin+open beverage",
    "car_horn": "horn honk toot beep+car beep+vehicle",
    "cat": "cat kitten meow mew purr feline",
    "chainsaw": "chainsaw chain+saw saw+motor saw+engine power+saw",
    "chirping_birds": "bird chirp tweet songbird twitter sparrow",
    "church_bells": "bell chime toll+church",
    "clapping": "clap applau ovation",
    "clock_alarm": "alarm beep buzzer bleep",
    "clock_tick": "tick tock clock",
    "coughing": "cough",
    "cow": "cow moo cattle bull calf",
    "crackling_fire": "fire crackl flame burn campfire fireplace bonfire",
    "crickets": "cricket cicada insect+chirp insect+night",
    "crow": "crow caw raven",
    "crying_baby": "baby infant newborn cry+child cries+child crying+child crying wail",
    "dog": "dog bark puppy woof hound growl howl",
    "door_wood_creaks": "creak squeak squeal hinge",
    "door_wood_knock": "knock rap+door tap+door bang+door",
    "drinking_sipping": "sip drink slurp gulp swallow",
    "engine": "engine motor idl rev car vehicle truck",
    "fireworks": "firework firecracker explo bang",
    "footsteps": "footstep walk step footfall",
    "frog": "frog croak ribbit toad",
    "glass_breaking": "glass shatter smash break+dish",
    "hand_saw": "saw sawing sawn",
    "helicopter": "helicopter chopper rotor",
    "hen": "hen chicken cluck poultry",
    "insects": "insect fly flies bee buzz mosquito bug wasp",
    "keyboard_typing": "typ keyboard typewriter",
    "laughing": "laugh giggl chuckl",
    "mouse_click": "click mouse",
    "pig": "pig oink snort grunt hog swine",
    "pouring_water": "pour fill liquid water+glass water+cup",
    "rain": "rain drizzle downpour",
    "rooster": "rooster cockerel crow cock",
    "sea_waves": "wave ocean sea surf shore beach",
    "sheep": "sheep goat lamb bleat baa",
    "siren": "siren ambulance police emergency",
    "sneezing": "sneez",
    "snoring": "snor",
    "thunderstorm": "thunder storm lightning",
    "toilet_flush": "toilet flush",
    "train": "train locomotive railway railroad",
    "vacuum_cleaner": "vacuum hoover",
    "washing_machine": "washing washer laundry dryer",
    "water_drops": "drip drop trickl",
    "wind": "wind gust breeze blow",
    "air_conditioner": "conditioner conditioning fan ventilat hum blower",
    "children_playing": "child kid playground",
    "drilling": "drill",
    "gun_shot": "gun shot shoot gunfire rifle pistol",
    "jackhammer": "jackhammer hammer+pound pneumatic hammer+concrete",
}
MAN, WOMAN = "man men male guy boy", "woman women female lady girl"


def names_sound(category: str, caption: str) -> bool:
    """Whether a caption names the sound of that class. Voices and music are named by any word of their kind; of a man's or a woman's voice
    the other's word is wrong."""
    words = set(re.findall(r"[a-z]+", caption.lower()))
    if category in SOUND_WORDS:
        return _any(SOUND_WORDS[category], words)
    if "speech" in category or category.endswith("_speaks"):
        person = {"man": WOMAN, "woman": MAN}.get(re.sub(r"_speaks$", "", category).rsplit("_", 1)[-1], "")
        return _any(VOICE, words) and not words & set(person.split())
    return _any(TUNE, words)


def _any(entry: str, words: set[str]) -> bool:
    return any(all(any(word.startswith(stem) for word in words) for stem in one.split("+")) for one in _entries(entry))


@lru_cache(maxsize=256)
def _entries(entry: str) -> tuple[str, ...]:
    return tuple(entry.split())
