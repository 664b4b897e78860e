/* compile.h: grammars are compiled on a thread of their own, so that the event loop, and with it
 * every stream, never waits for one.
 *
 *     loop:      lt_compiler_submit(c, job): the job is filled in and stays the caller's; it lives
 *                until done, or until a cancel that returns true
 *     compiler:  vocabulary (the first time), grammar
 *     loop:      done(job): job->grammar, or job->err and job->message
 *
 * Compiled grammars are kept (grammar/keep.h): the next job for the same one is done at once,
 * however many others wait.
 *
 *     free ─submit─▶ WAITING ─▶ MADE ─▶ told: done() on the loop ─▶ free
 *       └──it is kept────────────▲
 *     WAITING ─cancel: true─▶ free
 *     MADE ─cancel: false─▶ abandoned at the next state of an automaton, then told like any other
 *
 * The queue is bounded, first come, first served; a further job fails with LIMIT. While a job waits
 * or is compiled, the compiler reads its tree and texts, so the loop must not touch them. */
#ifndef LT_SERVE_COMPILE_H
#define LT_SERVE_COMPILE_H

#include <event2/event.h>
#include <stdatomic.h>

#include "serve/fifo.h"
#include "serve/grammar/keep.h"
#include "serve/api/json_out.h"
#include "serve/parse.h"

typedef struct lt_compiler lt_compiler;
typedef struct lt_compile lt_compile;

struct lt_compile {
    lt_fifo_link link; /* Used by the compiler. */
    /* Compile a chat's whole answer (lt_parse_grammar); otherwise only the form: what.kind,
     * what.form. */
    bool chat;
    lt_parse_grammar_options what;
    void *user;

    lt_grammar *grammar; /* Belongs to the caller once done. */
    lt_err err;
    char message[400];

    lt_json_out key; /* Used by the compiler: everything on which the grammar depends. */
    atomic_bool given_up;
};

typedef struct {
    struct event_base *base;
    const lt_tokenizer *tokenizer;
    lt_ends ends; /* End tokens of the model. */
    int64_t max_waiting;
    size_t keep_bytes; /* Most bytes of kept grammars. */
    void (*done)(lt_compile *job);
    /* Called on the compiler's thread before each grammar, for tests. May be NULL. */
    void (*before)(void *ctx);
    void *ctx;
} lt_compiler_options;

/* Starts the thread. The tokenizer must outlive it. */
LT_MUST_USE lt_err lt_compiler_open(lt_compiler **out, const lt_compiler_options *o);
/* Drop waiting jobs and abandon the current one; done() is not called any more. The vocabulary is
 * closed, too, so close all grammars first. Accepts NULL. */
void lt_compiler_stop(lt_compiler *c);
void lt_compiler_close(lt_compiler *c);

LT_MUST_USE lt_err lt_compiler_submit(lt_compiler *c, lt_compile *job);
/* True: the job had not begun and belongs to the caller again. False: done() will be called for it
 * soon. */
bool lt_compiler_cancel(lt_compiler *c, lt_compile *job);
int64_t lt_compiler_waiting(lt_compiler *c); /* Number of jobs that wait or run. */
void lt_compiler_get_kept(lt_compiler *c, lt_grammar_keep_stats *out);

#endif
