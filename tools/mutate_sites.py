"""Find the places where a C file can be changed by one fault of a kind that programmers make; for tools/mutate.

This relies on clang-format's layout: a binary operator stands between spaces, a unary one touches its operand, and blocks always have braces. A
site is one replacement of text in executable code or in a table at file scope. Comments, strings, preprocessor lines, types, assertions and the
arguments of messages are left alone."""
import re
from dataclasses import dataclass

TOKEN = re.compile(r"""
    (?P<skip>\s+|/\*.*?\*/|//[^\n]*|^[ \t]*\#(?:\\\n|[^\n])*)
  | (?P<str>[LuU]?"(?:\\.|[^"\\])*") | (?P<chr>'(?:\\.|[^'\\])+')
  | (?P<num>(?:0[xX][0-9a-fA-F.]+(?:[pP][+-]?\d+)?|\d+\.?\d*(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?)[uUlLfF]*)
  | (?P<id>[A-Za-z_]\w*)
  | (?P<op>->|\+\+|--|<<=|>>=|<=|>=|==|!=|&&|\|\||<<|>>|[-+*/%&|^]=|\.\.\.|.)""", re.X | re.S | re.M)

# The kind of fault is drawn first, and then one of its sites; otherwise most faults would be in constants.
WEIGHTS = {"relational": 15, "arithmetic": 10, "logical": 6, "not": 4, "constant": 13, "unit": 3, "drop": 13, "reset": 7, "unchecked": 10,
           "condition": 5, "order": 4, "minmax": 3, "result": 4, "sign": 4, "arguments": 4, "table": 4}
QUIET = re.compile(r"LT_ASSERT\w*|LT_FAIL(_DONE)?|lt_log(_\w+)?|lt_error_set|lt_progress\w*|static_assert|_Static_assert|print_message|lt_assert_fail|_Alignas|_Alignof|omp_\w+")
BINARY = {"<": ["<="], "<=": ["<"], ">": [">="], ">=": [">"], "==": ["!="], "!=": ["=="]}
UNITS = {"1000": "1024", "1024": "1000", "1e3": "1e6", "1e6": "1e3", "1e-3": "1e-6", "1e-6": "1e-3", "1e9": "1e6", "1e-9": "1e-6", "1000.0": "1e6",
         "1000000": "1000", "1000000000": "1000000", "8.0": "1.0", "60": "1", "3600": "60"}
TYPES = re.compile(r"(?:const|static|struct|enum|union|unsigned|signed|int|char|float|double|void|bool|size_t|ssize_t|FILE|long|short|\w+_t|lt_\w+)$")


@dataclass(frozen=True)
class Site:
    kind: str
    start: int
    end: int
    new: str
    line: int


class Source:
    """The tokens of a file and the context of each: inside a function, in a table, or in code that cannot be changed."""

    def __init__(self, text):
        self.text = text
        self.tok = []  # (kind, text, start, line)
        line = 1
        for m in TOKEN.finditer(text):
            if m.lastgroup != "skip":
                self.tok.append((m.lastgroup, m.group(), m.start(), line))
            line += m.group().count("\n")
        self.match = self._pairs()
        self.where = self._where()

    def _pairs(self):
        stack, pairs = [], {}
        for i, (kind, t, _, _) in enumerate(self.tok):
            if kind == "op" and t in "([{":
                stack.append(i)
            elif kind == "op" and t in ")]}" and stack:
                j = stack.pop()
                pairs[i], pairs[j] = j, i
        return pairs

    def _where(self):
        """'f' in a function's body, 't' in a table at file scope, '' elsewhere and in the arguments of messages and assertions."""
        where = [""] * len(self.tok)
        i = 0
        while i < len(self.tok):
            t = self.tok[i][1]
            if t == "{":
                before = self.tok[i - 1][1]
                mark = "f" if before == ")" else "t" if before == "=" else ""
                end = self.match.get(i, len(self.tok) - 1)
                for j in range(i, end + 1):
                    where[j] = mark
                i = end
            i += 1
        for i, (kind, t, _, _) in enumerate(self.tok):
            if kind == "id" and QUIET.fullmatch(t) and i + 1 < len(self.tok) and self.tok[i + 1][1] == "(":
                for j in range(i, self.match.get(i + 1, i) + 1):
                    where[j] = ""
        return where

    def t(self, i):
        return self.tok[i][1] if 0 <= i < len(self.tok) else ""

    def at(self, i):
        return self.tok[i][2]

    def end(self, i):
        return self.tok[i][2] + len(self.tok[i][1])

    def slice(self, i, j):
        return self.text[self.at(i):self.end(j)]

    def spaced(self, i):
        return self.text[self.at(i) - 1:self.at(i)].isspace() and self.text[self.end(i):self.end(i) + 1].isspace()

    def site(self, kind, i, j, new):
        return Site(kind, self.at(i), self.end(j), new, self.tok[i][3])


def tokens_sites(s):
    """Faults of one token."""
    for i, (kind, t, _, _) in enumerate(s.tok):
        if s.where[i] != "f":
            continue
        if kind == "op" and s.spaced(i) and s.t(i - 1) not in ("(", ","):
            if t in BINARY:
                for new in BINARY[t]:
                    yield s.site("relational", i, i, new)
                if t in "<>" and "?" in s.text[s.end(i):s.text.find(";", s.end(i))]:
                    yield s.site("minmax", i, i, ">" if t == "<" else "<")
            elif t in ("+", "-"):
                yield s.site("arithmetic", i, i, "-" if t == "+" else "+")
            elif t in ("*", "/"):
                yield s.site("arithmetic", i, i, "/" if t == "*" else "*")
            elif t in ("<<", ">>"):
                yield s.site("arithmetic", i, i, ">>" if t == "<<" else "<<")
            elif t in ("&&", "||"):
                yield s.site("logical", i, i, "||" if t == "&&" else "&&")
            elif t in ("+=", "-="):
                yield s.site("sign", i, i, "-=" if t == "+=" else "+=")
        elif t == "!" and s.t(i + 1) != "=":
            yield s.site("not", i, i, "")
        elif t == "-" and not s.spaced(i) and s.tok[i + 1][0] in ("id", "num"):
            yield s.site("sign", i, i, "")
        elif kind == "id":
            new = swapped_min(t)
            if new and s.t(i + 1) == "(":
                yield s.site("minmax", i, i, new)


def swapped_min(name):
    for a, b in (("min", "max"), ("max", "min")):
        if re.search(rf"(^f?|_){a}(f?$|_i64$|_size$|$)", name) and not name.isupper():
            return re.sub(rf"(^f?|_){a}", rf"\g<1>{b}", name, count=1)
    return None


def other_number(t, up):
    m = re.fullmatch(r"(0[xX][0-9a-fA-F]+|\d+)([uUlL]*)", t)
    if m:
        v = int(m[1], 0 if m[1][:2] in ("0x", "0X") else 10)
        return f"{1 if v == 0 else v + 1 if up else v - 1}{m[2]}"
    if re.match(r"0[xX]", t):
        return None
    number = t.rstrip("fFlL")
    v = float(number)
    return f"{1.0 if v == 0 else 2 * v if up else v / 2:.17g}" + (".0" if re.fullmatch(r"-?\d+", f"{2 * v if up else v / 2:.17g}") and v != 0 else "") + t[len(number):] if v else "1.0" + t[len(number):]


def numbers(s):
    for i, (kind, t, _, _) in enumerate(s.tok):
        if kind != "num" or s.where[i] == "":
            continue
        if s.where[i] == "f" and t.rstrip("uUlLfF") in UNITS:
            yield s.site("unit", i, i, UNITS[t.rstrip("uUlLfF")] + re.sub(r"^[\d.e+-]*", "", t).replace("u", ""))
        if s.t(i - 1) == "[" and s.t(i + 1) == "]" and re.match(r"\s*(;|,|=|\[|\))", s.text[s.end(i + 1):]) and declares(s, i):
            continue  # The size of an array.
        for up in (True, False):
            new = other_number(t, up)
            if new is not None and new != t:
                yield s.site("constant" if s.where[i] == "f" else "table", i, i, new)


def declares(s, i):
    while i > 0 and s.t(i) not in (";", "{", "}"):
        i -= 1
    return bool(TYPES.match(s.t(i + 1)))


def statements(s):
    """(first token, last token ';') of each simple statement in a function's body."""
    i = 0
    while i < len(s.tok):
        if s.where[i] == "f" and s.t(i) in (";", "{", "}") or (s.t(i) == ":" and s.where[i] == "f" and s.tok[i - 1][0] in ("id", "num", "chr")):
            first = j = i + 1
            while j < len(s.tok) and s.t(j) not in (";", "{", "}"):
                j = s.match[j] + 1 if s.t(j) in ("(", "[") and j in s.match else j + 1
                if s.t(j) == "{" and s.t(j - 1) == ")" and s.t(first) not in ("if", "for", "while", "switch", "else", "do"):
                    j = s.match[j] + 1  # A compound literal.
            if first < j < len(s.tok) and s.t(j) == ";" and s.where[j] == "f":
                yield first, j
        i += 1


def is_call(s, first, last):
    return s.tok[first][0] == "id" and s.t(first + 1) == "(" and s.match.get(first + 1) == last - 1


def statement_sites(s):
    """Faults of one statement: dropped, unchecked, exchanged with the next."""
    found = list(statements(s))
    for n, (first, last) in enumerate(found):
        t = s.t(first)
        if s.where[first] != "f" and not QUIET.fullmatch(t):
            continue
        body = s.slice(first, last)
        if t in ("LT_TRY", "LT_TRY_DONE"):
            yield s.site("unchecked", first, last, "if (" + s.slice(first + 1, last - 1) + ") { }")
        if t == "return" and last == first + 2:
            new = {"true": "false", "false": "true", "err": "LT_OK", "0": "-1", "-1": "0", "1": "0", "NULL": None}.get(s.t(first + 1))
            if new:
                yield s.site("result", first + 1, first + 1, new)
        elif t in ("break", "continue"):
            yield s.site("drop", first, last, ";")
        elif is_call(s, first, last):
            if not QUIET.fullmatch(t):
                yield s.site("drop", first, last, ";")
            following = found[n + 1] if n + 1 < len(found) else None
            if following and following[0] == last + 1 and is_call(s, *following) and not QUIET.fullmatch(t) and not QUIET.fullmatch(s.t(following[0])):
                gap = s.text[s.end(last):s.at(following[0])]
                yield s.site("order", first, following[1], s.slice(*following) + gap + body)
        elif assigns(s, first, last):
            reset = re.search(r"[^=!<>]= *(0|NULL|false|true|-1|0\.0f?|1|0u|LT_\w+|\(\w+\)\{0\});$", body)
            yield s.site("reset" if reset else "drop", first, last, ";")


def assigns(s, first, last):
    """Whether it is an assignment or an increment, and not a declaration."""
    if s.tok[first][0] == "id" and (s.tok[first + 1][0] == "id" or s.t(first) in ("const", "static", "return", "goto", "case", "default", "else", "do")):
        return False
    if s.t(first + 1) == "*" and s.text[s.at(first + 1) - 1] == " " and not s.text[s.end(first + 1)].isspace():
        return False  # T *p = ...
    depth = 0
    for i in range(first, last):
        depth += s.t(i) in ("(", "[", "{")
        depth -= s.t(i) in (")", "]", "}")
        if depth == 0 and (s.t(i) in ("++", "--") or re.fullmatch(r"(<<|>>|[-+*/%&|^])?=", s.t(i))):
            return True
    return False


def condition_sites(s):
    for i, (kind, t, _, _) in enumerate(s.tok):
        if kind != "id" or t != "if" or s.where[i] != "f" or s.t(i + 1) != "(":
            continue
        close = s.match[i + 1]
        cond = s.slice(i + 1, close)
        body = s.slice(close + 1, s.match[close + 1]) if s.t(close + 1) == "{" else ""
        leaves = re.match(r"\{\s*(LT_FAIL|return|goto|err =)", body)
        yield s.site("unchecked" if leaves else "condition", i + 1, close, f"(0 && {cond})")
        yield s.site("condition", i + 1, close, f"(1 || {cond})")


def argument_sites(s):
    """Two adjacent arguments that are plain names, exchanged."""
    for i in range(1, len(s.tok) - 4):
        if s.where[i] == "f" and s.t(i) == "," and s.tok[i - 1][0] == "id" and s.tok[i + 1][0] == "id" and s.t(i - 2) in ("(", ",") and s.t(i + 2) in (")", ","):
            if s.t(i - 1) != s.t(i + 1) and not TYPES.match(s.t(i - 1)) and not TYPES.match(s.t(i + 1)):
                yield s.site("arguments", i - 1, i + 1, s.t(i + 1) + ", " + s.t(i - 1))


def sites(text):
    s = Source(text)
    out = []
    for make in (tokens_sites, numbers, statement_sites, condition_sites, argument_sites):
        out += make(s)
    return out
