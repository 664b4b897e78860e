#!/usr/bin/env python3
"""Write src/data/tokenizer/regex_classes.c: the character classes of Oniguruma, in terms of PCRE2's.

    python3 tools/make_regex_classes.py > src/data/tokenizer/regex_classes.c

For each class and each of the 1,112,064 code points the script asks the package `tokenizers` (made with 0.23.3, whose Oniguruma
knows Unicode 16) and the installed PCRE2 (made with 10.42, Unicode 14) and lists the members that PCRE2 lacks. It fails if PCRE2
has a member that Oniguruma lacks, apart from U+1171E in Mn, which became Mc. With a newer PCRE2 the lists are only redundant.
"""
import ctypes
import re

from tokenizers import Regex, pre_tokenizers

ALL = "".join(chr(c) for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF)
TEXT = ctypes.create_string_buffer(ALL.encode())
PCRE2 = ctypes.CDLL("libpcre2-8.so.0")
PCRE2.pcre2_compile_8.restype = ctypes.c_void_p
PCRE2.pcre2_match_data_create_8.restype = ctypes.c_void_p
PCRE2.pcre2_get_ovector_pointer_8.restype = ctypes.POINTER(ctypes.c_size_t)
UTF, UCP, MULTILINE, NO_UTF_CHECK = 0x80000, 0x20000, 0x400, 0x40000000

CATEGORIES = {"L": "letter", "M": "mark", "N": "number", "P": "punctuation", "S": "symbol", "Z": "separator", "Lu": "uppercaseletter", "Ll": "lowercaseletter",
              "Lt": "titlecaseletter", "Lm": "modifierletter", "Lo": "otherletter", "Mn": "nonspacingmark", "Mc": "spacingmark", "Me": "enclosingmark",
              "Nd": "decimalnumber", "Nl": "letternumber", "No": "othernumber", "Pc": "connectorpunctuation", "Pd": "dashpunctuation", "Ps": "openpunctuation",
              "Pe": "closepunctuation", "Pi": "initialpunctuation", "Pf": "finalpunctuation", "Po": "otherpunctuation", "Sm": "mathsymbol",
              "Sc": "currencysymbol", "Sk": "modifiersymbol", "So": "othersymbol", "Zs": "spaceseparator", "Zl": "lineseparator", "Zp": "paragraphseparator",
              "Cc": "control", "Cf": "format", "Co": "privateuse"}
SPACE = "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"
# Oniguruma's name, another name, PCRE2's items, and whether the class is the complement of these items.
OTHERS = [("LC", "casedletter", "\\p{Lu}\\p{Ll}\\p{Lt}", 0), ("Cn", "unassigned", "\\p{L}\\p{M}\\p{N}\\p{P}\\p{S}\\p{Z}\\p{Cc}\\p{Cf}\\p{Co}", 1), ("C", "other", "\\p{L}\\p{M}\\p{N}\\p{P}\\p{S}\\p{Z}", 1),
          ("Alpha", "alphabetic", "\\p{Alphabetic}", 0), ("Upper", "uppercase", "\\p{Uppercase}", 0), ("Lower", "lowercase", "\\p{Lowercase}", 0), ("Alnum", None, "\\p{Alphabetic}\\p{Nd}", 0),
          ("Space", "whitespace", SPACE, 0), ("Blank", None, "\\p{Zs}\\x{9}", 0), ("Cntrl", None, "\\p{Cc}", 0), ("Digit", None, "\\p{Nd}", 0), ("XDigit", None, "0-9A-Fa-f", 0),
          ("ASCII", None, "\\x{0}-\\x{7f}", 0), ("Graph", None, "\\p{L}\\p{M}\\p{N}\\p{P}\\p{S}\\p{Cf}\\p{Co}", 0), ("Print", None, "\\p{L}\\p{M}\\p{N}\\p{P}\\p{S}\\p{Cf}\\p{Co}\\p{Zs}", 0),
          ("Any", None, "\\x{0}-\\x{10ffff}", 0), ("Assigned", None, "\\p{L}\\p{M}\\p{N}\\p{P}\\p{S}\\p{Z}\\p{Cc}\\p{Cf}\\p{Co}", 0), ("Emoji", None, "\\p{Emoji}", 0),
          ("Extended_Pictographic", None, "\\p{Extended_Pictographic}", 0)]
# As \w outside of a class, which has the six numbers of Latin-1, and inside of one, and as [[:punct:]].
ESCAPES = [("\\w", "\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\p{Pc}\\x{24b6}-\\x{24e9}\\x{1f130}-\\x{1f149}\\x{1f150}-\\x{1f169}\\x{1f170}-\\x{1f189}\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}", "word"),
           ("[\\w]", "\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\p{Pc}\\x{24b6}-\\x{24e9}\\x{1f130}-\\x{1f149}\\x{1f150}-\\x{1f169}\\x{1f170}-\\x{1f189}", "[word]"), ("[[:punct:]]", "\\p{P}\\p{S}", "[punct]")]
SCRIPTS = """Adlam Ahom Anatolian_Hieroglyphs Arabic Armenian Avestan Balinese Bamum Bassa_Vah Batak Bengali Bhaiksuki Bopomofo Brahmi Braille Buginese Buhid Canadian_Aboriginal Carian
Caucasian_Albanian Chakma Cham Cherokee Chorasmian Common Coptic Cuneiform Cypriot Cypro_Minoan Cyrillic Deseret Devanagari Dives_Akuru Dogra Duployan Egyptian_Hieroglyphs Elbasan Elymaic
Ethiopic Georgian Glagolitic Gothic Grantha Greek Gujarati Gunjala_Gondi Gurmukhi Han Hangul Hanifi_Rohingya Hanunoo Hatran Hebrew Hiragana Imperial_Aramaic Inherited
Inscriptional_Pahlavi Inscriptional_Parthian Javanese Kaithi Kannada Katakana Kayah_Li Kharoshthi Khitan_Small_Script Khmer Khojki Khudawadi Lao Latin Lepcha Limbu Linear_A Linear_B Lisu
Lycian Lydian Mahajani Makasar Malayalam Mandaic Manichaean Marchen Masaram_Gondi Medefaidrin Meetei_Mayek Mende_Kikakui Meroitic_Cursive Meroitic_Hieroglyphs Miao Modi Mongolian Mro
Multani Myanmar Nabataean Nandinagari New_Tai_Lue Newa Nko Nushu Nyiakeng_Puachue_Hmong Ogham Ol_Chiki Old_Hungarian Old_Italic Old_North_Arabian Old_Permic Old_Persian Old_Sogdian
Old_South_Arabian Old_Turkic Old_Uyghur Oriya Osage Osmanya Pahawh_Hmong Palmyrene Pau_Cin_Hau Phags_Pa Phoenician Psalter_Pahlavi Rejang Runic Samaritan Saurashtra Sharada Shavian
Siddham SignWriting Sinhala Sogdian Sora_Sompeng Soyombo Sundanese Syloti_Nagri Syriac Tagalog Tagbanwa Tai_Le Tai_Tham Tai_Viet Takri Tamil Tangsa Tangut Telugu Thaana Thai Tibetan
Tifinagh Tirhuta Toto Ugaritic Vai Vithkuqi Wancho Warang_Citi Yezidi Yi Zanabazar_Square""".split()


def onigurumas(pattern):
    split = pre_tokenizers.Split(Regex(pattern), behavior="removed", invert=True)
    return {ord(c) for piece, _ in split.pre_tokenize_str(ALL) for c in piece}


def pcre2s(items):
    pattern, code, where, out, at, n = f"[{items}]+".encode(), ctypes.c_int(), ctypes.c_size_t(), set(), 0, len(TEXT) - 1
    compiled = PCRE2.pcre2_compile_8(pattern, ctypes.c_size_t(len(pattern)), UTF | UCP | MULTILINE, ctypes.byref(code), ctypes.byref(where), None)
    assert compiled, items
    PCRE2.pcre2_jit_compile_8(ctypes.c_void_p(compiled), 1)
    data = ctypes.c_void_p(PCRE2.pcre2_match_data_create_8(1, None))
    while at < n and PCRE2.pcre2_match_8(ctypes.c_void_p(compiled), TEXT, ctypes.c_size_t(n), ctypes.c_size_t(at), NO_UTF_CHECK, data, None) > 0:
        begin, at = PCRE2.pcre2_get_ovector_pointer_8(data)[:2]
        out.update(map(ord, TEXT.raw[begin:at].decode()) if at - begin < 1000 else map(ord, bytes(TEXT[begin:at]).decode()))
    return out


def runs(members):
    out = []
    for c in sorted(members):
        if out and out[-1][1] == c - 1:
            out[-1][1] = c
        else:
            out.append([c, c])
    return [f"\\x{{{a:x}}}" if a == b else f"\\x{{{a:x}}}-\\x{{{b:x}}}" for a, b in out]


def row(key, pattern, items, complement=0):
    want, have = onigurumas(pattern), pcre2s(items)
    if complement:
        want = set(map(ord, ALL)) - want
    assert have <= want or (key == "mn" and have - want == {0x1171E}), (key, sorted(map(hex, have - want))[:9])
    return items + "".join(runs(want - have)), complement


def write(key, alias, items, complement):
    """Cut the items into lines, between two of them."""
    head = f'    {{"{key}", {chr(34) + alias + chr(34) if alias else "NULL"}, {"true" if complement else "false"},'
    pieces, line, lines = re.findall(r"\\\\[px]\{[^}]*\}(?:-\\\\x\{[^}]*\})?|[^\\]+", items.replace("\\", "\\\\")), "", []
    for piece in pieces:
        if len(line) + len(piece) > 90:
            lines, line = lines + [line], ""
        line += piece
    lines.append(line)
    if len(lines) == 1 and len(head) + len(line) < 94:
        return f'{head} "{line}"}},'
    return head + "\n" + "\n".join(f'     "{x}"' for x in lines) + "},"


def main():
    names = [(k, a, f"\\p{{{k}}}", 0) for k, a in CATEGORIES.items()] + OTHERS + [(s, None, f"\\p{{sc:{s}}}", 0) for s in SCRIPTS]
    rows = {}
    for key, alias, items, complement in names:
        short = key.lower().replace("_", "")
        rows[short] = (alias, *row(short, f"\\p{{{key}}}", items, complement))
        assert alias is None or onigurumas(f"\\p{{{alias}}}") == onigurumas(f"\\p{{{key}}}"), alias
    for pattern, items, key in ESCAPES:
        rows[key] = (None, *row(key, pattern, items))
    rows["rust word"] = (None, rows["[word]"][1] + "\\x{200c}-\\x{200d}", 0)
    rows["punct"] = (None, *rows["p"][1:])  # Another class than [[:punct:]].
    print_rows(rows)


def print_rows(rows):
    print("/* regex_classes.c: generated by tools/make_regex_classes.py; do not edit. */\n/* clang-format off */")
    print('#include "data/tokenizer/regex_classes.h"\n\nconst lt_regex_class lt_regex_classes[] = {')
    for key in sorted(rows):
        print(write(key, *rows[key]))
    print(f"}};\n\nconst size_t lt_regex_n_classes = {len(rows)};\n/* clang-format on */")


if __name__ == "__main__":
    main()
