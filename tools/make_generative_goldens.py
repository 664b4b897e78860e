"""Make tests/golden/eval/generative/: lm-evaluation-harness's verdicts on responses to tasks that are answered with a text.

    pip install lm_eval datasets langdetect immutabledict nltk requests tqdm      (0.4.13, NLTK 3.10.4)
    NLTK_DATA=... python tools/make_generative_goldens.py --gsm8k FOLDER --ifeval input_data.jsonl

gsm8k: real solutions of models (openai/grade-school-math's example_model_solutions) and texts made to try the filters. ifeval: the prompts of the task,
with responses that are composed at random of texts that its instructions ask for. Also the draws of random.Random(1234).sample, and the sentences and capital words that NLTK counts in the
responses. NLTK's parameters are not copied: tests with them are skipped if NLTK_DATA does not have them."""
import argparse
import io
import json
import os
import random
import re
import subprocess

from lm_eval.filters.extraction import RegexFilter
from lm_eval.tasks.ifeval import instructions_registry, instructions_util, utils

HERE = os.path.join(os.path.dirname(__file__), "..", "tests", "golden", "eval", "generative")
STRICT = RegexFilter(r"#### (\-?[0-9\.\,]+)")
FLEXIBLE = RegexFilter(r"(-?[$0-9.,]{2,})|(-?[0-9]+)", group_select=-1)


def exact(text, gold):
    """The metric exact_match with the task's options (lm_eval/api/metrics.py, exact_match_hf_evaluate)."""
    for pattern in (",", r"\$", r"(?s).*#### ", r"\.$"):
        text, gold = re.sub(pattern, "", text), re.sub(pattern, "", gold)
    return text.lower() == gold.lower()


def lines_of(path):
    text = subprocess.run(["zstdcat", path], capture_output=True, check=True).stdout.decode() if path.endswith(".zst") else open(path).read()
    return [json.loads(line) for line in text.splitlines()]


def gsm8k(folder):
    rnd = random.Random(1)
    docs = lines_of(os.path.join(folder, "test.jsonl.zst"))
    solved = lines_of(os.path.join(folder, "example_model_solutions.jsonl.zst"))
    forms = ["#### {}", "#### {}.", "####{}", "#### ${}", "#### {}.00", "The answer is {}.", "{} dollars", "so ${}", "A: {}", "#### {} is wrong, #### 7", "#### -{}", "-{}", "{},", "${}.", "...", "$", "",
             "#### 1,0{}", "costs $ {} .", "x = {}\n#### {}\n", "####  {}", "#### {}\n\nQuestion: 5"]
    rows = []
    for i in rnd.sample(range(len(docs)), 80):
        gold = docs[i]["answer"]
        answer = gold.split("#### ")[1]
        if len(rows) % 2:
            text = solved[i][rnd.choice(["6b_finetuning", "175b_finetuning", "175b_verification"])]["solution"]
            text = text.replace("A: ", "#### ") if rnd.random() < 0.5 else text
        else:
            text = rnd.choice(["", "First 3 + 4 = 7. "]) + rnd.choice(forms).replace("{}", rnd.choice([answer, answer, "12"]))
        picked = [f.apply([[text]], [None])[0][0] for f in (STRICT, FLEXIBLE)]
        rows.append({"question": docs[i]["question"][:40], "answer": gold[-60:], "response": text, "right": [exact(p, gold) for p in picked]})
    return rows


WORDS = "time year people way day man thing woman life child world school state family student group country problem hand part place case week company system program question work NASA USA UN okay".split()
SENTENCES = ["Mr. Smith went to Washington D.C. last year.", "It cost $3.50, i.e. nothing.", "Really?! Yes...", "He said: \"Stop.\" Then he left.", "See Fig. 3. The rest (p. 5) is clear.", "J. S. Bach wrote it!",
             "The U.S. is large. So is Canada.", "At 5 p.m. we met.", "Version 2.0 works. version 3 doesn't.", "\u201cCome in.\u201d She sat down.", "Dr. No, Ph.D., smiled -- and left.", "What? No. NO! Never.", "etc. etc. And so on.",
             "I can't, won't and gonna NOT do it.", "A.B.C. stands for it. OK", "(He knew it.) We did not.", "No. 5 is alive.", "IT'S FINE. I'm OK.", "Temperatures of -3.5 degrees. Cold."]


def prose(rnd, n):
    out = []
    for _ in range(n):
        out.append(rnd.choice(SENTENCES) if rnd.random() < 0.6 else " ".join(rnd.choice(WORDS) for _ in range(rnd.randrange(3, 12))).capitalize() + rnd.choice([".", "!", "?", "", ","]))
    return rnd.choice([" ", "\n", "\n\n", "  "]).join(out)


def piece(rnd, name, args):
    """A text that follows the instruction, or nearly does."""
    n = rnd.randrange(0, 8)
    some = {
        "detectable_format:number_bullet_lists": lambda: "\n".join(rnd.choice(["* ", "- ", " * ", "** ", "-", "*"]) + rnd.choice(WORDS) for _ in range(rnd.choice([args.get("num_bullets", 3), n]))),
        "detectable_content:number_placeholders": lambda: " ".join(f"[{rnd.choice(WORDS)}]" for _ in range(rnd.choice([args.get("num_placeholders", 3), n]))),
        "detectable_format:number_highlighted_sections": lambda: " ".join(rnd.choice(["*%s*", "**%s**", "* *", "***%s***", "**%s*"]).replace("%s", rnd.choice(WORDS)) for _ in range(rnd.choice([args.get("num_highlights", 3), n]))),
        "detectable_format:multiple_sections": lambda: "\n".join(f"{args.get('section_spliter', 'Section')} {rnd.choice([i + 1, 'X', ''])}\n{rnd.choice(WORDS)}" for i in range(rnd.choice([args.get("num_sections", 3), n]))),
        "length_constraints:number_paragraphs": lambda: rnd.choice(["\n***\n", " *** ", "***", "\n\n***\n\n"]).join(rnd.choice(WORDS + [" ", ""]) for _ in range(rnd.choice([args.get("num_paragraphs", 3), n]))),
        "length_constraints:nth_paragraph_first_word": lambda: "\n\n".join(rnd.choice([args.get("first_word", "x"), args.get("first_word", "x").upper() + ",", "'" + args.get("first_word", "x"), "word"]) + " " + rnd.choice(WORDS) for _ in range(rnd.choice([args.get("num_paragraphs", 3), n]))),
        "detectable_content:postscript": lambda: rnd.choice(["P.S.", "P.P.S", "p. s. ", "P. P. S.", "PS:", "p.s"]) + " more",
        "detectable_format:title": lambda: rnd.choice(["<<poem of joy>>", "<< >>", "<joy>", "<<<x>>>", "<<a\nb>>"]),
        "detectable_format:json_format": lambda: rnd.choice(['{"a": [1, 2.5, null]}', '```json\n{"a": 1}\n```', "```\n[1]\n```", "{'a': 1}", '{"a": 1,}', "5", '"x"', "```JSON {} ```"]),
        "detectable_format:constrained_response": lambda: rnd.choice(["My answer is yes.", "My answer is no", "My answer is maybe.", "my answer is no."]),
        "combination:two_responses": lambda: rnd.choice(["a******b", "a******a", "******a******b******", "a****** ******b", "a*******b", "a"]),
        "combination:repeat_prompt": lambda: rnd.choice([args.get("prompt_to_repeat", ""), args.get("prompt_to_repeat", "").upper(), args.get("prompt_to_repeat", "")[1:]]),
        "startend:end_checker": lambda: rnd.choice([args.get("end_phrase", ""), args.get("end_phrase", "").upper() + "\"", args.get("end_phrase", "") + " x"]),
        "startend:quotation": lambda: "\"" + rnd.choice(WORDS) + rnd.choice(["\"", "\"\n", "", "\" "]),
        "keywords:existence": lambda: " ".join(rnd.choice([k, k.upper(), k[:-1]]) for k in args.get("keywords", [])),
        "keywords:forbidden_words": lambda: rnd.choice(args.get("forbidden_words", ["x"])) + rnd.choice(["", "s", ".", "x"]),
        "keywords:frequency": lambda: " ".join([args.get("keyword", "x")] * n),
        "keywords:letter_frequency": lambda: (args.get("letter", "x") + rnd.choice(["", "\u212a", "\u0130"])) * (n * 3),
        "punctuation:no_comma": lambda: rnd.choice(["a, b", "a b", "a\uff0c b"]),
        "change_case:capital_word_frequency": lambda: " ".join(rnd.choice(["NASA", "U.S.", "ABC,", "A", "I'M", "x", "\u00c9T\u00c9", "(USA)."]) for _ in range(n * 4)),
    }
    return some[name]() if name in some else ""


def ifeval(path):
    rnd = random.Random(2)
    rows = []
    docs = lines_of(path)
    for doc in rnd.sample(docs, len(docs))[:260]:
        pairs = list(zip(doc["instruction_id_list"], doc["kwargs"]))
        parts = [piece(rnd, name, args) for name, args in pairs if rnd.random() < 0.85]
        if rnd.random() < 0.6 or not parts:
            parts.insert(rnd.randrange(len(parts) + 1), prose(rnd, rnd.choice([1, 2, 4, 12])))
        text = rnd.choice(["\n", " ", "\n\n"]).join(parts)
        text = rnd.choice([text] * 8 + ["Sure!\n" + text + "\nBye", "**" + text + "**", text + "\n", "   ", "\u3000" + text + "\u00a0"])
        verdicts = []
        for name, args in pairs:
            inp = utils.InputExample(key=0, instruction_id_list=[name], prompt=doc["prompt"], kwargs=[args])
            drawn = name in ("language:response_language", "change_case:english_capital", "change_case:english_lowercase") or not str(args.get("letter", "a")).isalpha()
            verdicts.append([None, None] if drawn else [f(inp, text).follow_all_instructions for f in (utils.test_instruction_following_strict, utils.test_instruction_following_loose)])
        words = instructions_util.nltk.word_tokenize(text)
        rows.append({"instruction_id_list": doc["instruction_id_list"], "kwargs": [{k: v for k, v in a.items()} for a in doc["kwargs"]], "prompt": "", "response": text, "follows": verdicts,
                     "sentences": instructions_util.count_sentences(text), "capital_words": sum(w.isupper() for w in words)})
    return rows


def write(name, rows):
    with io.open(os.path.join(HERE, name), "w") as f:
        for row in rows:
            f.write(json.dumps(row) + "\n")


args = argparse.ArgumentParser()
args.add_argument("--gsm8k", required=True)
args.add_argument("--ifeval", required=True)
args = args.parse_args()
os.makedirs(HERE, exist_ok=True)
write("gsm8k.jsonl", gsm8k(args.gsm8k))
write("ifeval.jsonl", ifeval(args.ifeval))
rnd = random.Random(1234)
write("samples.jsonl", [{"n": n, "k": k, "drawn": rnd.sample(range(n), k)} for n, k in [(7473, 5)] * 5 + [(21, 5), (22, 5), (10, 3), (100, 8), (84, 6), (86, 6), (7473, 64), (1, 1), (64, 64)]])
assert len(instructions_registry.INSTRUCTION_DICT) == 25
