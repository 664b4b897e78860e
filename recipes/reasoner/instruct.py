"""Conversations for fine-tuning, of data that others published: GSM8K's training problems (MIT), with the worked answer as reasoning, and questions with answers
in the Alpaca form, such as Dolly and HH-RLHF in llm-foundry (CC BY-SA 3.0, MIT). Standard library only.

usage: instruct.py FILE.jsonl... >instruct.jsonl      a line has question and answer, or prompt and response"""
import json
import re
import sys

MOST = 1200  # Characters of an answer: a small model gains nothing from long ones.


def conversation(question, answer, reasoning=None):
    reply = {"role": "assistant", "content": answer}
    if reasoning is not None:
        reply["reasoning_content"] = reasoning
    print(json.dumps({"messages": [{"role": "user", "content": question}, reply]}, ensure_ascii=False))


for path in sys.argv[1:]:
    for line in map(json.loads, open(path, encoding="utf-8")):
        if "question" in line:
            worked, answer = re.sub("<<.*?>>", "", line["answer"]).split("####")
            conversation(line["question"].strip(), f"The answer is {answer.strip()}.", worked.strip())
        elif len(line["response"]) < MOST:
            question = line["prompt"].split("### Instruction:")[-1].split("### Response:")[0]
            conversation(question.strip(), line["response"].strip())
