"""Questions about countries, capitals and continents."""

from __future__ import annotations

from .chat import Chat, Exchange
from .wording import sentence
from .world import CAPITALS, CONTINENTS, SHORT_NAMES

_COUNTRIES = tuple(CAPITALS)
_MADE_UP = ("Atlantis", "Narnia", "Mordor", "Wonderland", "Gondor", "Utopia", "the Moon", "Mars",
            "Hogwarts", "Oz", "Neverland", "Lilliput", "Rohan", "Westeros", "Zamunda", "Laputa",
            "the ocean", "my house", "Bordonia", "Kravistan", "Melonia", "Tirwald")  # fmt: skip


def _country(chat: Chat) -> str:
    """A country other than the one just talked about."""
    last = chat.exchanges[-1].subject if chat.exchanges else None
    return chat.rng.choice([country for country in _COUNTRIES if country != last])


def _ask(chat: Chat, country: str, pattern: str) -> str:
    """The pattern as a question, `{}` replaced by a name that people use for the country."""
    names = SHORT_NAMES.get(country, ())
    spoken = chat.rng.choice(names) if names and chat.rng.random() < 0.5 else country
    return sentence(chat.rng, pattern.replace("{}", spoken))


def _tell_capital(question: str, country: str) -> Exchange:
    answer = f"The capital of {country} is **{CAPITALS[country]}**."
    return Exchange(question, answer, f"the capital of {country}", "capital", country)


def _tell_continent(question: str, country: str) -> Exchange:
    answer = f"{country[0].upper()}{country[1:]} is in **{CONTINENTS[country]}**."
    return Exchange(question, answer, f"where {country} is", "continent", country)


def capital(chat: Chat) -> Exchange:
    """What is the capital of France?"""
    country = _country(chat)
    pattern = chat.rng.choice((
        "[what is|what's|whats|tell me|name|give me] the capital [city |]of {}",
        "what is the capital [city |]of {}",
        "[do you know|can you tell me] [the capital of {}|what the capital of {} is]",
        "[which|what] city is the capital of {}",
        "[what|which] [city |]is {}'s capital[ city|]",
        "[the |]capital [city |]of {}",
        "[capital {}|{} capital]",
        "[I need|I want to know|I am looking for|I forgot|remind me of|find] the capital of {}",
        "[can|could|would] you [name|tell me|give me] the capital[ city|] of {}",
        "[how is|what do you call] the capital of {}[ called|]",
        "I [am travelling|go|fly] to {}. What is [its|the] capital",
    ))  # fmt: skip
    return _tell_capital(_ask(chat, country, pattern), country)


def continent(chat: Chat) -> Exchange:
    """Where is France?"""
    country = _country(chat)
    pattern = chat.rng.choice((
        "where is {}[ located|]",
        "[on|in] [which|what] continent is {}",
        "[which|what] continent is {} [in|on]",
        "where [can I find|do I find|in the world is] {}",
        "[what|which] continent does {} belong to",
        "[tell me|do you know] where {} is",
    ))  # fmt: skip
    return _tell_continent(_ask(chat, country, pattern), country)


def country_of_capital(chat: Chat) -> Exchange:
    """Paris is the capital of which country?"""
    country = _country(chat)
    city = CAPITALS[country]
    pattern = chat.rng.choice((
        f"{city} is the capital of [which|what] country",
        f"[which|what] country has [the capital {city}|{city} as its capital]",
        f"[what|which] country is {city} the capital of",
        f"[in |][which|what] country is {city}[ in|]",
        f"where is {city}",
        f"of [which|what] country is {city} the capital",
    ))  # fmt: skip
    answer = f"{city} is the capital of **{country}**."
    return Exchange(sentence(chat.rng, pattern), answer, city, "city", country)


def unknown_place(chat: Chat) -> Exchange:
    """What is the capital of Narnia?"""
    place = chat.rng.choice(_MADE_UP)
    pattern = "[what is|what's|tell me|name] the capital [city |]of {}"
    answer = "I do not know that place, I am only a toy."
    return Exchange(_ask(chat, place, pattern), answer, place, "unknown")


def lives_in(chat: Chat) -> Exchange:
    """I live in France."""
    country = _country(chat)
    pattern = "[I live in|I am from|I'm from|I come from|my home is|I am in|I moved to] {}"
    chat.told["home"] = country
    answer = f"How nice! {country[0].upper()}{country[1:]} is in {CONTINENTS[country]}."
    question = sentence(chat.rng, pattern.replace("{}", country), ".")
    return Exchange(question, answer, "", "home", country)


def another_capital(chat: Chat) -> Exchange:
    """And of Italy?"""
    country = _country(chat)
    pattern = chat.rng.choice((
        "[and |][what about|how about] {}",
        "and [the one |]of {}",
        "and {}",
        "[what about|how about] [the one|that|the capital] of {}",
        "and for {}",
        "[now|the same for] {}",
        "and what is it for {}",
    ))  # fmt: skip
    return _tell_capital(_ask(chat, country, pattern), country)


def another_continent(chat: Chat) -> Exchange:
    """And where is Italy?"""
    country = _country(chat)
    pattern = "[and|what about|how about|and where is|and what about|and for|now] {}"
    return _tell_continent(_ask(chat, country, pattern), country)


def its_capital(chat: Chat) -> Exchange:
    """And what is its capital?"""
    country = str(chat.exchanges[-1].subject)
    pattern = chat.rng.choice((
        "[and |][what is|what's|whats|tell me|name] [its|the] capital[ city|][ there|]",
        "[and |]its capital[ city|]",
        "[and |]the capital",
        "[and |][which|what] city is [its|the] capital",
        "[do you know|and do you know|can you tell me] its capital",
        "what is the capital of [that|this] country",
    ))  # fmt: skip
    return _tell_capital(sentence(chat.rng, pattern), country)


def its_continent(chat: Chat) -> Exchange:
    """And where is that?"""
    country = str(chat.exchanges[-1].subject)
    pattern = chat.rng.choice((
        "[and |][on|in] [which|what] continent is [it|that|this|that country]",
        "[and |][which|what] continent is [it|that|this|that country] [in|on]",
        "[and |]where is [that country|this country|that|it]",
        "[and |][its|the|which|what] continent",
    ))  # fmt: skip
    return _tell_continent(sentence(chat.rng, pattern), country)
