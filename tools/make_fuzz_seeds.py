#!/usr/bin/env python3
"""Write small seeds for the fuzz targets into tests/fuzz/corpus/TARGET: the smallest valid files of each binary or nested format.

    python3 tools/make_fuzz_seeds.py        needs only Python
"""
import base64
import json
import os
import struct

ROOT = os.path.join(os.path.dirname(__file__), "..", "tests", "fuzz", "corpus")


def put(target, name, data):
    folder = os.path.join(ROOT, target)
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, name), "wb") as f:
        f.write(data if isinstance(data, bytes) else data.encode())


def safetensors(header, data):
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


def gguf_str(s):
    return struct.pack("<Q", len(s)) + s


def gguf_kv(key, kind, value):
    return gguf_str(key) + struct.pack("<I", kind) + value


def gguf_strings(values):
    return struct.pack("<IQ", 8, len(values)) + b"".join(gguf_str(v) for v in values)


def gguf(kvs, tensors=()):
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(kvs)) + b"".join(kvs)
    data = b""
    for name, shape, kind, raw in tensors:
        data += b"\0" * (-len(data) % 32)
        head += gguf_str(name) + struct.pack("<I", len(shape)) + b"".join(struct.pack("<Q", d) for d in shape)
        head += struct.pack("<IQ", kind, len(data))
        data += raw
    return head + b"\0" * (-len(head) % 32) + data


def gguf_vocab(model, tokens, merges):
    n = len(tokens)
    kvs = [gguf_kv(b"general.architecture", 8, gguf_str(b"llama")),
           gguf_kv(b"tokenizer.ggml.model", 8, gguf_str(model)),
           gguf_kv(b"tokenizer.ggml.tokens", 9, gguf_strings(tokens)),
           gguf_kv(b"tokenizer.ggml.scores", 9, struct.pack("<IQ", 6, n) + b"".join(struct.pack("<f", -float(i)) for i in range(n))),
           gguf_kv(b"tokenizer.ggml.token_type", 9, struct.pack("<IQ", 5, n) + struct.pack("<i", 2) + struct.pack("<i", 3) * 2 + struct.pack("<i", 1) * (n - 3)),
           gguf_kv(b"tokenizer.ggml.bos_token_id", 4, struct.pack("<I", 1)),
           gguf_kv(b"tokenizer.ggml.eos_token_id", 4, struct.pack("<I", 2))]
    if merges:
        kvs.append(gguf_kv(b"tokenizer.ggml.pre", 8, gguf_str(b"gpt-2")))
        kvs.append(gguf_kv(b"tokenizer.ggml.merges", 9, gguf_strings(merges)))
    return gguf(kvs)


def proto(field, wire, payload):
    tag = field << 3 | wire
    return (bytes([tag]) if tag < 128 else bytes([tag & 127 | 128, tag >> 7])) + payload


def proto_bytes(field, data):
    n, size = b"", len(data)
    while size > 127:
        n, size = n + bytes([size & 127 | 128]), size >> 7
    return proto(field, 2, n + bytes([size]) + data)


def sentencepiece(kind, pieces, byte_fallback):
    out = b""
    for text, score, piece_type in pieces:
        out += proto_bytes(1, proto_bytes(1, text) + proto(2, 5, struct.pack("<f", score)) + proto(3, 0, bytes([piece_type])))
    trainer = proto(3, 0, bytes([kind])) + proto(35, 0, bytes([byte_fallback])) + proto_bytes(44, b" ?? ")
    return out + proto_bytes(2, trainer) + proto_bytes(3, proto_bytes(1, b"identity") + proto(3, 0, b"\1"))


def byte_alphabet():
    good = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
    out, n = {}, 0
    for b in range(256):
        out[b] = chr(b) if b in good else chr(256 + n)
        n += b not in good
    return out


def tokenizers():
    alphabet = byte_alphabet()
    merges = [("h", "e"), ("l", "l"), ("he", "ll"), ("a", "a"), ("aa", "aa"), ("1", "2")]
    vocab = {alphabet[b]: b for b in range(256)}
    for a, b in merges:
        vocab[a + b] = len(vocab)
    special = {"id": len(vocab), "content": "<|endoftext|>", "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    bpe = {"version": "1.0", "added_tokens": [special], "normalizer": {"type": "NFC"},
           "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
               {"type": "Split", "pattern": {"Regex": " ?\\p{L}+|\\p{N}{1,3}|\\s+(?!\\S)|\\s+"}, "behavior": "Isolated", "invert": False},
               {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}]},
           "post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
                              "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
                              "special_tokens": {"<|endoftext|>": {"id": "<|endoftext|>", "ids": [len(vocab)], "tokens": ["<|endoftext|>"]}}},
           "decoder": {"type": "ByteLevel"},
           "model": {"type": "BPE", "dropout": None, "unk_token": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": True, "vocab": vocab,
                     "merges": [f"{a} {b}" for a, b in merges]}}
    put("tokenizer_json", "bpe.json", json.dumps(bpe, ensure_ascii=False))
    unigram = {"version": "1.0", "added_tokens": [dict(special, id=0, content="<unk>")],
               "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "\u2581"}, {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}]},
               "pre_tokenizer": {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always", "split": True}, "post_processor": None,
               "decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
               "model": {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0], ["\u2581", -1.5], ["He", -2.0], ["l", -2.5], ["lo", -2.25], ["a", -3], ["aa", -3.5]], "byte_fallback": False}}
    put("tokenizer_json", "unigram.json", json.dumps(unigram, ensure_ascii=False))
    wordpiece = {"version": "1.0", "added_tokens": [], "normalizer": {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": None, "lowercase": True},
                 "pre_tokenizer": {"type": "BertPreTokenizer"}, "post_processor": None, "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
                 "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100, "vocab": {"[UNK]": 0, "he": 1, "##llo": 2, "a": 3, "##a": 4}}}
    put("tokenizer_json", "wordpiece.json", json.dumps(wordpiece))
    tekken = {"config": {"pattern": "[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}|\\s+", "num_vocab_tokens": 300, "default_vocab_size": 280, "default_num_special_tokens": 3, "version": "v3"},
              "special_tokens": [{"rank": 0, "token_str": "<unk>", "is_control": True}, {"rank": 1, "token_str": "<s>", "is_control": True}, {"rank": 2, "token_str": "</s>", "is_control": True}],
              "vocab": [{"rank": i, "token_bytes": base64.b64encode(bytes([i])).decode(), "token_str": None} for i in range(256)]
              + [{"rank": 256, "token_bytes": base64.b64encode(b"he").decode(), "token_str": "he"}]}
    put("tekken", "v3.json", json.dumps(tekken))
    put("vocab_bpe", "merges", "#version: 0.2\n" + "".join(f"{a} {b}\n" for a, b in merges))
    ranks = [bytes([b]) for b in range(256)] + [b"he", b"ll", b"hell", b"aa", b"aaaa"]
    put("rank_file", "ranks", "".join(f"{base64.b64encode(t).decode()} {i}\n" for i, t in enumerate(ranks)))
    pieces = [(b"<unk>", 0.0, 2), (b"<s>", 0.0, 3), (b"</s>", 0.0, 3), (b"<0x41>", 0.0, 6), ("\u2581He".encode(), -1.0, 1), (b"l", -2.0, 1), (b"lo", -2.5, 1), (b"a", -3.0, 1)]
    plain = [p for p in pieces if p[2] != 6] + [(b"<ud>", 0.0, 4), (b"He", -2.0, 1), ("\u2581".encode(), -2.0, 1)]
    for kind, name in enumerate(("unigram", "bpe", "word", "char"), 1):
        put("sentencepiece", name + ".model", sentencepiece(kind, plain, False))
    put("sentencepiece", "bytes.model", sentencepiece(2, plain + [(b"<0x%02X>" % b, 0.0, 6) for b in range(256)], True))
    put("llama2c", "tokenizer.bin", struct.pack("<i", 8) + b"".join(struct.pack("<fi", score, len(text)) + text for text, score, _ in pieces))
    texts = [t for t, _, _ in pieces]
    put("tokenizer_gguf", "spm.gguf", gguf_vocab(b"llama", texts, None))
    words = [b"<unk>", b"<s>", b"</s>"] + [alphabet[b].encode() for b in range(256)] + [b"he", b"ll"]
    put("tokenizer_gguf", "bpe.gguf", gguf_vocab(b"gpt2", words, [b"h e", b"l l"]))


def weights():
    put("safetensors", "two", safetensors({"a": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}, "b": {"dtype": "BF16", "shape": [3], "data_offsets": [16, 22]},
                                           "__metadata__": {"format": "pt"}}, bytes(22)))
    put("gguf", "small", gguf([gguf_kv(b"general.architecture", 8, gguf_str(b"llama")), gguf_kv(b"llama.block_count", 4, struct.pack("<I", 1)),
                               gguf_kv(b"x", 9, struct.pack("<IQ", 5, 2) + struct.pack("<ii", 1, 2)), gguf_kv(b"y", 12, struct.pack("<d", 0.5))],
                              [(b"a", [32, 2], 8, bytes(68)), (b"b", [4], 0, bytes(16))]))
    dim, hidden, layers, heads, vocab, seq = 4, 8, 1, 2, 6, 2
    n = vocab * dim + layers * (2 * dim + 4 * dim * dim + 3 * dim * hidden) + dim
    head = struct.pack("<7i", dim, hidden, layers, heads, heads, vocab, seq)
    put("llama2c_model", "v0", head + bytes(4 * (n + seq * dim // heads)))
    put("llama2c_model", "v1", (struct.pack("<2i", 0x616B3432, 1) + head + b"\1").ljust(256, b"\0") + bytes(4 * n))
    put("weight_index", "index", json.dumps({"metadata": {"total_size": 4}, "weight_map": {"wte.weight": "a.safetensors", "b": "missing.safetensors"}}))


def runs():
    put("manifest", "m", json.dumps({"format": "lateen-checkpoint", "version": 1, "step": 4, "rows": 32, "tokens": 8192, "optimiser": "adamw",
                                     "loader": {"rows": 32, "fingerprint": "f624c68302255402", "sources": [[32, 0, 0, 0, 32, 0]]},
                                     "guard": {"skipped": 0, "skipped_in_a_row": 0, "loss": {"next": 1, "values": [8.3]}, "grad": {"next": 1, "values": [2.8]}},
                                     "files": [{"name": "weights.safetensors", "bytes": 96, "xxh3": "33f6ccf4eb24f7a7"}]}))
    put("journal", "j", json.dumps({"fingerprint": "0123456789abcdef", "input": 1, "offset": 100, "line": 3, "empty": 0, "text_bytes": 90, "documents": 2, "tokens": 30}))
    put("metrics", "m", '{"kind":"start","step":0,"steps":9}\n' + "".join(f'{{"kind":"train","step":{i},"loss":2.5}}\n' for i in range(1, 9)) + '{"kind":"sample","step":9,"text":"<b>"}\n')
    put("eval", "choices", b"\0" + json.dumps({"query": "Question: Why?", "choices": ["a", "b"], "gold": 1}).encode() + b"\n")
    put("eval", "contexts", b"\2" + json.dumps({"context_options": ["He", "She"], "continuation": "went", "gold": 0}).encode() + b"\n")
    put("eval", "last_word", b"\3" + json.dumps({"context": "It was a dark", "continuation": " night"}).encode() + b"\n")
    put("eval_mmlu", "csv", b'\0question,choice0,choice1,choice2,choice3,answer\n"What is ""it""?",one,"two, or",three,four,2\nWhy?,a,b,c,d,A\n')


def others():
    put("options", "flags", "--on\n--count=7\n--rate\n1e3\n--name\nword\n--a.kind\ntwo\nx\n--\n--y\n")
    put("options", "recipe", "--model.width\n64\n--optim.lr=1e-3\n--no-on\n--steps 9\n--checkpoint.keep_last\n2\n")
    put("options", "help", "--help\n")
    put("chat_rows", "messages", json.dumps({"messages": [{"role": "user", "content": "a u"}, {"role": "assistant", "content": "aa"}], "tools": [], "chat_template_kwargs": {"x": 1}}))
    put("chat_rows", "pair", json.dumps({"question": "a?", "answer": "u"}))
    put("decoder", "llama", bytes([4, 0, 1, 10, 2, 0, 0, 3, 0, 0, 4, 10, 4]) + bytes([1, 2, 1, 3, 4, 5, 0]))
    put("decoder", "metaspace", bytes([2, 2, 0, 0, 1, 1, 1]) + bytes([3, 4, 5, 1, 0, 2]))
    put("decoder", "all", bytes([8, 8, 8, 2, 5, 6, 2, 6, 7, 0, 1, 1, 0, 3, 0, 0, 0, 0, 0, 9, 0, 0, 4, 10, 20]) + bytes(range(23)))
    for i, (pattern, text) in enumerate((("\\s+(?!\\S)|\\p{L}+|\\d{1,3}", "ab 123  x\n"), ("(?=[A-Z])", "aBcD"), ("a*", "baab"), ("\\b\\w|[^\\s\\w]+|(?i:'s)", "it's e\u0301!"), ("^x?$", "x\n\nx"))):
        put("regex", f"r{i}", pattern + "\n" + text)
    put("generation", "all", json.dumps({"eos_token_id": [1, 2], "bos_token_id": 0, "temperature": 0.7, "top_k": 20, "top_p": 0.9, "min_p": 0.0, "do_sample": True, "repetition_penalty": 1.1, "max_new_tokens": 9, "num_beams": 2, "stop_strings": ["x"]}))
    put("tokenizer_config", "all", json.dumps({"bos_token": "<s>", "eos_token": {"content": "</s>"}, "add_bos_token": True, "add_eos_token": False, "chat_template": "{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}"}))
    put("tokenizer_config", "named", json.dumps({"chat_template": [{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}], "added_tokens_decoder": {"2": {"content": "<s>", "special": True}}}))


def copies():
    put("copy_xml", "page", "<?xml version=\"1.0\"?><L xmlns=\"x\"><IsTruncated>true</IsTruncated><Contents><Key>a%2F&amp;&#65;</Key><LastModified>2009-10-12T17:50:30.000Z</LastModified>"
        "<Size>12</Size></Contents><NextContinuationToken>t</NextContinuationToken><EncodingType>url</EncodingType></L>")
    put("copy_xml", "error", "<!-- x --><Error><Code>NoSuchKey</Code><Message>gone</Message><a b='>'/></Error>")
    put("copy_ini", "config", "# c\n[default]\nregion = a\ns3 =\n  endpoint_url = http://h\n[profile x]\nown = 1\n[own section]\nown=2\n")
    for i, text in enumerate(("a/b", "file:///a/", "s3://bucket/p/", "https://u:p@h:1/f?t=1#x", "hf://datasets/o/m@refs%2Fpr%2F1/d/f", "a%20+b")):
        put("copy_location", f"l{i}", text)
    put("copy_state", "all", "lateen-copy 1\nkey 0123456789abcdef0123456789abcdef\nupload u/+=\npart 0 00000000000000ff\npart 15 ffffffffffffffff\npart 16 0000000000000001\npart 3 00")
    put("copy_hub", "files", json.dumps({"sha": "0" * 40, "siblings": [{"rfilename": "config.json", "size": 2, "blobId": "1" * 40},
                                                                      {"rfilename": "a/b", "size": 3, "blobId": "2" * 40, "lfs": {"sha256": "3" * 64, "size": 3}}]}))


tokenizers()
weights()
runs()
others()
copies()
