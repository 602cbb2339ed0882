"""Chat templates render as transformers renders them, and cannot take time, memory or secrets."""

from __future__ import annotations

import time
import tracemalloc

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from inference.text.chat_template import ChatTemplate, ChatTemplateError, ChatTemplateLimitError
from inference.text.render_budget import (
    MAX_CPU_S,
    MAX_WORK,
    RenderBudget,
    TemplateLimitError,
    element_cost,
    written_cost,
)

MESSAGES = [
    {"role": "system", "content": "  Be <kind> & brief.\n"},
    {"role": "user", "content": "Why? “ü” 'x'"},
    {"role": "assistant", "content": "Because.\nSo."},
]
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"b": [1, 2.5, None, True], "a": "<ä>"}}}]

FEATURES = [
    "{% for m in messages %}{{ loop.index }}/{{ loop.length }} "
    "{{ loop.first }} {{ loop.last }} {{ m.role }}\n{% endfor %}",
    "{% for m in messages if m.role != 'system' %}{{ m['content'] }}{% else %}none{% endfor %}",
    "{% for m in messages %}{% if loop.index == 2 %}{% continue %}{% endif %}{{ m.role }}{% break %}{% endfor %}",
    "{% for m in messages %}{{ loop.previtem is defined }}{{ loop.nextitem is defined }};{% endfor %}",
    "{% for key, value in messages[0].items() %}{{ key }}={{ value|trim }};{% endfor %}",
    "{{ messages[1:]|length }}{{ messages[-1].content.split('\n')[0] }}{{ messages[::-1][0].role }}",
    "{{ messages|map(attribute='role')|join(', ') }}",
    "{{ messages|selectattr('role', 'equalto', 'user')|list|length }}",
    "{{ messages|rejectattr('role', 'in', ['user', 'system'])|map(attribute='content')|first }}",
    "{{ tools|tojson }}\n{{ tools|tojson(indent=2) }}\n{{ tools|tojson(sort_keys=true, separators=(',', ':')) }}",
    "{{ messages[0].content|tojson }}{{ messages[0]|tojson(ensure_ascii=true) }}",
    "{% set ns = namespace(x=0, y='') %}{% for m in messages %}{% set ns.x = ns.x + 1 %}{% endfor %}{{ ns.x }}",
    "{% macro say(m, end='!') %}<{{ m.role }}>{{ m.content }}{{ end }}"
    "{% endmacro %}{{ say(messages[1]) }}{{ say(messages[0], end='') }}",
    "{% macro wrap() %}[{{ caller() }}]{% endmacro %}{% call wrap() %}in{% endcall %}",
    "{% set text %}a{{ messages[1].role }}b{% endset %}{{ text|upper }}",
    "{% filter upper %}a{{ messages[1].role }}{% endfilter %}",
    "{% generation %}{{ messages[2].content }}{% endgeneration %}",
    "{{ 'a' ~ 1 ~ none ~ nothing ~ [1, 'x'] }}{{ 'a' + 'b' }}"
    "{{ 'ab' * 2 }}{{ '%s-%d' % ('x', 3) }}{{ '{}:{:>4}'.format('x', 2) }}",
    "{{ 7 // 2 }} {{ 7 / 2 }} {{ 7 % 3 }} {{ 2 ** 5 }} {{ -3 }} {{ 1.5 + 1 }}",
    "{{ {'a': [1, (2, 3)], 'b': none} }} {{ true }} {{ none }}",
    "{{ 'x' in 'xyz' }} {{ 'role' in messages[0] }} {{ 'q' not in ['q'] }} {{ 1 < 2 <= 2 }}",
    "{{ messages[9] is defined }} {{ messages is iterable }} {{ 'x' is string }} {{ {} is mapping }} {{ 3 is odd }}",
    "{{ missing|default('d') }} {{ ''|default('e', true) }} {{ missing or 'f' }}",
    "{{ messages[0].content|trim|replace('kind', 'nice')|capitalize }} {{ 'ab cd'|title }} {{ ['b', 'a']|sort|join }}",
    "{{ [3, 1, 2]|max }} {{ [3, 1]|min }} {{ [1, 1, 2]|unique|list }} "
    "{{ {'b': 1, 'a': 2}|dictsort }} {{ 3.14159|round(2) }}",
    "{{ 'a\nb'|indent(2) }} {{ 'a\nb'|indent(width=2, first=true) }} "
    "{{ '12'|int + 1 }} {{ '1.5'|float }} {{ 5|string }}",
    "{{ [1, 2, 3]|reverse|list }} {{ 'abc'|list }} {{ 'abc'|last }} "
    "{{ {'a': 1}|items|list }} {{ [[1], [2]]|sum(start=[]) if false }}",
    "{{ messages[0].content|e }} {{ '<b>'|safe }} {{ (-3)|abs }} {{ 'one two'|wordcount }} {{ messages|count }}",
    "{{ messages[1].content.startswith('Why') }} {{ 'a-b-c'.rsplit('-', 1) }} "
    "{{ ' x '.strip() }} {{ 'abc'.replace('b', 'x') }}",
    "{{ 'abc'.find('c') }} {{ '-'.join(['a', 'b']) }} "
    "{{ 'x'.upper() }} {{ 'a.b'.partition('.') }} {{ 'Ab'.swapcase() }}",
    "{{ messages[0].get('name', 'n') }} {{ messages[0].keys()|list }} {{ dict(a=1)|tojson }} {{ dict([('k', 2)]).k }}",
    "{% set j = joiner('; ') %}{% for m in messages %}{{ j() }}{{ m.role }}"
    "{% endfor %} {% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}",
    "{% if messages[0].role == 'system' and not tools is none %}yes{% elif true %}maybe{% else %}no{% endif %}",
    "{%- for i in range(3) -%}{{ i }}{%- endfor -%}  \n  {%- raw %}{{ raw }}{% endraw %}{# comment #}",
    "{% for a, b in [(1, 2), (3, 4)] %}{{ a }}{{ b }}{% endfor %}{% set x, y = 1, 2 %}{{ x }}{{ y }}",
    "{% for m in messages recursive %}{{ m.role }}{% if loop.depth0 < 1 and loop.first %}"
    "({{ loop(messages[1:2]) }}){% endif %}{% endfor %}",
    "   {% if true %}\n  indented\n   {% endif %}\nend\n",
    "{{ strftime_now('%Y') }}{{ bos_token }}{{ messages|string|length > 10 }}{{ add_generation_prompt }}",
    "{{ messages[0]['content'][:4] }}{{ 'x' if messages else 'y' }}{{ ('a', 'b')[1] }}{{ messages[0]|length }}",
]


@pytest.mark.parametrize("source", FEATURES)
def test_renders_as_transformers_does(source):
    expected, _ = render_jinja_template(
        conversations=[MESSAGES], tools=TOOLS, chat_template=source, add_generation_prompt=True, bos_token="<s>"
    )

    assert ChatTemplate(source, {"bos_token": "<s>"}).render(MESSAGES, tools=TOOLS) == expected[0]


HOSTILE = {
    "repetition": "{{ 'x'*10**9 }}",
    "repetition_reversed": "{{ 10**9 * 'x' }}",
    "repeated_list": "{{ ([0] * 10**9)|length }}",
    "power": "{{ 10 ** (10 ** 9) }}",
    "digits": "{% set ns = namespace(n=10**1000) %}{% for i in range(99) %}{% set ns.n = ns.n * ns.n %}{% endfor %}",
    "nested_loops": (
        "{% set r = range(99999) %}{% for a in r %}{% for b in r %}{% for c in r %}{% endfor %}{% endfor %}{% endfor %}"
    ),
    "loops_that_write": "{% for a in range(99999) %}{% for b in range(99999) %}"
    + "x" * 999
    + "{% endfor %}{% endfor %}",
    "captured_output": "{% set x %}{% for i in range(99999) %}" + "x" * 9999 + "{% endfor %}{% endset %}",
    "captured_expression": "{% set x %}{% for i in range(99999) %}{{ 'x' * 9999 }}{% endfor %}{% endset %}",
    "filter_block": "{% filter upper %}{% for i in range(99999) %}" + "x" * 9999 + "{% endfor %}{% endfilter %}",
    "doubled_by_concatenation": (
        "{% set ns = namespace(s='xx') %}{% for i in range(99) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}"
    ),
    "doubled_by_addition": (
        "{% set ns = namespace(s='xx') %}{% for i in range(99) %}{% set ns.s = ns.s + ns.s %}{% endfor %}"
    ),
    "doubled_lists": (
        "{% set ns = namespace(s=['x']) %}{% for i in range(99) %}{% set ns.s = [ns.s, ns.s] %}{% endfor %}{{ ns.s }}"
    ),
    "doubled_dicts": (
        "{% set ns = namespace(s='x') %}{% for i in range(99) %}"
        "{% set ns.s = {'a': ns.s, 'b': ns.s} %}{% endfor %}{{ ns.s|tojson }}"
    ),
    "doubled_by_dict": (
        "{% set ns = namespace(s='x') %}{% for i in range(99) %}"
        "{% set ns.s = dict(a=ns.s, b=ns.s) %}{% endfor %}{{ ns.s }}"
    ),
    "macro_doubling": "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}x{% endmacro %}{{ m(60) }}",
    "percent_width": "{{ '%1000000000d' % 1 }}",
    "percent_star": "{{ '%*d' % (1000000000, 1) }}",
    "format_width": "{{ '{:1000000000}'.format(1) }}",
    "format_nested_width": "{{ '{:{}}'.format(1, 10**9) }}",
    "format_map_width": "{{ '{a:1000000000}'.format_map({'a': 1}) }}",
    "big_range": "{{ range(10**9)|list }}",
    "replacement": "{{ ('a' * 99999).replace('a', 'b' * 99999) }}",
    "replacement_filter": "{{ ('a' * 99999)|replace('a', 'b' * 99999) }}",
    "empty_replacement": "{{ ('a' * 99999).replace('', 'b' * 99999) }}",
    "join": "{{ ('b' * 99999).join('a' * 99999) }}",
    "join_filter": "{{ ('a' * 99999)|join('b' * 99999) }}",
    "indent": "{{ 'x'|indent(10**9, true) }}",
    "indent_string": "{{ ('\n' * 99999)|indent('x' * 99999) }}",
    "json_indent": "{{ messages|tojson(indent=10**9) }}",
    "json_separators": "{{ messages|tojson(separators=('x' * 9999, 'y')) }}",
    "rounding": "{{ 5|round(-1000000000) }}",
    "date_width": "{{ strftime_now('%1000000000Y') }}",
    "date_length": "{{ strftime_now('%c' * 99999) }}",
    "character_list": "{{ ('€' * 20000000)|list|length }}",
    "splitting": "{{ ('a ' * 15000000).split()|length }}",
    "comparison": (
        "{% set a = ['x' * 9999999] * 99 %}{% set b = ['x' * 9999998 + 'y'] * 99 %}"
        "{% for i in range(9999) %}{{ a == b }}{% endfor %}"
    ),
    "fromkeys": "{% for i in range(9999) %}{% set x = dict.fromkeys(range(99999)) %}{% endfor %}",
    "map_of_filter": "{% for i in range(9999) %}{% set x = range(99999)|map('string')|list %}{% endfor %}",
    "recursion": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "loop_recursion": "{% for m in messages recursive %}{{ loop(messages) }}{% endfor %}",
    "deep_parentheses": "{{ " + "(" * 20000 + "1" + ")" * 20000 + " }}",
    "deep_blocks": "{% if 1 %}" * 3000 + "{% endif %}" * 3000,
    "long_source": "x" * 600_000,
    "constant_folding": "{{ 'x'|indent(10**9, true)|upper }}{{ ('x' * 10**8)|length }}",
}


def small_budget() -> RenderBudget:
    """A tenth of what templates have, so that the tests are fast."""
    return RenderBudget(max_work=MAX_WORK // 10, max_cpu_s=MAX_CPU_S / 10)


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_templates_are_stopped(name):
    tracemalloc.start()
    started = time.thread_time()
    try:
        with pytest.raises(ChatTemplateError) as caught:
            ChatTemplate(HOSTILE[name], make_budget=small_budget).render(MESSAGES)
        spent = time.thread_time() - started
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert spent < 2, "tracing makes it several times slower"
    assert peak < 60e6
    assert len(str(caught.value)) < 700


SECRETS = [
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ messages.__class__ }}{{ messages.__class__.__base__ }}{{ messages.__class__.__base__.x }}",
    "{{ (messages|attr('__class__')).x }}",
    "{{ self.__init__.__globals__ }}",
    "{{ self._TemplateReference__context.x }}",
    "{{ cycler.__init__.__globals__.os }}",
    "{{ joiner.__init__.__globals__.os }}",
    "{{ namespace.__init__.__globals__.os }}",
    "{{ raise_exception.__globals__.os }}",
    "{{ strftime_now.__globals__.os }}",
    "{{ range.__self__.x }}",
    "{{ namespace(__class__=1) }}",
    "{% set ns = namespace() %}{% set ns.__class__ = 1 %}",
    "{{ '{0.__class__.__init__.__globals__}'.format(messages) }}",
    "{{ '{a.__class__.__base__}'.format_map({'a': messages}) }}",
    "{{ messages.append(1) }}",
    "{{ messages[0].update({'role': 'x'}) }}",
    "{{ messages[0].pop('role') }}",
    "{% include '/etc/passwd' %}",
    "{% import 'os' as os %}{{ os.x }}",
    "{% extends 'x' %}",
    "{{ lipsum.__globals__.os }}",
    "{{ url_for.x }}{{ get_flashed_messages.x }}",
    "{{ dict.__class__.__init__.x }}",
    "{{ 'x'.encode() }}",
    "{{ 'x'|pprint }}",
]


@pytest.mark.parametrize("source", SECRETS)
def test_templates_cannot_reach_pythons_internals(source):
    with pytest.raises(ChatTemplateError):
        ChatTemplate(source).render(MESSAGES)


def test_messages_are_not_changed_by_rendering():
    before = [dict(message) for message in MESSAGES]
    ChatTemplate("{% for m in messages %}{% set m = {} %}{% endfor %}").render(MESSAGES)

    assert before == MESSAGES


def test_output_is_capped_while_it_is_written():
    template = ChatTemplate("{% for m in messages %}{{ m.content }}{% endfor %}")

    with pytest.raises(ChatTemplateLimitError, match="more than 100 characters"):
        template.render([{"role": "user", "content": "x" * 60}] * 2, max_chars=100)


@pytest.mark.parametrize("name", ["repetition", "nested_loops", "doubled_lists"])
def test_a_template_that_cannot_render_a_short_chat_is_refused_within_two_seconds(name):
    started = time.thread_time()
    with pytest.raises(ChatTemplateLimitError):
        ChatTemplate(HOSTILE[name])

    assert time.thread_time() - started < 2


def test_a_syntax_error_names_the_problem():
    with pytest.raises(ChatTemplateError, match=r"cannot be compiled.*endfor"):
        ChatTemplate("{% for m in messages %}")


def test_a_long_honest_chat_stays_within_the_limits():
    messages = [{"role": "user" if place % 2 == 0 else "assistant", "content": "word " * 200} for place in range(1000)]
    source = (
        "{% for m in messages %}{% if loop.index0 == (messages|length) - 1 %}LAST{% endif %}"
        "{% if m.role in ['user', 'assistant'] %}{{ '<' + m.role + '>' + m.content|trim ~ '</s>' }}{% endif %}"
        "{% endfor %}"
    )

    assert len(ChatTemplate(source).render(messages)) > 900_000


def test_renderings_do_not_share_their_budget():
    template = ChatTemplate("{% for m in messages %}{{ m.content * 3 }}{% endfor %}")

    sizes = {len(template.render([{"role": "user", "content": "x" * 1_000_000}], max_chars=10**7)) for _ in range(20)}

    assert sizes == {3_000_000}


def test_costs_count_shared_parts_each_time_and_stop_at_the_limit():
    shared: list[object] = ["x" * 100]
    for _ in range(50):
        shared = [shared, shared]

    assert element_cost(["x" * 100, "y"], 10**6) == element_cost(["x", "y"], 10**6)
    assert written_cost(["x" * 100], 10**6) == element_cost(["x"], 10**6) + 100
    assert 1000 < written_cost(shared, 1000) < 2000


def test_a_budget_ends_by_work_and_by_time():
    with pytest.raises(TemplateLimitError, match="too much text"):
        RenderBudget(max_work=10).spend(11)
    with pytest.raises(TemplateLimitError, match="longer than 0 s"):
        RenderBudget(max_cpu_s=0).spend(100_000)
