"""The format of calls that a chat template writes, from what it makes of probes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from mrs.errors import MrsError, Unsupported
from mrs.text.template import ChatTemplate
from mrs.tools.atoms import atoms_of, common_end, common_start, is_tag, removed_end
from mrs.tools.call_format import CallFormat, Hole, Part, Parts
from mrs.tools.derive.argument_shape import ArgumentShape, argument_shape
from mrs.tools.derive.probe import (
    ANSWER,
    IDS,
    KEYS,
    NAMES,
    ONE,
    VALUES,
    Given,
    Probe,
    Underivable,
    Unshown,
    probes_of,
)
from mrs.tools.derive.reply_start import after_prompt, after_thought
from mrs.tools.derive.round_trip import check_round_trip, lost_texts

_OTHER: Given = {KEYS[1]: VALUES[1]}
_GIVEN = (ONE, _OTHER)
_SEARCHED = re.compile(r"\s*(<|\[[A-Z])")

#: A piece of a rendered reply: a text, or a hole with the number of its call.
TemplatePiece = str | tuple[Hole, int]


def derived_format(template: ChatTemplate) -> CallFormat:
    """The format of the calls that a template writes.

    Raises Unshown for a template that writes none, and Unsupported, with the reason, for one whose
    format is not understood.
    """
    reasons: list[str] = []
    unshown: list[Unshown] = []
    for probe in probes_of(template):
        try:
            return derived_with(probe)
        except Unshown as error:
            unshown.append(error)
        except Underivable as error:
            reasons.append(str(error))
        except MrsError as error:
            reasons.append(error.what)
        except ValueError:
            reasons.append("its marks are not where those of other calls are")
    if not reasons:
        raise unshown[0]
    raise Unsupported(
        f"how the chat template writes calls of tools is not understood: {reasons[0]}",
        where=template.name,
        hint="leave out the tools, or give another template with -c FILE",
    )


def derived_with(probe: Probe) -> CallFormat:
    """The format of calls in the probe's form of messages.

    Raises Underivable, ValueError if a mark is missing, and MrsError if the template fails.
    """
    shape = argument_shape(probe)
    answer = probe.answer()
    before_answer, _, after_answer = answer.partition(ANSWER)
    one, two = probe.calls(ONE), probe.try_calls(*_GIVEN)
    is_parallel = two is not None and NAMES[1] in two and VALUES[1] in two
    text = two if two is not None and is_parallel else one
    first, following, closing = _split_calls(text, shape)
    prompt = _prompt(probe, before_answer, str(first[0]))
    opening, lead = _opening(after_prompt(str(first[0]), prompt))
    closing = _without_end_of_turn(closing.rstrip(), after_answer.rstrip())
    if following and not _wrapper(opening, following):
        closing = common_start(closing, _joint(following)).rstrip()
    answer = after_thought(after_prompt(before_answer, prompt))
    style = CallFormat(
        "derived",
        (opening, *first[1:]),
        closing,
        shape.arguments,
        following,
        is_at_start=_SEARCHED.match(opening) is None,
        answer=answer if any(map(is_tag, atoms_of(answer))) else "",
        lead=lead,
        id_form=probe.id_form,
    )
    style = _with_answer_end(_with_optional_ids(_with_numbers(style)), after_answer)
    check_round_trip(style, probe)
    return lost_texts(style, probe)


def _opening(start: str) -> tuple[str, str]:
    """The first mark of a reply that calls, and the white space that may be before it.

    Raises Underivable.
    """
    opening = after_thought(start)
    if not opening.strip():
        raise Underivable("nothing is before its calls")
    if "think" in opening.lower():
        raise Underivable("its calls are after a thought whose marks are unknown")
    if _SEARCHED.match(opening) is None:
        return opening.strip("\n"), ""
    space = opening[: len(opening) - len(opening.lstrip())]
    return opening.lstrip(), space if opening == start else ""


def _prompt(probe: Probe, before_answer: str, before_call: str) -> str:
    """What follows the question up to a reply: a template without prompts begins all alike."""
    prompt = probe.prompt()
    if prompt != probe.prompt(begins_reply=False):
        return prompt
    rests = (after_prompt(text, prompt) for text in (before_answer, before_call))
    return prompt + common_start(*rests)


def _without_end_of_turn(closing: str, after_answer: str) -> str:
    """What is after the last call, without what is also after an answer."""
    end = common_end(closing, after_answer)
    return (closing.partition(end)[0] if end else closing).rstrip()


def _split_calls(text: str, shape: ArgumentShape) -> tuple[Parts, Parts, str]:
    """The parts up to the last hole of the first call, those of the second, and the rest."""
    pieces = _pieces(text, shape)
    last = [
        max((at for at, piece in enumerate(pieces) if _call_of(piece) == call), default=-1)
        for call in (0, 1)
    ]
    first, following = pieces[: last[0] + 1], pieces[last[0] + 1 : last[1] + 1]
    if any(_call_of(piece) == 1 for piece in first):
        raise Underivable("its calls are not one after the other")
    if isinstance(first[0], tuple):
        raise Underivable("nothing is before its calls")
    closing = pieces[max(last) + 1 :]
    parts = _parts(first)
    if Hole.NAME not in parts:
        raise Underivable("its calls have no names")
    return parts, _parts(following), str(closing[0]) if closing else ""


def _call_of(piece: TemplatePiece) -> int | None:
    return piece[1] if isinstance(piece, tuple) else None


def _parts(pieces: Sequence[TemplatePiece]) -> Parts:
    return tuple(piece[0] if isinstance(piece, tuple) else piece for piece in pieces)


def _pieces(text: str, shape: ArgumentShape) -> list[TemplatePiece]:
    """A text cut at the names, ids and arguments of its calls."""
    spans: list[tuple[int, int, tuple[Hole, int]]] = []
    start = 0
    for number, given in enumerate(_GIVEN):
        if next(iter(given)) not in text:
            continue
        span = shape.span(text, given, start)
        spans.append((*span, (Hole.ARGUMENTS, number)))
        start = span[1]
        for hole, word in ((Hole.NAME, NAMES[number]), (Hole.ID, IDS[number])):
            for match in re.finditer(re.escape(word), text):
                spans.append((*match.span(), (hole, number)))
    pieces: list[TemplatePiece] = []
    position = 0
    for begin, end, numbered in sorted(spans, key=lambda span: span[:2]):
        if begin < position:
            raise Underivable("a name is within the arguments")
        pieces += [text[position:begin], numbered] if begin > position else [numbered]
        position = end
    return [*pieces, text[position:]] if position < len(text) else pieces


def _joint(following: Parts) -> str:
    return next(str(part) for part in following if isinstance(part, str))


def _wrapper(opening: str, following: Parts) -> str:
    """What is before the first call only."""
    joint = _joint(following)
    return removed_end(opening, common_end(opening, joint)).strip()


def _with_numbers(style: CallFormat) -> CallFormat:
    """The format with holes where a text differs between calls in its number only."""
    if not style.following:
        return style
    first, following = list(style.first), list(style.following)
    for index, (one, other) in enumerate(
        zip(style.first[::-1], style.following[::-1], strict=False)
    ):
        if not isinstance(one, str) or not isinstance(other, str) or one == other:
            continue
        split, split_other = _number_at_end(one, other), _number_at_end(other, one)
        if split is None or split_other is None:
            continue
        first[len(first) - 1 - index : len(first) - index] = split
        following[len(following) - 1 - index : len(following) - index] = split_other
        break
    return replace(style, first=_filled(first), following=_filled(following))


def _filled(parts: Sequence[Part]) -> Parts:
    return tuple(part for part in parts if part != "")


def _number_at_end(one: str, other: str) -> list[Part] | None:
    """A text cut at digits before the end that it shares with another one."""
    count = 0
    while count < min(len(one), len(other)) and one[-1 - count] == other[-1 - count]:
        count += 1
    rest, others = one[: len(one) - count], other[: len(other) - count]
    digits, other_digits = re.search(r"\d+$", rest), re.search(r"\d+$", others)
    if digits is None or other_digits is None:
        return None
    return [rest[: digits.start()], Hole.NUMBER, one[len(one) - count :]]


def _with_optional_ids(style: CallFormat) -> CallFormat:
    """The format with ids that a model may leave out: many templates write what no model does."""
    first, following, closing = style.first, style.following, style.closing
    if len(first) > 2 and first[-1] is Hole.ID and first[-3] is Hole.ARGUMENTS:
        mark = str(first[-2])
        quote = mark[-1] if mark[-1] in "\"'" else ""
        if not closing.startswith(quote):
            raise Underivable("its ids have no end")
        optional: Parts = (mark, Hole.ID, quote) if quote else (mark, Hole.ID)
        closing = closing[len(quote) :]
        first = (*first[:-2], optional)
        if following:
            following = (str(following[0])[len(quote) :], *following[1:-2], optional)
    return replace(
        style,
        first=_with_optional_middle(first),
        following=_with_optional_middle(following),
        closing=closing,
    )


def _with_optional_middle(parts: Parts) -> Parts:
    """Parts whose id, after the name and a tag of its own, may be left out."""
    for at in range(2, len(parts) - 1):
        name, mark, hole = parts[at - 2 : at + 1]
        if name is Hole.NAME and hole is Hole.ID and isinstance(mark, str) and is_tag(mark):
            return (*parts[: at - 1], (mark, Hole.ID), *parts[at + 1 :])
    return parts


def _with_answer_end(style: CallFormat, after: str) -> CallFormat:
    """The format with the first of several tags after an answer."""
    atoms = atoms_of(after.strip())
    if style.answer and atoms and sum(map(is_tag, atoms)) > 1 and is_tag(atoms[0]):
        return replace(style, answer_end=atoms[0])
    return style
