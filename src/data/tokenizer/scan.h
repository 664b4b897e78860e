/* scan.h: hand-written scanners for the pre-tokenizer patterns that nearly every model uses.
 *
 * A scanner gives the end of the word that begins at p; words cover the text without gaps. text_end
 * is the end of the segment: look-aheads see nothing beyond it. */
#ifndef LT_DATA_SCAN_H
#define LT_DATA_SCAN_H

#include <stddef.h>
#include <stdint.h>

typedef const uint8_t *(*lt_scan_fn)(const uint8_t *p, const uint8_t *text_end);

/* X(enum suffix, name, regular expression): the patterns with a scanner. GPT2 is also what
 * ByteLevel's use_regex means. */
#define LT_SCAN_MAP(X)                                                                             \
    X(GPT2, "gpt2",                                                                                \
      "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+")        \
    X(CL100K, "cl100k",                                                                            \
      "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| "                   \
      "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|"                                                             \
      "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+")                                                            \
    X(QWEN2, "qwen2",                                                                              \
      "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| "                        \
      "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|"                                                             \
      "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+")                                                            \
    X(O200K, "o200k",                                                                              \
      "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+"  \
      "(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"                                                             \
      "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*"  \
      "(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"                                                             \
      "\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+")                \
    X(TEKKEN, "tekken",                                                                            \
      "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+|" \
      "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*|" \
      "\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+")                     \
    X(CL100K_TAIL, "cl100k-tiktoken",                                                              \
      "'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}++|\\p{N}{1,3}+| "                       \
      "?[^\\s\\p{L}\\p{N}]++[\\r\\n]*+|"                                                           \
      "\\s++$|\\s*[\\r\\n]|\\s+(?!\\S)|\\s")                                                       \
    X(SMOLLM, "smollm", NULL)         /* Each digit alone, then GPT2 on the rest. */               \
    X(DEEPSEEK3, "deepseek-v3", NULL) /* Three patterns in turn, see scan_deepseek. */

typedef enum {
#define LT_SCAN_ENUM(id, name, regex) LT_SCAN_##id,
    LT_SCAN_MAP(LT_SCAN_ENUM)
#undef LT_SCAN_ENUM
        LT_SCAN_COUNT
} lt_scan_kind;

lt_scan_fn lt_scan_function(lt_scan_kind kind);
const char *lt_scan_name(lt_scan_kind kind);
const char *lt_scan_regex(lt_scan_kind kind); /* NULL if there is no single one. */

/* The scanner of exactly this regular expression, or LT_SCAN_COUNT. */
lt_scan_kind lt_scan_by_regex(const char *regex, size_t n);

#endif
