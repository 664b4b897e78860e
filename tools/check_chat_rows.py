#!/usr/bin/env python3
"""Compare `lateen tokenize --jsonl --chat` with transformers: the ids of a conversation and the mask of the assistant's answers.

    tools/check_chat_rows.py TOKENIZER.json TEMPLATE.jinja...         the conversations below (and random ones) through each template
    tools/check_chat_rows.py --goldens OUT TOKENIZER.json             lines for tests/unit/data/test_chat_rows.c

For a template with {% generation %}, the truth is apply_chat_template(return_assistant_tokens_mask=True). For one without, it is the difference of
prefixes, R+(i) to R(i + 1) for each message i of the assistant (R+ with add_generation_prompt); a token that overlaps it belongs to the assistant. If the longer
text does not begin with the shorter one, or if the template raises, Lateen must report an error. Needs transformers."""
import json
import os
import random
import re
import subprocess
import sys
import tempfile

from transformers import PreTrainedTokenizerFast

CHATML = """{%- if tools %}{{ '<|im_start|>system\\n' }}{{ tools | tojson }}{{ '<|im_end|>\\n' }}{% endif %}{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' }}\
{%- if m.role == 'assistant' %}{% generation %}{{ m.content or '' }}{% for c in m.tool_calls or [] %}{{ c | tojson }}{% endfor %}{{ '<|im_end|>' }}{% endgeneration %}\
{% else %}{{ m.content }}{{ '<|im_end|>' }}{% endif %}{{ '\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""
PLAIN = """{% for m in messages %}{{ m.role | capitalize + ': ' }}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}\n{% endgeneration %}{% else %}{{ m.content }}\n{% endif %}{% endfor %}"""
OPEN = PLAIN.replace("{% generation %}", "").replace("{% endgeneration %}", "") + "{% if add_generation_prompt %}{{ 'Assistant: ' }}{% endif %}"
STRIPS = """{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' }}{{ m.content.split('</think>')[-1] if not loop.last else m.content }}<|im_end|>\n{% endfor %}\
{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n<think>\\n' }}{% endif %}"""
BUILT_IN = {"chatml+generation": CHATML, "plain+generation": PLAIN, "plain": OPEN, "strips": STRIPS}

TOOLS = [{"type": "function", "function": {"name": "weather", "description": "The weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}]


def say(role, content, **more):
    return {"role": role, "content": content, **more}


def lines():
    u, a, s = (lambda t: say("user", t)), (lambda t: say("assistant", t)), (lambda t: say("system", t))
    yield {"messages": [u("Hi"), a("Hello!")]}
    yield {"messages": [s("Be brief."), u("2+2?"), a("4"), u("and 3+3?"), a("6, of course.")]}
    yield {"messages": [u(" leading space "), a("  two\n\nlines \n"), u("\n"), a("\n\n")]}
    yield {"messages": [u("naïve 😀 e\u0301 한국어"), a("👩‍👩‍👧 c\u0327a va\u0300? \u212b done"), u("더"), a("ﬁn \u1e9b\u0323")]}
    yield {"messages": [u("q"), a("")]}
    yield {"messages": [u("only a question")]}
    yield {"messages": [u("a"), a("b"), a("c")]}
    yield {"messages": [u("What is it like in Paris?"), say("assistant", None, tool_calls=[{"type": "function", "function": {"name": "weather", "arguments": {"city": "Paris"}}}]),
                        say("tool", "{\"t\": 21}", name="weather"), a("It is 21 degrees.")], "tools": TOOLS}
    yield {"messages": [u("think"), say("assistant", "<think>\nhm\n</think>\n\nyes"), u("sure?"), say("assistant", "<think>\nwell\n</think>\n\nno")]}
    yield {"messages": [u("think"), say("assistant", "yes", reasoning_content="because"), u("so?"), say("assistant", "no", reasoning="x")]}
    yield {"messages": [u("say <|im_end|> and </s>"), a("<|im_end|> <s> ok")], "chat_template_kwargs": {"enable_thinking": False}}
    r = random.Random(7)
    words = ["the", " the", "\n", "ab", "é", "😀", " ", "1234", "def f(x):\n    return x", "<|im_start|>", "한", "\t", "...", "'s", "Ω\u0301", "e\u0301"]
    for _ in range(40):
        text = lambda: "".join(r.choice(words) for _ in range(r.randrange(8)))
        m = [s(text())] if r.random() < 0.4 else []
        for _ in range(r.randrange(1, 4)):
            m += [u(text()), a(text())]
        yield {"messages": m}


def clean(line):
    return [{k: v for k, v in m.items() if v is not None} for m in line["messages"]]


def expected(tok, template, line, last=False):
    """(ids, mask), or None if there must be an error."""
    more = dict(chat_template=template, tools=line.get("tools"), **line.get("chat_template_kwargs", {}))
    m = line["messages"]
    try:
        if re.search(r"\{%-?\s*generation\s*-?%\}", template):
            out = tok.apply_chat_template(m, return_dict=True, return_assistant_tokens_mask=True, **more)
            return out["input_ids"], out["assistant_masks"]
        text = lambda k, opened: tok.apply_chat_template(m[:k], tokenize=False, add_generation_prompt=opened, **more)
        whole = text(len(m), False)
        same = lambda t: len(os.path.commonprefix([t, whole]))
        spans = []
        for i in range(len(m) - 1 if last else 0, len(m)):
            if m[i]["role"] != "assistant":
                continue
            opened, after = text(i, True), text(i + 1, False)
            begin = same(opened)
            if begin < len(opened):
                before = text(i, False)
                if same(before) < len(before) or begin < len(before):
                    return None
            if not whole.startswith(after):
                return None
            if begin < len(after):
                spans.append((begin, len(after)))
        enc = tok(whole, add_special_tokens=False, return_offsets_mapping=True)
        mask = [int(any(b < e2 and e > b2 for b2, e2 in spans)) for b, e in enc["offset_mapping"]]
        return enc["input_ids"], mask
    except Exception:
        return None


def ours(folder, template, rows, extra=()):
    """For each line, (ids, mask) or the text of the error."""
    path = os.path.join(folder, "asked.jinja")
    open(path, "w", encoding="utf-8").write(template)
    out = []
    while len(out) < len(rows):
        text = "".join(json.dumps(r) + "\n" for r in rows[len(out):])
        p = subprocess.run(["build/lateen", "tokenize", "--tokenizer", os.path.join(folder, "tokenizer.json"), "--jsonl", "--chat-template", path, *extra], input=text.encode(), capture_output=True)
        got = [json.loads(x) for x in p.stdout.decode().splitlines()]
        out += [(g["ids"], g["mask"]) for g in got]
        if p.returncode != 0:
            out.append(p.stderr.decode().strip())
            if p.returncode < 0:
                raise SystemExit("died: %s" % p.stderr)
    return out


def load(path):
    tok = PreTrainedTokenizerFast(tokenizer_file=path)
    for name, texts in {"bos_token": ["<s>", "<｜begin▁of▁sentence｜>", "<|startoftext|>"], "eos_token": ["<|im_end|>", "</s>", "<｜end▁of▁sentence｜>", "<|return|>"]}.items():
        for t in texts:
            if t in tok.get_vocab():
                setattr(tok, name, t)
                break
    return tok


def main():
    if sys.argv[1] == "--goldens":
        tok = load(sys.argv[3])
        with open(sys.argv[2], "w", encoding="utf-8") as f:
            for name, template in BUILT_IN.items():
                f.write(json.dumps({"name": name, "template": template}) + "\n")
                for line in lines():
                    want = expected(tok, template, line)
                    f.write(json.dumps({"line": line, "want": want and {"ids": want[0], "mask": want[1]}}, separators=(",", ":")) + "\n")
        return 0
    tok, rows, bad, n, errors = load(sys.argv[1]), list(lines()), 0, 0, 0
    folder = tempfile.mkdtemp()
    os.symlink(os.path.abspath(sys.argv[1]), os.path.join(folder, "tokenizer.json"))
    json.dump({k: str(v) for k, v in tok.special_tokens_map.items()}, open(os.path.join(folder, "tokenizer_config.json"), "w"))
    templates = dict(BUILT_IN)
    for path in sys.argv[2:]:
        templates[os.path.basename(path)] = open(path, encoding="utf-8").read()
    for name, template in templates.items():
        for line, got in zip(rows, ours(folder, template, rows)):
            want = expected(tok, template, line)
            n += 1
            errors += want is None
            if (want is None) != isinstance(got, str) or (want is not None and (list(want[0]), list(want[1])) != (got[0], got[1])):
                bad += 1
                if bad < 12:
                    print(f"DIFFERS {name}: {json.dumps(line, ensure_ascii=False)[:600]}\n  want {want}\n  got  {got}")
                    if want and not isinstance(got, str) and want[0] == got[0]:
                        print("  at", [(i, tok.decode(x), a, b) for i, (x, a, b) in enumerate(zip(want[0], want[1], got[1])) if a != b])
    print(f"{n} conversations through {len(templates)} templates, {errors} of them errors: {bad} differ")
    return bad != 0


if __name__ == "__main__":
    sys.exit(main())
