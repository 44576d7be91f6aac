"""The words by which people call the 80 everyday classes of COCO's boxes, written by hand.

A line is `class: words; vague words`. A vague word may mean the class ("fruit", a banana), so it counts as naming it,
but it claims nothing that could be wrong. Plurals follow from the rule below, irregular ones are written out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

TABLE = """
person: person, people, man, men, woman, women, boy, girl, child, children, kid, toddler, infant, lady, guy,
    gentleman, gentlemen, teenager, crowd, player, rider, skier, snowboarder, snow boarder, surfer, skateboarder, skate
    boarder, skater, batter, catcher, pitcher, umpire, bicyclist, cyclist, biker, motorcyclist, pedestrian, policeman,
    policemen, police officer, officer, fireman, firemen, firefighter, soldier, chef, waiter, waitress, student,
    businessman, businessmen, bride, groom, mother, mom, father, dad, daughter, son, brother, sister, cowboy, jockey,
    worker, tourist, spectator, audience, athlete, swimmer, hiker; he, she, his, her, him, group, team, driver, hand,
    face, arm, leg, feet, foot, couple, baby, adult, passenger, someone, somebody, friend, family, cook
bicycle: bicycle, bicyclist, bicycling, tricycle; bike, cyclist, biker, cycle, biking
car: car, automobile, sedan, taxi, taxi cab, minivan, suv, convertible, limousine, limo, station wagon, hatchback,
    sports car, race car, cop car, police car; vehicle, van, cab, jeep
motorcycle: motorcycle, motorbike, motor bike, motor cycle, moped, motorcyclist, dirt bike, vespa; bike, scooter,
    biker, cycle, harley, motor scooter
airplane: airplane, plane, aeroplane, aircraft, airliner, jetliner, jumbo jet, fighter jet, biplane, seaplane; jet,
    jets, boeing, glider
bus: bus, busses, double decker, double-decker, minibus, school bus; trolley, tram, vehicle, streetcar
train: train, locomotive, steam engine, freight train, subway train, train car; tram, trolley, subway, engine,
    streetcar, metro, monorail
truck: truck, lorry, lorries, pickup, pick up truck, pickup truck, fire truck, firetruck, fire engine, semi truck,
    tractor trailer, tow truck, dump truck, food truck; van, vehicle, trailer, semi, jeep, tractor, ambulance
boat: boat, ship, sailboat, sail boat, rowboat, row boat, canoe, kayak, yacht, ferry, ferries, speedboat,
    motorboat, fishing boat, house boat, houseboat, tugboat, gondola, barge; vessel, raft
traffic light: traffic light, stoplight, stop light, traffic signal, streetlight, street light; signal, light, red
    light, green light, crosswalk signal
fire hydrant: fire hydrant, hydrant; fire plug, fireplug
stop sign: stop sign; sign, street sign, traffic sign, road sign
parking meter: parking meter; meter
bench: bench, park bench; seat
bird: bird, duck, duckling, goose, geese, gull, seagull, pigeon, parrot, owl, swan, pelican, eagle, hawk, sparrow,
    crow, flamingo, peacock, penguin, ostrich, ostriches, heron, hummingbird, rooster, parakeet, cockatoo, dove, robin,
    finch, falcon, vulture, stork, crane bird, egret, woodpecker, ducklings; chicken, hen, turkey, flock, chick, crane,
    cardinal
cat: cat, kitten, kitty, kitties, tabby, feline, kittie; pet, animal, calico, siamese
dog: dog, puppy, puppies, doggy, doggie, canine, poodle, dachshund, terrier, bulldog, labrador, golden retriever,
    german shepherd, beagle, chihuahua, pug, sheepdog, sheep dog, collie, dalmatian, dalmation, pup; pet, animal,
    retriever, lab, husky
horse: horse, pony, ponies, foal, stallion, mare, colt, racehorse; animal, horse drawn carriage, mule, donkey
sheep: sheep, lamb, ewe, ram; goat, animal, flock, herd, livestock
cow: cow, cattle, bull, oxen, ox, longhorn; steer, calf, calves, animal, herd, bison, buffalo, yak, livestock
elephant: elephant; animal, herd, calf
bear: bear, polar bear, grizzly, grizzlies, brown bear, black bear, grizzly bear, bear cub, panda, panda bear; cub,
    animal
zebra: zebra; animal, herd
giraffe: giraffe; animal, herd
backpack: backpack, back pack, book bag, knapsack, rucksack; bag, pack, luggage
umbrella: umbrella, parasol
handbag: handbag, hand bag, purse, tote bag, pocketbook; bag, tote, luggage
tie: tie, necktie, neck tie, bow tie, bowtie
suitcase: suitcase, suit case, briefcase; luggage, bag, baggage
frisbee: frisbee, frisbie, flying disc, flying disk; disc, disk
skis: ski, skis, skiis, skier, skiier, skiing; skies
snowboard: snowboard, snow board, snowboarder, snowboarding, snow boarder, snow boarding; board, boarder
sports ball: soccer ball, tennis ball, basketball, football, volleyball, baseball ball, sports ball, beach ball,
    softball; ball
kite: kite; kite flying, kiteboarding, kite boarding
baseball bat: bat, baseball bat; batter
baseball glove: baseball glove, mitt, catcher mitt, catchers mitt, baseball mitt; glove
skateboard: skateboard, skate board, skateboarder, skateboarding, skate boarder, skate boarding, longboard; board,
    skater, skate
surfboard: surfboard, surf board, surfer, surfing, boogie board, paddle board, paddleboard; board, bodyboard,
    wakeboard
tennis racket: racket, racquet, tennis racket, tennis racquet, raquet
bottle: bottle, wine bottle, beer bottle, water bottle
wine glass: wine glass, wineglass, goblet, champagne glass; glass, stemware
cup: cup, mug, coffee cup, teacup, tea cup, coffee mug; coffee, tea, glass, drink, beverage, saucer, latte,
    cappuccino, shot glass
fork: fork; utensil, silverware, cutlery
knife: knife, knives; utensil, silverware, cutlery, blade
spoon: spoon; utensil, silverware, cutlery, ladle, spatula
bowl: bowl; dish, container
banana: banana, plantain; fruit
apple: apple; fruit
sandwich: sandwich, hamburger, burger, cheeseburger, panini, hoagie, blt, sub sandwich, grilled cheese; sub, wrap
orange: oranges, tangerine, mandarin, clementine, orange slice, sliced orange, orange fruit, orange half, orange
    halves; orange, citrus, fruit, grapefruit, an orange
broccoli: broccoli, brocolli, broccolli, brocoli; vegetable, veggie, greens, cauliflower
carrot: carrot; vegetable, veggie
hot dog: hot dog, hotdog, corn dog, chili dog, frankfurter; sausage, bratwurst, wiener, kielbasa
pizza: pizza, pepperoni pizza; flatbread
donut: donut, doughnut; pastry, pastries, bagel, dessert, cruller
cake: cake, carrot cake, cupcake, cheesecake, birthday cake, wedding cake, brownie; dessert, desert, pastry, pastries,
    frosting, icing
chair: chair, armchair, arm chair, recliner, rocking chair, wheelchair, wheel chair, lawn chair, office chair;
    stool, seat, furniture
couch: couch, sofa, loveseat, love seat, couches, futon; furniture, living room, sectional
potted plant: potted plant, house plant, houseplant, potted tree, potted flower; plant, flower, pot, planter
bed: bed, mattress, mattresses, bunk, bunkbed, bunk bed; bedroom, bedding
dining table: dining table, dining room table, dinner table, kitchen table; table, dining room, desk
toilet: toilet, urinal, commode, toilet seat, bidet; bathroom, restroom, rest room, washroom, stall, outhouse,
    lavatory
tv: tv, television, tv screen, tv set, televison; monitor, screen
laptop: laptop, lap top, notebook computer, laptop computer, macbook; computer, notebook, mac, pc
mouse: mouse, computer mouse, mice
remote: remote, remote control, remote controller, wii remote, controller, game controller; wiimote
keyboard: keyboard, key board
cell phone: cell phone, cellphone, phone, smartphone, smart phone, iphone, mobile phone, flip phone, blackberry;
    mobile, device, cell, telephone
microwave: microwave, microwave oven; kitchen, appliance
oven: oven, stove, stovetop, stove top, burner; kitchen, appliance, cooker, range
toaster: toaster, toaster oven; kitchen, appliance
sink: sink, wash basin, washbasin, faucet; kitchen, bathroom, restroom, basin, washroom
refrigerator: refrigerator, fridge, refridgerator, freezer, ice box; kitchen, appliance
book: book, notebook, magazine, bookshelf, bookshelves, bookcase, novel, textbook; library, shelf, shelves
clock: clock, clock tower, alarm clock, clocktower, grandfather clock, clock face; watch, big ben, timepiece
vase: vase, flower vase; flower, bouquet, pottery, rose, urn
scissors: scissors, scissor, shears
teddy bear: teddy bear, teddy, teddies, stuffed bear, toy bear, stuffed teddy bear, teddybear, stuffed animal,
    plush bear; stuffed, toy, plush, bear
hair drier: hair dryer, hair drier, blow dryer, hairdryer, blow drier, hairdrier; dryer, drier
toothbrush: toothbrush, tooth brush, toothbrushes
"""

# expressions with a table word in them that name no object
NO_OBJECT = """
    toilet paper, bus stop, bus station, bus driver, truck driver, train driver, boat dock, boat house, dog house,
    bird house, bird feeder, bird cage, bird bath, cat food, dog food, car seat, car window, car door, cable car,
    table tennis, tie dye, tie dyed, phone booth, pay phone, telephone pole, cup holder, bed of, river bed, truck bed,
    book store, apple juice, orange juice, banana peel, baseball cap, baseball hat, tennis shoe, soccer field,
    baseball field, kite string, knife block, horse trailer, ski lift, ski lodge, ski resort, ski pole, ski boot,
    clock radio, oven mitt, mouse pad, chair lift, wine cellar, wine rack, tv stand, hot dog stand, hot dog bun"""


@dataclass(frozen=True)
class Mention:
    """Words of a caption that may name objects."""

    start: int  # of its first word
    end: int  # behind its last word
    names: frozenset[str]  # classes that these words may mean
    claims: bool  # whether one of those must be in the picture for the words to be right: False if they are vague


def plural(word: str) -> str:
    """The regular plural: buses, benches, puppies, dogs."""
    if word.endswith(("s", "x", "ch", "sh")):
        return word + "es"
    if word.endswith("y") and word[-2] not in "aeiou":
        return word[:-1] + "ies"
    return word + "s"


def mentions(words: Sequence[str]) -> list[Mention]:
    """What a caption's words (lower case) name, from left to right.

    The longest expression counts: a hot dog is no dog.
    """
    named, start = [], 0
    while start < len(words):
        for length in range(min(_LONGEST, len(words) - start), 0, -1):
            phrase = tuple(words[start : start + length])
            if phrase in _PHRASES:
                names, claims = _PHRASES[phrase]
                if names:
                    named.append(Mention(start, start + length, names, claims))
                start += length
                break
        else:
            start += 1
    return named


def _expressions(text: str) -> list[tuple[str, ...]]:
    """Singular and plural of each expression of a list."""
    expressions = []
    for expression in filter(None, (" ".join(e.split()) for e in text.replace("-", " ").split(","))):
        *before, last = expression.split()
        expressions += [(*before, last), (*before, plural(last))]
    return expressions


def _read_table() -> tuple[tuple[str, ...], dict[tuple[str, ...], tuple[frozenset[str], bool]]]:
    """The classes, and for each expression the classes it may mean and whether it claims one of them."""
    classes, names, clear = list[str](), dict[tuple[str, ...], set[str]](), set[tuple[str, ...]]()
    for line in TABLE.replace("\n    ", " ").strip().splitlines():
        name, _, text = line.partition(": ")
        words, _, vague = text.partition(";")
        classes.append(name)
        clear.update(_expressions(words))
        for phrase in _expressions(f"{words}, {vague}"):
            names.setdefault(phrase, set()).add(name)
    for phrase in _expressions(NO_OBJECT.replace("\n", " ")):
        names.setdefault(phrase, set())
    return tuple(classes), {phrase: (frozenset(meant), phrase in clear) for phrase, meant in names.items()}


CLASSES, _PHRASES = _read_table()
_LONGEST = max(map(len, _PHRASES))
