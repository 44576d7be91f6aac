"""What sounds are called: class → the words that find captions about it in a corpus, and captions written by hand.

The captions are references, prompts and training captions. Whether a caption names a sound is measured with other
words, which were written apart from these (`captioners/metrics/sound_words.py`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class SoundClass:
    """One kind of sound."""

    words: str  # a regular expression: a caption that matches it is about this sound; without one, none is looked for
    captions: tuple[str, ...]  # plain captions about this sound and nothing else; the first is its prompt

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        return re.compile(rf"\b(?:{self.words})", re.IGNORECASE)

    def named_in(self, caption: str) -> bool:
        """Whether the caption names this sound."""
        return bool(self.words and self.pattern.search(caption))


def _c(words: str, *captions: str) -> SoundClass:
    return SoundClass(words, captions)


SOUND_CLASSES: dict[str, SoundClass] = {
    "airplane": _c(r"air ?plane|aircraft|jet\b|jet engine|plane\b|planes\b", "an airplane flies overhead", "an aircraft engine roars as it passes by", "a jet plane flies past", "a plane is flying in the sky"),
    "breathing": _c(r"breath|inhal|exhal|pant(?:s|ing)\b", "a person is breathing heavily", "someone breathes in and out", "heavy breathing", "a person inhales and exhales deeply"),
    "brushing_teeth": _c(r"brush\w* (?:\w+ )?teeth|teeth (?:are |is )?being brush|tooth ?brush|brush(?:es|ing)?\b", "someone is brushing their teeth", "a person brushes teeth with a toothbrush", "teeth are being brushed", "a toothbrush scrubs back and forth"),
    "can_opening": _c(r"(?:soda|beer|drink|pop)? ?cans?\b.*open|open\w*.*\bcan\b|can (?:is )?(?:being )?(?:open|pop|crack)|soda|fizz", "a can is opened", "a can of soda is popped open and fizzes", "someone opens a can", "a soda can cracks open"),
    "car_horn": _c(r"horn|honk|beep(?:s|ing)? (?:of|from) a car", "a car horn honks", "a vehicle honks its horn", "a car is honking", "a car horn beeps loudly"),
    "cat": _c(r"cats?\b|kitten|meow|purr", "a cat meows", "a cat is meowing", "a kitten meows loudly", "a cat meowing repeatedly"),
    "chainsaw": _c(r"chain ?saw|power saw|motor saw", "a chainsaw is running", "a chainsaw cuts through wood", "a chainsaw revs and buzzes", "a loud chainsaw is cutting"),
    "chirping_birds": _c(r"birds?\b|chirp\w* (?:of )?bird|tweet|songbird|birdsong", "birds are chirping", "birds chirp and sing", "a bird is singing", "birds tweet in the trees"),
    "church_bells": _c(r"bells?\b|chim(?:e|ing)", "church bells are ringing", "a church bell rings", "large bells ring loudly", "bells toll in the distance"),
    "clapping": _c(r"clap|applau", "people are clapping", "an audience applauds", "a crowd claps their hands", "applause from a crowd"),
    "clock_alarm": _c(r"alarm(?! siren)|beep|buzzer", "an alarm clock is beeping", "an alarm beeps repeatedly", "a digital alarm clock goes off", "a clock alarm rings"),
    "clock_tick": _c(r"tick|tock|(?<!alarm )clock\b(?!.*(?:alarm|beep))", "a clock is ticking", "a clock ticks steadily", "the ticking of a clock", "a watch ticks quietly"),
    "coughing": _c(r"cough", "a person is coughing", "someone coughs", "a man coughs repeatedly", "coughing"),
    "cow": _c(r"cows?\b|moo(?:s|ing)?\b|cattle", "a cow moos", "a cow is mooing", "cows moo in a field", "cattle mooing"),
    "crackling_fire": _c(r"fire\b|crackl|flames?\b|burn", "a fire is crackling", "a fire crackles and pops", "wood burns in a fireplace", "a campfire burns and crackles"),
    "crickets": _c(r"crickets?\b", "crickets are chirping", "crickets chirp at night", "crickets chirping in the grass", "a cricket chirps steadily"),
    "crow": _c(r"(?<!rooster )crows?\b|caw|raven", "a crow caws", "crows are cawing", "a crow is cawing loudly", "crows caw in the distance"),
    "crying_baby": _c(r"(?:baby|infant|child|toddler|newborn)\b.*(?:cr(?:y|ies)|wail|sob|scream)|cr(?:y|ies|ying)\b.*(?:baby|infant)|cry|cries|infant", "a baby is crying", "a baby cries loudly", "an infant cries", "a crying baby"),
    "dog": _c(r"dogs?\b|bark(?:s|ing)?\b|pupp|growl|woof", "a dog barks", "a dog is barking", "dogs bark loudly", "a dog barking repeatedly"),
    "door_wood_creaks": _c(r"creak|squeak(?:s|ing|y)? door|door\b.*squeak|hinge", "a door creaks", "a wooden door creaks open", "a squeaky door opens slowly", "a creaking door"),
    "door_wood_knock": _c(r"knock", "someone knocks on a door", "a person is knocking on a wooden door", "knocking on wood", "a knock at the door"),
    "drinking_sipping": _c(r"sip|drink|slurp|gulp|swallow", "someone is drinking", "a person sips a drink", "someone slurps and gulps a drink", "a person drinks and swallows"),
    "engine": _c(r"engine|motor\b|idl(?:e|ing)\b|rev(?:s|ving)\b|vehicle", "an engine is running", "an engine idles", "a car engine starts and runs", "a motor hums steadily"),
    "fireworks": _c(r"firework|firecracker|explo", "fireworks are exploding", "fireworks pop and bang", "fireworks go off in the distance", "loud fireworks explode"),
    "footsteps": _c(r"foot ?step|walk|steps\b|stepping", "someone is walking", "footsteps on a hard floor", "a person walks with heavy footsteps", "footsteps approach"),
    "frog": _c(r"frogs?\b|croak|ribbit|toads?\b", "a frog croaks", "frogs are croaking", "a frog is croaking loudly", "frogs croak in a pond"),
    "glass_breaking": _c(r"shatter|smash|glass (?:\w+ )?(?:break|broke)|(?:break|broke)\w* (?:\w+ )?glass", "glass breaks", "glass is shattering", "a glass shatters on the floor", "breaking glass"),
    "hand_saw": _c(r"(?:hand ?)?saw(?:s|ing)?\b(?<!chainsaw)|sawing", "someone is sawing wood", "a hand saw cuts through wood", "sawing back and forth", "a person saws a piece of wood"),
    "helicopter": _c(r"helicopter|chopper|rotor|propeller", "a helicopter flies overhead", "a helicopter is flying", "helicopter blades spin", "a helicopter hovers nearby"),
    "hen": _c(r"hens?\b|chickens?\b|cluck", "a hen clucks", "chickens are clucking", "a chicken clucks repeatedly", "hens cluck in a farmyard"),
    "insects": _c(r"insects?\b|bees?\b|fl(?:y|ies) buzz|buzz(?:es|ing)?\b.*(?:fly|flies|insect|bee)|mosquito|bugs?\b|wasp|buzz", "an insect is buzzing", "a fly buzzes around", "bees buzz loudly", "insects buzzing"),
    "keyboard_typing": _c(r"typ(?:e|es|ing)\b|keyboard|typewriter|keys? (?:are )?(?:being )?press", "someone is typing on a keyboard", "a person types on a computer keyboard", "typing on a keyboard", "keyboard keys are being pressed"),
    "laughing": _c(r"laugh|giggl|chuckl", "a person is laughing", "people laugh", "someone laughs loudly", "a man laughs and giggles"),
    "mouse_click": _c(r"click|mouse\b", "a computer mouse is clicked", "a mouse clicks", "someone clicks a mouse", "clicking of a computer mouse"),
    "pig": _c(r"pigs?\b|oink|snort|grunt|hog", "a pig oinks", "pigs are oinking", "a pig grunts and snorts", "a pig is snorting"),
    "pouring_water": _c(r"pour|fill(?:s|ing|ed)?\b|water (?:is )?(?:being )?(?:pour|run)", "water is poured into a glass", "someone pours water", "a liquid is being poured", "water pours into a cup"),
    "rain": _c(r"rain", "rain is falling", "heavy rain falls", "rain falls on a roof", "it is raining"),
    "rooster": _c(r"rooster|cockerel|crowing|cock-a", "a rooster crows", "a rooster is crowing", "a rooster crows loudly", "a rooster crowing in the morning"),
    "sea_waves": _c(r"waves?\b|ocean|sea\b|surf\b|shore|beach", "ocean waves crash on the shore", "waves are crashing", "the sea washes onto the beach", "waves break on a beach"),
    "sheep": _c(r"sheep|goats?\b|lambs?\b|baa|bleat", "a sheep bleats", "sheep are bleating", "a goat bleats loudly", "a lamb is bleating"),
    "siren": _c(r"sirens?\b|ambulance|police|fire ?truck|emergency", "a siren wails", "an emergency vehicle siren sounds", "a police siren is blaring", "an ambulance passes with its siren on"),
    "sneezing": _c(r"sneez", "a person sneezes", "someone is sneezing", "a man sneezes loudly", "a woman sneezes"),
    "snoring": _c(r"snor(?:e|es|ing)\b", "a person is snoring", "someone snores loudly", "a man snores while sleeping", "snoring"),
    "thunderstorm": _c(r"thunder|lightning|storm", "thunder rumbles", "thunder roars during a storm", "a thunderstorm with rolling thunder", "a clap of thunder"),
    "toilet_flush": _c(r"toilet|flush", "a toilet is flushed", "a toilet flushes", "a toilet flushing", "someone flushes a toilet"),
    "train": _c(r"trains?\b|railroad|railway|locomotive|tracks\b", "a train passes by", "a train is moving on the tracks", "a train rolls along the railway", "a train passes and blows its whistle"),
    "vacuum_cleaner": _c(r"vacuum|hoover", "a vacuum cleaner is running", "someone vacuums the floor", "a vacuum cleaner hums loudly", "a vacuum is turned on"),
    "washing_machine": _c(r"wash(?:ing|er)\b|washing machine|laundry|dryer", "a washing machine is running", "a washing machine spins", "a washer churns clothes", "a washing machine hums"),
    "water_drops": _c(r"drip|drops?\b|droplet|trickl", "water is dripping", "water drops fall", "drops of water drip slowly", "water drips into a sink"),
    "wind": _c(r"wind\b|winds\b|windy|gust|breeze", "wind is blowing", "strong wind blows", "the wind howls", "wind blows hard"),
    "speech": _c(r"sp(?:eak|eech|oke)|talk|says|voice|word|convers|narrat", "a person is speaking", "someone talks", "a voice says a few words", "a person speaks clearly"),
    "speech_man": _c(r"(?:man|male|men|guy)\b.*(?:sp(?:eak|eech|oke)|talk|says|voice)|(?:speech|voice|talk\w*).*\b(?:man|male)\b|m[ae]n\b.*(?:narrat|convers)", "a man is speaking", "a man talks", "a male voice speaks", "an adult man speaks"),
    "speech_woman": _c(r"(?:woman|female|women|lady|girl)\b.*(?:sp(?:eak|eech|oke)|talk|says|voice)|(?:speech|voice|talk\w*).*\b(?:woman|female)\b", "a woman is speaking", "a woman talks", "a female voice speaks", "an adult woman speaks"),
    "music": _c(r"music|song\b|melod|tune\b|orchestra|instrument|band\b", "music is playing", "instrumental music plays", "an orchestra plays music", "a melody is played"),
    "piano": _c(r"piano", "a piano is played", "someone plays the piano", "piano music plays", "a piano melody"),
    "guitar": _c(r"guitar", "a guitar is played", "someone plays a guitar", "guitar music plays", "a guitar is strummed"),
    "air_conditioner": _c(r"air ?condition|ventilat|(?:fan|blower)\b", "an air conditioner hums", "an air conditioner is running", "a fan blows steadily", "the steady hum of a ventilation system"),
    "children_playing": _c(r"(?:children|kids)\b.*(?:play|shout|yell|scream|laugh|talk)|playground|school ?yard", "children are playing", "children play and shout outside", "kids yell and laugh on a playground", "a group of children is playing"),
    "drilling": _c(r"drill(?!.*hammer)", "a drill is running", "someone drills into a wall", "an electric drill whirs", "a power drill is used"),
    "gun_shot": _c(r"gun ?(?:shot|fire)|shots? (?:are |is )?fired|(?:rifle|pistol|shotgun|machine gun|gun)s?\b", "a gun is fired", "a gunshot rings out", "gunshots are fired", "someone shoots a gun"),
    "jackhammer": _c(r"jack ?hammer|pneumatic", "a jackhammer is pounding", "a jackhammer breaks concrete", "a jackhammer hammers rapidly", "construction work with a jackhammer"),
    "street_music": _c(r"street (?:music|perform)|busk", "music is played in the street", "street musicians play for a crowd", "a band plays outdoors while people talk", "a street performer plays music"),
    **{f"{genre}_music": _c("", f"{genre} music is playing", f"a {genre} song plays", *captions) for genre, captions in {
        "blues": ("a slow blues with a guitar", "a blues singer sings with a guitar"),
        "classical": ("an orchestra plays classical music", "violins and a piano play softly"),
        "country": ("a country singer sings with a guitar", "a country band plays"),
        "disco": ("disco music with a steady beat", "a dance song with a strong beat plays"),
        "hiphop": ("a man raps over a beat", "rap music with a heavy beat plays"),
        "jazz": ("a jazz band plays", "a saxophone and a piano play jazz"),
        "metal": ("loud distorted guitars and drums play", "heavy metal music with a screaming singer"),
        "pop": ("a singer sings a pop song", "upbeat pop music with singing plays"),
        "reggae": ("a reggae song with a relaxed beat", "reggae music with singing plays"),
        "rock": ("a rock band plays guitars and drums", "rock music with electric guitars plays"),
    }.items()},
    **{f"{feeling}_{person}_speaks": _c("", *(c.format(person) for c in captions)) for person in ("man", "woman") for feeling, captions in {
        "neutral": ("a {} speaks in a plain voice", "a {} says a sentence", "a {} speaks evenly"),
        "calm": ("a {} speaks calmly", "a calm {} speaks", "a {} talks in a quiet and calm voice"),
        "happy": ("a {} speaks happily", "a happy {} speaks", "a {} talks in a cheerful voice"),
        "sad": ("a {} speaks sadly", "a sad {} speaks", "a {} talks in a sorrowful voice"),
        "angry": ("a {} speaks angrily", "an angry {} speaks", "a {} shouts in anger"),
        "fearful": ("a {} speaks fearfully", "a frightened {} speaks", "a {} talks in a trembling voice"),
        "disgusted": ("a {} speaks with disgust", "a disgusted {} speaks", "a {} talks in a disgusted voice"),
        "surprised": ("a {} speaks with surprise", "a surprised {} speaks", "a {} exclaims in surprise"),
    }.items()},
}  # fmt: skip

VOICES = ("speech", *(name for name in SOUND_CLASSES if name.startswith("speech_") or name.endswith("_speaks")))
MUSIC = ("music", "piano", "guitar", *(name for name in SOUND_CLASSES if name.endswith("_music")))
CITY = ("air_conditioner", "children_playing", "drilling", "gun_shot", "jackhammer")
ESC50 = tuple(name for name in SOUND_CLASSES if name not in (*VOICES, *MUSIC, *CITY))
