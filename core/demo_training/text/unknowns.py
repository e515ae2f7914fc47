"""Questions that the model cannot answer, of many kinds, so that it learns to say so."""

from __future__ import annotations

from .chat import Chat, Exchange
from .wording import invented_word, phrase, sentence, words

_THINGS = words(
    """football tennis chess music dinosaurs volcanoes rain wine cheese bread pizza physics
    chemistry biology history politics philosophy love money time gravity electricity
    magnets rainbows glass paper steel cars trains planes rockets satellites robots phones
    television radio books poems operas paintings films games economics inflation taxes law
    medicine cancer vitamins sleep dreams yoga swimming cooking gardening roses trees whales
    sharks eagles dragons unicorns vampires ghosts pirates knights castles pyramids bridges
    towers tunnels deserts jungles islands rivers lakes clouds storms stars galaxies comets
    quarks photons atoms molecules proteins viruses bacteria evolution democracy religion
    Buddhism algebra geometry calculus statistics topology encryption blockchain Bitcoin
    Java Rust Haskell Linux Windows Excel Photoshop"""
)
_PEOPLE = words(
    """Napoleon Einstein Newton Mozart Beethoven Shakespeare Cleopatra Caesar Darwin Picasso Goethe
    Columbus Gandhi Lincoln Washington Curie Tesla Edison Aristotle Plato Socrates Homer
    Dante Galileo Kepler Bach Elvis Madonna Messi Pele Obama Turing Gauss Euler"""
)
_NOUNS = words(
    """house bicycle table window garden restaurant hotel shop doctor teacher school church river
    boat phone camera shirt shoe hat coat dress ring clock lamp chair bed door key wallet
    ticket letter movie song picture recipe cake soup salad sandwich dinner party wedding
    holiday beach park museum station airport bus street bridge town village neighbor sister
    brother cousin boss lawyer dentist printer keyboard screen mouse password website email
    file folder game team player coach horse"""
)
_VERBS = words(
    """repair build paint clean wash buy sell find open close cook bake cut draw write read carry
    move fix sew plant feed train teach call visit book order send pay lend lose hide break
    burn melt sing play record print copy delete rename improve measure weigh count sort
    stop start drive park"""
)
_UNKNOWN = (
    "[what is|what's|what are|explain|tell me about|how [does|do]|do you know about] {t}[ work|]",
    "[explain|tell me about|what do you know about|what do you think about] {t}",
    "what is {t}", "what are {t}",
    "who [is|was] {p}", "when was {p} born", "[where|when] did {p} [live|die]",
    "what did {p} [do|write|invent|discover]", "how old is {p}",
    "who invented {t}", "[why|when] [do|did] people [like|make|invent] {t}",
    "who won the [world cup|election|match|game|last war|gold medal][ in {y}|]",
    "what happened in {y}", "who was [king|president] in {y}",
    "what is the weather [like|today|tomorrow|in my town]", "will it rain [today|tomorrow]",
    "what time is it", "what day is it today", "what is the date[ today|]",
    "write [me |][a|an|a short] [poem|story|song|essay|letter|book] about {t}",
    "write [me |]a [program|function|script][ in Python| in Java| that sorts a list|]",
    "translate {t} into [French|German|Latin|Spanish|Greek]",
    "how do I [cook rice|bake a cake|fix my car|lose weight|learn piano|make money|grow tomatoes]",
    ("how [tall|old|heavy|far|deep|expensive] is [the Eiffel tower|the moon|Mount Everest|the sun|"
    "a giraffe|a train|the ocean|a house]"),
    "what is the meaning of life", "what should I [eat|buy|wear|read|do] [today|tonight|tomorrow]",
    "[is there life on Mars|do aliens exist|is there a god|what is love|what is the best film]",
    "what is the price of {t}", "how much [does|do] {t} cost", "where can I buy {t}",
    "[summarize|recommend] [a book|the news|a film|this article]", "what is my [age|birthday]",
    "what is the [square root of {y}|population of {p}|best {t}|speed of light|value of pi]",
    "can you [sing|dance|cook|see me|hear me|draw {t}|search the web|open a file|play chess]",
    "how do I {v} [a|my|the] {n}", "how [can|do|should] [I|you|we] {v} [a|my|this] {n}",
    "where is [my|the] {n}", "where [is|can I find] the [best|nearest|cheapest] {n}[ in town|]",
    "can you {v} [a|my|this] {n}[ for me|]", "do you like [{t}|my {n}|{n}s]",
    "why is the {n} [so |][old|big|broken|expensive|late]", "who [makes|sells|owns] [{t}|the {n}]",
    "what is the [best|worst|most famous|cheapest|oldest] {n}[ in the world| here| of all|]",
    "how [big|large|long|fast|good] is [the|a|my] {n}", "how many {n}s [are there|do you have]",
    "when [does|did] the {n} [start|end|open|close|arrive]", "what [happened to|is in] the {n}",
    "tell me [something |]about [the|my] {n}", "please {v} [a|the|my] {n}",
    "how many people live in {n}s", "is {t} [good|bad|hard|true|fun]", "should I {v} [a|my] {n}",
    "who is the president[ of France| of the USA|]", "what are the news today",
)  # fmt: skip
UNKNOWN_ANSWER = "I do not know that, I am only a toy."
_ANSWER = "I do not know that, I am only a toy."


def unknown(chat: Chat) -> Exchange:
    """Who was Napoleon?"""
    rng = chat.rng
    pattern = phrase(rng, rng.choice(_UNKNOWN))
    fillings = {"{t}": _THINGS, "{p}": _PEOPLE, "{n}": _NOUNS, "{v}": _VERBS}
    for mark, choices in fillings.items():
        word = rng.choice(choices) if rng.random() < 0.75 else invented_word(rng)
        pattern = pattern.replace(mark, word)
    pattern = pattern.replace("{y}", str(rng.randint(1000, 2024)))
    return Exchange(sentence(rng, pattern), _ANSWER, "something I do not know", "unknown")
