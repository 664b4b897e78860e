/* decode_chain.c: see decode_chain.h.
 *
 * A decoder of Hugging Face maps a list of tokens to a list of tokens, and a Sequence applies
 * several in order (`decode_chain` in its source). Here each step does the same with tokens as
 * they arrive, and holds back those that it cannot decide yet:
 *
 *     token ─▶ step 0 ─▶ tokens ─▶ step 1 ─▶ tokens ... ─▶ text
 *
 *     SUFFIX         the last token, which is treated differently
 *     CTC            a copy of the previous token
 *     BYTE_FALLBACK  a run of byte pieces: text if all of it is UTF-8, or one U+FFFD per byte
 *     BYTE_LEVEL     the bytes of an incomplete character
 *
 * FUSE and BYTE_LEVEL join all tokens into one. The steps after them see parts of that token:
 * METASPACE, a literal REPLACE and a STRIP of the start work on these as they arrive; the others
 * need the whole text and pass nothing on before the end. */
#include "data/tokenizer/decode_chain.h"

#include <stdlib.h>
#include <string.h>

#include "base/encoding.h"
#include "base/error.h"
#include "data/tokenizer/normalize.h"
#include "data/tokenizer/regex.h"
#include "data/tokenizer/impl.h"

#define BYTE_PIECE_BYTES 6 /* "<0x0A>" */

/* The most bytes of one token, or of the whole text after a Fuse. Without a limit, a chain of steps
 * that each double the text could use up all memory. */
#ifndef FUZZING_BUILD_MODE_UNSAFE_FOR_PRODUCTION
#define TOKEN_BYTES_MAX ((size_t)64 << 20)
#else
#define TOKEN_BYTES_MAX ((size_t)1 << 16)
#endif

static lt_err check_size(const lt_text *t) {
    if (t->n > TOKEN_BYTES_MAX) {
        LT_FAIL(LT_ERR_LIMIT, "the decoder makes more than %zu bytes of a token", TOKEN_BYTES_MAX);
    }
    return LT_OK;
}

/* As Rust's u8::from_str_radix on the two characters; it accepts a plus sign as the first. */
int lt_decode_byte(const char *s, size_t n) {
    int high, low;
    if (n != BYTE_PIECE_BYTES || memcmp(s, "<0x", 3) != 0 || s[5] != '>') {
        return -1;
    }
    high = s[3] == '+' ? 0 : lt_hex_digit(s[3]);
    low = lt_hex_digit(s[4]);
    return high < 0 || low < 0 ? -1 : high << 4 | low;
}

static bool needs_all(const lt_decode_op *op) {
    switch (op->kind) {
    case LT_DECODE_REPLACE:
        return op->regex != NULL;
    case LT_DECODE_STRIP:
        return op->stop > 0;
    case LT_DECODE_WORDPIECE:
        return op->cleanup;
    case LT_DECODE_CTC:
    case LT_DECODE_BYTE_LEVEL:
        return true;
    default:
        return false;
    }
}

void lt_decode_chain_open(lt_decode_chain *c, const lt_decode_op *ops, int n) {
    bool fused = false;
    LT_ASSERT(n <= LT_MAX_DECODE_OPS);
    for (int i = 0; i < n; i++) {
        c->stages[i] = (lt_decode_stage){.op = &ops[i],
                                         .fused = fused,
                                         .whole = fused && needs_all(&ops[i]),
                                         .first = true,
                                         .strip = ops[i].start};
        fused |= ops[i].kind == LT_DECODE_FUSE || ops[i].kind == LT_DECODE_BYTE_LEVEL;
    }
    c->n = n;
}

static void free_tokens(lt_decode_tokens *t) {
    lt_text_free(&t->text);
    free(t->ends);
    *t = (lt_decode_tokens){0};
}

void lt_decode_chain_close(lt_decode_chain *c) {
    for (int i = 0; i < c->n; i++) {
        lt_text_free(&c->stages[i].held);
    }
    free_tokens(&c->in);
    free_tokens(&c->out);
    lt_text_free(&c->work);
    lt_text_free(&c->other);
    lt_regex_scratch_close(c->regex);
}

void lt_decode_chain_continue(lt_decode_chain *c) {
    for (int i = 0; i < c->n; i++) {
        lt_decode_stage *s = &c->stages[i];
        s->first = s->fused && s->op->kind != LT_DECODE_METASPACE;
        s->strip = 0;
    }
}

/* Make the text after the last end a token. */
static lt_err end_token(lt_decode_tokens *t) {
    if (t->n == t->room) {
        const size_t room = t->room == 0 ? 16 : 2 * t->room;
        size_t *grown = realloc(t->ends, room * sizeof *grown);
        if (grown == NULL) {
            LT_FAIL(LT_ERR_OOM, "%zu tokens", room);
        }
        t->ends = grown;
        t->room = room;
    }
    t->ends[t->n++] = t->text.n;
    return LT_OK;
}

static lt_err put_token(lt_decode_tokens *t, const char *s, size_t n) {
    LT_TRY(lt_text_put(&t->text, s, n));
    return end_token(t);
}

static void swap_work(lt_decode_chain *c) {
    const lt_text swap = c->work;
    c->work = c->other;
    c->other = swap;
}

static void drop_front(lt_text *s, size_t n) {
    if (n == 0) {
        return;
    }
    memmove(s->data, s->data + n, s->n - n);
    s->n -= n;
}

static bool begins_with(const lt_text *s, const lt_text *prefix) {
    return s->n >= prefix->n && (prefix->n == 0 || memcmp(s->data, prefix->data, prefix->n) == 0);
}

static bool ends_with(const lt_text *s, const lt_text *suffix) {
    return s->n >= suffix->n && suffix->n > 0 &&
           memcmp(s->data + s->n - suffix->n, suffix->data, suffix->n) == 0;
}

/* Replace each occurrence of `from` in the current token by `to`. An empty `from` occurs before
 * every character and at the end, as in Rust's str::replace. */
static lt_err replace_all(lt_decode_chain *c, const char *from, size_t from_n, const char *to,
                          size_t to_n) {
    const char *p = c->work.data, *const end = p + c->work.n;
    uint32_t cp;
    c->other.n = 0;
    while (p < end) {
        const char *hit = from_n == 0 ? p : lt_norm_find_bytes(p, (size_t)(end - p), from, from_n);
        const size_t char_n = from_n > 0
                                  ? 0
                                  : lt_utf8_decode((const uint8_t *)p, (const uint8_t *)end, &cp);
        const char *stop = hit != NULL ? hit : end;
        LT_TRY(lt_text_put(&c->other, p, (size_t)(stop - p)));
        if (hit == NULL) {
            break;
        }
        LT_TRY(lt_text_put(&c->other, to, to_n));
        LT_TRY(check_size(&c->other));
        LT_TRY(lt_text_put(&c->other, hit, char_n));
        p = hit + from_n + char_n;
    }
    LT_TRY(from_n == 0 ? lt_text_put(&c->other, to, to_n) : LT_OK);
    swap_work(c);
    return LT_OK;
}

static lt_err prepend_space(lt_text *s) {
    LT_TRY(lt_text_reserve(s, 1));
    memmove(s->data + 1, s->data, s->n);
    s->data[0] = ' ';
    s->n++;
    return LT_OK;
}

/* As Hugging Face's wordpiece::cleanup. */
static lt_err clean_up(lt_decode_chain *c) {
    static const char *const cleanups[][2] = {
        {" .", "."},   {" ?", "?"},     {" !", "!"},    {" ,", ","},
        {" ' ", "'"},  {" n't", "n't"}, {" 'm", "'m"},  {" do not", " don't"},
        {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
    for (size_t i = 0; i < sizeof cleanups / sizeof *cleanups; i++) {
        LT_TRY(replace_all(c, cleanups[i][0], strlen(cleanups[i][0]), cleanups[i][1],
                           strlen(cleanups[i][1])));
    }
    return LT_OK;
}

static lt_err replace_matches(lt_decode_chain *c, const lt_decode_op *op) {
    lt_regex_cursor cursor = {0};
    size_t at = 0;
    LT_TRY(c->regex == NULL ? lt_regex_scratch_open(&c->regex) : LT_OK);
    c->other.n = 0;
    for (;;) {
        bool found;
        size_t begin, end;
        LT_TRY(lt_regex_next(op->regex, c->regex, c->work.data, c->work.n, &cursor, &found, &begin,
                             &end));
        if (!found) {
            break;
        }
        LT_TRY(lt_text_put(&c->other, c->work.data + at, begin - at));
        LT_TRY(lt_text_put(&c->other, op->to.data, op->to.n));
        LT_TRY(check_size(&c->other));
        at = end;
    }
    LT_TRY(lt_text_put(&c->other, c->work.data + at, c->work.n - at));
    swap_work(c);
    return LT_OK;
}

static void strip_ends(lt_text *s, const lt_decode_op *op) {
    for (uint32_t i = 0; i < op->start && op->from.n > 0 && begins_with(s, &op->from); i++) {
        if (s->n == 0) {
            break;
        }
        drop_front(s, op->from.n);
    }
    for (uint32_t i = 0; i < op->stop && ends_with(s, &op->from); i++) {
        s->n -= op->from.n;
    }
}

/* Map one token, c->work, which depends on others only in whether it is the first. */
static lt_err map_token(lt_decode_chain *c, const lt_decode_stage *s) {
    const lt_decode_op *op = s->op;
    switch (op->kind) {
    case LT_DECODE_REPLACE:
        return op->regex != NULL ? replace_matches(c, op)
                                 : replace_all(c, op->from.data, op->from.n, op->to.data, op->to.n);
    case LT_DECODE_METASPACE:
        return replace_all(c, op->from.data, op->from.n, " ", op->prepend && s->first ? 0 : 1);
    case LT_DECODE_STRIP:
        strip_ends(&c->work, op);
        return LT_OK;
    case LT_DECODE_WORDPIECE:
        if (!s->first && begins_with(&c->work, &op->from)) {
            drop_front(&c->work, op->from.n);
        } else if (!s->first) {
            LT_TRY(prepend_space(&c->work));
        }
        return op->cleanup ? clean_up(c) : LT_OK;
    case LT_DECODE_JOIN:
        return s->first ? LT_OK : prepend_space(&c->work);
    default:
        return LT_OK;
    }
}

/* Pass the current token on; its SUFFIX becomes a space, or nothing in the last token. */
static lt_err put_suffixed(lt_decode_chain *c, lt_decode_stage *s, bool last) {
    LT_TRY(replace_all(c, s->op->from.data, s->op->from.n, " ", last ? 0 : 1));
    return put_token(&c->out, c->work.data, c->work.n);
}

static lt_err run_suffix(lt_decode_chain *c, lt_decode_stage *s) {
    const lt_text token = c->work;
    const bool held = s->holds;
    c->work = s->held; /* The held token is passed on, and the new one is held. */
    s->held = token;
    s->holds = true;
    LT_TRY(lt_text_reserve(&c->work, 1));
    return held ? put_suffixed(c, s, false) : LT_OK;
}

static lt_err run_ctc(lt_decode_chain *c, lt_decode_stage *s) {
    const lt_decode_op *op = s->op;
    if (s->holds && s->held.n == c->work.n &&
        (s->held.n == 0 || memcmp(s->held.data, c->work.data, s->held.n) == 0)) {
        return LT_OK;
    }
    s->holds = true;
    s->held.n = 0;
    LT_TRY(lt_text_put(&s->held, c->work.data, c->work.n));
    LT_TRY(replace_all(c, op->from.data, op->from.n, "", 0));
    if (op->cleanup) {
        LT_TRY(clean_up(c));
        LT_TRY(replace_all(c, op->to.data, op->to.n, " ", 1));
    }
    c->gone |= s->whole && c->work.n == 0;
    return c->work.n > 0 ? put_token(&c->out, c->work.data, c->work.n) : LT_OK;
}

/* End a run of byte pieces: it becomes one token, or one U+FFFD per byte. */
static lt_err end_run(lt_decode_chain *c, lt_decode_stage *s) {
    if (s->held.n == 0) {
        return LT_OK;
    }
    if (lt_utf8_valid_prefix(s->held.data, s->held.n) == s->held.n) {
        LT_TRY(put_token(&c->out, s->held.data, s->held.n));
    } else {
        for (size_t i = 0; i < s->held.n; i++) {
            LT_TRY(lt_text_put_cp(&c->out.text, LT_UNICODE_REPLACEMENT));
            LT_TRY(end_token(&c->out));
        }
    }
    s->held.n = 0;
    return LT_OK;
}

static lt_err run_byte_fallback(lt_decode_chain *c, lt_decode_stage *s) {
    const int byte = lt_decode_byte(c->work.data, c->work.n);
    if (byte >= 0) {
        return lt_text_put(&s->held, &(char){(char)byte}, 1);
    }
    LT_TRY(end_run(c, s));
    return put_token(&c->out, c->work.data, c->work.n);
}

/* Pass on whole characters; final: the bytes that are left are ill-formed. */
static lt_err put_characters(lt_decode_chain *c, lt_decode_stage *s, bool final) {
    LT_TRY(lt_text_assemble(&c->out.text, &s->held, false, final));
    return end_token(&c->out);
}

static lt_err run_byte_level(lt_decode_chain *c, lt_decode_stage *s) {
    bool mapped;
    LT_TRY(lt_tokenizer_unmap(c->work.data, c->work.n, &s->held, &mapped));
    return put_characters(c, s, false);
}

/* Number of bytes at the end of `held`, in whole characters, that may be the beginning of
 * `from`. */
static size_t open_end(const lt_text *held, const lt_text *from) {
    size_t n = held->n < from->n - 1 ? held->n : from->n - 1;
    while (n > 0 && memcmp(held->data + held->n - n, from->data, n) != 0) {
        n--;
    }
    return n;
}

/* Replace a literal in a text that comes in parts: the possible beginning of an occurrence is held
 * back. */
static lt_err run_literal(lt_decode_chain *c, lt_decode_stage *s, const char *to, size_t to_n,
                          bool final) {
    const lt_text *from = &s->op->from;
    size_t at = 0;
    LT_TRY(lt_text_put(&s->held, c->work.data, c->work.n));
    while (from->n > 0 && s->held.n > 0) {
        const char *hit = memmem(s->held.data + at, s->held.n - at, from->data, from->n);
        if (hit == NULL) {
            break;
        }
        LT_TRY(lt_text_put(&c->out.text, s->held.data + at, (size_t)(hit - s->held.data) - at));
        LT_TRY(lt_text_put(&c->out.text, to, to_n));
        LT_TRY(check_size(&c->out.text));
        at = (size_t)(hit - s->held.data) + from->n;
    }
    drop_front(&s->held, at);
    if (s->held.n > 0) {
        const size_t waits = final || from->n == 0 ? 0 : open_end(&s->held, from);
        LT_TRY(lt_text_put(&c->out.text, s->held.data, s->held.n - waits));
        drop_front(&s->held, s->held.n - waits);
    }
    return end_token(&c->out);
}

/* In a joined text, six characters are a byte piece only if they are the whole text. */
static lt_err run_fused_fallback(lt_decode_chain *c, lt_decode_stage *s, bool final) {
    LT_TRY(lt_text_put(&s->held, c->work.data, c->work.n));
    if (s->held.n > BYTE_PIECE_BYTES || s->n_run > 0) {
        s->n_run = 1; /* Not a byte piece. */
    } else if (!final) {
        return LT_OK;
    } else if (lt_decode_byte(s->held.data, s->held.n) >= 0) {
        const char byte = (char)lt_decode_byte(s->held.data, s->held.n);
        s->held.n = 0;
        LT_TRY(lt_text_put(&s->held, &byte, 1));
        return end_run(c, s);
    }
    LT_TRY(put_token(&c->out, s->held.data, s->held.n));
    s->held.n = 0;
    return LT_OK;
}

/* Run a step on c->work, a part of the only token, which may be empty. */
static lt_err run_fused(lt_decode_chain *c, lt_decode_stage *s, bool final) {
    switch (s->op->kind) {
    case LT_DECODE_REPLACE:
        return run_literal(c, s, s->op->to.data, s->op->to.n, final);
    case LT_DECODE_SUFFIX:
        return run_literal(c, s, "", 0, final);
    case LT_DECODE_METASPACE:
        return run_literal(c, s, " ", s->op->prepend && s->first ? 0 : 1, final);
    case LT_DECODE_BYTE_FALLBACK:
        return run_fused_fallback(c, s, final);
    case LT_DECODE_STRIP:
        while (s->strip > 0 && c->work.n > 0) {
            s->strip = begins_with(&c->work, &s->op->from) ? s->strip - 1 : 0;
            if (begins_with(&c->work, &s->op->from)) {
                drop_front(&c->work, s->op->from.n);
            }
        }
        break;
    default:
        break;
    }
    return put_token(&c->out, c->work.data, c->work.n);
}

/* Run a step on the whole text, the only token. */
static lt_err run_whole(lt_decode_chain *c, lt_decode_stage *s) {
    switch (s->op->kind) {
    case LT_DECODE_CTC:
        return run_ctc(c, s);
    case LT_DECODE_BYTE_LEVEL:
        s->held.n = 0;
        LT_TRY(run_byte_level(c, s));
        return put_characters(c, s, true);
    default:
        LT_TRY(map_token(c, s));
        return put_token(&c->out, c->work.data, c->work.n);
    }
}

/* Run a step on c->work, one token of many. */
static lt_err run_token(lt_decode_chain *c, lt_decode_stage *s) {
    switch (s->op->kind) {
    case LT_DECODE_SUFFIX:
        return run_suffix(c, s);
    case LT_DECODE_CTC:
        return run_ctc(c, s);
    case LT_DECODE_BYTE_FALLBACK:
        return run_byte_fallback(c, s);
    case LT_DECODE_BYTE_LEVEL:
        return run_byte_level(c, s);
    default:
        LT_TRY(map_token(c, s));
        s->first = false;
        return put_token(&c->out, c->work.data, c->work.n);
    }
}

/* No token follows: pass on the held text. */
static lt_err end_stage(lt_decode_chain *c, lt_decode_stage *s) {
    c->work.n = 0;
    if (s->op->kind == LT_DECODE_FUSE || s->op->kind == LT_DECODE_BYTE_LEVEL) {
        c->gone = false; /* If there are no tokens, these steps make an empty one. */
    } else if (s->fused && c->gone) {
        return LT_OK;
    }
    if (s->whole) {
        LT_TRY(lt_text_put(&c->work, s->held.data, s->held.n));
        s->holds = false;
        return run_whole(c, s);
    }
    if (s->fused) {
        return run_fused(c, s, true);
    }
    switch (s->op->kind) {
    case LT_DECODE_SUFFIX:
        if (!s->holds) {
            return LT_OK;
        }
        s->holds = false;
        LT_TRY(lt_text_put(&c->work, s->held.data, s->held.n));
        return put_suffixed(c, s, true);
    case LT_DECODE_BYTE_FALLBACK:
        return end_run(c, s);
    case LT_DECODE_BYTE_LEVEL:
        return put_characters(c, s, true);
    default:
        return LT_OK;
    }
}

/* Run one step from c->in to c->out. */
static lt_err run_stage(lt_decode_chain *c, lt_decode_stage *s, bool final) {
    size_t begin = 0;
    c->out.n = c->out.text.n = 0;
    for (size_t i = 0; i < c->in.n; i++) {
        const size_t end = c->in.ends[i];
        c->work.n = 0;
        LT_TRY(lt_text_put(s->whole ? &s->held : &c->work, c->in.text.data + begin, end - begin));
        LT_TRY(s->whole ? LT_OK : s->fused ? run_fused(c, s, false) : run_token(c, s));
        begin = end;
    }
    return final ? end_stage(c, s) : LT_OK;
}

lt_err lt_decode_chain_apply(lt_decode_chain *c, const char *token, size_t n, bool final,
                             lt_text *text) {
    c->gone = false;
    c->in.n = c->in.text.n = 0;
    LT_TRY(lt_text_reserve(&c->in.text, 1)); /* So that empty texts have an address too. */
    LT_TRY(lt_text_reserve(&c->out.text, 1));
    LT_TRY(lt_text_reserve(&c->work, 1));
    LT_TRY(lt_text_reserve(&c->other, 1));
    LT_TRY(token != NULL ? put_token(&c->in, token, n) : LT_OK);
    for (int i = 0; i < c->n; i++) {
        const lt_decode_tokens swap = c->in;
        LT_TRY(run_stage(c, &c->stages[i], final));
        c->in = c->out;
        c->out = swap;
    }
    return lt_text_put(text, c->in.text.data, c->in.text.n);
}

/* Run a step on c->work, a token that stands between others. */
static lt_err run_alone(lt_decode_chain *c, const lt_decode_stage *s) {
    const lt_decode_op *op = s->op;
    bool mapped;
    switch (op->kind) {
    case LT_DECODE_FUSE:
    case LT_DECODE_BYTE_FALLBACK:
        return LT_OK;
    case LT_DECODE_SUFFIX:
        return replace_all(c, op->from.data, op->from.n, " ", 1);
    case LT_DECODE_CTC:
        LT_TRY(replace_all(c, op->from.data, op->from.n, "", 0));
        return op->cleanup ? replace_all(c, op->to.data, op->to.n, " ", 1) : LT_OK;
    case LT_DECODE_BYTE_LEVEL:
        c->other.n = 0;
        LT_TRY(lt_tokenizer_unmap(c->work.data, c->work.n, &c->other, &mapped));
        swap_work(c);
        return LT_OK;
    case LT_DECODE_STRIP:
        return s->fused ? LT_OK : map_token(c, s);
    default:
        return map_token(c, s);
    }
}

lt_err lt_decode_chain_alone(lt_decode_chain *c, const char *token, size_t n, lt_text *text) {
    c->work.n = 0;
    LT_TRY(lt_text_reserve(&c->work, 1));
    LT_TRY(lt_text_reserve(&c->other, 1));
    LT_TRY(lt_text_put(&c->work, token, n));
    for (int i = 0; i < c->n; i++) {
        LT_TRY(run_alone(c, &c->stages[i]));
    }
    return lt_text_put(text, c->work.data, c->work.n);
}
