"""What templates may use, each piece rendered as transformers renders it."""

from __future__ import annotations

import datetime

import pytest
import transformers.utils.chat_template_utils as reference

from mrs.request import Message
from mrs.text.template import ChatTemplate

TALK: list[Message] = [
    {"role": "system", "content": "Be <kind> & 'calm'.\n"},
    {"role": "user", "content": "  naïve \U0001f600 question?  "},
    {"role": "assistant", "content": "<think>\nhm\n</think>\n\nYes."},
]
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}

PIECES = {
    "blocks are trimmed": "  {% if true %}\n  a\n  {% endif %}\nb\n",
    "only one newline is dropped at the end": "a\n\n",
    "tojson": "{{ messages | tojson }}",
    "tojson with an indent": "{{ messages[0] | tojson(indent=4) }}",
    "tojson with separators": "{{ {'b': 1, 'a': [2, 3]} | "
    "tojson(separators=(',', ':'), sort_keys=true) }}",
    "tojson in ASCII": "{{ messages[1].content | tojson(ensure_ascii=True) }}",
    "break and continue": "{% for m in messages %}{% if m.role == 'system' %}{% continue %}"
    "{% endif %}{{ m.role }}{% break %}{% endfor %}",
    "generation": "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}"
    "{% endfor %}",
    "names set in a generation block stay there": "{% set x = 1 %}{% generation %}{% set x = 2 %}"
    "{{ x }}{% endgeneration %}{{ x }}",
    "namespaces": "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}"
    "{% endfor %}{{ ns.n }}",
    "loop variables": "{% for m in messages %}{{ loop.index }}{{ loop.first }}{{ loop.last }}"
    "{{ loop.previtem.role if loop.previtem }}{{ loop.length }};{% endfor %}",
    "recursive loops": "{% for x in [[1, [2]], [3]] recursive %}{% if x is iterable %}"
    "({{ loop(x) }}){% else %}{{ x }}{% endif %}{% endfor %}",
    "loops with a condition and an else": "{% for m in messages if m.role == 'none' %}x{% else %}y"
    "{% endfor %}",
    "macros and calls": "{% macro f(a, b=2) %}[{{ a }}{{ b }}{{ caller() if caller }}]"
    "{% endmacro %}{{ f(1) }}{% call f(3, b=4) %}in{% endcall %}",
    "set blocks": "{% set text %}{{ messages[1].content | trim }}!{% endset %}{{ text }}"
    "{{ text | length }}",
    "filter blocks": "{% filter upper %}abc {{ messages[0].role }}{% endfilter %}",
    "operators": "{{ 'a' + 'b' }}{{ 'a' ~ 1 ~ none }}{{ 'ab' * 3 }}{{ 7 // 2 }}{{ 7 % 4 }}"
    "{{ 2 ** 8 }}"
    "{{ '%s-%05.1f' % ('x', 2.5) }}{{ [1] + [2] }}{{ 'a' in 'abc' }}{{ 3 * [0] }}",
    "string methods": "{% set c = messages[2].content %}{{ c.split('</think>')[-1].lstrip('\\n') }}"
    "{{ c.startswith('<think>') }}{{ c.replace('hm', 'ah', 1) }}{{ c.strip().title() }}"
    "{{ '{}:{:>5}'.format('a', 3) }}{{ '-'.join(['x', 'y']) }}{{ 'x'.center(5, '*') }}"
    "{{ 'a,b'.partition(',') }}{{ 'é'.encode('utf-8') | length }}",
    "filters": "{{ messages | map(attribute='role') | join(', ') }}"
    "{{ messages | selectattr('role', 'equalto', 'user') | list | length }}"
    "{{ messages | rejectattr('role', 'in', ['user']) | map(attribute='role') | list }}"
    "{{ [3, 1, 2] | sort | first }}{{ 'x' | default('y') }}{{ nothing | default('y') }}"
    "{{ 'abc' | replace('b', 'x') }}{{ 'a\\nb' | indent(2) }}{{ {'k': 1} | items | list }}"
    "{{ {'b': 1, 'a': 2} | dictsort }}{{ [1, 2, 3, 4] | batch(2) | list }}{{ 'a b' | wordcount }}"
    "{{ 2.567 | round(1) }}{{ [1, 2] | sum }}{{ '%s' | format('z') }}{{ '<b>' | e }}"
    "{{ 'x' | center(5) }}",
    "tests": "{{ messages is iterable }}{{ none is none }}{{ tools is none }}{{ tools is defined }}"
    "{{ nothing is defined }}{{ 'a' is string }}{{ {} is mapping }}{{ 1 is number }}"
    "{{ true is true }}",
    "slices": "{{ messages[1:] | length }}{{ messages[::-1][0].role }}{{ messages[-1]['role'] }}"
    "{{ messages[0].content[:2] }}",
    "special tokens": "{{ bos_token }}{{ eos_token }}{{ unk_token }}",
    "the generation prompt": "{{ add_generation_prompt }}",
    "dict and range": "{{ dict(a=1) }}{{ range(3) | list }}{{ cycler('a', 'b').next() }}",
    "dates": "{{ strftime_now('%Y') }}",
    "unsafe attributes": "{{ messages.__class__ }}|{{ ''.__len__ is defined }}",
    "comments and raw": "{# no #}{% raw %}{{ x }}{% endraw %}",
    "white space control": "a \n {%- if true -%} \n b \n {%- endif +%}\n c",
}


@pytest.mark.parametrize("source", PIECES.values(), ids=PIECES)
def test_same_as_transformers(source: str) -> None:
    [expected], _ = reference.render_jinja_template(
        [TALK], chat_template=source, add_generation_prompt=True, **SPECIAL
    )
    assert ChatTemplate(source, name="test").render(TALK, special_tokens=SPECIAL) == expected
    assert expected


@pytest.mark.full
def test_a_template_renders_again_and_again() -> None:
    template = ChatTemplate("{{ messages[-1].content * 1000 }}", name="test")
    for _ in range(3000):  # a budget spent once is there again
        assert len(template.render(TALK, special_tokens={})) > 1000


def test_conversations_are_not_touched() -> None:
    before = [dict(message) for message in TALK]
    source = "{% for m in messages %}{% set m = dict(m, role='x') %}{{ m.role }}{% endfor %}"
    assert ChatTemplate(source, name="test").render(TALK, special_tokens={}) == "xxx"
    assert before == TALK


def test_dates_are_todays() -> None:
    rendered = ChatTemplate("{{ strftime_now('%Y') }}", name="test").render([], special_tokens={})
    assert abs(int(rendered) - datetime.datetime.now().year) <= 1
