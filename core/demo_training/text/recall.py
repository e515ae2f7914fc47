"""Questions about the chat itself: its facts, questions and answers so far."""

from __future__ import annotations

from .chat import Chat, Exchange
from .wording import invented_word, phrase, sentence, words
from .world import CAPITALS

_NAMES = words(
    """Ann Anna Ben Bob Carla Carlos Clara Dan Daniel David Eva Emma Emil Felix Fatima Finn George
    Grace Hans Hannah Henry Ida Ian Ivan Jack Jane Jim Joe John Julia Karl Kate Kim Laura Leo Lena
    Lisa Lucy Luis Maria Mark Martin Max Mia Mike Mina Nina Noah Nora Olga Oliver Omar Oscar Pablo
    Paul Paula Peter Petra Rita Robert Rosa Ruth Sam Sara Sofia Simon Tom Tim Tina Thomas Uma Vera
    Victor Walter Wendy Will Yuki Yusuf Zoe Alex Alice Amir Arthur Aisha Bella Chris Diego Elena
    Erik Gina Hugo Ines Jonas Katya Liam Marta Nadia Otto Priya Quinn Ravi Stella Theo Ursula
    Vikram Wei Xenia Yara Zara"""
)
_STARTS = words("Ka Lo Mi Ra Te Zu Bri Do El Fa Ga Ho Je Na Pe Sha Vo Wi Xa Yo Be Cla Sta An Or Tu")
_MIDDLES = ("ra", "li", "mo", "ne", "vi", "ta", "do", "lo", "be", "ku", "", "", "")
_ENDS = words("n s ra la k ne ko ria mo l x na tin ber dan sa th")
_TASTES = ("red", "blue", "green", "yellow", "purple", "orange", "black", "white", "pink", "brown")
_PETS = ("dog", "cat", "horse", "bird", "rabbit", "hamster", "fish", "turtle", "parrot", "snake")


def _some_name(chat: Chat) -> str:
    """A known first name, or one that nobody has, so that names are copied, not learned."""
    rng = chat.rng
    if rng.random() < 0.4:
        return rng.choice(_NAMES)
    return rng.choice(_STARTS) + rng.choice(_MIDDLES) + rng.choice(_ENDS)


def tell_name(chat: Chat) -> Exchange:
    """My name is Ann."""
    name = _some_name(chat)
    pattern = (
        f"[my name is|I am|I'm|call me|people call me|my name's|hi, I am|hello, my name is] {name}"
    )
    question = sentence(chat.rng, pattern, ".")
    if name not in question:  # typed in lower case: the answer copies what was typed
        name = name.lower()
    if name not in question:  # typed with a typo
        question = f"my name is {name}"
    chat.told["name"] = name
    return Exchange(question, f"Nice to meet you, {name}!", "", "told")


def tell_name_and_home(chat: Chat) -> Exchange:
    """I am Ann and I live in France."""
    name, home = _some_name(chat), chat.rng.choice(list(CAPITALS))
    chat.told.update(name=name, home=home)
    question = phrase(
        chat.rng,
        f"[my name is|I am|I'm|hi, I am] {name} [and I live in|and I am from|from] {home}[.|]",
    )
    answer = f"Nice to meet you, {name} from {home}!"
    return Exchange(question, answer, "", "home", home)


def echo(chat: Chat) -> Exchange:
    """Say banana."""
    rng = chat.rng
    said = " ".join(
        invented_word(rng) if rng.random() < 0.7 else rng.choice(_NAMES)
        for _ in range(rng.choice((1, 1, 2, 3)))
    )
    asked = phrase(rng, "[say|please say|repeat|repeat after me:|can you say|now say]")
    return Exchange(f"{asked} {said}", said, "", "talk")


def tell_taste(chat: Chat) -> Exchange:
    """My favorite color is blue."""
    colour = chat.told["colour"] = chat.rng.choice(_TASTES)
    pattern = (f"[my [favorite|favourite] [color|colour] is|I like the color|I love the color|"
               f"the color I like [best|most] is] {colour}")  # fmt: skip
    return Exchange(sentence(chat.rng, pattern, "."), f"A good choice, {colour} is a fine color.",
                    "", "told")  # fmt: skip


def tell_pet(chat: Chat) -> Exchange:
    """I have a dog."""
    pet = chat.told["pet"] = chat.rng.choice(_PETS)
    pattern = f"[I have|I've got|I own|I got|we have|at home I have] a {pet}"
    answer = f"How nice, I hope your {pet} is well."
    return Exchange(sentence(chat.rng, pattern, "."), answer, "", "told")


_ASKED_BACK = {
    "name": (("[what is|what's|whats|do you know|do you remember|tell me|can you say] my name|"
             "who am I|[how|what] am I called|what did I say my name was"),
             "Your name is {}.", "You have not told me your name."),
    "colour": (("[what is|what's|tell me|do you know|do you remember] my [favorite|favourite] "
               "[color|colour]|[which|what] color do I like"),
               "Your favorite color is {}.", "You have not told me your favorite color."),
    "pet": ("[what|which] [pet|animal] do I have|do I have a pet|[what is|do you remember] my pet",
            "You have a {}.", "You have not told me about a pet."),
    "home": (("where [do I live|am I from|do I come from|am I]|[which|what] country [do I live in|"
             "am I from]|do you know where I live"),
             "You told me {}.", "You have not told me where you live."),
}  # fmt: skip


def ask_back(chat: Chat) -> Exchange:
    """What is my name?"""
    known = [key for key in _ASKED_BACK if key in chat.told]
    ask_known = known and chat.rng.random() < 0.85
    key = chat.rng.choice(known if ask_known else list(_ASKED_BACK))
    pattern, answer, unknown = _ASKED_BACK[key]
    reply = answer.replace("{}", chat.told[key]) if key in chat.told else unknown
    country = chat.told.get("home") if key == "home" else None
    return Exchange(sentence(chat.rng, f"[{pattern}]"), reply, "", "home" if country else "told",
                    country)  # fmt: skip


def first_question(chat: Chat) -> Exchange:
    """What was my first question about?"""
    pattern = chat.rng.choice((
        "what was my first question[ about|]",
        "what did I ask [you |][first|at first|in the beginning]",
        "what was the first thing I asked[ you|]", "[do you remember|tell me] my first question",
        "what was my very first question[ about|]", "what did we talk about first",
    ))  # fmt: skip
    return Exchange(
        sentence(chat.rng, pattern), f"You first asked about {chat.topics[0]}.", "", "recall"
    )


def last_question(chat: Chat) -> Exchange:
    """What did I just ask?"""
    pattern = chat.rng.choice((
        "what did I just ask[ you|]", "what was my [last|previous] question[ about|]",
        "what did I ask [last|before|just now]", "[do you remember|tell me] my last question",
        "what was my question[ again|]",
    ))  # fmt: skip
    return Exchange(
        sentence(chat.rng, pattern), f"You last asked about {chat.topics[-1]}.", "", "recall"
    )


def repeat(chat: Chat) -> Exchange:
    """Can you repeat that?"""
    pattern = chat.rng.choice((
        "[can|could] you [repeat|say] that[ again|]", "[repeat|say] that again",
        "[please |]repeat that",
        "[again please|once more|again|pardon|say again|one more time]", "what did you say",
    ))  # fmt: skip
    last = chat.exchanges[-1]
    return Exchange(sentence(chat.rng, pattern), last.answer, "", last.kind, last.subject)
