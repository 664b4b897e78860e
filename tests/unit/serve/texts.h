/* texts.h: numbered texts for tests of the caches that extend the pool of pages: a prompt of
 * PROMPT tokens and 30 more, which fill six pages of P tokens. */
#ifndef TESTS_SERVE_TEXTS_H
#define TESTS_SERVE_TEXTS_H

#include "unit/serve/fleet.h"

enum { V = 300, SEQ = 160, P = 16, PROMPT = 75 };

static inline lt_request text_request(const int32_t *prompt) {
    lt_request r = lt_request_defaults();
    r.prompt = prompt;
    r.n_prompt = PROMPT;
    r.max_tokens = 30;
    r.ignore_eos = true;
    r.sampling.seed = 11;
    return r;
}

/* Request a text alone; returns how many tokens of its prompt were cached. */
static inline int64_t ask(lt_engine *e, uint64_t text, uint64_t salt, answer *a) {
    int32_t prompt[PROMPT];
    lt_request r;
    fill_prompt(prompt, PROMPT, V, text);
    r = text_request(prompt);
    r.cache_salt = salt;
    send(e, &r, a);
    receive_all(e, 1, 0);
    return a->cached_tokens;
}

#endif
