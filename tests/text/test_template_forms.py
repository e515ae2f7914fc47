"""Which form of messages a template wants, and what it gets where it would lose some of them."""

from __future__ import annotations

import time
from typing import Any

import pytest
from test_published_templates import TEMPLATES

from mrs.errors import Unsupported, UsageError
from mrs.request import Message
from mrs.text import template_process
from mrs.text.template import ChatTemplate
from mrs.text.template_forms import TemplateForms, ThoughtForm
from mrs.text.tool_messages import CallForm, ToolForm

CALLS = (
    "{% for c in m.tool_calls or [] %}"
    "<{{ c.function.name }}={{ c.function.arguments }}>{% endfor %}"
)
JSON_CALLS = CALLS.replace("arguments }}", "arguments | tojson }}")
ASKED = Message(role="user", content="Hi")


def forms(body: str, before: str = "") -> TemplateForms:
    """The forms of a template with this text for each message `m`."""
    source = f"{before}{{% for m in messages %}}[{{{{ m.role }}}}]{body}{{% endfor %}}"
    return TemplateForms(ChatTemplate(source, name="test"), {})


def called(*cities: str, content: str | None = None, **more: Any) -> Message:
    calls = [
        {"id": f"call_{city}", "name": "look", "arguments": f'{{"city": "{city}"}}'}
        for city in cities
    ]
    return {"role": "assistant", "content": content, "tool_calls": calls, **more}


def result(city: str, content: str = "ok") -> Message:
    return Message(role="tool", content=content, tool_call_id=f"call_{city}", name="look")


def thought(content: str | None = "Hello", **more: Any) -> Message:
    return {"role": "assistant", "content": content, "reasoning": "Greet.", **more}


@pytest.mark.parametrize("content", [None, ""])
def test_a_template_that_asks_for_none_shows_calls_without_a_text(content: str | None) -> None:
    asks = forms(
        f"{{% if m.content is none %}}{JSON_CALLS}{{% else %}}{{{{ m.content }}}}{{% endif %}}"
    )
    rendered = asks.render([ASKED, called("Rome", content=content), result("Rome")])
    assert rendered == '[user]Hi[assistant]<look={"city": "Rome"}>[tool]ok'
    said = asks.render([ASKED, called("Rome", content="Wait."), result("Rome")])
    assert said == '[user]Hi[assistant]Wait.[assistant]<look={"city": "Rome"}>[tool]ok'


@pytest.mark.parametrize(
    "content",
    [
        "{{ m.content }}",
        "{{ m.content + '' }}",
        "{{ m['content'] | trim }}",
        "{% if 'x' in m.content %}x{% endif %}{{ m.content }}",
    ],
)
def test_a_template_that_prints_none_or_fails_gets_an_empty_text(content: str) -> None:
    prints = forms(content + JSON_CALLS)
    assert prints.calls == CallForm()
    rendered = prints.render([ASKED, called("Rome"), result("Rome")])
    assert rendered == '[user]Hi[assistant]<look={"city": "Rome"}>[tool]ok'


def test_arguments_are_json_where_an_object_would_be_printed_as_python_does() -> None:
    as_text = forms("{{ m.content or '' }}" + CALLS)
    assert as_text.calls == CallForm(keeps_none=True, as_text=True)
    compact = called("Rome")
    compact["tool_calls"][0]["arguments"] = '{"city":"Rome","days":[1]}'
    assert '<look={"city":"Rome","days":[1]}>' in as_text.render([ASKED, compact, result("Rome")])


def test_calls_that_a_template_would_drop_have_messages_of_their_own() -> None:
    """In the order of their results, so that images in results keep their places."""
    first = forms(
        "{{ m.content or '' }}{% for c in (m.tool_calls or [])[:1] %}"
        "<{{ c.function.arguments.values() | join }}{{ c.function.name }}>{% endfor %}"
    )
    assert first.calls is not None
    assert not first.calls.in_parallel
    talk = [ASKED, called("Rome", "Oslo", "Bonn", content="Wait."), result("Oslo"), result("Rome")]
    assert first.render([*talk, ASKED]) == (
        "[user]Hi[assistant]<Oslolook>[tool]ok[assistant]Wait.<Romelook>[tool]ok"
        "[assistant]<Bonnlook>[user]Hi"
    )


@pytest.mark.parametrize("name", ["reasoning_content", "thinking", "thoughts", "my_reasons"])
def test_the_field_of_a_thought_is_the_one_that_the_template_reads(name: str) -> None:
    reads = forms(f"{{% if m.{name} %}}({{{{ m.{name} }}}}){{% endif %}}{{{{ m.content }}}}")
    assert reads.thoughts == ThoughtForm(name)
    assert reads.render([ASKED, thought()]) == "[user]Hi[assistant](Greet.)Hello"
    tagged = Message(role="assistant", content="<think>\nGreet.\n</think>\n\nHello")
    assert reads.render([ASKED, tagged]) == "[user]Hi[assistant](Greet.)Hello"


def test_a_field_that_only_calls_or_thinking_show_is_found() -> None:
    for condition in ("m.tool_calls", "enable_thinking"):
        reads = forms(f"{{% if {condition} %}}({{{{ m.thinking }}}}){{% endif %}}{JSON_CALLS}")
        assert reads.thoughts.field == "thinking"


def test_thoughts_in_tags_are_for_templates_that_read_tags() -> None:
    reads = forms(
        "{% set answer = m.content.split('</think>')[-1] %}{{ m.content if loop.last else answer }}"
    )
    assert reads.thoughts == ThoughtForm(in_tags=True)
    assert "<think>\nGreet.\n</think>\n\nHello" in reads.render([ASKED, thought()])
    assert "Greet" not in reads.render([ASKED, thought(), ASKED])
    for knows_none in (forms("{{ m.content }}"), forms("{{ m.content }}{# </think> #}")):
        assert knows_none.render([ASKED, thought()]) == "[user]Hi[assistant]Hello"
        assert knows_none.render([ASKED, thought("")]) == "[user]Hi[assistant]"


def test_a_thought_that_a_template_never_shows_adds_no_line_breaks() -> None:
    drops = forms("{{ m.content.split('</think>')[-1] }}")
    assert drops.render([ASKED, thought()]) == "[user]Hi[assistant]Hello"


def test_a_thought_and_a_text_that_exclude_each_other_are_both_the_thought() -> None:
    source = (
        "{% if m.tool_calls and m.content and m.thinking %}{{ raise_exception('both') }}{% endif %}"
        "({{ m.thinking }}){{ m.content }}" + JSON_CALLS
    )
    rendered = forms(source).render([ASKED, called("Rome", content="Wait.", reasoning="Look.")])
    assert rendered == '[user]()Hi[assistant](Look.\n\nWait.)<look={"city": "Rome"}>'
    marked = forms(source).render(
        [called("Rome", content="END", reasoning="END")],
        protect=lambda text: text.replace("END", "(END)"),
    )
    assert marked == '[assistant]((END)\n\n(END))<look={"city": "Rome"}>'


@pytest.mark.parametrize(
    ("shown", "form"),
    [
        ("{% if m.tools %}{{ m.tools | tojson }}{% endif %}", ToolForm(in_system=True)),
        ("{% if m['tools'] %}{{ m['tools'] }}{% endif %}", ToolForm(True, as_text=True)),
        ("{% for t in tools or [] %}{{ t | tojson }}{% endfor %}", ToolForm()),
        ("", None),
    ],
)
def test_tools_are_where_the_template_shows_them(shown: str, form: ToolForm | None) -> None:
    tools = forms(shown + "{{ m.content }}")
    assert tools.tools == form
    function = {"name": "look", "description": "Looks up.", "parameters": {"type": "object"}}
    rendered = tools.render([ASKED], tools=[{"type": "function", "function": function}])
    assert ('"name": "look"' in rendered) == (form is not None)


SYSTEMS = [Message(role="system", content="A."), Message(role="system", content="B.")]


@pytest.mark.parametrize(
    ("template", "shown"),
    [
        ("chatml", ["system\nA.<", "system\nB.<"]),
        ("gemma-3", ["user\nA.\n\nB.\n\nHi"]),  # the template itself puts it there
        ("gemma", ["user\nA.\n\nB.\n\nHi"]),  # which refuses a system message
        ("phi-3", ["<|user|>\nA.\n\nB.\n\nHi"]),  # which drops it
        ("gpt-oss", ["Instructions\n\nA.\n\nB."]),  # which drops the second
    ],
)
def test_no_system_message_at_the_beginning_is_lost(template: str, shown: list[str]) -> None:
    found = TemplateForms(ChatTemplate(TEMPLATES[template], name=template), {"bos_token": ""})
    rendered = found.render([*SYSTEMS, ASKED])
    assert all(text in rendered for text in shown)


@pytest.mark.parametrize("template", ["chatml", "gpt-oss", "gemma", "mistral-v3", "phi-3"])
def test_no_system_message_within_a_conversation_is_lost(template: str) -> None:
    special = {"bos_token": "", "eos_token": ""}
    found = TemplateForms(ChatTemplate(TEMPLATES[template], name=template), special)
    said = Message(role="assistant", content="Yes.")
    rendered = found.render([ASKED, said, SYSTEMS[1], ASKED])
    assert rendered.index("Yes.") < rendered.index("B.") < rendered.rindex("Hi")


def test_names_of_people_reach_templates_that_show_them() -> None:
    named = forms("{{ m.name or '' }}: {{ m.content }}")
    assert named.render([{**ASKED, "name": "Ann"}]) == "[user]Ann: Hi"


def test_text_of_people_becomes_no_control_token_in_any_field() -> None:
    shows = forms("{{ m.thinking }}{{ m.content or '' }}" + JSON_CALLS)
    message = called("Rome", content="END", reasoning="END")
    message["tool_calls"][0]["arguments"] = '{"END": ["END"]}'
    rendered = shows.render([ASKED, message], protect=lambda text: text.replace("END", "E-N-D"))
    assert rendered == '[user]Hi[assistant]E-N-DE-N-D<look={"E-N-D": ["E-N-D"]}>'


def test_a_conversation_without_calls_and_thoughts_needs_no_probes_but_for_contents(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[Any] = []
    render = ChatTemplate.render

    def counted(self: ChatTemplate, messages: Any, **settings: Any) -> str:
        made.append(messages)
        return render(self, messages, **settings)

    monkeypatch.setattr(ChatTemplate, "render", counted)
    found = TemplateForms(ChatTemplate(TEMPLATES["qwen3"], name="test"), {})
    said = Message(role="assistant", content="Yes.")
    found.render([ASKED, said, ASKED])
    assert len(made) <= 3
    found.render([ASKED, called("Rome", reasoning="Look."), result("Rome")])
    probes = len(made)
    found.render([ASKED, called("Rome", reasoning="Look."), result("Rome")])
    assert len(made) == probes + 1, "each form is found once"


def test_what_a_template_refuses_is_said_in_its_words() -> None:
    refuses = forms("{% if m.role == 'tool' %}{{ raise_exception('no tools here') }}{% endif %}")
    with pytest.raises(UsageError, match="no tools here"):
        refuses.render([ASKED, called("Rome"), result("Rome")])


def test_a_template_that_never_ends_is_stopped_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_process, "MAX_SECONDS", 0.5)
    loop, end = "{% for i in range(99999) %}", "{% endfor %}"
    endless = forms(loop * 2 + end * 2)
    start_s = time.monotonic()
    with pytest.raises(Unsupported, match="takes longer"):
        endless.render([ASKED, called("Rome", reasoning="Look."), result("Rome")])
    assert time.monotonic() - start_s < 20
