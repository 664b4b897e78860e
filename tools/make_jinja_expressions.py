#!/usr/bin/env python3
"""Write tests/golden/data/jinja_expressions.jsonl: small templates, each for one filter, method, test, operator or statement with its options, and what
transformers renders for them ("want"; null: it raises an error). What Lateen refuses by name (slice, pprint, striptags, block, recursive loops) is left out. tests/unit/data/test_chat_template.c compares. Needs transformers and jinja2.

    tools/make_jinja_expressions.py"""
import json
import os
import warnings

from transformers.utils import chat_template_utils as ctu

warnings.filterwarnings("ignore")
OUT = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "tests/golden/data/jinja_expressions.jsonl")
CONTEXT = {"s": "Hello wide World", "empty": "", "n": 7, "x": 2.5, "neg": -3, "yes": True, "no": False, "none": None, "l": [3, 1, 2], "words": ["b", "A", "c", "a"],
           "d": {"b": 1, "A": 2, "c": None}, "people": [{"name": "Ann", "age": 30, "city": {"zip": "8"}}, {"name": "bob", "age": 25, "city": {"zip": "9"}}, {"name": "Cat", "age": 30, "city": {"zip": "8"}}],
           "u": "Zürich 天気", "nested": [[1, 2], [3]], "lines": "one\ntwo\n\nthree\n"}

EXPRESSIONS = """
s|upper
s|lower
s|title
s|capitalize
u|upper
u|length
"it's a test-case, o'neil"|title
"ßa Éb"|capitalize
s|center(24) ~ "|"
s|center(25) ~ "|"
s|center(3)
"ab"|center(5) ~ "|"
s|replace("l", "L")
s|replace("l", "L", 2)
s|replace("", "-", 3)
s|trim
"  a b "|trim
"xxaxbx"|trim("x")
" \\t\\na\\n"|trim
s|truncate(10)
s|truncate(10, True)
s|truncate(10, False, "")
s|truncate(10, True, "--", 0)
s|truncate(14)
s|truncate(16)
s|truncate(11, leeway=5)
s|truncate(11, leeway=4)
"abcdefghij"|truncate(5, leeway=0)
s|wordcount
""|wordcount
lines|indent
lines|indent(2)
lines|indent(2, True)
lines|indent(2, first=True, blank=True)
lines|indent("> ")
lines|indent(1, False, True)
s|urlencode
"a/b?c=d&e=ü"|urlencode
"<a href='x'>\\"&</a>"|escape
"<b>"|e
"<b>"|forceescape
"<b>"|safe
n|string ~ "!"
yes|string
"%s is %d, %05.1f, %x, %r"|format("a", 3, 2.25, 255, "q")
"%-5s|%5s|%+d|%e|%g|%%"|format("a", "b", 4, 12345.678, 0.0001)
"" % missing
"a" % [1]
"a" % 1
("<b>"|e) is escaped
s is escaped
[("<b>"|e), "<b>"]
1.5 % -1.5
-1.5 % 1.5
0.0 // -2
-0.125|round(method="ceil")
(1.5 % -1.5)|round(method="floor")
1e16 // -1.5
-1e16 // 1.5
7.5 // -2
"Straße ΣΑΣ ẞ ı Ꭰ ꭰ ſ ς".casefold()
"abcabc".find("c", -2)
"abcabc".find("c", -1, 5)
"abcabc".find("", 6)
"abcabc".find("", 7)
"abcabc".find("b", 2, 4)
"abcabc".find("b", 2, 5)
"äbcäbc".rfind("ä", 0, 3)
"äbcäbc".rfind("b", -100, -1)
"abcabc".find("b", none, 1)
"abcabc".find("b", "1")
"abcabc".index("c", 3, 5)
"aaaa".count("aa", 1)
"aaaa".count("a", 1, -1)
"aaaa".count("", 2)
"aaaa".count("", 5)
"aaaa".count("aa", -3, 100)
"hello".startswith("l", 2)
"hello".startswith(("x", "l"), 3)
"hello".startswith("", 5)
"hello".startswith("", 6)
"hello".startswith("he", -9, 2)
"hello".startswith("he", 0, 1)
"hello".endswith("l", 0, 4)
"hello".endswith("llo", 3)
"hello".endswith("", 5, 4)
"hello".endswith(("o", 1), 4)
"%.3s|"|format("abcdef")
"%.0s|%.9s|%5.2s|%-5.2s|"|format("abc", "abc", "abc", "abc")
"%.2s|%.1r"|format("üäö", "x")
"%.4s" % "天気天気天気"
"ß"|title
"xß"|title
"ßß"|upper
"\u0131\u017f\u03c2\u00b5\u03d0\u03d1\u03d5\u03d6\u03f0\u03f1\u03f5\u1e9b\u1fbe"|upper
"\u01c6"|capitalize
"%#x %X"|format(255, 255)
"%o"|format(8)
people|sort(attribute="age,nope")|length
people|sort(attribute="city.zip,name", case_sensitive=true)|map(attribute="name")|list
"%5.2f|%-8.3f|"|format(3.14159, 2.71828)
"% d"|format(5)
"42"|int
"4x"|int
"4x"|int(9)
"0x1F"|int(0, 16)
"101"|int(base=2)
"3.99"|int
3.99|int
neg|int
none|int(5)
"2.5e3"|float
"x"|float
"x"|float(1.5)
n|float
yes|int
2.5|round
3.5|round
2.567|round(2)
2.567|round(2, "ceil")
2.562|round(2, "floor")
neg|abs
x|abs
-2.5|round
1234.5|round(-2)
n|round
none|default("d")
missing|default("d")
missing|d("d")
missing|default
empty|default("d")
empty|default("d", True)
no|default("d", boolean=true)
0|default(1)
l|first
l|last
s|first
s|last
[]|first
[]|last
l|length
d|length
d|count
l|join
l|join(", ")
people|join("-", attribute="name")
people|join(",", "city.zip")
l|sort
l|sort(reverse=true)
words|sort
words|sort(case_sensitive=true)
words|sort(true, true)
people|sort(attribute="age")|map(attribute="name")|list
people|sort(attribute="age,name", reverse=true)|map(attribute="name")|list
people|sort(attribute="city.zip,age")|map(attribute="name")|list
words|unique|list
["a", "A", "b", "a"]|unique|list
["a", "A", "b", "a"]|unique(true)|list
people|unique(attribute="age")|map(attribute="name")|list
l|reverse|list
s|reverse
l|sum
l|sum(start=10)
people|sum(attribute="age")
people|sum("age", 5)
l|min
l|max
words|min
words|max
words|min(true)
words|max(case_sensitive=true)
people|max(attribute="age")
people|min(attribute="name")
[]|min
l|batch(2)|list
l|batch(2, "x")|list
[1,2,3,4,5]|batch(3, 0)|list
l|batch(5)|list
l|batch(5, 0)|list
d|dictsort
d|dictsort(true)
d|dictsort(reverse=true)
{"a": 3, "b": 1}|dictsort(by="value")
{"a": 3, "b": 1, "c": 2}|dictsort(false, "value", true)
d|items|list
missing|items|list
l|list
s|list|length
"ab"|list
d|list
l|map("string")|list
words|map("upper")|join
people|map(attribute="age")|list
people|map(attribute="nope")|list
people|map(attribute="nope", default="-")|list
people|map(attribute="city.zip")|list
[1.25, 2.75]|map("round", 1)|list
l|select("odd")|list
l|reject("odd")|list
l|select|list
[0, 1, "", "a", none]|select|list
[0, 1, "", "a", none]|reject|list
l|select(">", 1)|list
l|select("greaterthan", 1)|list
l|select("in", [1, 2])|list
l|select("divisibleby", 3)|list
people|selectattr("age", "equalto", 30)|map(attribute="name")|list
people|selectattr("age", "gt", 26)|list|length
people|rejectattr("age", "==", 30)|map(attribute="name")|list
people|selectattr("name")|list|length
people|selectattr("city.zip", "eq", "8")|list|length
people|groupby("age")|list|length
people|groupby("name")|map(attribute="grouper")|list
people|groupby("name", case_sensitive=true)|map(attribute="grouper")|list
people|groupby("missing", default="z")|map(attribute="grouper")|list
people|groupby("city.zip")|map("last")|map("length")|list
{"a": 1}|attr("a")
s|attr("nope")
d|tojson
{"z": 1, "a": [1, none, true, 2.0, "ü\\n\\"/<"]}|tojson
{"z": 1, "a": {"c": []}}|tojson(indent=2)
{"z": 1, "a": 2}|tojson(sort_keys=true)
u|tojson(ensure_ascii=true)
[1, 2]|tojson(separators=(",", ":"))
[[], {}, [[]]]|tojson(indent=1)
1e100|tojson
0.1|tojson
1e16|tojson
1.0|tojson
s.upper()
s.split()
s.split("l")
s.split("l", 1)
s.rsplit("l", 1)
" a  b ".split(" ")
lines.splitlines()
s.startswith("He")
s.endswith("x")
s.startswith(["H"])
s.startswith(5)
s.endswith(("x", "d"))
"ab" < "abc"
"abc" < "ab"
"ab" <= "ab"
["abc", "ab", "a", "b"]|sort
("<b>"|safe) + "<i>"
"<i>" + ("<b>"|safe)
("<b>"|e) ~ "<i>" ~ 5
("<b>"|safe)|upper
("<b>"|safe)|length
["<a>"|safe, "<b>"]|join("<")
l|map("string")|tojson
range(3)|tojson
d.items()|tojson
missing|tojson
(1, 2)|tojson
dict(**d)|length
dict(**l)
range(*[1, 3])|list
range(*5)
missing|items|list
none|items|list
5|items|list
[(1, 2)]|items|list
s.startswith(("x", "H"))
s.find("o")
s.rfind("o")
s.find("o", 5)
s.index("o")
s.count("l")
s.replace("o", "0")
s.replace("o", "0", 1)
s.strip("Hd")
" x ".lstrip() ~ "|"
" x ".rstrip() ~ "|"
"abcabc".strip("ab")
s.title()
s.capitalize()
s.swapcase()
s.lower()
s.isalpha()
"abc".isalpha()
"a1".isalnum()
"12".isdigit()
"12".isnumeric()
" ".isspace()
"ABC".isupper()
"abc".islower()
"a".zfill(3)
"-5".zfill(4)
"+5".zfill(2)
"ab".center(6, "*")
"ab".ljust(4, ".")
"ab".rjust(4, ".")
"a,b,c".partition(",")
"a,b,c".rpartition(",")
"abc".partition("x")
", ".join(words)
"prefix-a".removeprefix("prefix-")
"a.txt".removesuffix(".txt")
"{} and {}".format(1, "b")
"{0}{1}{0}".format("a", "b")
d.items()|list
d.keys()|list
d.values()|list
d.get("b")
d.get("q")
d.get("q", 5)
d.get("c", 5)
d.copy()
l.index(1)
l.index(9)
l.count(1)
l.append(1)
l.copy()
1 + 2 * 3 - 4
7 // 2
-7 // 2
7 % 3
-7 % 3
7 % -3
7.5 // 2
-7.5 % 2
7 / 2
8 / 2
2 ** 3 ** 2
-2 ** 2
1 / 0
1 // 0
1 % 0
1.5 + 1
1 + yes
"a" + "b"
"a" * 3
3 * "ab"
"a" + 1
"a" ~ 1 ~ none ~ true
[1] + [2]
[1] * 2
(1, 2) + (3,)
1 < 2 < 3
1 < 3 < 2
1 == 1.0
1 == true
"a" < "b"
[1, 2] < [1, 3]
[1, 2] == [1, 2]
(1, 2) == [1, 2]
{"a": 1} == {"a": 1}
1 != 2
1 <= 1 >= 1
"a" < 1
2 in l
9 not in l
"ell" in s
"b" in d
1 in "a1"
not yes
not empty
yes and 0
empty or "z"
no or none
1 and 2 or 3
1 if yes
"a" if no else "b"
"a" if no
s[0]
s[-1]
s[1:4]
s[::-1]
s[::2]
s[10:2:-2]
s[-3:]
s[:-3]
s[100:]
s[5:2]
u[0:3]
l[0]
l[-1]
l[5]
l[1:]
l[::-1]
l[-2:]
l[3:0:-1]
l["a"]
d["b"]
d.b
d["q"]
d.q
d.q.r
people[0].name
people[0]["city"]["zip"]
people[5].name
people.0.name
n is odd
"a" is odd
none is even
x is odd
3.0 is odd
5 is lower
"" is upper
"%s" is odd
n is even
n is divisibleby(7)
n is divisibleby 3
n is number
yes is number
x is float
n is integer
yes is integer
yes is boolean
n is boolean
s is string
l is sequence
s is sequence
d is mapping
l is mapping
d is iterable
n is iterable
none is none
missing is defined
missing is undefined
n is defined
s is lower
"abc" is lower
"ABC" is upper
1 is eq 1
1 is equalto 2
1 is ne 2
1 is lt 2
1 is ge 2
2 is in [1, 2]
2 is not in [1]
none is sameas none
1 is sameas true
yes is true
no is false
1 is true
n is callable
range is callable
s is escaped
n is not none
range(5)|list
range(2, 5)|list
range(10, 0, -3)|list
range(0)|list
range(5)[1:3]|list
range(3)|length
range(3)
dict(a=1, b=2)
dict({"a": 1}, c=3)
namespace(a=1).a
1e3
1_000
0x1f
0b101
0o17
.5
5.
1.0
1e16
1e15
123456789012345.678
1e-5
0.0001
-0.0
1e22
100000.0 * 10
0.1 + 0.2
1 / 3
'a' 'b'
"\\x41\\u00e9"
'\\'q\\''
[1, "a", none, true, 2.5, {"k": "v'"}]
("a",)
()
{}
{1: 2}
{"a": {"b": [1]}}
"it's"|list
["it's", 'say "hi"', "both ' and \\""]
["\\n", "\\t", "\\\\", "ü"]
l|upper
n|length
none|length
missing|upper
missing + 1
missing.x
nope(1)
s|nope
n is nope
s()
"a"|int + 1
(1, 2, 3)[1]
-(2)
+(2)
- - 2
not not 1
(yes and no) or yes
s|length > 3 and l|length == 3
s|upper|lower|title
(s|upper)[0:2]
"a" if yes else "b" if no else "c"
[1, 2, 3]|sum / 2
loop
true
True
None
nan
"a"|join("-")
{"a": 1}|join
"abc"|batch(2)|map("join")|list
"abc"|map("upper")|join("-")
"ab"|map("ord")|list
"b" > "a" and "a" < "b"
d|dictsort|map("first")|join
[1, [2, [3]]]|string
{"a": none}|string
""|default("x")|length
"x" in missing
missing in l
l|map("add", 1)|list
"%s"|format(none)
"%d"|format("x")
"%s %s"|format("x")
"{}".format()
"abc"|last
"abc"|reverse|upper
"a-b_c"|replace("-", "")|replace("_", "")
""|first
people|map(attribute="name")|map("lower")|sort|join(" ")
people|selectattr("nope", "defined")|list
people|selectattr("age", "undefined")|list
people|rejectattr("nope")|list|length
"""

STATEMENTS = [
    "{% for i in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }} {% endfor %}",
    "{% for i in l %}{{ loop.previtem|default('-') }}{{ i }}{{ loop.nextitem|default('-') }} {% endfor %}",
    "{% for i in l %}{{ loop.cycle('a', 'b') }}{% endfor %}",
    "{% for i in [1, 1, 2] %}{{ loop.changed(i) }} {% endfor %}",
    "{% for i in l if i > 1 %}{{ loop.index }}:{{ i }} {% endfor %}",
    "{% for i in [] %}x{% else %}none{% endfor %}",
    "{% for i in l if i > 5 %}x{% else %}none{% endfor %}",
    "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}",
    "{% for k in d %}{{ k }}{% endfor %}",
    "{% for a, b in [(1, 2), (3, 4)] %}{{ a + b }} {% endfor %}",
    "{% for a, b in [(1, 2, 3)] %}{{ a }}{% endfor %}",
    "{% for i in l %}{% if i == 1 %}{% continue %}{% endif %}{{ i }}{% endfor %}",
    "{% for i in l %}{% if i == 1 %}{% break %}{% endif %}{{ i }}{% endfor %}",
    "{% for i in l %}{% for j in l %}{{ loop.index }}{% endfor %}|{% endfor %}",
    "{% for row in nested %}{% set outer = loop %}{% for x in row %}{{ outer.index }}{{ x }} {% endfor %}{% endfor %}",
    "{% for c in 'abc' %}{{ c }}-{% endfor %}",
    "{% for i in range(3) %}{{ i }}{{ ',' if not loop.last }}{% endfor %}",
    "{% for i in 5 %}{% endfor %}",
    "{% for i in missing %}x{% else %}y{% endfor %}",
    "{% if n > 5 %}a{% elif n > 3 %}b{% else %}c{% endif %}",
    "{% if n > 50 %}a{% elif n > 3 %}b{% else %}c{% endif %}",
    "{% if n > 50 %}a{% elif n > 30 %}b{% else %}c{% endif %}",
    "{% set a = 1 %}{% for i in l %}{% set a = i %}{% endfor %}{{ a }}",
    "{% set ns = namespace(a=1) %}{% for i in l %}{% set ns.a = ns.a + i %}{% endfor %}{{ ns.a }}",
    "{% set a, b = 1, 2 %}{{ a }}{{ b }}",
    "{% set a = b = 1 %}{{ a }}",
    "{% set t %}block {{ n }}{% endset %}{{ t|upper }}",
    "{% set t | upper %}block {{ n }}{% endset %}{{ t }}",
    "{% set d.b = 5 %}",
    "{% macro m(a, b=2, c='x') %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ m(1) }} {{ m(1, 3) }} {{ m(1, c='y') }} {{ m(a=5, b=6) }}",
    "{% macro m(a) %}[{{ a }}]{% endmacro %}{{ m() }}|{{ m(1)|length }}",
    "{% macro m() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, k=3) }}",
    "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}",
    "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, b=2) }}",
    "{% macro m(a, b=0, c=0) %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ m(*l) }} {{ m(**{'a': 1, 'c': 2}) }} {{ m(5, *[6], c=7) }}",
    "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(**l) }}",
    "{% set m = l|map('string') %}{{ m|list }}{{ m|list }}",
    "{% set m = l|select('odd') %}{% for i in m %}{{ i }}{% endfor %}{% for i in m %}{{ i }}{% else %}none{% endfor %}",
    "{% for i in l %}{% macro m() %}{% break %}{% endmacro %}{% endfor %}",
    "{% break %}",
    "{% for i in l %}x{% else %}{% continue %}{% endfor %}",
    "a {%- raw -%} {{ x }} {%- endraw -%} b",
    "a {%+ raw %} {{ x }} {% endraw +%} b",
    "a\n{% raw %}\n{{ x }}\n{% endraw %}\nb",
    "{% macro m() %}{% if varargs %}{{ varargs[0] }}{% endif %}{% endmacro %}{{ m(1) }}{{ m() }}",
    "{% macro m() %}x{% endmacro %}{% call m() %}y{% endcall %}",
    "{% macro m(a, b) %}{% endmacro %}{{ m.name }}",
    "{% macro m(a, b=2) %}{% endmacro %}{{ m.arguments }}{{ m.nope }}",
    "{% macro outer() %}{% macro inner() %}{{ 'yes' if caller else 'no' }}{% endmacro %}{{ inner() }}{{ caller() }}{% endmacro %}{% call outer() %}x{% endcall %}",
    "{% for g in people|groupby('age') %}{{ g.grouper }}: {{ g.list|length }} {{ g[0] }} {% endfor %}",
    "{% for age, list in people|groupby('age') %}{{ age }}{{ list[0].name }}{% endfor %}",
    "{% macro m(a) %}{{ a }}{{ caller() }}{% endmacro %}{% call m('x') %}body {{ n }}{% endcall %}",
    "{% macro m() %}{{ caller(1, 2) }}{% endmacro %}{% call(a, b) m() %}{{ a }}-{{ b }}{% endcall %}",
    "{% macro outer() %}{% macro inner() %}i{% endmacro %}{{ inner() }}{% endmacro %}{{ outer() }}",
    "{% filter upper %}abc {{ n }}{% endfilter %}",
    "{% filter replace('a', 'b') | upper %}abc{% endfilter %}",
    "{% with a = 1, b = n %}{{ a }}{{ b }}{% endwith %}{{ a is defined }}",
    "{% raw %}{{ x }}{% y %}{% endraw %}",
    "{# a comment #}x{# another\nline #}y",
    "a\n{% if yes %}\n  b\n{% endif %}\nc",
    "a\n  {% if yes %}\n  b\n  {% endif %}\nc",
    "a  {%- if yes -%}  b  {%- endif -%}  c",
    "a  {{- n -}}  c",
    "a\n{{ n }}\nb\n",
    "a\n{# c #}\nb",
    "a\n  {# c #}\nb",
    "a {%+ if yes %} b{% endif %}",
    "  {%+ if yes %} b{% endif %}",
    "{% if yes -%}\n\n  x\n{%- endif +%}\ny",
    "{% for i in l -%}\n  {{ i }}\n{%- endfor %}",
    "{{ '{{' }}{{ '}}' }}{{ '{%' }}",
    "{{ {'a': {'b': 1}} }}",
    "{{ {'a': {'b': 1}}.a.b }}",
    "{% set x = 1 -%}   {{ x }}",
    "{% generation %}x{% endgeneration %}",
    "{% do l.append(1) %}",
    "{% include 'x' %}",
    "{% if %}x{% endif %}",
    "{% for %}{% endfor %}",
    "{% endfor %}",
    "{% if yes %}",
    "{{ 1",
    "{{ }}",
    "{{ 1 2 }}",
    "{{ (1 }}",
    "{{ [1, }}",
    "{{ [1, 2,] }}",
    "{{ {'a': 1,} }}",
    "{{ a.b.c }}",
    "{{ missing }}",
    "{{ missing.a }}",
    "{{ [missing] }}",
    "{{ missing ~ 'a' }}",
    "{{ missing == missing }}",
    "{{ missing == none }}",
    "{{ missing or 'a' }}",
    "{{ not missing }}",
    "{{ cycler('a', 'b').next() }}",
    "{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.next() }}{{ c.current }}{% set _ = c.reset() %}{{ c.next() }}",
    "{% set j = joiner('|') %}{{ j() }}a{{ j() }}b{{ j() }}c",
    "{% set j = joiner() %}{% for i in l %}{{ j() }}{{ i }}{% endfor %}",
    "{{ raise_exception('no') }}",
    "{% if yes %}{% set z = 1 %}{% endif %}{{ z }}",
    "{% for i in l %}{% endfor %}{{ i is defined }}",
    "{{ loop is defined }}",
    "{{ [1,2,3] | map('string') | join('+') }}",
    "{{ s.split(' ') | map('first') | join }}",
    "{{ messages is defined and messages }}",
    "{{ ('a', 'b') | join(', ') }}",
    "{{ \"a\nb\" }}",
    "{{ 'a' if n == 7 and not no else 'b' }}{{- ' tail' }}",
    "{% set a = [1] %}{% set a = a + [2] %}{{ a }}",
    "{% set d2 = dict(d, z=9) %}{{ d2.z }}{{ d2.b }}",
    "{{ x if x is defined else 'y' }}{{ y if y is defined else 'y' }}",
    "{{ l is sequence and l is not string and l is not mapping }}",
    "line1\r\nline2\rline3\n",
    "\n\n{{ n }}\n\n",
    "{%- for i in l %}\n{{ i }}\n{%- endfor -%}\n",
]


def letters():
    """Every lower-case letter below U+3000 with a single upper-case one, a template for each block of 256."""
    for block in range(0, 0x3000, 256):
        text = "".join(c for c in map(chr, range(block, block + 256)) if len(c.upper()) == 1 and c.upper() != c and c.upper().lower() == c)
        if text:
            yield f"{{{{ '{text}'|upper }}}}"
            yield f"{{{{ '{text.upper()}'|lower }}}}"
            yield f"{{{{ '{' '.join(text)}'|title }}}}"
            yield f"{{{{ '{text}'|capitalize }}}}"


def rendered(text):
    try:
        return ctu._compile_jinja_template(text).render(**json.loads(json.dumps(CONTEXT)))
    except Exception:
        return None


def main():
    expressions = [f"{{{{ {line} }}}}" for line in EXPRESSIONS.strip().split("\n")]
    templates = expressions + STATEMENTS + list(letters())
    with open(OUT, "w") as f:
        f.write(json.dumps({"context": CONTEXT}, ensure_ascii=False) + "\n")
        for text in templates:
            f.write(json.dumps({"template": text, "want": rendered(text)}, ensure_ascii=False) + "\n")
    print(f"{OUT}: {len(templates)} templates")


if __name__ == "__main__":
    main()
