"""Which words name a sound: for measuring alone, and written apart from the tables that training captions were found
with.

An entry lists beginnings of words, or whole words with a full stop; `a+b` wants one of each in one caption.
"""

from __future__ import annotations

import re

VOICE = "speak spoke speech talk voice says said saying convers narrat monolog announc exclaim shout yell whisper"
TUNE = (
    "music song melod tune orchestra band instrument sing sang beat rap guitar piano drum violin saxophone jazz blues "
    "rock metal reggae disco pop"
)

SOUND_WORDS = {
    "airplane": "airplane aeroplane aircraft plane jet airliner",
    "breathing": "breath inhal exhal pant gasp sniff",
    "brushing_teeth": "toothbrush teeth tooth brush scrub",
    "can_opening": "can.+open can.+pop can.+crack soda fizz tin.+open beverage",
    "car_horn": "horn. horns. honk toot beep+car. beep+vehicle",
    "cat": "cat. cats. kitten meow mew. mews. purr feline",
    "chainsaw": "chainsaw chain+saw saw+motor saw+engine power+saw",
    "chirping_birds": "bird chirp tweet songbird twitter sparrow",
    "church_bells": "bell chime toll+church",
    "clapping": "clap applau ovation",
    "clock_alarm": "alarm beep buzzer bleep",
    "clock_tick": "tick tock clock+second clock+hand",
    "coughing": "cough",
    "cow": "cow moo cattle bull calf",
    "crackling_fire": "fire. fires. crackl flame burn campfire fireplace bonfire",
    "crickets": "cricket cicada insect+chirp insect+night",
    "crow": "crow caw raven",
    "crying_baby": "baby infant newborn cry. cries. crying",
    "dog": "dog bark puppy woof hound growl howl",
    "door_wood_creaks": "creak squeak squeal hinge",
    "door_wood_knock": "knock rap+door tap+door bang+door",
    "drinking_sipping": "sip. sips. sipp drink slurp gulp swallow",
    "engine": "engine motor. motors. idl rev. revs. revv car.+start car.+run vehicle+run truck+run",
    "fireworks": "firework firecracker explo bang",
    "footsteps": "footstep walk step footfall",
    "frog": "frog croak ribbit toad",
    "glass_breaking": "shatter smash glass+break glass+broke break+dish",
    "hand_saw": "saw. saws. sawing sawn",
    "helicopter": "helicopter chopper rotor",
    "hen": "hen. hens. chicken cluck poultry",
    "insects": "insect bee. bees. buzz mosquito bug wasp fly.+buzz",
    "keyboard_typing": "type. types. typing keyboard typewriter",
    "laughing": "laugh giggl chuckl",
    "mouse_click": "click mouse",
    "pig": "pig. pigs. piglet oink snort grunt hog. hogs. swine",
    "pouring_water": "pour fill liquid water+glass water+cup",
    "rain": "rain. rains. raining rainfall drizzle downpour",
    "rooster": "rooster cockerel crow cock. cocks.",
    "sea_waves": "wave ocean sea surf shore beach",
    "sheep": "sheep goat lamb bleat baa",
    "siren": "siren ambulance police emergency",
    "sneezing": "sneez",
    "snoring": "snor",
    "thunderstorm": "thunder storm lightning",
    "toilet_flush": "toilet flush",
    "train": "train. trains. locomotive railway railroad",
    "vacuum_cleaner": "vacuum hoover",
    "washing_machine": "washing washer laundry dryer",
    "water_drops": "drip drop trickl",
    "wind": "wind. winds. windy gust breeze",
    "air_conditioner": "conditioner conditioning fan ventilat hum blower",
    "children_playing": "child kid playground",
    "drilling": "drill",
    "gun_shot": "gun shot shoot gunfire rifle pistol",
    "jackhammer": "jackhammer hammer+pound pneumatic hammer+concrete",
}
MAN, WOMAN = "man men male guy boy", "woman women female lady girl"


def names_sound(category: str, caption: str) -> bool:
    """Whether a caption names the sound of that class. Voices and music are named by any word of their kind; of a man's
    or a woman's voice the other's word is wrong.
    """
    words = set(re.findall(r"[a-z]+", caption.lower()))
    if category in SOUND_WORDS:
        return _any(SOUND_WORDS[category], words)
    if "speech" in category or category.endswith("_speaks"):
        person = {"man": WOMAN, "woman": MAN}.get(re.sub(r"_speaks$", "", category).rsplit("_", 1)[-1], "")
        return _any(VOICE, words) and not words & set(person.split())
    return _any(TUNE, words)


def _any(entry: str, words: set[str]) -> bool:
    return any(all(_said(stem, words) for stem in one.split("+")) for one in entry.split())


def _said(stem: str, words: set[str]) -> bool:
    return stem[:-1] in words if stem.endswith(".") else any(word.startswith(stem) for word in words)
