"""Questions about terms and flags, with what one asks next."""

from __future__ import annotations

from .chat import Chat, Exchange
from .flags import FLAGS, Flag
from .glossary import TERMS, Term
from .wording import phrase, sentence

_EXPLAIN = ("[what is|what's|whats|explain|define|describe] {}", "what is {}", "what is {}",
            "[what are|explain to me|please explain|tell me about|tell me what] {}",
            "what does {} [mean|do]", "[can|could|would] you explain {}[ to me|]",
            "what [do you know about|can you tell me about|is this thing called|about] {}",
            "[what is meant by|what do you mean by|what is the meaning of|what's up with] {}", "{}",
            "how does {} work", "I do not [understand|know|get] {}", "do you know what {} is",
            "[I want to|I would like to|I need to|help me] [understand|know about|learn about] {}",
            "[I heard about|people talk about|I read about] {}. What is [it|that]",
            "[can|could] you tell me what {} is",
            "what [exactly is|kind of thing is] {}")  # fmt: skip


def _last_term(chat: Chat) -> Term:
    subject = chat.exchanges[-1].subject
    assert isinstance(subject, Term)
    return subject


def _last_flag(chat: Chat) -> Flag:
    subject = chat.exchanges[-1].subject
    assert isinstance(subject, Flag)
    return subject


def _tell_term(chat: Chat, term: Term, patterns: tuple[str, ...], answer: str) -> Exchange:
    asked = phrase(chat.rng, term.asked)
    question = sentence(chat.rng, chat.rng.choice(patterns).replace("{}", asked))
    return Exchange(question, answer, term.name, "term", term)


def explanation(chat: Chat) -> Exchange:
    """What is the KV cache?"""
    term = chat.rng.choice(TERMS)
    return _tell_term(chat, term, _EXPLAIN, term.long)


def short_explanation(chat: Chat) -> Exchange:
    """What is the KV cache, in short?"""
    term = chat.rng.choice(TERMS)
    briefly = "[in short|briefly|in one sentence|in a few words]"
    patterns = (f"[what is|what's|explain|define] {{}}[,|] {briefly}",
                f"{briefly}[,|:|] what is {{}}",
                "[shortly|briefly] explain {}")  # fmt: skip
    return _tell_term(chat, term, patterns, f"In short: {term.short}")


def reason(chat: Chat) -> Exchange:
    """Why do I need a KV cache?"""
    term = chat.rng.choice(TERMS)
    patterns = ("why [do I need|do we need|use|do people use|is there|would I want|do I want] {}",
                "what is {} good for", "what is the [point|use|purpose|benefit] of {}",
                "why [is|are] {} [useful|important|needed]", "why {}")  # fmt: skip
    return _tell_term(chat, term, patterns, term.why)


def another_term(chat: Chat) -> Exchange:
    """And what about ISQ?"""
    term = chat.rng.choice([term for term in TERMS if term is not _last_term(chat)])
    patterns = ("[and |][what about|how about] {}", "and {}", "and what is {}")
    return _tell_term(chat, term, patterns, term.long)


def shorter(chat: Chat) -> Exchange:
    """Can you say it shorter?"""
    pattern = chat.rng.choice((
        ("[can|could] you [say|explain|put] [it|that|this] [shorter|in short|more briefly|briefly|"
        "in one sentence|in a few words|more simply|simpler|in simple words]"),
        "[shorter|shorter please|in short|in one sentence|simpler|briefly|tldr|too long]",
        "[that is|that was|this is|it is] too long[, shorter please|]",
        "[say|explain|put] [it|that] [shorter|in short|in one sentence|in a few words|simpler]",
        "[please |]make [it|that] shorter", "[a|give me a] [shorter|short] [version|answer|one]",
        "[and |][in short|the short version]", "[summarize|sum up] [it|that|this]",
    ))  # fmt: skip
    term = _last_term(chat)
    return Exchange(sentence(chat.rng, pattern), f"In short: {term.short}", "", "term", term)


def longer(chat: Chat) -> Exchange:
    """Tell me more."""
    pattern = chat.rng.choice((
        "[can|could] you [say|explain] [it|that|this] [longer|in more detail|in detail|better]",
        "[tell me more|more|more please|more details|longer|explain more|go on|say more]",
        "[tell me|say] more about [it|that|this]", "[a|give me a] longer [version|answer|one]",
    ))  # fmt: skip
    term = _last_term(chat)
    return Exchange(sentence(chat.rng, pattern), term.long, "", "term", term)


def reason_of_that(chat: Chat) -> Exchange:
    """And why do I need that?"""
    pattern = chat.rng.choice((
        "[and |but |]why", "[and |but |]why [do I need|do we need|is there|use] [it|that|this]",
        "[and |]what is [it|that|this] good for",
        "[and |]why is [it|that|this] [useful|important|good]",
        "[and |]what is the [point|use|benefit|purpose] of [it|that|this]",
        "why does [it|that] matter",
    ))  # fmt: skip
    term = _last_term(chat)
    return Exchange(sentence(chat.rng, pattern), term.why, "", "term", term)


def _tell_flag(chat: Chat, flag: Flag, pattern: str, answer: str) -> Exchange:
    return Exchange(sentence(chat.rng, pattern), answer, f"`{flag.flag}`", "flag", flag)


def flag_meaning(chat: Chat) -> Exchange:
    """What does --isq do?"""
    flag = chat.rng.choice(FLAGS)
    asked = phrase(chat.rng, flag.asked)
    if asked[0] in "-\\" and chat.rng.random() < 0.15:
        asked = f"`{asked}`"
    pattern = chat.rng.choice((
        "what does {} do", "what does {} do", "what is {}[ for| good for|]",
        "[what's|explain|describe] {}", "what does {} mean", "{}", "how does {} work",
        "[when do I need|why would I use|how do I use|tell me about] {}",
        "[what is the meaning of|can you explain|what can I do with] {}",
    ))  # fmt: skip
    return _tell_flag(chat, flag, pattern.replace("{}", asked), f"`{flag.flag}` {flag.does}")


def flag_for_goal(chat: Chat) -> Exchange:
    """How do I quantize a model?"""
    flag = chat.rng.choice(FLAGS)
    pattern = chat.rng.choice((
        "how [do|can] I {}", "how [do|can] I {}", "how to {}", "I want to {}",
        "is there a way to {}",
        "[which|what] flag [do I need|do I use] to {}", "can I {}", "can mrs {}",
    )).replace("{}", flag.goal)  # fmt: skip
    return _tell_flag(chat, flag, pattern, f"Use `{flag.flag}`: it {flag.does}")


def example(chat: Chat) -> Exchange:
    """Can you give me an example?"""
    pattern = chat.rng.choice((
        "[can|could] you [give|show] [me |]an example", "[an |for ]example",
        "[give|show] me an example",
        "[and |]how do I [use|type|write] [it|that|this]", "[show me how|how does it look]",
        "[what|how] would [that|it] look[ like|]", "do you have an example",
    ))  # fmt: skip
    flag = _last_flag(chat)
    answer = f"For example:\n\n```\n{flag.example}\n```"
    return Exchange(sentence(chat.rng, pattern), answer, "", "flag", flag)


def another_flag(chat: Chat) -> Exchange:
    """And -n?"""
    flag = chat.rng.choice([flag for flag in FLAGS if flag is not _last_flag(chat)])
    asked = phrase(chat.rng, flag.asked)
    pattern = f"[and|what about|how about|and what about|and what does] {asked}"
    return _tell_flag(chat, flag, pattern, f"`{flag.flag}` {flag.does}")
