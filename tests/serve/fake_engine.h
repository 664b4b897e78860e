/* fake_engine.h: an engine without a model, for tests of what stands before it: it answers with the
 * prompt's own tokens, one a step for each request, then ends. Included by one file of a test
 * program, whose symbols then stand before the library's.
 *
 * A request whose max_tokens is longer than its prompt repeats the prompt when ignore_eos is set.
 * Log-probabilities are made up: -0.5 - rank. */
#ifndef LT_TESTS_FAKE_ENGINE_H
#define LT_TESTS_FAKE_ENGINE_H

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/error.h"
#include "lateen/serve.h"

#define FAKE_MAX  4096
#define FAKE_RING 65536

typedef struct {
    uint64_t id;
    void *user;
    lt_request r;
    int32_t *prompt;
    int64_t made;
    bool cancelled, choice_cancelled[128];
} fake_request;

struct lt_engine {
    const lt_model *model;
    lt_engine_options o;
    pthread_t thread;
    pthread_mutex_t lock;
    int fd;
    bool closing;
    uint64_t next;
    fake_request *requests[FAKE_MAX];
    int64_t n;
    lt_event *ring;
    size_t head, tail;
    float embedding[65536];
    int64_t new_tokens, finished, cancelled, steps;
};

static long fake_step_us = 500;

static void fake_emit(lt_engine *e, const fake_request *q, lt_event ev) {
    const uint64_t one = 1;
    ev.request = q->id;
    ev.user = q->user;
    ev.prompt_tokens = q->r.n_prompt;
    LT_ASSERT(e->head - e->tail < FAKE_RING);
    e->ring[e->head++ % FAKE_RING] = ev;
    if (write(e->fd, &one, sizeof one) < 0) {
        abort();
    }
}

static lt_event fake_token(const fake_request *q, lt_event_kind kind, int32_t choice, int32_t id,
                           int top) {
    lt_event ev = {.kind = kind, .choice = choice, .id = id, .logprob = -0.5F, .n_top = top};
    for (int i = 0; i < top; i++) {
        ev.top[i].id = (id + i) % 64;
        ev.top[i].logprob = -0.5F - (float)i;
    }
    (void)q;
    return ev;
}

static void fake_end(lt_engine *e, fake_request *q, lt_finish why) {
    for (int32_t s = 0; s < q->r.n_choices && !q->r.embed; s++) {
        fake_emit(e, q,
                  (lt_event){.kind = LT_EVENT_CHOICE,
                             .choice = s,
                             .finish = q->choice_cancelled[s] ? LT_FINISH_CANCELLED : why,
                             .id = 0});
    }
    fake_emit(e, q, (lt_event){.kind = LT_EVENT_DONE, .decode_s = 0.01, .prefill_s = 0.01});
}

/* One step of a request; true: it has ended. */
static bool fake_step(lt_engine *e, fake_request *q) {
    const int64_t limit = q->r.ignore_eos                   ? q->r.max_tokens
                          : q->r.max_tokens < q->r.n_prompt ? q->r.max_tokens
                                                            : q->r.n_prompt;
    if (q->cancelled) {
        e->cancelled++;
        fake_end(e, q, LT_FINISH_CANCELLED);
        return true;
    }
    if (q->r.embed) {
        e->embedding[0] = 1;
        fake_emit(e, q, (lt_event){.kind = LT_EVENT_EMBED, .embedding = e->embedding});
        fake_end(e, q, LT_FINISH_NONE);
        return true;
    }
    for (int64_t i = 0; q->made == 0 && q->r.prompt_logprobs >= 0 && i < q->r.n_prompt; i++) {
        fake_emit(e, q, fake_token(q, LT_EVENT_PROMPT, 0, q->prompt[i], q->r.prompt_logprobs));
    }
    for (int32_t s = 0; s < q->r.n_choices; s++) {
        if (!q->choice_cancelled[s]) {
            fake_emit(e, q,
                      fake_token(q, LT_EVENT_TOKEN, s, q->prompt[q->made % q->r.n_prompt],
                                 q->r.logprobs > 0 ? q->r.logprobs : 0));
            e->new_tokens++;
        }
    }
    if (++q->made < limit) {
        return false;
    }
    e->finished++;
    fake_end(e, q, q->made == q->r.max_tokens ? LT_FINISH_LENGTH : LT_FINISH_EOS);
    return true;
}

static void *fake_run(void *arg) {
    lt_engine *e = arg;
    for (;;) {
        pthread_mutex_lock(&e->lock);
        if (e->closing) {
            pthread_mutex_unlock(&e->lock);
            return NULL;
        }
        for (int64_t i = 0; i < e->n;) {
            fake_request *q = e->requests[i];
            if (fake_step(e, q)) {
                free(q->prompt);
                free(q);
                e->requests[i] = e->requests[--e->n];
            } else {
                i++;
            }
        }
        e->steps++;
        pthread_mutex_unlock(&e->lock);
        usleep((useconds_t)fake_step_us);
    }
}

lt_engine_options lt_engine_defaults(void) {
    return (lt_engine_options){.max_running = 256,
                               .max_waiting = 1024,
                               .step_tokens = 2048,
                               .page_tokens = 16,
                               .prefix_cache = true,
                               .cache_dtype = LT_DTYPE_COUNT,
                               .value_dtype = LT_DTYPE_COUNT};
}

lt_request lt_request_defaults(void) {
    return (lt_request){
        .n_choices = 1,
        .max_tokens = 16,
        .logprobs = -1,
        .prompt_logprobs = -1,
        .think_budget = -1,
        .sampling = {.temperature = 1, .top_p = 1, .typical_p = 1, .repetition = 1}};
}

lt_err lt_engine_save(lt_engine *e, const char *path, uint64_t salt, const int32_t *tokens,
                      int64_t n, lt_engine_kept *out) {
    (void)e, (void)path, (void)salt, (void)tokens;
    *out = (lt_engine_kept){.tokens = n};
    return LT_OK;
}

lt_err lt_engine_restore(lt_engine *e, const char *path, uint64_t salt, lt_engine_kept *out) {
    (void)e, (void)path, (void)salt;
    *out = (lt_engine_kept){0};
    return LT_OK;
}

lt_err lt_engine_erase(lt_engine *e, uint64_t salt, const int32_t *tokens, int64_t n,
                       lt_engine_kept *out) {
    return lt_engine_save(e, "", salt, tokens, n, out);
}

lt_err lt_engine_open(lt_engine **out, const lt_model *m, const lt_engine_options *o) {
    lt_engine *e = calloc(1, sizeof *e);
    LT_ASSERT(e != NULL);
    e->model = m;
    e->o = o != NULL ? *o : lt_engine_defaults();
    e->ring = calloc(FAKE_RING, sizeof *e->ring);
    e->fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    pthread_mutex_init(&e->lock, NULL);
    pthread_create(&e->thread, NULL, fake_run, e);
    *out = e;
    return LT_OK;
}

void lt_engine_close(lt_engine *e) {
    if (e == NULL) {
        return;
    }
    pthread_mutex_lock(&e->lock);
    e->closing = true;
    pthread_mutex_unlock(&e->lock);
    pthread_join(e->thread, NULL);
    for (int64_t i = 0; i < e->n; i++) {
        free(e->requests[i]->prompt);
        free(e->requests[i]);
    }
    close(e->fd);
    free(e->ring);
    free(e);
}

lt_err lt_engine_submit(lt_engine *e, const lt_request *r, void *user, uint64_t *id) {
    fake_request *q;
    pthread_mutex_lock(&e->lock);
    if (e->n >= e->o.max_waiting || e->n >= FAKE_MAX) {
        pthread_mutex_unlock(&e->lock);
        LT_FAIL(LT_ERR_LIMIT, "the queue is full: %lld requests wait", (long long)e->n);
    }
    q = calloc(1, sizeof *q);
    q->r = *r;
    q->user = user;
    q->id = *id = ++e->next;
    q->prompt = malloc((size_t)r->n_prompt * sizeof *q->prompt);
    memcpy(q->prompt, r->prompt, (size_t)r->n_prompt * sizeof *q->prompt);
    e->requests[e->n++] = q;
    pthread_mutex_unlock(&e->lock);
    return LT_OK;
}

void lt_engine_cancel(lt_engine *e, uint64_t id) {
    pthread_mutex_lock(&e->lock);
    for (int64_t i = 0; i < e->n; i++) {
        e->requests[i]->cancelled |= e->requests[i]->id == id;
    }
    pthread_mutex_unlock(&e->lock);
}

void lt_engine_cancel_choice(lt_engine *e, uint64_t id, int32_t choice) {
    pthread_mutex_lock(&e->lock);
    for (int64_t i = 0; i < e->n; i++) {
        fake_request *q = e->requests[i];
        if (q->id == id) {
            bool all = true;
            q->choice_cancelled[choice] = true;
            for (int64_t s = 0; s < q->r.n_choices; s++) {
                all &= q->choice_cancelled[s];
            }
            q->cancelled |= all;
        }
    }
    pthread_mutex_unlock(&e->lock);
}

int lt_engine_fd(const lt_engine *e) {
    return e->fd;
}

int64_t lt_engine_poll(lt_engine *e, lt_event *events, int64_t room) {
    int64_t n = 0;
    uint64_t count;
    pthread_mutex_lock(&e->lock);
    while (n < room && e->tail < e->head) {
        events[n++] = e->ring[e->tail++ % FAKE_RING];
    }
    if (e->tail == e->head && read(e->fd, &count, sizeof count) < 0) {
        count = 0;
    }
    pthread_mutex_unlock(&e->lock);
    return n;
}

void lt_engine_get_stats(const lt_engine *e, lt_engine_stats *out) {
    lt_engine *m = (lt_engine *)e;
    pthread_mutex_lock(&m->lock);
    *out = (lt_engine_stats){.running = e->n,
                             .pages = 1000,
                             .pages_used = e->n * 4,
                             .steps = e->steps,
                             .new_tokens = e->new_tokens,
                             .finished = e->finished,
                             .cancelled = e->cancelled};
    pthread_mutex_unlock(&m->lock);
}

#endif
