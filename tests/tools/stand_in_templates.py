"""Templates in the form of families that no package has, with the calls as their makers show them.

All but the calls is the same; `BODIES` has what a message of the assistant shows of its calls.
`REFUSED` are ways of writing that cannot be derived, each with words of the reason.
"""

from __future__ import annotations

_DSML = "\uff5cDSML\uff5c"
_BAR = "\uff5c"
_SKELETON = (
    "{% macro json(v) %}{{ v | tojson }}{% endmacro %}"
    "{% if tools %}<|im_start|>system\n{{ tools | tojson }}<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content or '' }}"
    "{% if m.tool_calls %}BODY{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def _each(text: str, between: str = "", begin: str = "", end: str = "") -> str:
    """A text for each call `c`, of which `f` is the function."""
    separator = f"{{{{ {between!r} if not loop.last }}}}" if between else ""
    loop = "{% for c in m.tool_calls %}{% set f = c.function %}"
    return f"{begin}{loop}{text}{separator}{{% endfor %}}{end}"


def _keys(text: str, between: str = "") -> str:
    """A text for each argument, with its key `k` and value `v`."""
    separator = f"{{{{ {between!r} if not loop.last }}}}" if between else ""
    return f"{{% for k, v in f.arguments.items() %}}{text}{separator}{{% endfor %}}"


def _deepseek(name: str) -> str:
    return f"<{_BAR}{name.replace(' ', chr(0x2581))}{_BAR}>"


_TEXT_OR_JSON = "{{ v if v is string else v | tojson }}"
_TEXT_OR_PYTHON = "{{ v }}"
_LISTED = '{"name": "{{ f.name }}", "arguments": {{ f.arguments | tojson }}}'
_LINE = "{{ '\\n' }}"

BODIES = {
    "glm-4.5": _each(
        "<tool_call>{{ f.name }}" + _LINE
        + _keys(
            "<arg_key>{{ k }}</arg_key>" + _LINE + f"<arg_value>{_TEXT_OR_JSON}</arg_value>" + _LINE
        )
        + "</tool_call>",
        "\n",
    ),
    "glm-5": _each(
        "<tool_call>{{ f.name }}"
        + _keys(f"<arg_key>{{{{ k }}}}</arg_key><arg_value>{_TEXT_OR_JSON}</arg_value>")
        + "</tool_call>"
    ),
    "kimi-k2": _each(
        "<|tool_call_begin|>{{ c.id }}<|tool_call_argument_begin|>{{ f.arguments | tojson }}"
        "<|tool_call_end|>",
        begin="<|tool_calls_section_begin|>",
        end="<|tool_calls_section_end|>",
    ),
    "kimi-k2-first": _each(
        "<|tool_call_begin|>functions.{{ f.name }}:{{ loop.index0 }}<|tool_call_argument_begin|>"
        "{{ f.arguments | tojson }}<|tool_call_end|>",
        begin="<|tool_calls_section_begin|>",
        end="<|tool_calls_section_end|>",
    ),
    "minimax-m2": _each(
        '<invoke name="{{ f.name }}">' + _LINE
        + _keys(f'<parameter name="{{{{ k }}}}">{_TEXT_OR_JSON}</parameter>' + _LINE)
        + "</invoke>" + _LINE,
        begin="<minimax:tool_call>" + _LINE,
        end="</minimax:tool_call>",
    ),
    "minimax-m1": _each(
        _LISTED + _LINE, begin="<tool_calls>" + _LINE, end="</tool_calls>"
    ),
    "deepseek-v3.1": _each(
        _deepseek("tool call begin")
        + "{{ f.name }}"
        + _deepseek("tool sep")
        + "{{ f.arguments if f.arguments is string else f.arguments | tojson }}"
        + _deepseek("tool call end"),
        begin=_deepseek("tool calls begin"),
        end=_deepseek("tool calls end"),
    ),
    "deepseek-v3.2": _each(
        f'<{_DSML}invoke name="{{{{ f.name }}}}">' + _LINE
        + _keys(
            f'<{_DSML}parameter name="{{{{ k }}}}" string="{{{{ json(v is string) }}}}">'
            f"{_TEXT_OR_JSON}</{_DSML}parameter>",
            "\n",
        )
        + _LINE + f"</{_DSML}invoke>" + _LINE,
        begin=f"<{_DSML}function_calls>" + _LINE,
        end=f"</{_DSML}function_calls>",
    ),
    "command-a": _each(
        '    {"tool_call_id": "{{ loop.index0 }}", "tool_name": "{{ f.name }}", '
        '"parameters": {{ f.arguments | tojson }}}',
        ",\n",
        begin="<|START_ACTION|>[" + _LINE,
        end=_LINE + "]<|END_ACTION|>",
    ),
    "command-r-plus": _each(
        '    {{ {"tool_name": f.name, "parameters": f.arguments} | tojson(indent=4) }}',
        ",\n",
        begin="Action:" + _LINE + "```json" + _LINE + "[" + _LINE,
        end=_LINE + "]```",
    ),
    "seed-oss": _each(
        "<seed:tool_call>" + _LINE + "<function={{ f.name }}>" + _LINE
        + _keys(f"<parameter={{{{ k }}}}>{_TEXT_OR_PYTHON}</parameter>" + _LINE)
        + "</function>" + _LINE + "</seed:tool_call>",
        "\n",
    ),
    "hunyuan-a13b": _each(
        "<tool_call>function<tool_sep>{{ f.name }}" + _LINE + "```json" + _LINE
        + "{{ f.arguments | tojson }}" + _LINE + "```</tool_call>",
        "\n",
        begin="<tool_calls>",
        end="</tool_calls>",
    ),
    "hunyuan-4": _each(
        "<tool_call>{{ f.name }}<tool_sep>" + _LINE
        + _keys(
            "<arg_key>{{ k }}</arg_key>" + _LINE + f"<arg_value>{_TEXT_OR_JSON}</arg_value>" + _LINE
        )
        + "</tool_call>" + _LINE,
        begin="<tool_calls>" + _LINE,
        end="</tool_calls>",
    ),
    "xlam": _each(_LISTED, ", ", begin="[", end="]"),
    "nemotron-nano-2": _each(_LISTED, ", ", begin="<TOOLCALL>[", end="]</TOOLCALL>"),
    "apertus": _each(
        '{"{{ f.name }}": {{ f.arguments | tojson }}}',
        ", ",
        begin="<|tools_prefix|>[",
        end="]<|tools_suffix|>",
    ),
    "solar": _each(
        "<|tool_call:begin|>{{ c.id }}<|tool_call:name|>{{ f.name }}<|tool_call:args|>"
        "{{ f.arguments | tojson }}<|tool_call:end|>",
        begin="<|tool_calls|>",
    ),
    "mistral-with-ids": _each(
        "[TOOL_CALLS]{{ f.name }}[CALL_ID]{{ c.id }}[ARGS]{{ f.arguments | tojson }}"
    ),
    "mistral-nemo": _each(
        '{"name": "{{ f.name }}", "arguments": {{ f.arguments | tojson }}, "id": "{{ c.id }}"}',
        ", ",
        begin="[TOOL_CALLS][",
        end="]",
    ),
    "functionary": _each("<function={{ f.name }}>{{ f.arguments | tojson }}</function>"),
    "name twice": _each(
        '<call to={{ f.name }}><invoke name="{{ f.name }}">{{ f.arguments | tojson }}</invoke>'
    ),
    "one call only": '<tool_call>{"name": "{{ m.tool_calls[0].function.name }}", '
    '"arguments": {{ m.tool_calls[0].function.arguments | tojson }}}</tool_call>',
    "refuses two": "{% if m.tool_calls | length > 1 %}{{ raise_exception('one only') }}{% endif %}"
    + _each(f"<tool_call>{_LISTED}</tool_call>"),
    "text arguments only": _each(
        '<tool_call>{{ \'{"name": "\' + f.name + \'", "arguments": \' + f.arguments + "}" }}'
        "</tool_call>"
    ),
    "unguarded arguments": _each(
        '<tool_call>{"name": "{{ f.name }}", "arguments": {{ f.arguments }}}</tool_call>'
    ),
    "no content beside calls": "{% if m.content is none %}"
    + _each(f"<tool_call>{_LISTED}</tool_call>")
    + "{% endif %}",
    "sorted keys": _each(
        "<tool_call>{{ f.name }}{{ f.arguments | tojson(sort_keys=true) }}</tool_call>"
    ),
    "arguments first": _each(
        "<tool_call>{{ {'name': f.name, 'arguments': f.arguments} | tojson(sort_keys=true) }}"
        "</tool_call>"
    ),
    "compact JSON": _each(
        "<tool_call>{{ {'name': f.name, 'arguments': f.arguments} | "
        "tojson(separators=(',', ':')) }}</tool_call>"
    ),
    "escaped letters": _each(
        "<tool_call>{{ f.name }}{{ f.arguments | tojson(ensure_ascii=true) }}</tool_call>"
    ),
    "keywords of Python": _each(
        "{{ f.name }}(" + _keys("{{ k }}={{ v | tojson if v is string else v }}", ", ") + ")",
        ", ",
        begin="<calls>[",
        end="]</calls>",
    ),
}  # fmt: skip

REFUSED = {
    "names before all arguments": (
        _each("{{ f.name }} ", begin="<calls>")
        + _each("{{ f.arguments | tojson }} ", end="</calls>"),
        "not one after the other",
    ),
    "no mark before a call": (
        _each("{{ f.name }}: {{ f.arguments | tojson }}", "\n"),
        "nothing is before its calls",
    ),
    "no end of a text": (
        _each("<call>{{ f.name }} " + _keys("<{{ k }}>{{ v }}") + "</call>"),
        "no certain end",
    ),
    "lists of its own": (
        _each(
            "<call>{{ f.name }}" + _keys(
                "<arg {{ k }}>{% if v is iterable and v is not string and v is not mapping %}"
                "{% for e in v %}* {{ e }} {% endfor %}{% else %}{{ v }}{% endif %}</arg>"
            ) + "</call>"
        ),
        "values of the type array",
    ),
    "escaped texts": (
        _each(
            "<call>{{ f.name }}" + _keys(
                "<arg {{ k }}>{{ v | e if v is string else v | tojson }}</arg>"
            ) + "</call>"
        ),
        "texts with double quotes are in a form of their own",
    ),
    "marks around some texts": (
        _each(
            "<call>{{ f.name }}" + _keys(
                "<arg {{ k }}>{{ '<![CDATA[' + v + ']]>' if v is string and '<' in v "
                "else (v if v is string else v | tojson) }}</arg>"
            ) + "</call>"
        ),
        "texts with tags are in a form of their own",
    ),
    "JSON within JSON": (
        _each('<call>{"name": "{{ f.name }}", "arguments": {{ f.arguments | tojson | tojson }}}'
              "</call>"),
        "values of the type",
    ),
    "no calls": ("", "not how to call them"),
    "no names": (_each("<call>{{ f.arguments | tojson }}</call>"), "have no names"),
}  # fmt: skip


def template_of(body: str) -> str:
    return _SKELETON.replace("BODY", body)
