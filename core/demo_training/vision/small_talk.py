"""Questions that are not about an image: greetings, who are you, and off-topic ones."""

from __future__ import annotations

import re
from random import Random

from demo_training.text import geography, lessons, small_facts, sums, unknowns
from demo_training.text.chat import Chat
from demo_training.text.smalltalk import Talk
from demo_training.text.wording import sentence

from .palette import COLOURS
from .questions import Asked, question
from .scene import SHAPES, random_scene

NO_IMAGE = "I see no picture. Give me one and ask again."
NOT_KNOWN = "I only know shapes in pictures: their colours, and how many there are."
_SELF = (
    "I am the **mrs vision demo**, a toy with about 2.5 million parameters that looks at pictures."
)
_ABILITIES = (
    f"I look at pictures of up to three shapes.\n\n- **shapes**: {', '.join(SHAPES)}\n"
    f"- **colours**: {', '.join(COLOURS)}\n- **counts**: one to three"
)
_TALK = (
    Talk(
        "[hello|hi|hey|good morning|good evening|good afternoon|greetings|hi there|hello there|"
        "hey there|howdy|good day|hello demo|hi mrs|nice to meet you|hello again][| again]",
        ("Hello! Show me a picture.",),
        end="!",
        weight=8,
    ),
    Talk(
        "[|hi, |hello, |hey, ][how are you|how are you doing|how is it going|how do you do|how do "
        "you feel|are you well|how are things][ today|]",
        ("I am fine, thank you! Show me a picture.",),
        weight=4,
    ),
    Talk(
        "[thanks|thank you|thank you very much|thanks a lot|many thanks|thx|great, thanks|ok "
        "thanks|thank you so much|thanks for your help|that was helpful|perfect, thanks]",
        ("You are welcome!",),
        end="!",
        weight=5,
    ),
    Talk(
        "[bye|goodbye|bye bye|see you|see you later|good night|farewell|that is all, bye|I have "
        "to go|ciao|see you tomorrow|ok bye|thanks, bye|talk to you later]",
        ("Goodbye! Come back any time.",),
        end="!",
        weight=4,
    ),
    Talk(
        "[who are you|what are you|tell me about yourself|introduce yourself|who am I talking to|"
        "who is this|what model are you|which model are you|what kind of model are you|describe "
        "yourself|what is your name|what's your name|do you have a name|what should I call you|"
        "are you [a human|a person|alive|real|a robot|a bot|an AI|a machine|ChatGPT]]",
        (_SELF,),
        weight=7,
    ),
    Talk(
        "[how [big|large|small] are you|how many parameters do you have|what is your size|how many "
        "layers do you have|who made you|who built you|who trained you|how were you made|how were "
        "you trained|who created you]",
        ("A script in the `mrs` project trained me, on pictures that the script itself drew.",),
        weight=3,
    ),
    Talk(
        "[what can you do|what do you know|how can you help me|what can I ask you|what can I ask|"
        "what are you good at|what do you do|help|can you help me|help me|what are your skills|"
        "what can you help with|what can you see|which [shapes|colours|colors] do you know|what "
        "[shapes|colours|colors] do you know|what else can you do|what should I ask you]",
        (_ABILITIES,),
        weight=6,
    ),
    Talk(
        "[yes|no|ok|okay|sure|fine|alright|I see|got it|nice|cool|great|interesting|good|aha|hmm|"
        "makes sense|perfect|wow|well done|good job|that is right|correct|right]",
        ("Good. What else would you like to know?",),
        end=".",
        weight=4,
    ),
    Talk(
        "[that is wrong|that's wrong|wrong|you are wrong|bad answer|not true|that is not right|no, "
        "that is wrong|are you sure|is that right|really|are you certain]",
        ("I am only a toy and make mistakes.",),
        weight=2,
    ),
)
_ELSEWHERE = (
    unknowns.unknown, unknowns.unknown, unknowns.unknown, geography.capital, sums.addition,
    sums.multiplication, lessons.explanation, lessons.flag_meaning, small_facts.table_fact,
)  # fmt: skip
_OURS = re.compile(
    rf"picture|image|photo|drawing|colou?r|shape|camera|see me|{'|'.join((*SHAPES, *COLOURS))}"
    r"|\b(it|this|that|there|here)\b",
    re.IGNORECASE,
)


def small_talk(rng: Random, *, has_image: bool) -> Asked:
    """Who are you? What people say before and after an image alike."""
    while True:
        talk = rng.choices(_TALK, [talk.weight for talk in _TALK])[0]
        asked = sentence(rng, f"[{talk.said}]", talk.end)
        if not (has_image and "can you see" in asked.lower()):  # then it is about the image
            return Asked("talk", asked, rng.choice(talk.answers))


def out_of_place(rng: Random) -> Asked:
    """What is the capital of France?"""
    while True:
        asked = rng.choice(_ELSEWHERE)(Chat(rng)).question
        if len(asked) < 70 and not _OURS.search(asked):
            return Asked("not known", asked, NOT_KNOWN)


def without_image(rng: Random) -> Asked:
    """What is in the image? Asked where there is none."""
    while True:
        asked = question(rng, random_scene(rng)).question
        if asked and "what can you see" not in asked.lower():
            return Asked("no picture", asked, NO_IMAGE)
