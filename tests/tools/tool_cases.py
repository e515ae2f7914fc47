"""A short template of each family in its published form, and a reply with calls.

`rendered` is what the template makes of `CONVERSATION`, at least in part. `tokens` are its control
tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mrs.request import Message

WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "days": {"type": "integer", "minimum": 1, "maximum": 9},
                "sunny": {"type": "boolean"},
                "unit": {"type": "string", "enum": ["C", "F"]},
                "tags": {"type": "array", "items": {"type": "string", "enum": ["a", "b"]}},
            },
            "required": ["city"],
        },
    },
}
NOW: dict[str, Any] = {"type": "function", "function": {"name": "now"}}
TOOLS = [WEATHER, NOW]

CONVERSATION: list[Message] = [
    {"role": "user", "content": "Weather?"},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "abc123def", "name": "get_weather", "arguments": '{"city": "Rome"}'}],
    },
    {"role": "tool", "content": "sunny", "tool_call_id": "abc123def", "name": "get_weather"},
]
#: The calls of every reply below; the second only if it has two.
ROME = ("get_weather", {"city": "Ro\u00f1me (a,b) }", "days": 3, "sunny": True})
CALLS = [ROME, ("now", {})]
_JSON = '{"city": "Ro\u00f1me (a,b) }", "days": 3, "sunny": true}'
_BAR = "\uff5c"


def _deepseek(name: str) -> str:
    return f"<{_BAR}{name.replace(' ', chr(0x2581))}{_BAR}>"


_BEGIN, _CALL, _SEP, _END, _ENDS = (
    _deepseek(name)
    for name in (
        *("tool calls begin", "tool call begin", "tool sep", "tool call end"),
        "tool calls end",
    )
)


@dataclass(frozen=True)
class Case:
    """A family: its template, a reply, and rendered messages."""

    template: str
    reply: str
    rendered: str
    tokens: tuple[str, ...] = ()
    has_two: bool = True
    content: str = ""


_CHATML = (
    "{% if tools %}<|im_start|>system\nTOOLS{% for tool in tools %}\n{{ tool | tojson }}"
    "{% endfor %}\nBODY<|im_end|>\n{% endif %}"
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}"
    "{% for call in message.tool_calls %}CALL{% endfor %}<|im_end|>\n{% endfor %}"
    "<|im_start|>assistant\n"
)


def _chatml(body: str, call: str) -> str:
    return _CHATML.replace("BODY", body).replace("CALL", call)


CASES = {
    "qwen": Case(
        _chatml(
            'write <tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n'
            "</tool_call>",
            '<tool_call>\n{"name": "{{ call.function.name }}", "arguments": '
            "{{ call.function.arguments | tojson }}}\n</tool_call>"
            "{{ '\\n' if not loop.last }}",
        ),
        f'I look. <tool_call>\n{{"name": "get_weather", "arguments": {_JSON}}}\n</tool_call>\n'
        '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>',
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome"}}\n</tool_call>',
        content="I look. ",
    ),
    "qwen3-coder": Case(
        _chatml(
            "write <tool_call>\n<function=example>\n<parameter=p>\nvalue\n</parameter>",
            "<tool_call>\n<function={{ call.function.name }}>\n"
            "{% for key, value in call.function.arguments.items() %}<parameter={{ key }}>\n"
            "{{ value if value is string else value | tojson }}\n</parameter>\n{% endfor %}"
            "</function>\n</tool_call>{{ '\\n' if not loop.last }}",
        ),
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nRo\u00f1me (a,b) }\n</parameter>\n"
        "<parameter=days>\n3\n</parameter>\n<parameter=sunny>\ntrue\n</parameter>\n"
        "</function>\n</tool_call>\n<tool_call>\n<function=now>\n</function>\n</tool_call>",
        "<function=get_weather>\n<parameter=city>\nRome\n</parameter>\n</function>",
    ),
    "llama3": Case(
        "{% for message in messages %}<|start_header_id|>"
        "{{ 'ipython' if message.role == 'tool' else message.role }}<|end_header_id|>\n\n"
        "{% if message.tool_calls %}{% set call = message.tool_calls[0].function %}"
        '{"name": "{{ call.name }}", "parameters": {{ call.arguments | tojson }}}'
        "{% else %}{% if loop.first %}{% for tool in tools or [] %}{{ tool | tojson }}\n"
        "{% endfor %}{% endif %}{{ message.content }}{% endif %}<|eot_id|>{% endfor %}",
        f'{{"name": "get_weather", "parameters": {_JSON}}}',
        '{"name": "get_weather", "parameters": {"city": "Rome"}}<|eot_id|>'
        "<|start_header_id|>ipython<|end_header_id|>\n\nsunny",
        has_two=False,
    ),
    "mistral-v3": Case(
        "{% if tools %}[AVAILABLE_TOOLS] {{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}"
        "{% for message in messages %}{% if message.role == 'tool' %}[TOOL_RESULTS] "
        '{"content": {{ message.content }}, "call_id": "{{ message.tool_call_id }}"}'
        "[/TOOL_RESULTS]{% elif message.tool_calls %}[TOOL_CALLS] ["
        "{% for call in message.tool_calls %}{% if call.id | length != 9 %}"
        "{{ raise_exception('ids have nine characters') }}{% endif %}"
        '{{ (call.function | tojson)[:-1] }}, "id": "{{ call.id }}"}'
        "{{ '' if loop.last else ', ' }}{% endfor %}]"
        "{% elif message.role == 'assistant' %} {{ message.content }}"
        "{% else %}[INST] {{ message.content }}[/INST]{% endif %}{% endfor %}",
        f'[TOOL_CALLS] [{{"name": "get_weather", "arguments": {_JSON}}}, '
        '{"name": "now", "arguments": {}}]',
        '[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Rome"}, "id": "abc123def"}]'
        '[TOOL_RESULTS] {"content": sunny, "call_id": "abc123def"}[/TOOL_RESULTS]',
        ("[TOOL_CALLS]", "[TOOL_RESULTS]", "[INST]", "[/INST]"),
    ),
    "mistral-tekken": Case(
        "{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}{% for m in messages %}"
        "{{ m.content }}{% for call in m.tool_calls %}{{ '[TOOL_CALLS][' if loop.first }}"
        "{{ call.function | tojson }}{{ ']' if loop.last else ', ' }}{% endfor %}{% endfor %}",
        f'[TOOL_CALLS][{{"name": "get_weather", "arguments": {_JSON}}}, '
        '{"name": "now", "arguments": {}}]',
        '[TOOL_CALLS][{"name": "get_weather", "arguments": {"city": "Rome"}}]',
        ("[TOOL_CALLS]",),
    ),
    "mistral-small-3.2": Case(
        "{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}{% for m in messages %}"
        "{{ m.content }}{% for call in m.tool_calls %}[TOOL_CALLS]{{ call.function.name }}[ARGS]"
        "{{ call.function.arguments | tojson }}{% endfor %}{% endfor %}",
        f"[TOOL_CALLS]get_weather[ARGS]{_JSON}[TOOL_CALLS]now[ARGS]{{}}",
        '[TOOL_CALLS]get_weather[ARGS]{"city": "Rome"}',
        ("[TOOL_CALLS]", "[ARGS]"),
    ),
    "deepseek-v3.1": Case(
        "{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}{% for m in messages %}"
        "{% if m.tool_calls %}" + _BEGIN + "{% for call in m.tool_calls %}{{ '" + _CALL + "' + "
        "call.function.name + '" + _SEP + "' + call.function.arguments + '" + _END + "' }}"
        "{% endfor %}" + _ENDS + "{% else %}{{ m.content }}{% endif %}{% endfor %}",
        f"{_BEGIN}{_CALL}get_weather{_SEP}{_JSON}{_END}{_CALL}now{_SEP}{{}}{_END}{_ENDS}",
        f'{_BEGIN}{_CALL}get_weather{_SEP}{{"city": "Rome"}}{_END}{_ENDS}sunny',
        (_BEGIN, _CALL, _SEP, _END, _ENDS),
    ),
    "deepseek-v3": Case(
        "{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}{% for m in messages %}"
        "{% if m.tool_calls %}" + _BEGIN + "{% for call in m.tool_calls %}{{ '" + _CALL + "' + "
        "call['type'] + '" + _SEP + "' + call['function']['name'] + '\n```json\n' + "
        "call['function']['arguments'] + '\n```" + _END + "' + ('' if loop.last else '\n') }}"
        "{% endfor %}" + _ENDS + "{% else %}"
        "{{ m.content }}{% endif %}{% endfor %}",
        f"{_BEGIN}{_CALL}function{_SEP}get_weather\n```json\n{_JSON}\n```{_END}\n"
        f"{_CALL}function{_SEP}now\n```json\n{{}}\n```{_END}{_ENDS}",
        f'{_CALL}function{_SEP}get_weather\n```json\n{{"city": "Rome"}}\n```{_END}{_ENDS}sunny',
        (_BEGIN, _CALL, _SEP, _END, _ENDS),
    ),
    "granite": Case(
        "{% if tools %}<|start_of_role|>available_tools<|end_of_role|>{{ tools | tojson }}"
        "<|end_of_text|>\n{% endif %}{% for m in messages %}<|start_of_role|>{{ m.role }}"
        "<|end_of_role|>{{ m.content }}<|end_of_text|>\n{% endfor %}",
        f'<|tool_call|>[{{"name": "get_weather", "arguments": {_JSON}}}, '
        '{"name": "now", "arguments": {}}]',
        '<|tool_call|>[{"name": "get_weather", "arguments": {"city": "Rome"}}]<|end_of_text|>',
        ("<|tool_call|>", "<|start_of_role|>", "<|end_of_role|>", "<|end_of_text|>"),
    ),
    "phi4": Case(
        "{% for m in messages %}{% if m.role == 'system' and 'tools' in m %}"
        "<|system|>{{ m.content }}<|tool|>{{ m.tools }}<|/tool|><|end|>"
        "{% else %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endif %}{% endfor %}",
        f'<|tool_call|>[{{"name": "get_weather", "arguments": {_JSON}}}, '
        '{"name": "now", "arguments": {}}]<|/tool_call|>',
        '<|tool_call|>[{"name": "get_weather", "arguments": {"city": "Rome"}}]<|/tool_call|>',
        ("<|tool_call|>", "<|/tool_call|>", "<|tool|>", "<|/tool|>"),
    ),
    "lfm2": Case(
        "{% if tools %}<|tool_list_start|>{{ tools | tojson }}<|tool_list_end|>{% endif %}"
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'tool' %}"
        "<|tool_response_start|>{{ m.content }}<|tool_response_end|>{% else %}{{ m.content }}"
        "{% endif %}{% for call in m.tool_calls %}{{ '<|tool_call_start|>[' if loop.first }}"
        "{{ call.function.name }}({% for k, v in call.function.arguments.items() %}{{ k }}="
        "{{ v if v is boolean or v is none else v | tojson }}{{ ', ' if not loop.last }}"
        "{% endfor %}){{ ']<|tool_call_end|>' if loop.last else ', ' }}{% endfor %}"
        "<|im_end|>\n{% endfor %}",
        '<|tool_call_start|>[get_weather(city="Ro\u00f1me (a,b) }", days=3, sunny=True), now()]'
        "<|tool_call_end|>",
        '<|tool_call_start|>[get_weather(city="Rome")]<|tool_call_end|><|im_end|>\n'
        "<|im_start|>tool\n<|tool_response_start|>sunny<|tool_response_end|>",
        ("<|tool_call_start|>", "<|tool_call_end|>", "<|tool_response_start|>"),
    ),
    "function-gemma": Case(
        "{% macro value(v) %}{% if v is string %}<escape>{{ v }}<escape>{% elif v is mapping %}"
        "{{ '{' }}{% for k, e in v.items() %}{{ k }}:{{ value(e) }}{{ ',' if not loop.last }}"
        "{% endfor %}}{% elif v is iterable %}[{% for e in v %}{{ value(e) }}"
        "{{ ',' if not loop.last }}{% endfor %}]{% else %}{{ v | tojson }}{% endif %}"
        "{% endmacro %}{% for tool in tools or [] %}<start_function_declaration>declaration:"
        "{{ tool.function.name }}<end_function_declaration>{% endfor %}{% for m in messages %}"
        "<start_of_turn>{{ m.role }}\n{{ m.content }}{% for call in m.tool_calls %}"
        "<start_function_call>call:{{ call.function.name }}{{ '{' }}"
        "{% for k, v in call.function.arguments.items() %}{{ k }}:{{ value(v) }}"
        "{{ ',' if not loop.last }}{% endfor %}}<end_function_call>{% endfor %}<end_of_turn>"
        "\n{% endfor %}",
        "<start_function_call>call:get_weather{city:<escape>Ro\u00f1me (a,b) }<escape>,days:3,"
        "sunny:true}<end_function_call><start_function_call>call:now{}<end_function_call>",
        "<start_function_call>call:get_weather{city:<escape>Rome<escape>}<end_function_call>",
        ("<start_function_call>", "<end_function_call>", "<escape>"),
    ),
    "gemma4": Case(
        '{% macro value(v) %}{% if v is string %}<|"|>{{ v }}<|"|>{% elif v is mapping %}'
        "{{ '{' }}{% for k, e in v.items() %}{{ k }}:{{ value(e) }}{{ ',' if not loop.last }}"
        "{% endfor %}}{% elif v is iterable %}[{% for e in v %}{{ value(e) }}"
        "{{ ',' if not loop.last }}{% endfor %}]{% else %}{{ v | tojson }}{% endif %}"
        "{% endmacro %}"
        "{% for tool in tools or [] %}<|tool>declaration:{{ tool.function.name }}<tool|>"
        "{% endfor %}{% for m in messages %}<|turn>{{ m.role }}\n{{ m.content }}"
        "{% for call in m.tool_calls %}<|tool_call>call:{{ call.function.name }}{{ '{' }}"
        "{% for k, v in call.function.arguments.items() %}{{ k }}:{{ value(v) }}"
        "{{ ',' if not loop.last }}{% endfor %}}<tool_call|>{% endfor %}<turn|>\n{% endfor %}",
        '<|tool_call>call:get_weather{city:<|"|>Ro\u00f1me (a,b) }<|"|>,days:3,sunny:true}'
        "<tool_call|><|tool_call>call:now{}<tool_call|>",
        '<|tool_call>call:get_weather{city:<|"|>Rome<|"|>}<tool_call|>',
        ("<|tool_call>", "<tool_call|>", '<|"|>'),
    ),
    "gpt-oss": Case(
        "{% if tools %}namespace functions.{% for tool in tools %}{{ tool | tojson }}{% endfor %}"
        "{% endif %}{% for m in messages %}{% if m.tool_calls %}<|start|>assistant to=functions."
        "{{ m.tool_calls[0].function.name }}<|channel|>commentary json<|message|>"
        "{{ m.tool_calls[0].function.arguments | tojson }}<|call|>{% elif m.role == 'tool' %}"
        "<|start|>functions.{{ m.name }} to=assistant<|channel|>commentary<|message|>"
        "{{ m.content }}<|end|>{% else %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>"
        "{% endif %}{% endfor %}<|start|>assistant",
        "<|channel|>analysis<|message|>I look.<|end|><|start|>assistant<|channel|>commentary "
        f"to=functions.get_weather <|constrain|>json<|message|>{_JSON}",
        '<|start|>assistant to=functions.get_weather<|channel|>commentary json<|message|>{"city": '
        '"Rome"}<|call|><|start|>functions.get_weather to=assistant',
        (
            *("<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|return|>", "<|call|>"),
            "<|constrain|>",
        ),
        has_two=False,
        content="<think>\nI look.\n</think>\n\n",
    ),
}
