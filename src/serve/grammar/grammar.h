/* grammar.h: which token may come next: a GBNF grammar, regular expression, JSON schema or list of
 * choices as masks over token ids.
 *
 *     once a model:    lt_grammar_vocab_open(&vocab, tokenizer, NULL, 0)
 *     once a request:  lt_grammar_open(&g, vocab, LT_GRAMMAR_SCHEMA, text, bytes)  (or shared)
 *     once a choice:   lt_grammar_state_open(&s, g)
 *
 *     loop:  lt_grammar_mask(s, bits, V) ─▶ the sampler sets the other ids to -inf ─▶ id
 *            ─▶ lt_grammar_accept(s, id)
 *            until the id ends the text; lt_grammar_done(s): only an ending id may follow
 *
 * A token is allowed when its bytes can continue the text so far to a text of the language; an
 * ending id when the text so far is in it. Special tokens are allowed only where a grammar names
 * them. A vocabulary and a grammar may be used by many threads (a grammar keeps a cache under a
 * lock); a state by one at a time. */
#ifndef LT_SERVE_GRAMMAR_H
#define LT_SERVE_GRAMMAR_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lateen/serve.h"
#include "lateen/tokenizer.h"

typedef struct lt_grammar_vocab lt_grammar_vocab;
typedef struct lt_grammar_state lt_grammar_state;

typedef enum {
    /* llama.cpp's notation, with the start rule "root"; or Lark's, with "start". */
    LT_GRAMMAR_GBNF,
    LT_GRAMMAR_REGEX,  /* The whole text must match: serve/grammar/regex.c describes the dialect. */
    LT_GRAMMAR_SCHEMA, /* JSON schema, a JSON text: serve/grammar/schema.c lists the keywords. */
    LT_GRAMMAR_JSON,   /* Any JSON object; the text is ignored. */
    LT_GRAMMAR_CHOICE  /* One of the strings of a JSON array of strings. */
} lt_grammar_kind;

/* Make tries of the tokens' bytes. ends: ids that end a text, in addition to the tokenizer's. The
 * tokenizer may be closed afterwards. */
LT_MUST_USE lt_err lt_grammar_vocab_open(lt_grammar_vocab **out, const lt_tokenizer *t,
                                         const int32_t *ends, int64_t n_ends);
void lt_grammar_vocab_close(lt_grammar_vocab *v); /* Close its grammars first. Accepts NULL. */

/* Compile. FORMAT: a syntax error (line or offset and what was expected); UNSUPPORTED: a keyword
 * that would change the language but is not supported, by name; LIMIT: too large. Mostly
 * milliseconds, a third of a second at most: serve/api/compile.h keeps it off the loop. */
LT_MUST_USE lt_err lt_grammar_open(lt_grammar **out, const lt_grammar_vocab *v,
                                   lt_grammar_kind kind, const char *text, size_t bytes);
/* The same, until another thread sets *stop: STATE. */
LT_MUST_USE lt_err lt_grammar_open_until(lt_grammar **out, const lt_grammar_vocab *v,
                                         lt_grammar_kind kind, const char *text, size_t bytes,
                                         const atomic_bool *stop);
/* Add an owner, which must also close it. Returns g. */
lt_grammar *lt_grammar_hold(lt_grammar *g);
/* Remove an owner; before the last one, close all states. Accepts NULL. */
void lt_grammar_close(lt_grammar *g);
/* Its memory: the automata, and the cache that texts have filled so far. */
size_t lt_grammar_bytes(lt_grammar *g);

LT_MUST_USE lt_err lt_grammar_state_open(lt_grammar_state **out, const lt_grammar *g);
/* dst (open, of the same grammar) becomes equal to src, when a sequence forks. */
void lt_grammar_state_copy(lt_grammar_state *dst, const lt_grammar_state *src);
void lt_grammar_state_reset(lt_grammar_state *s); /* Back to the start. */
void lt_grammar_state_close(lt_grammar_state *s); /* Accepts NULL. */

/* Bit id % 32 of bits[id / 32] for each id in [0, n_ids) that may follow; ceil(n_ids / 32) words
 * are written. Ids at or over the tokenizer's n_ids are never allowed. At least one bit is set
 * unless the vocabulary cannot spell what must follow. LIMIT: the grammar is too ambiguous here. */
LT_MUST_USE lt_err lt_grammar_mask(lt_grammar_state *s, uint32_t *bits, int64_t n_ids);

/* The sampler chose id. ARG: it is not allowed, and the state is unchanged. After an ending id the
 * state is finished. */
LT_MUST_USE lt_err lt_grammar_accept(lt_grammar_state *s, int32_t id);

bool lt_grammar_done(const lt_grammar_state *s);      /* Only an ending id may follow. */
bool lt_grammar_accepting(const lt_grammar_state *s); /* An ending id may follow. */

/* The bytes that must follow in any case, at most room; 0 if there is a choice. */
size_t lt_grammar_forced(lt_grammar_state *s, char *out, size_t room);

#endif
