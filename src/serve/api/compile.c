/* compile.c: see compile.h. */
#include "serve/api/compile.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

struct lt_compiler {
    lt_compiler_options o;
    lt_grammar_vocab *vocab; /* The compiler's thread opens it; afterwards it is read-only. */
    lt_grammar_keep *keep;
    struct event *on_done;
    pthread_t thread;
    bool running;
    /* Under the lock. */
    pthread_mutex_t lock;
    pthread_cond_t wake;
    lt_fifo waiting, made;
    lt_compile *current;
    int64_t n; /* Number of jobs in `waiting` and `current`. */
    bool closing;
};

static lt_compile *pop(lt_fifo *l) {
    return (lt_compile *)lt_fifo_pop(l);
}

/* ---- What was made before ---- */

static void key_text(lt_json_out *o, const char *text, size_t n) {
    lt_out_rawf(o, "%zu:", n);
    lt_out_raw(o, text, n);
}

static void key_name(lt_json_out *o, const char *text) {
    lt_out_rawf(o, "%d", text != NULL);
    key_text(o, text != NULL ? text : "", text != NULL ? strlen(text) : 0);
}

/* Write everything that `make` depends on; the vocabulary is always the same. */
static void write_key(lt_compile *job) {
    const lt_parse_grammar_options *w = &job->what;
    lt_json_out *o = &job->key;
    *o = (lt_json_out){0};
    lt_out_rawf(o, "%d%d%d", job->chat, job->chat && !w->has_form ? -1 : (int)w->kind, w->has_form);
    key_text(o, w->form != NULL ? w->form : "", w->form != NULL ? w->form_bytes : 0);
    if (job->chat) {
        lt_out_rawf(o, "%d%d%d%d%d", (int)w->marks.format, w->reasoning, w->thinks, w->forced,
                    w->parallel);
        key_name(o, w->marks.think_open);
        key_name(o, w->marks.think_close);
        key_name(o, w->name);
        lt_out_value(o, w->tools);
    }
}

static bool find_kept(lt_compiler *c, lt_compile *job) {
    job->grammar = job->key.failed ? NULL
                                   : lt_grammar_keep_find(c->keep, job->key.data, job->key.n);
    job->err = LT_OK;
    if (job->grammar != NULL) {
        lt_out_free(&job->key);
    }
    return job->grammar != NULL;
}

/* ---- The compiler's thread ---- */

static lt_err make(lt_compiler *c, lt_compile *job) {
    if (c->vocab == NULL) {
        LT_TRY(lt_grammar_vocab_open(&c->vocab, c->o.tokenizer, c->o.ends.ids, c->o.ends.n));
    }
    if (job->chat) {
        return lt_parse_grammar(&job->grammar, c->vocab, &job->what);
    }
    return lt_grammar_open_until(&job->grammar, c->vocab, job->what.kind, job->what.form,
                                 job->what.form_bytes, &job->given_up);
}

static void run_job(lt_compiler *c, lt_compile *job) {
    if (c->o.before != NULL) {
        c->o.before(c->o.ctx);
    }
    job->what.stop = &job->given_up;
    job->err = make(c, job);
    if (job->err != LT_OK) {
        (void)snprintf(job->message, sizeof job->message, "%s", lt_error_message());
    } else if (!job->key.failed) {
        lt_grammar_keep_put(c->keep, job->key.data, job->key.n, job->grammar);
    }
    lt_out_free(&job->key);
}

static void *run(void *arg) {
    lt_compiler *c = arg;
    pthread_mutex_lock(&c->lock);
    while (!c->closing) {
        c->current = pop(&c->waiting);
        if (c->current == NULL) {
            pthread_cond_wait(&c->wake, &c->lock);
            continue;
        }
        pthread_mutex_unlock(&c->lock);
        /* The same grammar may have been compiled while this job waited. */
        if (!find_kept(c, c->current)) {
            run_job(c, c->current);
        }
        pthread_mutex_lock(&c->lock);
        lt_fifo_push(&c->made, &c->current->link);
        c->current = NULL;
        c->n--;
        event_active(c->on_done, 0, 0);
    }
    pthread_mutex_unlock(&c->lock);
    return NULL;
}

/* ---- The loop's thread ---- */

static lt_compile *take_made(lt_compiler *c) {
    lt_compile *job;
    pthread_mutex_lock(&c->lock);
    job = pop(&c->made);
    pthread_mutex_unlock(&c->lock);
    return job;
}

static void on_done(evutil_socket_t fd, short what, void *arg) {
    lt_compiler *c = arg;
    (void)fd;
    (void)what;
    for (lt_compile *job = take_made(c); job != NULL; job = take_made(c)) {
        c->o.done(job);
    }
}

lt_err lt_compiler_submit(lt_compiler *c, lt_compile *job) {
    lt_err err = LT_OK;
    bool kept;
    atomic_store(&job->given_up, false);
    write_key(job);
    kept = find_kept(c, job);
    pthread_mutex_lock(&c->lock);
    if (kept) {
        lt_fifo_push(&c->made, &job->link);
        event_active(c->on_done, 0, 0);
        goto done;
    }
    if (c->n >= c->o.max_waiting) {
        lt_out_free(&job->key);
        LT_FAIL_DONE(LT_ERR_LIMIT, "%lld grammars are waiting to be compiled; try again later",
                     (long long)c->n);
    }
    lt_fifo_push(&c->waiting, &job->link);
    c->n++;
    pthread_cond_signal(&c->wake);
done:
    pthread_mutex_unlock(&c->lock);
    return err;
}

bool lt_compiler_cancel(lt_compiler *c, lt_compile *job) {
    bool waited;
    pthread_mutex_lock(&c->lock);
    waited = lt_fifo_take_out(&c->waiting, &job->link);
    c->n -= waited;
    if (waited) {
        lt_out_free(&job->key);
    } else {
        atomic_store(&job->given_up, true);
    }
    pthread_mutex_unlock(&c->lock);
    return waited;
}

int64_t lt_compiler_waiting(lt_compiler *c) {
    int64_t n;
    pthread_mutex_lock(&c->lock);
    n = c->n;
    pthread_mutex_unlock(&c->lock);
    return n;
}

void lt_compiler_get_kept(lt_compiler *c, lt_grammar_keep_stats *out) {
    lt_grammar_keep_get_stats(c->keep, out);
}

/* ---- Open, close ---- */

lt_err lt_compiler_open(lt_compiler **out, const lt_compiler_options *o) {
    lt_err err = LT_OK;
    lt_compiler *c = calloc(1, sizeof *c);

    if (c == NULL) {
        LT_FAIL(LT_ERR_OOM, "compiler of grammars");
    }
    c->o = *o;
    pthread_mutex_init(&c->lock, NULL);
    pthread_cond_init(&c->wake, NULL);
    LT_TRY_DONE(lt_grammar_keep_open(&c->keep, o->keep_bytes));
    c->on_done = event_new(o->base, -1, EV_PERSIST, on_done, c);
    if (c->on_done == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "compiler of grammars");
    }
    c->running = pthread_create(&c->thread, NULL, run, c) == 0;
    if (!c->running) {
        LT_FAIL_DONE(LT_ERR_OOM, "cannot start the thread that compiles grammars");
    }
    *out = c;
    c = NULL;
done:
    lt_compiler_close(c);
    return err;
}

void lt_compiler_stop(lt_compiler *c) {
    if (c == NULL || !c->running) {
        return;
    }
    pthread_mutex_lock(&c->lock);
    c->closing = true;
    for (lt_compile *job = pop(&c->waiting); job != NULL; job = pop(&c->waiting)) {
        lt_out_free(&job->key);
    }
    if (c->current != NULL) {
        atomic_store(&c->current->given_up, true);
    }
    pthread_cond_signal(&c->wake);
    pthread_mutex_unlock(&c->lock);
    pthread_join(c->thread, NULL);
    c->running = false;
    event_del(c->on_done);
}

void lt_compiler_close(lt_compiler *c) {
    if (c == NULL) {
        return;
    }
    lt_compiler_stop(c);
    if (c->on_done != NULL) {
        event_free(c->on_done);
    }
    lt_grammar_keep_close(c->keep);
    lt_grammar_vocab_close(c->vocab);
    pthread_cond_destroy(&c->wake);
    pthread_mutex_destroy(&c->lock);
    free(c);
}
