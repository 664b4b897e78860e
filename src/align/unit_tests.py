"""Runs the tests of one answer, inside the sandbox, and writes a 1 or a 0 for each to standard output.

Two processes. The JUDGE reads the tests from standard input, after it has forked the CANDIDATE, which has closed that input and the output. So the candidate,
which runs the answer, holds neither the tests nor the place where verdicts go. Test code runs in the judge. A name that neither the tests nor Python's
builtins define is one of the answer's, and a call of it goes to the candidate over a socket, by value: numbers, texts, lists, dictionaries and so on arrive
as plain ones, whatever class they had. So an object that claims to equal everything arrives as what it is, a builtin that the answer replaced is replaced in
the candidate only, and an exit, a print or an exception there is the failure of one test.

Values that are no plain data (objects of the answer's classes, generators, functions) stay with the candidate, and the judge holds references: it can call
them, read and set attributes and items, and iterate. A reference equals references only, never plain data, and cannot be computed with.

Pairs of input and output need no candidate: each runs the answer as a program of its own, and the judge compares what it printed."""
import ast
import builtins
import json
import operator
import os
import socket
import struct
import subprocess
import sys

MOST_BYTES = 1 << 26  # Of a message.
COMMANDS = {  # Of an answer that is a whole program: how it is made, and run.
    "python": (None, [sys.executable, "answer.py"], "answer.py"),
    "c": (["gcc", "-O1", "-w", "answer.c", "-o", "answer", "-lm"], ["./answer"], "answer.c"),
    "sh": (None, ["sh", "answer.sh"], "answer.sh"),
}
TYPES = {t.__name__: t for t in (int, float, str, bool, list, tuple, dict, set, frozenset, complex, bytes)}
COLLECTIONS = ((list, "list"), (tuple, "tuple"), (set, "set"), (frozenset, "frozenset"), (type({}.keys()), "set"))


class Link:
    """One end of the socket. Objects that stay here are known to the other end by their number."""

    def __init__(self, end):
        self.end, self.objects, self.numbers = end, [], {}

    def keep(self, x):
        if id(x) not in self.numbers:
            self.numbers[id(x)] = len(self.objects)
            self.objects.append(x)
        return self.numbers[id(x)]

    def send(self, message):
        data = json.dumps(message).encode()
        self.end.sendall(struct.pack(">Q", len(data)) + data)

    def read(self, n):
        parts = []
        while n > 0:
            part = self.end.recv(min(n, 1 << 20))
            if not part:
                raise EOFError("the other process ended")
            parts.append(part)
            n -= len(part)
        return b"".join(parts)

    def receive(self):
        (n,) = struct.unpack(">Q", self.read(8))
        if n > MOST_BYTES:
            raise ValueError(f"a message of {n} bytes")
        return json.loads(self.read(n))

    def ask(self, *message):
        """Send a request. Until the answer comes, the other end may have requests of its own."""
        self.send(message)
        while True:
            reply = self.receive()
            if reply[0] == "value":
                return reply
            if reply[0] == "raise":
                known = getattr(builtins, reply[1], None)
                kind = known if isinstance(known, type) and issubclass(known, Exception) else type(str(reply[1]), (Exception,), {})
                raise kind(reply[2])
            self.serve(reply)

    def serve(self, message):
        try:
            self.send(["value", *self.answer(*message)])
        except BaseException as failure:
            self.send(["raise", type(failure).__name__, str(failure)])

    def pack(self, x):
        """Plain data as JSON: what JSON does not have is a list that begins with its name."""
        if x is None or x is True or x is False:
            return x
        if isinstance(x, str):
            return str.__str__(x)
        if isinstance(x, int):
            return ["int", hex(x)] if int.bit_length(x) > 64 else int.__pos__(x)
        if isinstance(x, float):
            return float.__pos__(x)
        if isinstance(x, complex):
            return ["complex", x.real, x.imag]
        if isinstance(x, (bytes, bytearray)):
            return ["bytes" if isinstance(x, bytes) else "bytearray", bytes(x).hex()]
        if isinstance(x, range):
            return ["range", x.start, x.stop, x.step]
        for kind, name in COLLECTIONS:
            if isinstance(x, kind):
                return [name, [self.pack(one) for one in kind.__iter__(x)]]
        if isinstance(x, dict):
            return ["dict", [[self.pack(key), self.pack(value)] for key, value in dict.items(x)]]
        if type(x).__module__ == "fractions":
            return ["fraction", self.pack(x.numerator), self.pack(x.denominator)]
        if type(x).__module__ == "decimal":
            return ["decimal", str(x)]
        if type(x).__module__ == "numpy" and getattr(x, "ndim", 1) == 0:
            return self.pack(x.item())
        if isinstance(x, type) and TYPES.get(x.__name__) is x:
            return ["type", x.__name__]
        return self.pack_other(x)

    def unpack(self, x):
        if not isinstance(x, list):
            return x
        name, rest = x[0], x[1:]
        return UNPACK[name](self, *rest)

    def unpack_all(self, items):
        return [self.unpack(one) for one in items]


def fraction(link, over, under):
    from fractions import Fraction

    return Fraction(link.unpack(over), link.unpack(under))


def decimal(_, text):
    from decimal import Decimal

    return Decimal(text)


UNPACK = {
    "int": lambda link, x: int(x, 16),
    "complex": lambda link, real, imag: complex(real, imag),
    "bytes": lambda link, x: bytes.fromhex(x),
    "bytearray": lambda link, x: bytearray.fromhex(x),
    "range": lambda link, *x: range(*x),
    "list": lambda link, x: link.unpack_all(x),
    "tuple": lambda link, x: tuple(link.unpack_all(x)),
    "set": lambda link, x: set(link.unpack_all(x)),
    "frozenset": lambda link, x: frozenset(link.unpack_all(x)),
    "dict": lambda link, x: {link.unpack(key): link.unpack(value) for key, value in x},
    "fraction": fraction,
    "decimal": decimal,
    "type": lambda link, x: TYPES[x],
    "candidate": lambda link, x: link.of_candidate(x),
    "judge": lambda link, x: link.of_judge(x),
}


# ---- The candidate ----


class Candidate(Link):
    """Runs the answer, and what the judge asks of it."""

    def pack_other(self, x):
        return ["judge", x.number] if isinstance(x, Callback) else ["candidate", self.keep(x)]

    def of_candidate(self, number):
        return self.objects[number]

    def of_judge(self, number):
        return Callback(self, number)

    def load(self, *paths):
        import types

        module = types.ModuleType("answer")
        sys.modules["answer"] = module
        self.names = module.__dict__
        for path in paths:
            if not os.path.exists(path):
                continue
            source = open(path, encoding="utf-8").read()
            try:
                code = compile(source, path, "exec")
            except SyntaxError:
                if path == "answer.py":
                    raise
                continue  # The text before the answer need not be a program.
            exec(code, self.names)

    def answer(self, verb, *words):
        if verb == "name":
            if words[0] not in self.names:
                raise NameError(words[0])
            x = self.names[words[0]]
            return (["module", x.__name__] if type(x) is type(sys) else self.pack(x),)
        if verb == "call":
            return self.call(*words)
        x = self.objects[words[0]]
        return (self.pack(VERBS[verb](x, *self.unpack_all(words[1:]))),)

    def call(self, number, items, named):
        """Lists, dictionaries and sets that the call changed go back."""
        values = self.unpack_all(items)
        result = self.objects[number](*values, **{key: self.unpack(value) for key, value in named})
        packed = self.pack(result)
        changed = []
        for i, value in enumerate(values):
            if type(value) in (list, dict, set, bytearray):
                after = self.pack(value)
                if after != items[i]:
                    changed.append([i, after])
        return packed, changed


VERBS = {
    "get": getattr,
    "set": setattr,
    "item": operator.getitem,
    "set_item": operator.setitem,
    "len": len,
    "iter": iter,
    "next": next,
    "bool": bool,
    "str": str,
    "repr": repr,
    "equal": operator.eq,
}


class Callback:
    """A function of the tests' that was given to the answer."""

    def __init__(self, link, number):
        self.link, self.number = link, number

    def __call__(self, *items):
        return self.link.unpack(self.link.ask("callback", self.number, [self.link.pack(one) for one in items])[1])


def be_candidate(end):
    nothing = os.open(os.devnull, os.O_RDWR)
    for fd in range(3):
        os.dup2(nothing, fd)
    candidate = Candidate(end)
    candidate.load("before.py", "answer.py")
    candidate.send(["value", None])
    while True:
        candidate.serve(candidate.receive())


# ---- The judge ----


class Judge(Link):
    def pack_other(self, x):
        return ["candidate", number_of(x)] if isinstance(x, Reference) else ["judge", self.keep(x)]

    def of_candidate(self, number):
        return Reference(self, number)

    def of_judge(self, number):
        return self.objects[number]

    def answer(self, verb, number, items):
        if verb != "callback":
            raise ValueError(verb)
        return (self.pack(self.objects[number](*self.unpack_all(items))),)

    def call(self, number, items, named):
        packed = [self.pack(one) for one in items]
        reply = self.ask("call", number, packed, [[key, self.pack(value)] for key, value in named.items()])
        for i, after in reply[2]:
            put_back(items[i], self.unpack(after))
        return self.unpack(reply[1])


def put_back(old, new):
    if type(old) is not type(new):
        raise TypeError("an argument changed its type")
    if isinstance(old, (list, bytearray)):
        old[:] = new
    else:
        old.clear()
        old.update(new)


def number_of(reference):
    return object.__getattribute__(reference, "_number")


def verb(name):
    def ask(self, *words):
        link = object.__getattribute__(self, "_link")
        return link.unpack(link.ask(name, number_of(self), *[link.pack(word) for word in words])[1])

    return ask


class Reference:
    """An object of the candidate's."""

    def __init__(self, link, number):
        object.__setattr__(self, "_link", link)
        object.__setattr__(self, "_number", number)

    def __call__(self, *items, **named):
        return object.__getattribute__(self, "_link").call(number_of(self), items, named)

    def __eq__(self, other):
        return isinstance(other, Reference) and verb("equal")(self, other) is True

    __hash__ = object.__hash__
    __getattr__ = verb("get")
    __setattr__ = verb("set")
    __getitem__ = verb("item")
    __setitem__ = verb("set_item")
    __len__ = verb("len")
    __iter__ = verb("iter")
    __next__ = verb("next")
    __bool__ = verb("bool")
    __str__ = verb("str")
    __repr__ = verb("repr")


OWN = "the answer's "  # Before a name that is the answer's even if a builtin has it, too.


class Names(dict):
    """The names of the tests. What they do not define is a builtin, a module that Python has, or the answer's."""

    def __init__(self, link):
        super().__init__(__name__="tests")
        self.link = link

    def __missing__(self, name):
        own = name.startswith(OWN)
        name = name[len(OWN) :] if own else name
        if not own and hasattr(builtins, name):
            raise KeyError(name)
        try:
            value = self.link.ask("name", name)[1]
        except NameError:
            if hasattr(builtins, name):
                return getattr(builtins, name)
            raise KeyError(name) from None
        if isinstance(value, list) and value[0] == "module":
            if value[1].partition(".")[0] not in sys.stdlib_module_names:
                raise KeyError(name)
            return __import__(value[1], fromlist=["x"])
        return self.link.unpack(value)


def give_names(tree):
    """f of `assert f(...) == ...` is the answer's also where a builtin has its name. That is safe: what it returns must equal a value that the candidate
    does not know."""
    for node in tree.body:
        if isinstance(node, ast.Assert) and isinstance(node.test, ast.Compare) and isinstance(node.test.left, ast.Call):
            called = node.test.left.func
            if len(node.test.ops) == 1 and isinstance(node.test.ops[0], ast.Eq) and isinstance(called, ast.Name) and hasattr(builtins, called.id):
                called.id = OWN + called.id


def modules_of(source):
    """Modules of Python's library that the tests use as such, `math.isclose`: theirs are not the answer's."""
    return {
        node.value.id
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in sys.stdlib_module_names
    }


def run_test(names, source):
    tree = ast.parse(source)
    give_names(tree)
    for module in modules_of(source):
        if module not in names:
            names[module] = __import__(module)
    exec(compile(tree, "test", "exec"), names)


def judge_calls(task, link, verdict):
    names = Names(link)
    link.receive()  # The answer is loaded.
    run_test(names, task["setup"])
    for source in task["tests"]:
        try:
            run_test(names, source)
            verdict("1")
        except EOFError:
            return
        except BaseException:
            verdict("0")


# ---- Whole programs ----


def lines_of(text):
    return [line.rstrip() for line in text.rstrip().split("\n")]


def judge_pairs(task, verdict):
    make, run, _ = COMMANDS[task["language"]]
    if make is not None and subprocess.run(make, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode != 0:
        return
    for pair in task["pairs"]:
        # A file: its size is limited, memory of the judge is not used.
        with open("output", "w+b") as output:
            ended = subprocess.run(run, input=pair["input"].encode(), stdout=output, stderr=subprocess.DEVNULL)
            output.seek(0)
            text = output.read(len(pair["output"]) * 4 + 65536).decode("utf-8", "replace")
        verdict("1" if ended.returncode == 0 and lines_of(text) == lines_of(pair["output"]) else "0")


def hide():
    """Where there is a /proc, the candidate could read this process's memory and open its files."""
    if os.path.exists("/proc/self"):
        import ctypes

        ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE


def main():
    sys.set_int_max_str_digits(0)
    sys.setrecursionlimit(5000)
    hide()
    ours, theirs = socket.socketpair()
    if os.fork() == 0:
        ours.close()
        try:
            be_candidate(theirs)
        finally:
            os._exit(1)
    theirs.close()
    out = os.dup(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    task = json.load(sys.stdin)
    verdict = lambda c: os.write(out, c.encode())
    if task["pairs"]:
        ours.close()
        judge_pairs(task, verdict)
    else:
        judge_calls(task, Judge(ours), verdict)


main()
