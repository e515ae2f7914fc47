"""Questions about a scene, in many wordings, each with its one right answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from demo_training.text.wording import sentence

from .palette import COLOURS
from .scene import SHAPES, Group, Scene

NUMBERS = ("no", "one", "two", "three", "four", "five")
_IMAGE = "[the|this|that|the|my] [picture|image|picture|image|photo|drawing]"
_HERE = f"[| in {_IMAGE}| in {_IMAGE}| here| there]"


@dataclass(frozen=True)
class Asked:
    """A question with its answer; `kind` says what is asked for."""

    kind: str
    question: str
    answer: str


def plural(shape: str) -> str:
    """circle, circles; cross, crosses."""
    return shape + ("es" if shape.endswith("s") else "s")


def article(text: str) -> str:
    """A circle, an orange circle."""
    return f"{'an' if text[0] in 'aeiou' else 'a'} {text}"


def counted(count: int, text: str) -> str:
    """no circles, one circle, three circles: `text` ends with a shape, or with a word like one."""
    return f"{NUMBERS[count]} {text if count == 1 else plural(text)}"


def description(scene: Scene) -> str:
    """Two red circles and one blue square."""
    parts = [counted(g.count, f"{g.colour} {g.shape}") for g in scene.groups]
    return _said(parts) if parts else "No shapes."


def _said(parts: list[str]) -> str:
    text = " and ".join(dict.fromkeys(parts)) + "."
    return text[0].upper() + text[1:]


def _ask(rng: Random, kind: str, patterns: tuple[str, ...], answer: str) -> Asked:
    return Asked(kind, sentence(rng, rng.choice(patterns)), answer)


def describe(rng: Random, scene: Scene) -> Asked:
    """What is in the picture?"""
    patterns = (
        f"[what is|what's|whats] in {_IMAGE}", f"[what is|what's] in {_IMAGE}",
        f"[what is|what's|what can be seen|what is shown|what is drawn] [in|on|in] {_IMAGE}",
        f"what [do|can] you [see|recognize|recognise|find|make out]{_HERE}",
        f"[describe|explain|caption] {_IMAGE}", "describe [it|this|what you see|what is there]",
        "[what is|what's] [this|that|it|here|there|in it|in there|on it]",
        "what [are these|are those|are they|things are these]",
        f"what does {_IMAGE} [show|contain|depict|look like]",
        f"what things [are there|do you see]{_HERE}",
        f"[tell|show] me what [you see|is in {_IMAGE}|this is|is there|it is]",
        f"[can|could|would] you [describe|explain|tell me about] {_IMAGE}",
        f"what [objects|things] [do you see|are there|can you see]{_HERE}",
        ("[look at|here is|I have|this is|see] [a|this|my] [picture|image]. "
         "What is [in it|it|on it]"),
        f"give me [a|the] [caption|description][ of {_IMAGE}|]",
        f"do you see [anything|something]{_HERE}",
        f"what [is going on|is there to see|is visible|has been drawn|did I draw]{_HERE}",
        "[describe|look|and here|what now|and now|and this one|and this|what about this one]",
        f"[who|what] do we have{_HERE}", f"tell me about {_IMAGE}",
    )  # fmt: skip
    return _ask(rng, "description", patterns, description(scene))


def colour(rng: Random, scene: Scene) -> Asked:
    """What colour are they?"""
    it, the_shape = (
        ("is it", "is the shape") if scene.count == 1 else ("are they", "are the shapes")
    )
    if rng.random() < 0.1:
        it, the_shape = "is this", "do they have"
    hue = "[colour|color]"
    patterns = (
        f"[what|which] {hue} {it}", f"[what|which] {hue} {the_shape}", f"[what|which] {hue}s {it}",
        f"[what|which] {hue}s [do you see|are there|can you see|are used]{_HERE}",
        f"[what|which] {hue}[s|] [is|are]{_HERE}", f"[what is|what's|tell me|name] the {hue}[s|]",
        f"{hue}", f"[and |]the {hue}", f"[and |][what|which] {hue}", f"how {it} [coloured|colored]",
        f"[what|which] {hue} [does it have|do they have|has it]",
    )  # fmt: skip
    answer = _said([g.colour for g in scene.groups]) if scene.groups else "No shapes."
    return _ask(rng, "colour", patterns, answer)


def shape(rng: Random, scene: Scene) -> Asked:
    """What shape is it?"""
    it = "is it" if scene.count == 1 else "are they"
    patterns = (
        f"[what|which] shape[s|] {it}", f"[what|which] shape[s|] [do you see|can you see]{_HERE}",
        f"[what|which] shape[s|] [is|are]{_HERE}", f"what kind[s|] of shape[s|] {it}",
        "[what is|what's|tell me|name] the shape[s|]", "[and |]the shape", "shape",
        "which form {it}",
        "[what|which] shape [does it have|do they have|has it]",
        f"what kind of shape[s|] [is|are]{_HERE}",
        "[and |][what|which] shape",
    )  # fmt: skip
    answer = _shapes(scene.groups) if scene.groups else "No shapes."
    return _ask(rng, "shape", tuple(p.replace("{it}", it) for p in patterns), answer)


def _shapes(groups: tuple[Group, ...]) -> str:
    counts: dict[str, int] = {}
    for group in groups:
        counts[group.shape] = counts.get(group.shape, 0) + group.count
    return _said([article(s) if count == 1 else plural(s) for s, count in counts.items()])


def count(rng: Random, scene: Scene) -> Asked:
    """How many shapes are there?"""
    patterns = (
        f"how many [shapes|things|objects|figures|shapes]{_HERE}", "how many",
        f"how many [shapes|things|objects|shapes] [are there|do you see|can you see|are]{_HERE}",
        f"how many [are there|do you see|of them are there|are they]{_HERE}",
        "count [them|the shapes]",
        f"[what is|tell me] the [number|count] of [shapes|things|objects]{_HERE}",
        f"[can you |please |]count the [shapes|things|objects]{_HERE}", "and how many[ are there|]",
    )  # fmt: skip
    answer = _said([counted(scene.count, "shape")])
    return _ask(rng, "count", patterns, answer)


def _present_or_other(rng: Random, present: list[str], all_names: tuple[str, ...]) -> str:
    return rng.choice(present) if present and rng.random() < 0.7 else rng.choice(all_names)


def _any_shape(rng: Random, scene: Scene) -> str:
    return _present_or_other(rng, [g.shape for g in scene.groups], SHAPES)


def _any_colour(rng: Random, scene: Scene) -> str:
    return _present_or_other(rng, [g.colour for g in scene.groups], tuple(COLOURS))


def count_of_shape(rng: Random, scene: Scene) -> Asked:
    """How many circles are there?"""
    name = _any_shape(rng, scene)
    patterns = (
        f"how many {plural(name)}{_HERE}",
        f"[what is the number of|count the] {plural(name)}{_HERE}",
        f"how many {plural(name)} [are there|do you see|can you see|are]{_HERE}",
        f"[and |]how many [of them are |]{plural(name)}",
    )  # fmt: skip
    total = sum(g.count for g in scene.groups if g.shape == name)
    return _ask(rng, "count of a shape", patterns, _said([counted(total, name)]))


def count_of_colour(rng: Random, scene: Scene) -> Asked:
    """How many red shapes are there?"""
    name = _any_colour(rng, scene)
    patterns = (
        f"how many {name} [shapes|things|ones|objects]{_HERE}", f"how many are {name}",
        f"how many {name} [shapes|things|ones] [are there|do you see|can you see|are]{_HERE}",
        f"[and |]how many [of them |of the shapes |]are {name}", f"count the {name} [shapes|ones]",
    )  # fmt: skip
    total = sum(g.count for g in scene.groups if g.colour == name)
    return _ask(rng, "count of a colour", patterns, _said([counted(total, f"{name} shape")]))


def count_of_both(rng: Random, scene: Scene) -> Asked:
    """How many red circles are there?"""
    hue, name = _any_colour(rng, scene), _any_shape(rng, scene)
    patterns = (
        f"how many {hue} {plural(name)}{_HERE}", f"count the {hue} {plural(name)}{_HERE}",
        f"how many {hue} {plural(name)} [are there|do you see|can you see|are]{_HERE}",
    )  # fmt: skip
    total = sum(g.count for g in scene.groups if (g.colour, g.shape) == (hue, name))
    return _ask(rng, "count of both", patterns, _said([counted(total, f"{hue} {name}")]))


def colour_of_shape(rng: Random, scene: Scene) -> Asked:
    """What colour is the circle?"""
    name = _any_shape(rng, scene)
    mine = [g for g in scene.groups if g.shape == name]
    the = f"is the {name}" if sum(g.count for g in mine) == 1 else f"are the {plural(name)}"
    hue = "[colour|color]"
    patterns = (
        f"[what|which] {hue}[s|] {the}", f"[what|which] {hue} {the}{_HERE}",
        f"[what is|what's|tell me] the {hue} of the {the.split()[-1]}",
        f"how {the} [coloured|colored]",
        f"[what|which] {hue} [has|have] the {the.split()[-1]}",
    )  # fmt: skip
    answer = _said([g.colour for g in mine] or [f"no {plural(name)}"])
    return _ask(rng, "colour of a shape", patterns, answer)


def shape_of_colour(rng: Random, scene: Scene) -> Asked:
    """What shape is the red one?"""
    name = _any_colour(rng, scene)
    mine = tuple(g for g in scene.groups if g.colour == name)
    one = sum(g.count for g in mine) == 1
    the = f"is the {name} [one|thing|shape]" if one else f"are the {name} [ones|things|shapes]"
    patterns = (
        f"[what|which] shape[s|] {the}", f"what [is|are] {name}{_HERE}", f"what {the}",
        f"[what|which] [shape|shapes|things|thing] [is|are] {name}",
    )  # fmt: skip
    answer = _shapes(mine) if mine else _said([f"no {name} shapes"])
    return _ask(rng, "shape of a colour", patterns, answer)


def yes_or_no(rng: Random, scene: Scene) -> Asked:
    """Is there a red circle?"""
    hue, name = _any_colour(rng, scene), _any_shape(rng, scene)
    what, right = rng.choice((
        (name, any(g.shape == name for g in scene.groups)),
        (f"{hue} {name}", any((g.colour, g.shape) == (hue, name) for g in scene.groups)),
        (f"{hue} [shape|thing]", any(g.colour == hue for g in scene.groups)),
    ))  # fmt: skip
    several = what.replace("]", "s]").replace("|", "s|") if "[" in what else plural(what)
    patterns = (
        f"is there {article(what)}{_HERE}", f"are there [any |]{several}{_HERE}",
        f"[do|can] you see [{article(what)}|any {several}|{several}]{_HERE}",
    )  # fmt: skip
    return _ask(rng, "yes or no", patterns, "Yes." if right else "No.")


QUESTIONS: dict[Callable[[Random, Scene], Asked], float] = {
    describe: 10,
    colour: 4,
    shape: 4,
    count: 4,
    count_of_shape: 3,
    count_of_colour: 2,
    count_of_both: 2,
    colour_of_shape: 3,
    shape_of_colour: 2,
    yes_or_no: 3,
}


def question(rng: Random, scene: Scene) -> Asked:
    """Any question about `scene`."""
    return rng.choices(tuple(QUESTIONS), tuple(QUESTIONS.values()))[0](rng, scene)
