#!/usr/bin/env python3
"""Writes chat templates, in the shapes that families of models use, and what transformers makes of them.

    pip install transformers jinja2
    tests/reference/make_chat_goldens.py tests/testdata_chat.json
"""

import argparse
import datetime
import json
import pathlib

import jinja2
from transformers.utils import chat_template_utils

NOW = datetime.datetime(2026, 3, 4, 15, 6, 7)
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}

MARKED = """{% for message in messages %}
{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}
{% endfor %}
{% if add_generation_prompt %}
{{ '<|im_start|>assistant\\n' }}
{% endif %}
"""

BRACKETS = """{%- if messages[0]['role'] == 'system' -%}
    {%- set rest = messages[1:] -%}
    {%- set system = messages[0]['content'] -%}
{%- else -%}
    {%- set rest = messages -%}
    {%- set system = false -%}
{%- endif -%}
{%- for message in rest -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{- raise_exception('Roles take turns, user first') -}}
    {%- endif -%}
    {%- if loop.index0 == 0 and system != false -%}
        {%- set content = '<<SYS>>\\n' + system + '\\n<</SYS>>\\n\\n' + message['content'] -%}
    {%- else -%}
        {%- set content = message['content'] -%}
    {%- endif -%}
    {%- if message['role'] == 'user' -%}
        {{- bos_token + '[INST] ' + content.strip() + ' [/INST]' -}}
    {%- elif message['role'] == 'assistant' -%}
        {{- ' ' ~ content | trim ~ ' ' ~ eos_token -}}
    {%- else -%}
        {{- raise_exception('The role ' + message['role'] + ' is unknown') -}}
    {%- endif -%}
{%- endfor -%}
"""

HEADERS = """{{- bos_token }}
{%- if not tools is defined %}{%- set tools = none %}{%- endif %}
{%- if not day is defined %}
    {%- if strftime_now is defined %}
        {%- set day = strftime_now("%d %b %Y") %}
    {%- else %}
        {%- set day = "1 Jan 2026" %}
    {%- endif %}
{%- endif %}
{#- The system message is the first. #}
{%- if messages[0].role == "system" %}
    {%- set system = messages[0].content | trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\nToday is " + day + "\\n\\n" }}
{%- if tools is not none %}
    {%- for tool in tools %}{{- tool | tojson }}{%- endfor %}
{%- endif %}
{{- system + "<|eot_id|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + message['content'] | trim + '<|eot_id|>' }}
    {%- elif message.content is mapping or message.content is iterable %}
        {{- message.content | tojson }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}
"""

THINKING = """{%- set ns = namespace(open=true, last=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.open and message.role == "user" and not(message.content.startswith('<tool>') and message.content.endswith('</tool>')) %}
        {%- set ns.open = false %}
        {%- set ns.last = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}{%- set content = message.content %}{%- else %}{%- set content = '' %}{%- endif %}
    {%- if message.role == "assistant" %}
        {%- set thought = '' %}
        {%- if message.thought is string %}
            {%- set thought = message.thought %}
        {%- elif '</think>' in content %}
            {%- set thought = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last and (loop.last or thought) %}
            {{- '<|im_start|>assistant\\n<think>\\n' + thought.strip('\\n') + '\\n</think>\\n\\n' + content }}
        {%- else %}
            {{- '<|im_start|>assistant\\n' + content }}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if thinks is defined and thinks is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}
"""

TOOLS = """{%- set asked = messages | selectattr("role", "equalto", "user") | list %}
{%- set turns = namespace() %}
{%- set turns.count = 0 %}
{%- for message in messages if message.role not in ('system', 'tool') and not message.get("calls") %}
    {%- if message.role == 'user' and turns.count % 2 != 0 %}
        {{- raise_exception("Roles take turns, not " ~ message.role ~ " at " ~ turns.count) }}
    {%- endif %}
    {%- set turns.count = turns.count + 1 %}
{%- endfor %}
{{- bos_token }}
{%- for message in messages %}
    {%- if tools is not none and message == asked[-1] %}
        {%- for tool in tools %}
            {%- for key, value in tool.items() if key != "return" %}{{ '"' + key + '": ' + value|tojson(indent=4) }}{%- endfor %}
        {%- endfor %}
    {%- endif %}
    {{- "[" ~ message.role | upper ~ "] " }}
    {%- if message.content is defined and message.content.content is defined %}
        {{- message.content.content }}
    {%- else %}
        {{- message["content"] | string + eos_token }}
    {%- endif %}
{%- endfor %}
{{- "[ASSISTANT] " }}
"""

# As Qwen3's: tools in the system message, and thinking that a request turns off.
SIGNATURES = """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
    {{- "# Functions\\n\\nSignatures are between <tools> and </tools>:\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools>\\n\\nA call is {\\"name\\": <name>, \\"arguments\\": <object>}.<|im_end|>\\n" }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == "tool" %}
        {%- if loop.first or (messages[loop.index0 - 1].role != "tool") %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- elif message.role != "system" or not loop.first %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content }}
        {%- for call in message.tool_calls %}
            {%- if call.function %}{%- set call = call.function %}{%- endif %}
            {{- call.name }}{%- if call.arguments is string %}{{- call.arguments }}{%- else %}{{- call.arguments | tojson }}{%- endif %}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}
"""

# As Llama 3.1's: tools in the first user message, or in the system message where a request says so.
FUNCTIONS = """{{- bos_token }}
{%- if custom_tools is defined %}{%- set tools = custom_tools %}{%- endif %}
{%- if not tools_in_user_message is defined %}{%- set tools_in_user_message = true %}{%- endif %}
{%- if not date_string is defined %}{%- set date_string = "1 Jan 2026" %}{%- endif %}
{%- if not tools is defined %}{%- set tools = none %}{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{%- if builtin_tools is defined or tools is not none %}{{- "Environment: ipython\\n" }}{%- endif %}
{%- if builtin_tools is defined %}
    {{- "Tools: " + builtin_tools | reject('equalto', 'code_interpreter') | join(", ") + "\\n\\n"}}
{%- endif %}
{{- "Today is " + date_string + "\\n\\n" }}
{%- if tools is not none and not tools_in_user_message %}
    {{- "Functions that may be called:\\n\\n" }}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
{%- endif %}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- if tools_in_user_message and not tools is none %}
    {%- if messages | length != 0 %}
        {%- set first_user_message = messages[0]['content']|trim %}
        {%- set messages = messages[1:] %}
    {%- else %}
        {{- raise_exception("There is no user message for the tools") }}
    {%- endif %}
    {{- '<|start_header_id|>user<|end_header_id|>\\n\\nFunctions:\\n\\n' -}}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
    {{- first_user_message + "<|eot_id|>"}}
{%- endif %}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}{{- raise_exception("One call at a time") }}{%- endif %}
        {%- set tool_call = message.tool_calls[0].function %}
        {%- if builtin_tools is defined and tool_call.name in builtin_tools %}
            {%- for arg_name, arg_val in tool_call.arguments | items %}
                {{- arg_name + '="' + arg_val + '"' }}
            {%- endfor %}
        {%- endif %}
    {%- elif message.role == "tool" or message.role == "ipython" %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\\n\\n" }}
        {%- if message.content is mapping or message.content is iterable %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
        {{- "<|eot_id|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}
"""

# The parts of requests beside messages, as their JSON.
WEATHER = """{"type": "function", "function": {"name": "get_weather", "description": "The weather — \\u00e9\\"<b>\\n",
 "parameters": {"type": "object", "required": ["place", "unit"], "properties": {
  "unit": {"type": "string", "enum": ["°C", "°F"], "default": null}, "place": {"type": "string"},
  "days": {"type": "integer", "minimum": 1, "maximum": 1e1, "default": 0.5, "x": [], "y": {}, "z": [[1, [2.5]], true, false]}}}}}"""
ARGUMENTS = {
    "signatures": ['{"enable_thinking": false}', '{"enable_thinking": true, "unused": [1, {"a": null}]}', f'{{"tools": [{WEATHER}]}}',
                   f'{{"tools": [{WEATHER}, {{"name": "b", "a": 1}}], "enable_thinking": false}}', '{"tools": []}', '{"tools": null}'],
    "functions": [f'{{"tools": [{WEATHER}]}}', f'{{"custom_tools": [{WEATHER}, {{}}], "tools_in_user_message": false, "date_string": "7 Mai"}}',
                  '{"builtin_tools": ["search", "code_interpreter", "math"]}'],
    "tools": [f'{{"tools": [{WEATHER}]}}'],
    "headers": ['{"day": "Monday"}', f'{{"tools": [{WEATHER}]}}'],
    "given": ['{"x": 1.0, "y": -0.0, "z": 12345678901234567890.0, "m": {"b": 1, "a": [2, {"c": 1e-7}], "items": 3}}',
              '{"x": 0.1, "y": 1e16, "z": 123456789012345.6, "m": {"b": 1, "a": [2, {"c": 0.0001}], "items": 3}}',
              '{"x": 1e22, "y": 5e-324, "z": 1.7976931348623157e308, "m": {"a": [2, {"c": 9007199254740993.0}], "b": 1, "items": 3}}',
              '{"x": 100, "y": -3, "z": true, "m": {"items": 3, "b": 2, "a": [2, {"c": "d"}]}}',
              '{"x": "a", "y": "b", "z": "", "m": {"items": 3, "b": 2, "a": [2, {"c": 1}]}}'],
}

SMALL = {
    "given": "{{ x }}|{{ y }}|{{ z ~ x }}|{{ x is number }}|{{ x == 1 }}|{{ z == true }}|{{ x < y }}|{{ not y }}|{{ x is string }}|"
             "{{ m | tojson }}|{{ m | tojson(indent=2) }}|{{ m | tojson(separators=(',', ':')) }}|"
             "{{ m | tojson(indent=1, separators=(' ;', '= '), ensure_ascii=False) }}|"
             "{% for k, v in m.items() %}{{ k }}{% if v is mapping %}m{% elif v is string %}s{% endif %}{% endfor %}|{{ m['items'] }}|"
             "{{ m.get('nothing', x) }}|{{ m == m }}|{{ 'items' in m }}|{{ m.a[1].c }}|{{ m.a[1] in m.a }}|{{ [x, y] | tojson }}",
    "lines": "a\n  {% if true %}  \n b {# gone #}\n{% endif %}\n  {{ 'x' }}\n  {%+ if true %} c {% endif +%}\n d\n\n",
    "crlf": "a\r\n{% if true %}\r\nb\r\n{% endif %}\r\n",
    "values": "{{ true }}|{{ none }}|{{ unknown }}|{{ 7 // 2 }}|{{ -7 // 2 }}|{{ -7 % 3 }}|{{ -7 is number }}|{{ -7|string ~ 'x' }}|{{ 2 * 3 - 4 }}|{{ 'a' ~ 1 ~ true }}|"
              "{{ 1 == true }}|{{ [1, 2] == [1, 2] }}|{{ 'b' > 'a' }}|{{ not 1 }}|{{ 1 if false }}|{{ 1 if false else 2 }}",
    "texts": "{{ 'äöü€'[1:3] }}|{{ 'äöü€'|length }}|{{ '\u00a0 x\u3000'|trim }}|{{ 'xxaxx'.strip('x') }}|{{ 'abc'[::-1] }}|"
             "{{ 'abc'[-2:] }}|{{ 'abc'[5:] }}|{{ 'abc'[:-5] }}|{{ 'abc'[-1] }}|{{ 'abc'[9] }}|{{ 'a,b'.split(',')|join('+') }}|"
             "{{ 'aXbX'.replace('X', 'yy') }}|{{ 'q\\'\"\\\\' }}|{{ \"two\" ' one' }}",
    "lists": "{{ messages|length }}|{{ messages[-1].content }}|{{ (messages + messages)|length }}|{{ messages[1:-1]|length }}|"
             "{{ [1, 2, 3][::-1]|join(',') }}|{{ 2 in [1, 2] }}|{{ 3 not in [1, 2] }}|{{ messages|first is mapping }}|{{ [1,2]|last }}|"
             "{{ [] | first is defined }}|{{ [1,2,3][-1:0:-1]|join }}|{{ [1,2,3][9::-1]|join }}",
    "json": "{{ messages|tojson }}|{{ [1, true, none, 'é\\n\"']|tojson }}|{{ []|tojson }}|{{ messages|tojson(indent=2) }}|"
            "{{ []|tojson(indent=4) }}|{{ ['a', 1]|tojson(indent=0) }}|{{ 'ß'|tojson(ensure_ascii=False) }}",
    "selected": "{{ messages|selectattr('role', 'equalto', 'user')|list|length }}|{{ messages|rejectattr('role', '==', 'user')|list|length }}|"
                "{% for m in messages|selectattr('content')|rejectattr('role', 'eq', 'user') %}{{ m.role }},{% endfor %}|"
                "{% for m in messages|selectattr('content') if m.role == 'user' %}{{ m.content }},{% endfor %}|"
                ""
                "{{ messages|selectattr('content')|list|length }}|{{ ['a', 'b', 'a']|reject('equalto', 'a')|join(',') }}|"
                "{{ ['a', 1, none]|select('string')|list|tojson }}|{{ [0, 1, '']|select|list|length }}|{{ [1, 2]|select('ne', 1)|first }}|"
                "{{ messages|selectattr('name', 'defined')|list|length }}",
    "cases": "{{ 'straße Σας'.upper() }}|{{ 'ÀÉ ΑΣ'.lower() }}|{{ 'éCOLE de'|capitalize }}|{{ 'ab'|upper }}|{{ 'AB'|lower }}|{{ messages[0].role.capitalize() }}|"
             "{{ 'ǆa'|capitalize }}",
    "tuples": "{{ 'a' in ('a', 'b') }}|{{ ('a') }}|{{ 'a' in ('a',) }}|{{ 1 not in () }}|{% for x in (1, 2) %}{{ x }}{% endfor %}|{{ (1 + 2) * 3 }}|{{ 'a\\\nb' }}|{{ '' in 'a' }}",
    "loops": "{% for m in messages if m.role == 'user' %}{{ loop.index }}/{{ loop.length }}{{ loop.first }}{{ loop.last }}"
             "{{ loop.revindex0 }}{{ loop.previtem is defined }}{% if not loop.last %},{% endif %}{% endfor %};"
             "{% for k, v in messages[0].items() %}{{ k }}={{ v }} {% endfor %}{% for k in messages[0] %}{{ k }}{% endfor %}"
             "{% for x in unknown %}never{% endfor %}{% for i in range(3) %}{{ i }}{% endfor %}",
    "scopes": "{% set x = 1 %}{% for i in [1, 2] %}{{ x }}{% set x = i + 5 %}{{ x }}{% endfor %}{{ x }}{% if true %}{% set x = 3 %}{% endif %}"
              "{{ x }}{% set ns = namespace(n=0) %}{% for i in [1, 2, 3] %}{% set ns.n = ns.n + i %}{% endfor %}{{ ns.n }}",
    "tests": "{{ x is defined }}{{ x is not defined }}{{ none is none }}{{ 'a' is string }}{{ 1 is number }}{{ true is boolean }}"
             "{{ [] is sequence }}{{ messages[0] is mapping }}{{ 'a' is iterable }}{{ 1 is iterable }}{{ x|default('d') }}{{ ''|default('e', true) }}"
             "{{ messages[0].get('name') is none }}{{ messages[0].get('name', 'n') }}{{ messages[0].name is defined }}{{ true is true }}",
    "generation": "{% for m in messages %}\n  {% generation %}\n{{ loop.index }}{% set x = m.role %}{{ x }}\n  {% endgeneration %}\n{{ x }};{% endfor %}",
    "dates": "{{ strftime_now('%a %A %b %B %d %e %H %I %j %m %M %p %S %y %Y %%') }}|{{ strftime_now('%-d.%-m., %-I:%-M:%-S, %-H, %-j') }}|"
             "{{ strftime_now('') }}|{{ strftime_now('é %d' ~ ' %B') }}|{{ strftime_now is defined }}|{{ range is undefined }}",
    "raised": "{{ raise_exception('No such role: ' ~ messages[0].role) }}",
}

CHATS = [
    [("user", "Hello")],
    [("system", " Be brief. \n"), ("user", "What is 2 + 2?"), ("assistant", " 4 "), ("user", "Thanks, naïve 你好 😀\n")],
    [("user", "a"), ("assistant", "<think>\nhm\n</think>\n\nb"), ("user", "<tool>c</tool>"), ("assistant", "<think>so</think>d"), ("user", "</think>")],
    [("system", ""), ("user", ""), ("assistant", "")],
    [("assistant", "first"), ("robot", "{{ x }} {% if %} \"quoted\" \\n")],
]
TOOL_CHATS = [[("system", "Go."), ("user", " Rain? "), ("assistant", "..."), ("tool", "{\"rain\": true}"), ("tool", "no")], [("system", "alone")]]


class Clock:
    """In place of datetime where transformers asks for the time."""

    @staticmethod
    def now():
        return NOW


def render(source, chat, arguments="{}"):
    messages = [{"role": role, "content": content} for role, content in chat]
    try:
        given = {"tools": None, "documents": None, **TOKENS, **json.loads(arguments)}
        (prompt,), _ = chat_template_utils.render_jinja_template(
            conversations=[messages], chat_template=source, add_generation_prompt=True, **given)
        return {"prompt": prompt}
    except jinja2.exceptions.TemplateError as why:
        return {"refused": str(why)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=pathlib.Path)
    arguments = parser.parse_args()
    templates = {"marked": MARKED, "brackets": BRACKETS, "headers": HEADERS, "thinking": THINKING, "tools": TOOLS,
                 "signatures": SIGNATURES, "functions": FUNCTIONS, **SMALL}
    chat_template_utils.datetime = Clock
    cases = []
    for name, source in templates.items():
        answers = [{"messages": chat, **render(source, chat)} for chat in CHATS] if name != "given" else []
        for given in ARGUMENTS.get(name, ()):
            chats = CHATS[:1] if name == "given" else CHATS[:2] + TOOL_CHATS
            answers += [{"messages": chat, "arguments": given, **render(source, chat, given)} for chat in chats]
        cases.append({"name": name, "template": source, "tokens": TOKENS, "answers": answers})
    lines = ",\n".join(json.dumps(case, ensure_ascii=False) for case in cases)
    arguments.file.write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    main()
