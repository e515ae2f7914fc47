"""Small facts that the demo model learns by heart."""

from __future__ import annotations

# continent -> "country: capital"; names that take an article carry it.
_COUNTRIES = {
    "Europe": """France: Paris, Germany: Berlin, Italy: Rome, Spain: Madrid, Portugal: Lisbon,
        Austria: Vienna, Switzerland: Bern, Belgium: Brussels, the Netherlands: Amsterdam,
        Denmark: Copenhagen, Norway: Oslo, Sweden: Stockholm, Finland: Helsinki,
        Iceland: Reykjavik, Ireland: Dublin, the United Kingdom: London, Poland: Warsaw,
        the Czech Republic: Prague, Hungary: Budapest, Greece: Athens, Romania: Bucharest,
        Bulgaria: Sofia, Croatia: Zagreb, Serbia: Belgrade, Ukraine: Kyiv, Russia: Moscow,
        Estonia: Tallinn, Latvia: Riga, Lithuania: Vilnius, Slovenia: Ljubljana,
        Slovakia: Bratislava, Albania: Tirana, Malta: Valletta""",
    "Asia": """Japan: Tokyo, China: Beijing, India: New Delhi, South Korea: Seoul,
        Thailand: Bangkok, Vietnam: Hanoi, Indonesia: Jakarta, the Philippines: Manila,
        Malaysia: Kuala Lumpur, Pakistan: Islamabad, Bangladesh: Dhaka, Nepal: Kathmandu,
        Mongolia: Ulaanbaatar, Iran: Tehran, Iraq: Baghdad, Saudi Arabia: Riyadh,
        Turkey: Ankara, Israel: Jerusalem, Jordan: Amman, Lebanon: Beirut""",
    "Africa": """Egypt: Cairo, Morocco: Rabat, Algeria: Algiers, Tunisia: Tunis, Kenya: Nairobi,
        Ethiopia: Addis Ababa, Ghana: Accra, Nigeria: Abuja, Senegal: Dakar, Uganda: Kampala,
        Angola: Luanda, Namibia: Windhoek, Zambia: Lusaka, Madagascar: Antananarivo""",
    "North America": """the United States: Washington, Canada: Ottawa, Mexico: Mexico City,
        Cuba: Havana, Jamaica: Kingston, Panama: Panama City""",
    "South America": """Brazil: Brasilia, Argentina: Buenos Aires, Chile: Santiago, Peru: Lima,
        Colombia: Bogota, Venezuela: Caracas, Ecuador: Quito, Uruguay: Montevideo,
        Paraguay: Asuncion""",
    "Oceania": "Australia: Canberra, New Zealand: Wellington",
}


def _pairs(text: str) -> dict[str, str]:
    """`"a: b, c: d"` as a dictionary; line breaks count as blanks."""
    entries = (entry.split(":") for entry in " ".join(text.split()).split(","))
    return {key.strip(): value.strip() for key, value in entries}


CAPITALS = {c: city for text in _COUNTRIES.values() for c, city in _pairs(text).items()}
CONTINENTS = {c: continent for continent, text in _COUNTRIES.items() for c in _pairs(text)}
CONTINENT_NAMES = ("Africa", "Antarctica", "Asia", "Europe", "North America", "Oceania",
                   "South America")  # fmt: skip
SHORT_NAMES = {
    "the United Kingdom": ("the UK", "England", "Great Britain"),
    "the United States": ("the USA", "the US", "America"),
    "the Netherlands": ("Holland",),
    "the Czech Republic": ("Czechia",),
}

_OPPOSITES = _pairs(
    """big: small, hot: cold, up: down, day: night, fast: slow, old: young, light: dark,
    happy: sad, rich: poor, hard: soft, full: empty, open: closed, early: late, high: low,
    long: short, left: right, yes: no, good: bad, strong: weak, loud: quiet, clean: dirty,
    dry: wet, near: far, thick: thin, begin: end, true: false, win: lose, buy: sell, push: pull,
    first: last, inside: outside, always: never, easy: difficult, above: below, north: south,
    east: west, summer: winter, black: white, love: hate, friend: enemy,
    sweet: sour, war: peace, deep: shallow, wide: narrow, smooth: rough, brave: afraid"""
)
OPPOSITES = {**_OPPOSITES, **{second: first for first, second in _OPPOSITES.items()}}

COLORS = _pairs(
    """the sky: blue, grass: green, snow: white, coal: black, blood: red, a banana: yellow,
    an orange: orange, a lemon: yellow, a strawberry: red, a tomato: red, chocolate: brown,
    milk: white, an elephant: gray, the sun: yellow, a frog: green, a polar bear: white,
    a carrot: orange, a raven: black, the sea: blue, a flamingo: pink, a leaf: green,
    a cucumber: green, salt: white, gold: yellow, the night: black, a cherry: red,
    a pumpkin: orange, an aubergine: purple, a mouse: gray, a swan: white, lavender: purple"""
)
SOUNDS = _pairs(
    """dog: woof, cat: meow, cow: moo, sheep: baa, pig: oink, duck: quack, horse: neigh,
    lion: roar, bee: buzz, snake: hiss, frog: ribbit, owl: hoot, mouse: squeak,
    rooster: cock-a-doodle-doo, wolf: howl, bird: tweet"""
)
LEGS = _pairs(
    """dog: 4, cat: 4, spider: 8, ant: 6, bee: 6, bird: 2, horse: 4, cow: 4, human: 2, snake: 0,
    duck: 2, octopus: 8, fish: 0, beetle: 6, elephant: 4, chicken: 2"""
)
SIDES = _pairs("triangle: 3, square: 4, pentagon: 5, hexagon: 6, octagon: 8, rectangle: 4")
BABIES = _pairs(
    """dog: puppy, cat: kitten, cow: calf, horse: foal, sheep: lamb, duck: duckling, bear: cub,
    lion: cub, chicken: chick, frog: tadpole, goat: kid, pig: piglet"""
)
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
MONTHS = ("January", "February", "March", "April", "May", "June", "July", "August", "September",
          "October", "November", "December")  # fmt: skip
MONTH_DAYS = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten",
           "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen",
           "eighteen", "nineteen", "twenty")  # fmt: skip

# (patterns of the question, answer, what it was about)
SINGLE_FACTS = (
    ("how many days [are [there |]in|does|has] a week[ have|]", "A week has **7** days.",
     "the week"),
    ("how many months [are [there |]in|does] a year[ have|]", "A year has **12** months.",
     "the year"),
    ("how many hours [are [there |]in|does] a day[ have|]", "A day has **24** hours.", "the day"),
    ("how many minutes [are [there |]in|does] an hour[ have|]", "An hour has **60** minutes.",
     "the hour"),
    ("how many seconds [are [there |]in|does] a minute[ have|]", "A minute has **60** seconds.",
     "the minute"),
    ("how many days [are [there |]in|does] a year[ have|]",
     "A year has **365** days, a leap year 366.", "the year"),
    ("how many seasons [are there|does a year have|are in a year]",
     "A year has **4** seasons: spring, summer, autumn and winter.", "the seasons"),
    ("[name|list|tell me|what are|which are] the [four |]seasons",
     "The seasons are:\n\n- spring\n- summer\n- autumn\n- winter", "the seasons"),
    ("how many continents [are there|do you know|exist]", "There are **7** continents.",
     "the continents"),
    ("[name|list|tell me|what are|which are] the [seven |]continents",
     "The continents are:\n\n" + "\n".join(f"- {name}" for name in CONTINENT_NAMES),
     "the continents"),
    ("[name|list|tell me|what are|which are] the days of the week",
     "The days are " + ", ".join(DAYS[:-1]) + " and Sunday.", "the days of the week"),
    ("[name|list|tell me|what are|which are] the [twelve |]months[ of the year|]",
     "The months are " + ", ".join(MONTHS[:-1]) + " and December.", "the months"),
    ("[name|list|tell me|what are|give me] the primary [colors|colours]",
     "The primary colors are:\n\n- red\n- yellow\n- blue", "the primary colors"),
    ("[name|list|tell me|give me] [three|some|a few] [colors|colours]",
     "Some colors:\n\n- red\n- green\n- blue", "colors"),
    ("[name|list|tell me|give me] [three|some|a few] animals",
     "Some animals:\n\n- dog\n- cat\n- horse",
     "animals"),
    ("[name|list|tell me|give me] [three|some|a few] fruits",
     "Some fruits:\n\n- apple\n- banana\n- cherry", "fruits"),
    ("how many [letters are [there |]in|letters has] the alphabet",
     "The English alphabet has **26** letters.", "the alphabet"),
    ("how many fingers [does a hand have|are on a hand|do I have on one hand]",
     "A hand has **5** fingers.", "fingers"),
    ("how many wheels does a [car have|car usually have]", "A car has **4** wheels.", "cars"),
    ("how many wheels does a [bicycle|bike] have", "A bicycle has **2** wheels.", "bicycles"),
    ("what do bees make", "Bees make **honey**.", "bees"),
    ("what do cows [give|drink|eat]", "Cows eat grass, drink water and give **milk**.", "cows"),
    ("what is water made of|what is h2o", "Water is made of hydrogen and oxygen: **H2O**.",
     "water"),
    ("at what temperature does water boil|when does water boil", ("Water boils at **100** degrees "
     "Celsius."), "water"),
    ("at what temperature does water freeze|when does water freeze",
     "Water freezes at **0** degrees Celsius.", "water"),
    ("[which|what] planet do we live on|what is our planet called|what is the name of our planet",
     "We live on planet **Earth**.", "our planet"),
    ("[what|which] is the [largest|biggest] planet", ("The largest planet of our solar system is "
     "**Jupiter**."), "planets"),
    ("[what|which] is the [largest|biggest] animal", "The largest animal is the **blue whale**.",
     "animals"),
    ("[what|which] is the [tallest|highest] mountain", "The highest mountain is **Mount Everest**.",
     "mountains"),
    ("[what|which] is the [largest|biggest] ocean", "The largest ocean is the **Pacific**.",
     "oceans"),
)  # fmt: skip
