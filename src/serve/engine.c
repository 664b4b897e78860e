/* engine.c: the interface of the engine (lateen/serve.h): open, submit, cancel, poll, from any
 * thread; and the thread that runs the steps.
 *
 *     submit ──▶ slots[id % n_slots], submitted ──wake──▶ engine's thread: lt_engine_step until
 *                                                         there is nothing to do, then sleep
 *     poll   ◀── ready: jobs with news ◀──event_fd─────── publish, at the end of a step
 *
 * An id combines a slot with the count of requests, so an old id never refers to a new job. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/thread.h"
#include "lateen/generate.h"
#include "model/alloc.h"
#include "model/blocks/exec.h"
#include "model/layer.h"
#include "model/lora/lora.h"
#include "model/infer/steering.h"
#include "serve/engine_impl.h"

/* A GPU reads its weights once per step, and 512 rows do not saturate it: an H100 runs 2,048 rows
 * of Llama-1B in 8 ms, and in four steps in 11 ms (docs/speed/serving.md). */
#define STEP_TOKENS_HOST   512
#define STEP_TOKENS_DEVICE 2048
#define BACKGROUND_DEVICE  32

/* After this many steps a device runs one without drafts to measure it. The number is large,
 * because two more must be queued around it, and the time depends on little but the rows. */
#define RECENT_DEVICE 512

#define USUAL_TOKENS 64 /* Expected tokens of a choice, before any has ended. */

lt_engine_options lt_engine_defaults(void) {
    return (lt_engine_options){.max_running = 64,
                               .max_waiting = 1024,
                               .background_tokens = -1,
                               .page_tokens = 16,
                               .prefix_cache = true,
                               .ahead = true,
                               .cache_dtype = LT_DTYPE_COUNT,
                               .value_dtype = LT_DTYPE_COUNT};
}

lt_request lt_request_defaults(void) {
    return (lt_request){.n_choices = 1,
                        .max_tokens = 16,
                        .logprobs = -1,
                        .prompt_logprobs = -1,
                        .think_budget = -1,
                        .adapter_scale = 1.0f,
                        .most_drafts = LT_DRAFT_MOST,
                        .sampling = lt_sampling_defaults()};
}

/* On a GPU the kernel of a 16-bit product is chosen by how its rows are aligned. A rank's columns
 * have the bits of the whole matrix's where both are aligned on 8 elements. */
static bool is_aligned(const lt_model_spec *s, int tp) {
    bool aligned = s->width % 8 == 0 && s->vocab_size % (8 * (int64_t)tp) == 0;
    for (int64_t i = 0; i < s->n_layers; i++) {
        const lt_layer_spec l = lt_layer_part(s, i, tp);
        aligned = aligned && lt_layer_q_cols(&l) % 8 == 0 && lt_layer_k_cols(&l) % 8 == 0 &&
                  lt_layer_v_cols(&l) % 8 == 0 && l.ffn_width % 8 == 0;
    }
    return aligned;
}

/* Whether sums can be computed as ranks of tp compute them. */
static lt_err check_tp(const lt_model *m, const lt_engine_options *o) {
    const struct {
        const char *what;
        bool is;
    } refused[] = {
        {"without deterministic", !o->deterministic},
        {"with adapters of requests", m->lora_pool != NULL},
        {"with DoRA, whose norms of rows are sums, too", m->lora != NULL && m->lora->options.dora},
        {"with weights as they are stored", m->stored != NULL},
        {"that do not divide heads and columns of the MLP",
         m->spec.n_heads % o->tp != 0 || m->spec.ffn_width % o->tp != 0},
        {"in 16 bits on a GPU, whose words, heads and columns of the MLP are not multiples of 8",
         !m->backend->host_memory && m->options.dtype != LT_F32 && !is_aligned(&m->spec, o->tp)}};
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        if (refused[i].is) {
            LT_FAIL(LT_ERR_UNSUPPORTED, "engine: sums as those of %d ranks of tp %s: not supported",
                    o->tp, refused[i].what);
        }
    }
    return LT_OK;
}

static lt_err check_options(const lt_engine_options *o) {
    if (o->max_running < 1 || o->max_running > 65536 || o->max_waiting < 0 ||
        o->max_waiting > (1 << 20) || o->step_tokens < 0 || o->step_tokens > (1 << 20) ||
        o->background_tokens < -1 || o->max_seq < 0 || o->cache_bytes < 0 || o->unused_bytes < 0 ||
        o->host_bytes < 0 || o->page_tokens < 16 || o->page_tokens % 16 != 0 ||
        o->page_tokens > 4096) {
        LT_FAIL(LT_ERR_ARG,
                "engine: %lld running, %lld waiting, steps of %lld tokens, pages of %lld (a "
                "multiple of 16)",
                (long long)o->max_running, (long long)o->max_waiting, (long long)o->step_tokens,
                (long long)o->page_tokens);
    }
    if (o->n_beside < 0 || o->n_beside > LT_ENGINE_BESIDE) {
        LT_FAIL(LT_ERR_ARG, "engine: %d models beside the served one; at most %d are possible",
                o->n_beside, LT_ENGINE_BESIDE);
    }
    if (o->draft_tokens < 0 || o->draft_tokens > LT_DRAFT_MOST ||
        (o->draft_tokens > 0 && !o->speculate)) {
        LT_FAIL(LT_ERR_ARG, "engine: drafts of %lld tokens%s; they may have 0 to %d",
                (long long)o->draft_tokens, o->speculate ? "" : " without speculative decoding",
                LT_DRAFT_MOST);
    }
    if (o->draft_branches < 0 || o->draft_branches > LT_DRAFT_BRANCHES ||
        (o->draft_branches > 1 && !o->speculate)) {
        LT_FAIL(LT_ERR_ARG, "engine: %lld drafts of a text in a step%s; it may have 0 to %d",
                (long long)o->draft_branches, o->speculate ? "" : " without speculative decoding",
                LT_DRAFT_BRANCHES);
    }
    if ((o->speculate == LT_SPECULATE_MODEL) != (o->draft != NULL)) {
        LT_FAIL(LT_ERR_ARG, "engine: %s",
                o->draft != NULL ? "a draft model, but other drafts were asked for"
                                 : "drafts of a model, but there is no draft model");
    }
    if ((o->speculate == LT_SPECULATE_HEAD) != (o->head != NULL)) {
        LT_FAIL(LT_ERR_ARG, "engine: %s",
                o->head != NULL ? "a draft head, but other drafts were asked for"
                                : "drafts of a head, but there is no draft head");
    }
    return LT_OK;
}

#define MIB(bytes) ((double)(bytes) / 1048576.0)

/* Bytes of weights that are not yet in host memory: still being loaded, or mapped and not yet
 * read. */
static uint64_t weights_to_come(const lt_engine *e) {
    const uint64_t all = lt_model_host_bytes(e->model), here = lt_limits_resident_bytes();
    return all > here ? all - here : 0;
}

/* Half of the remaining memory, the cache's upper bound, and the limit that decided it. */
static lt_err half_of_memory(const lt_engine *e, uint64_t *bytes, char *why, size_t why_n) {
    const lt_backend *backend = e->model->backend;
    if (backend->memory_left != NULL) {
        size_t left = 0;
        LT_TRY(backend->memory_left(e->model->device, &left));
        *bytes = left / 2;
        snprintf(why, why_n, "half of the %.1f MiB that %s has left", MIB(left), backend->name);
    } else {
        const uint64_t weights = weights_to_come(e);
        lt_limits l;
        lt_limits_read(&l);
        *bytes = (l.available_bytes > weights ? l.available_bytes - weights : 0) / 2;
        snprintf(why, why_n, "half of the %.1f MiB that %s leaves%s", MIB(2 * *bytes),
                 l.available_by, weights > 0 ? " beside the weights" : "");
    }
    return LT_OK;
}

/* Compute the number of pages. */
static lt_err count_pages(lt_engine *e, int64_t *n) {
    lt_engine_options *o = &e->o;
    const int64_t page = (int64_t)e->cache.page_bytes;
    const int64_t all = o->max_running * lt_sched_most_pages(&e->sched, o->max_seq);
    uint64_t half = 0;
    char why[320];

    if (o->cache_bytes > 0) {
        *n = o->cache_bytes / page;
        snprintf(e->cache.why, sizeof e->cache.why, "as asked for");
    } else {
        LT_TRY(half_of_memory(e, &half, why, sizeof why));
        if (o->cache_most > 0 && (uint64_t)o->cache_most < half) {
            half = (uint64_t)o->cache_most;
            snprintf(why, sizeof why, "a model's share of the memory for caches");
        }
        *n = all;
        snprintf(e->cache.why, sizeof e->cache.why, "%lld sequences of %lld tokens",
                 (long long)o->max_running, (long long)o->max_seq);
        if (half / (uint64_t)page < (uint64_t)all) {
            *n = (int64_t)(half / (uint64_t)page);
            snprintf(e->cache.why, sizeof e->cache.why, "%s", why);
        }
    }
    *n = *n > INT32_MAX / o->page_tokens ? INT32_MAX / o->page_tokens : *n;
    if (*n < 1) {
        LT_FAIL(LT_ERR_LIMIT,
                "engine: a page of the cache has %lld bytes, and the cache has room for %lld (%s)",
                (long long)page, (long long)(o->cache_bytes > 0 ? o->cache_bytes : (int64_t)half),
                e->cache.why);
    }
    return LT_OK;
}

/* The models with keys and values in each page: the served one, those beside it, and the draft
 * model. */
static int n_models(const lt_engine *e) {
    return 1 + e->o.n_beside + (e->drafter.model != NULL);
}

static const lt_model *model_at(const lt_engine *e, int k) {
    return k == 0 ? e->model : k <= e->o.n_beside ? e->o.beside[k - 1] : e->drafter.model;
}

/* The longest window of the models: no layer reads tokens before it. 0: some layer reads all
 * tokens. */
static int64_t common_window(const lt_engine *e) {
    int64_t window = 0;
    for (int k = 0; k < n_models(e); k++) {
        const int64_t own = lt_layers_window(lt_model_get_spec(model_at(e, k)));
        if (own == 0 || own >= e->o.max_seq) {
            return 0;
        }
        window = own > window ? own : window;
    }
    return window;
}

/* Sequences keep all their pages beside a draft model or head, which may catch up with a text
 * later, and beside a cache on disk or in host memory, which finds a page by those before it. Else
 * they give back what lies behind the window: of pages of all layers where all have one; of the
 * groups of those that have one where one model is served. */
static void choose_groups(lt_engine *e) {
    const lt_engine_options *o = &e->o;
    lt_pages *p = &e->sched.pages;
    const bool all = lt_engine_has_drafter(e) || o->disk != NULL || o->host_bytes > 0;
    p->window = all ? 0 : common_window(e);
    lt_page_groups_one(&e->groups, e->spec, p->window > 0);
    if (!all && p->window == 0 && !o->whole_pages && o->n_beside == 0 && e->spec->window > 0 &&
        e->spec->window < o->max_seq) {
        p->window = e->spec->window;
        lt_page_groups_choose(&e->groups, e->spec, lt_div_up(o->max_seq, o->page_tokens),
                              lt_sched_near_pages(&e->sched, o->max_seq));
    }
    p->n_full = e->groups.n_full;
    p->n_windowed = e->groups.n_windowed;
    p->window = p->n_windowed > 0 ? p->window : 0;
}

/* Bytes of a page; of the served model's, those of one group. */
static int64_t bytes_of_page(const lt_engine *e) {
    const lt_engine_options *o = &e->o;
    int64_t bytes = e->groups.n_places *
                    (int64_t)lt_paged_forward_layer_bytes(e->spec, o->page_tokens, o->cache_dtype,
                                                          o->value_dtype);
    for (int k = 1; k < n_models(e); k++) {
        bytes += (int64_t)lt_paged_forward_page_bytes(
            lt_model_get_spec(model_at(e, k)), o->page_tokens, o->cache_dtype, o->value_dtype);
    }
    return bytes + (e->drafter.head == NULL
                        ? 0
                        : (int64_t)lt_draft_head_page_bytes(e->drafter.head, o->page_tokens,
                                                            o->cache_dtype, o->value_dtype));
}

/* Compute the number of pages, the longest sequence that fits, and the number of unused pages to
 * keep. */
static lt_err size_cache(lt_engine *e) {
    lt_engine_options *o = &e->o;
    int64_t n = 0;

    o->max_seq = o->max_seq > 0 ? o->max_seq : e->spec->max_seq;
    if (e->spec->pos == LT_POS_LEARNED && o->max_seq > e->spec->max_seq) {
        LT_FAIL(LT_ERR_ARG, "engine: sequences of %lld tokens, but the model has %lld positions",
                (long long)o->max_seq, (long long)e->spec->max_seq);
    }
    e->sched.pages.page_tokens = o->page_tokens;
    choose_groups(e);
    e->cache.window = e->sched.pages.window;
    e->cache.groups = lt_page_groups_count(&e->groups);
    e->cache.windowed_groups = e->groups.n_windowed;
    e->cache.page_layers = e->groups.n_places;
    e->cache.page_bytes = bytes_of_page(e);
    LT_TRY(count_pages(e, &n));
    if (lt_sched_most_pages(&e->sched, o->max_seq) > n) {
        const int64_t longest = lt_sched_longest(&e->sched, n);
        if (longest == 0) {
            LT_FAIL(LT_ERR_LIMIT,
                    "engine: a cache of %lld pages of %lld bytes holds no sequence, which has a "
                    "page in each of %lld groups of layers",
                    (long long)n, (long long)e->cache.page_bytes, (long long)e->cache.groups);
        }
        lt_log_info("the cache holds %lld tokens: that bounds a sequence, not the model's %lld",
                    (long long)longest, (long long)o->max_seq);
        o->max_seq = longest;
    }
    e->cache.pages = n;
    e->cache.page_tokens = o->page_tokens;
    e->cache.max_seq = o->max_seq;
    e->cache.most_pages = lt_sched_most_pages(&e->sched, o->max_seq);
    e->cache.dtype = o->cache_dtype;
    e->cache.value_dtype = o->value_dtype;
    e->cache.most_unused = o->unused_bytes > 0 && o->unused_bytes / e->cache.page_bytes < n
                               ? o->unused_bytes / e->cache.page_bytes
                               : n;
    e->sched.pages.n_pages = e->stats.pages = n;
    e->sched.pages.most_cached = e->cache.most_unused;
    e->sched.pages.most_kept = n / LT_ENGINE_KEPT_SHARE;
    e->max_pages = lt_div_up(o->max_seq, o->page_tokens);
    return LT_OK;
}

static void engine_carve(lt_engine *e, lt_arena *a) {
    e->slots = lt_arena_take(a, (size_t)e->n_slots * sizeof(lt_job *), LT_ARENA_ALIGN);
    lt_sched_carve(&e->sched, a);
    lt_step_carve(e, a);
    lt_step_carve_beside(e, a);
    lt_step_carve_drafter(e, a);
    lt_step_carve_branches(e, a);
}

/* Most background requests without a place: those that were preempted, those that come next, and a
 * queue. */
static int64_t most_background(const lt_engine_options *o) {
    return 2 * o->max_running + LT_ENGINE_SPARE(o->max_running) + o->max_waiting;
}

/* The pages of all models have the same types; checked before they are sized. */
static lt_err check_cache_types(const lt_engine *e) {
    for (int k = 0; k < n_models(e); k++) {
        LT_TRY(lt_paged_forward_check_types(model_at(e, k), e->o.cache_dtype, e->o.value_dtype));
    }
    return LT_OK;
}

static lt_err size_engine(lt_engine *e) {
    lt_engine_options *o = &e->o;
    /* 16 bits halve the memory and the time to read it. */
    if (o->cache_dtype == LT_DTYPE_COUNT) {
        o->cache_dtype = e->model->options.stored && e->model->backend->host_memory
                             ? LT_F16
                             : e->model->options.dtype;
    }
    o->value_dtype = o->value_dtype == LT_DTYPE_COUNT ? o->cache_dtype : o->value_dtype;
    LT_TRY(check_cache_types(e));
    if (o->step_tokens == 0) {
        o->step_tokens = e->model->backend->host_memory ? STEP_TOKENS_HOST : STEP_TOKENS_DEVICE;
    }
    /* In each step every running sequence can decode, and at least one row of a prompt also
     * fits. */
    o->step_tokens = o->step_tokens > o->max_running ? o->step_tokens : o->max_running + 1;
    e->sched.max_running = o->max_running;
    e->sched.step_tokens = o->step_tokens;
    LT_TRY(lt_step_size_branches(e));
    LT_TRY(size_cache(e));
    e->sched.background_rows = o->background_tokens >= 0        ? o->background_tokens
                               : e->model->backend->host_memory ? 0
                                                                : BACKGROUND_DEVICE;
    e->sched.caching = o->prefix_cache;
    e->limits = (lt_job_limits){.spec = e->spec,
                                .max_seq = o->max_seq,
                                .page_tokens = o->page_tokens,
                                .n_groups = e->cache.groups,
                                .ends = o->ends,
                                .max_running = o->max_running,
                                .n_pages = e->sched.pages.n_pages,
                                .n_beside = o->n_beside,
                                .n_steering = lt_steering_count(e->model->steering),
                                .adapters = e->model->lora_pool,
                                .drafts = lt_engine_has_drafter(e) || lt_step_drafts_on_device(e)};
    if (lt_rope_switch(e->spec) > 0 && lt_rope_switch(e->spec) < o->max_seq) {
        e->limits.rope_switch = lt_rope_switch(e->spec);
    }
    if (o->ends.n == 0) {
        lt_model_ends(e->model, NULL, &e->limits.ends);
    }
    /* A job lives until poll has reported all of it, which takes a step or two if the front end
     * polls. */
    e->n_slots = 2 * (o->max_running + o->max_waiting + most_background(o));
    e->n_samplers = lt_thread_count();
    e->usual_tokens = USUAL_TOKENS;
    lt_draft_account_begin(&e->account);
    e->times[0].recent = lt_step_drafts_on_device(e) ? RECENT_DEVICE : 0;
    for (int i = 0; i < 3; i++) {
        e->times[i].padded = e->model->backend->graph_begin != NULL;
    }
    e->drafter.times.padded = e->times[0].padded && e->drafter.model != NULL;
    return LT_OK;
}

#define WARM_WAIT_US 2000

/* The next warm-up step: of the served model, then of the draft model or head. */
static lt_err warm_step(lt_engine *e) {
    bool more = true;
    lt_paged_forward *f = e->warming_drafter ? e->drafter.forward : e->forward;
    LT_TRY(f != NULL ? lt_paged_forward_warm(f, e->n_warmed++, &more)
                     : lt_draft_pass_warm(e->drafter.pass, e->n_warmed++, &more));
    if (!more) {
        e->warming = lt_engine_has_drafter(e) && !e->warming_drafter;
        e->warming_drafter = true;
        e->n_warmed = 0;
    }
    return LT_OK;
}

/* Run a warm-up step while idle. While kernels are compiled in the background, the warm-up waits,
 * so that a request that arrives meanwhile needs fewer of them. */
static void warm_next(lt_engine *e) {
    if (lt_paged_forward_compiling(e->forward)) {
        (void)usleep(WARM_WAIT_US);
        return;
    }
    if (warm_step(e) != LT_OK) {
        lt_log_warn("engine: a warm-up step failed: %s", lt_error_message());
        e->warming = false;
    }
}

static void *run(void *engine) {
    lt_engine *e = engine;
    lt_thread_set_count((int)e->n_samplers); /* As set by the thread that opened the engine. */
    for (;;) {
        pthread_mutex_lock(&e->lock);
        while (e->submitted == NULL && e->cancelled == NULL && e->questions == NULL &&
               e->hold == LT_HOLD_NONE && !e->closing) {
            if (e->warming) {
                pthread_mutex_unlock(&e->lock);
                warm_next(e);
                pthread_mutex_lock(&e->lock);
            } else {
                pthread_cond_wait(&e->wake, &e->lock);
            }
        }
        if (e->closing) {
            pthread_mutex_unlock(&e->lock);
            return NULL;
        }
        pthread_mutex_unlock(&e->lock);
        do {
            while (lt_engine_step(e)) {}
        } while (lt_engine_rest(e));
    }
}

/* Warm-up steps before the first request: a step of one token and one of a prompt. */
#define WARM_FIRST 2
static lt_err warm_first(lt_engine *e) {
    const bool all = e->o.warm == LT_WARM_ALL;
    e->warming = e->o.warm != LT_WARM_NONE;
    if (e->warming) {
        LT_TRY(lt_paged_forward_preload(e->forward, all ? INT64_MAX : WARM_FIRST));
    }
    if (e->warming && all && e->drafter.forward != NULL) {
        LT_TRY(lt_paged_forward_preload(e->drafter.forward, INT64_MAX));
    }
    while (e->warming && (all || e->n_warmed < WARM_FIRST)) {
        LT_TRY(warm_step(e));
    }
    return LT_OK;
}

static lt_err open_forwards(lt_engine *e) {
    lt_paged_forward_options o = {.max_rows = e->o.step_tokens,
                                  .max_seqs = e->o.max_running + e->most_branches,
                                  .max_out = e->o.step_tokens,
                                  .out_rows = e->out_rows,
                                  .n_penalty_states = e->n_penalty_slots,
                                  .max_seq = e->o.max_seq,
                                  .n_pages = e->sched.pages.n_pages,
                                  .page_tokens = e->o.page_tokens,
                                  .max_pages = e->max_pages,
                                  .few_rows = lt_step_drafts_on_device(e) ? 1 + LT_DRAFT_MOST : 1,
                                  .few_most = LT_DRAFT_ROWS,
                                  .cache_dtype = e->o.cache_dtype,
                                  .value_dtype = e->o.value_dtype,
                                  .fixed_order = e->o.deterministic,
                                  .pieces = e->o.tp};
    LT_TRY(lt_step_open_beside(e, &o));
    LT_TRY(lt_engine_has_drafter(e) ? lt_step_open_drafter(e, &o) : LT_OK);
    o.listener = e->drafter.pass;
    o.groups = &e->groups;
    return lt_paged_forward_open(&e->forward, e->model, &o);
}

lt_err lt_engine_open(lt_engine **out, const lt_model *m, const lt_engine_options *options) {
    lt_err err = LT_OK;
    const double start_s = lt_clock_s();
    double opened_s;
    lt_engine *e = calloc(1, sizeof *e);

    if (e == NULL) {
        LT_FAIL(LT_ERR_OOM, "engine");
    }
    e->event_fd = -1;
    if (getrandom(&e->sched.pages.seed, sizeof e->sched.pages.seed, 0) < 0) {
        e->sched.pages.seed = (uint64_t)(start_s * 1e9);
    }
    e->model = m;
    e->spec = lt_model_get_spec(m);
    e->version = e->stats.version = lt_model_version(m);
    e->o = options != NULL ? *options : lt_engine_defaults();
    e->drafter.model = e->o.draft != NULL ? *e->o.draft : NULL;
    e->drafter.head = e->o.head != NULL ? *e->o.head : NULL;
    pthread_mutex_init(&e->lock, NULL);
    pthread_cond_init(&e->wake, NULL);
    pthread_cond_init(&e->rested, NULL);
    pthread_mutex_init(&e->disk.lock, NULL);
    pthread_cond_init(&e->disk.wake, NULL);
    /* Warm-up steps choose tokens, which needs a head over the vocabulary. */
    if (e->spec->n_scores > 0) {
        e->o.warm = LT_WARM_NONE;
    }
    LT_TRY_DONE(check_options(&e->o));
    LT_TRY_DONE(e->o.tp > 1 ? check_tp(m, &e->o) : LT_OK);
    LT_TRY_DONE(size_engine(e));
    engine_carve(e, &e->arena);
    LT_TRY_DONE(lt_arena_open(&e->arena, "engine"));
    engine_carve(e, &e->arena);
    lt_sched_reset(&e->sched);
    LT_TRY_DONE(open_forwards(e));
    LT_TRY_DONE(e->o.host_bytes > 0 ? lt_engine_open_host(e) : LT_OK);
    LT_TRY_DONE(e->o.disk != NULL ? lt_engine_open_disk(e) : LT_OK);
    opened_s = lt_clock_s();
    LT_TRY_DONE(warm_first(e));
    lt_log_debug("engine: opened in %.3f s, %lld warm-up steps took %.3f s", opened_s - start_s,
                 (long long)e->n_warmed, lt_clock_s() - opened_s);
    e->event_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (e->event_fd < 0) {
        LT_FAIL_DONE(LT_ERR_IO, "engine: eventfd: %s", strerror(errno));
    }
    if (pthread_create(&e->thread, NULL, run, e) != 0) {
        LT_FAIL_DONE(LT_ERR_OOM, "engine: cannot start its thread");
    }
    e->running = true;
    *out = e;
    e = NULL;
done:
    lt_engine_close(e);
    return err;
}

void lt_engine_close(lt_engine *e) {
    if (e == NULL) {
        return;
    }
    lt_engine_stop_disk(e);
    if (e->running) {
        pthread_mutex_lock(&e->lock);
        e->closing = true;
        pthread_cond_signal(&e->wake);
        pthread_mutex_unlock(&e->lock);
        pthread_join(e->thread, NULL);
    }
    lt_engine_close_disk(e);
    for (int64_t i = 0; e->slots != NULL && i < e->n_slots; i++) {
        lt_job_close(e->slots[i]);
    }
    for (lt_job *j = e->told, *next; j != NULL; j = next) {
        next = j->next;
        lt_job_close(j);
    }
    lt_paged_forward_close(e->forward);
    lt_engine_close_host(e);
    lt_step_close_beside(e);
    lt_paged_forward_close(e->drafter.forward);
    lt_draft_pass_close(e->drafter.pass);
    lt_arena_close(&e->arena);
    if (e->event_fd >= 0) {
        close(e->event_fd);
    }
    pthread_cond_destroy(&e->wake);
    pthread_cond_destroy(&e->rested);
    pthread_mutex_destroy(&e->lock);
    free(e);
}

/* Whether the queue is full. A request that finds a free place does not queue; other requests may
 * use the places of the background. */
static bool is_full(const lt_engine *e, bool background) {
    const lt_engine_stats *st = &e->stats;
    const int64_t behind = st->background_waiting + e->n_submitted_background;
    const int64_t taken = st->running - st->background_running;
    const int64_t free_places = e->o.max_running > taken ? e->o.max_running - taken : 0;
    if (e->n_live == e->n_slots) {
        return true;
    }
    return background ? behind >= most_background(&e->o)
                      : st->waiting + e->n_submitted - behind >= e->o.max_waiting + free_places;
}

/* Assign a free slot and an id: ids increase and skip those whose slot is taken. */
static lt_err give_id(lt_engine *e, lt_job *j) {
    if (is_full(e, j->r.background)) {
        LT_FAIL(LT_ERR_LIMIT, "the queue is full: %lld requests wait",
                (long long)(e->stats.waiting + e->n_submitted));
    }
    do {
        j->id = ++e->n_ids;
    } while (e->slots[j->id % (uint64_t)e->n_slots] != NULL);
    e->slots[j->id % (uint64_t)e->n_slots] = j;
    e->n_live++;
    return LT_OK;
}

lt_err lt_engine_submit(lt_engine *e, const lt_request *r, void *user, uint64_t *id) {
    lt_job *j = NULL;
    lt_err err;

    LT_TRY(lt_job_open(&j, r, &e->limits));
    j->user = user;
    pthread_mutex_lock(&e->lock);
    err = give_id(e, j);
    if (err == LT_OK) {
        *id = j->id;
        *(e->submitted == NULL ? &e->submitted : &e->submitted_last->next) = j;
        e->submitted_last = j;
        e->n_submitted++;
        e->n_submitted_background += r->background;
        pthread_cond_signal(&e->wake);
        j = NULL;
    }
    pthread_mutex_unlock(&e->lock);
    lt_job_close(j);
    return err;
}

/* choice -1: all choices. */
static void ask_cancel(lt_engine *e, uint64_t id, int64_t choice) {
    lt_job *j;
    pthread_mutex_lock(&e->lock);
    j = e->slots[id % (uint64_t)e->n_slots];
    if (j != NULL && j->id == id && !j->done && choice < j->r.n_choices) {
        *(choice < 0 ? &j->cancel_asked : &j->choices[choice].front.cancel) = true;
        if (!j->in_cancelled) {
            j->in_cancelled = true;
            j->next_cancel = e->cancelled;
            e->cancelled = j;
            pthread_cond_signal(&e->wake);
        }
    }
    pthread_mutex_unlock(&e->lock);
}

void lt_engine_cancel(lt_engine *e, uint64_t id) {
    ask_cancel(e, id, -1);
}

void lt_engine_cancel_choice(lt_engine *e, uint64_t id, int32_t choice) {
    if (choice >= 0) {
        ask_cancel(e, id, choice);
    }
}

int lt_engine_fd(const lt_engine *e) {
    return e->event_fd;
}

void lt_engine_signal(lt_engine *e) {
    const uint64_t one = 1;
    if (write(e->event_fd, &one, sizeof one) < 0 && errno != EAGAIN) {
        lt_log_error("eventfd: %s", strerror(errno));
    }
}

/* Take the jobs that were reported completely at the last poll; their embeddings were valid until
 * now. */
static lt_job *take_told(lt_engine *e) {
    lt_job *told = e->told;
    e->told = NULL;
    return told;
}

int64_t lt_engine_poll(lt_engine *e, lt_event *events, int64_t room) {
    lt_job *gone;
    uint64_t count;
    int64_t n = 0;
    bool more;

    if (read(e->event_fd, &count, sizeof count) < 0 && errno != EAGAIN) {
        lt_log_error("eventfd: %s", strerror(errno));
    }
    pthread_mutex_lock(&e->lock);
    gone = take_told(e);
    while (e->ready != NULL && n < room) {
        lt_job *j = e->ready;
        n += lt_job_tell(j, events + n, room - n);
        if (n == room && !j->told) { /* It may have more events. */
            break;
        }
        e->ready = j->next_ready;
        j->ready = false;
        if (j->told) {
            e->slots[j->id % (uint64_t)e->n_slots] = NULL;
            e->n_live--;
            j->next = e->told;
            e->told = j;
        }
    }
    more = e->ready != NULL;
    pthread_mutex_unlock(&e->lock);
    if (more) {
        lt_engine_signal(e);
    }
    for (lt_job *next; gone != NULL; gone = next) {
        next = gone->next;
        lt_job_close(gone);
    }
    return n;
}

void lt_engine_get_cache(const lt_engine *e, lt_engine_cache *out) {
    *out = e->cache;
}

void lt_engine_get_stats(const lt_engine *e, lt_engine_stats *out) {
    lt_engine *own = (lt_engine *)(uintptr_t)e; /* The cast is safe: only the lock changes. */
    pthread_mutex_lock(&own->lock);
    *out = e->stats;
    pthread_mutex_unlock(&own->lock);
    if (e->disk.disk != NULL) {
        lt_page_disk_counts c;
        lt_page_disk_get_counts(e->disk.disk, &c);
        out->disk_pages = c.pages;
        out->disk_bytes = c.pages * c.file_bytes;
        out->disk_written = c.written;
        out->disk_read = c.read;
        out->disk_failed = c.failed;
        pthread_mutex_lock(&own->disk.lock);
        out->disk_unkept = e->disk.n_unkept;
        pthread_mutex_unlock(&own->disk.lock);
    }
}
