/* bench_engine.c: `lateen bench engine`: tokens per second of the engine alone, without HTTP. Some
 * streams with prompts of equal length are submitted at once, and each decodes the same number of
 * tokens. It reports two rates: that of the prompts, until each stream has its first token, and
 * that of decoding, from then on. With --cache-bytes, where streams wait for each other's memory,
 * it also reports the rate of all new tokens, and how many streams ran at once. With --turns it
 * compares decoding with drafts and without: two engines run the same streams in turn, and the
 * medians count. */
#include <jansson.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/rng.h"
#include "base/thread.h"
#include "cli/beside.h"
#include "cli/bench/bench.h"
#include "cli/platform/copying.h"
#include "cli/opened.h"
#include "cli/read_lines.h"
#include "cli/verb.h"
#include "lateen/serve.h"
#include "serve/engine_impl.h"
#include "tensor/ops.h"

#define MAX_RUNS    16
#define EVENTS      256
#define SHARE_SHOWN 0.01
#define MAX_TURNS   101
#define MAX_TEXT    ((size_t)64 << 20)

#define BENCH_ENGINE_OPTIONS(X)                                                                    \
    X(STR, model, "model", "", 0, 0, "PATH",                                                       \
      "Hugging Face folder, GGUF, or llama2.c .bin; a config.json: random weights")                \
    X(STR, streams, "streams", "1,8,32", 0, 0, "list", "numbers of streams at once, one run each") \
    X(I64, prompt, "prompt", "128", 1, 1e6, "tokens", "length of each prompt")                     \
    X(I64, shared, "shared", "0", 0, 1e6, "tokens",                                                \
      "common beginning of all prompts; one stream reads it before the others start")              \
    X(I64, beginnings, "beginnings", "1", 1, 1e6, "N",                                             \
      "with --shared: number of different beginnings, which prompts have in turn")                 \
    X(I64, new, "new", "64", 2, 1e6, "tokens", "tokens that each stream decodes")                  \
    X(I64, step_tokens, "step-tokens", "0", 0, 1e6, "tokens",                                      \
      "most tokens of one step; 0: the engine's choice")                                           \
    X(ENUM, dtype, "dtype", "stored", 0, 0,                                                        \
      "stored|fp32|bf16|q4_0|q4_1|q5_0|q5_1|q8_0|q4_k|q5_k|q6_k",                                  \
      LT_OPENED_DTYPE_HELP "; q4_0 and later ones: random weights of this block type")             \
    X(STR, device, "device", "auto", 0, 1, LT_DEVICE_NAMES,                                        \
      "where to compute; auto: the GPU if there is one")                                           \
    X(ENUM, cache, "cache", "model", 0, 0, LT_OPENED_CACHE_TYPES, "type of keys and values")       \
    X(ENUM, cache_v, "cache-v", "cache", 0, 0, "cache|" LT_OPENED_CACHE_TYPES,                     \
      "type of values alone")                                                                      \
    X(I64, cache_bytes, "cache-bytes", "0", 0, 1e15, "BYTES",                                      \
      "memory of keys and values; 0: enough for all streams, at most half of the free memory")     \
    X(BOOL, whole_pages, "whole-pages", "false", 0, 0, "",                                         \
      "keep all pages, also where only some layers have a sliding window")                         \
    X(F64, temperature, "temperature", "0", 0, 100, "", "0: always the most likely token")         \
    X(F64, repetition, "repetition", "1", 1e-3, 1e3, "", "penalty; 1: none")                       \
    X(F64, frequency, "frequency", "0", -1e3, 1e3, "", "penalty")                                  \
    X(F64, presence, "presence", "0", -1e3, 1e3, "", "penalty")                                    \
    X(F64, typical, "typical", "1", 0, 1, "", "typical_p")                                         \
    X(I64, penalised, "penalised", "0", 0, 65536, "N",                                             \
      "only this many streams have these penalties and typical_p; 0: all")                         \
    X(BOOL, deterministic, "deterministic", "false", 0, 0, "",                                     \
      "tokens that do not depend on the batch, bit for bit")                                       \
    X(BOOL, ahead, "ahead", "true", 0, 0, "",                                                      \
      "on a GPU: queue the next step before the tokens of this one are known")                     \
    X(ENUM, speculate, "speculate", "none", 0, 0, LT_SPECULATE_CHOICES, LT_SPECULATE_HELP)         \
    X(STR, draft, "draft", "", 0, 0, "PATH", LT_DRAFT_HELP)                                        \
    X(STR, text, "text", "", 0, 0, "FILE",                                                         \
      "prompts are pieces of this text, one after the other; empty: random ids")                   \
    X(STR, tokenizer, "tokenizer", "", 0, 0, "FILE",                                               \
      "tokenizer of --text; empty: the model's own")                                               \
    X(I64, turns, "turns", "0", 0, MAX_TURNS, "N",                                                 \
      "with --speculate: runs with drafts and without, in turn, this many of each; print the "     \
      "medians and their ratio; 0: one run with drafts")                                           \
    X(STR, draft_tokens, "draft-tokens", "0", 0, 0, "list",                                        \
      "tokens of each draft, at most 8, one run each; 0: as many as pay")                          \
    X(I64, draft_branches, "draft-branches", "0", 0, LT_DRAFT_BRANCHES, "N",                       \
      LT_DRAFT_BRANCHES_HELP)                                                                      \
    X(I64, threads, "threads", "0", 0, 4096, "N", "0: all cores of this process")                  \
    X(BOOL, ids, "ids", "false", 0, 0, "",                                                         \
      "also print the ids that each stream decoded, one line for each")                            \
    X(BOOL, profile, "profile", "false", 0, 0, "",                                                 \
      "also print the share of each op; with --turns, the times of steps by their rows")           \
    X(BOOL, json, "json", "false", 0, 0, "", "print one JSON object a run")

typedef struct {
    BENCH_ENGINE_OPTIONS(LT_OPTION_FIELD)
} bench_engine_options;
#define LT_OPTION_STRUCT bench_engine_options
static const lt_option rows[] = {BENCH_ENGINE_OPTIONS(LT_OPTION_ROW)};
static const lt_option_table table = LT_OPTION_TABLE("bench engine", rows);

typedef struct {
    int64_t streams, n_first, n_tokens, n_done;
    double start_s, first_s, end_s; /* first: when the last stream received its first token. */
    int64_t n_at_first;             /* Tokens generated by then. */
    int64_t most_running;           /* Most streams at the same time. */
    const lt_ids *text;             /* Prompts are parts of it; n 0: random ids. */
    int64_t *seen;                  /* (streams) tokens of each */
    int32_t *ids;                   /* (streams, room) */
    int64_t room;
} run;

/* Sampling options of stream i. */
static lt_sampling sampling_of(const bench_engine_options *o, int64_t i) {
    lt_sampling s = lt_request_defaults().sampling;
    s.temperature = o->temperature;
    if (o->penalised == 0 || i < o->penalised) {
        s.repetition = o->repetition;
        s.frequency = o->frequency;
        s.presence = o->presence;
        s.typical_p = o->typical;
    }
    return s;
}

static lt_err submit_all(lt_engine *e, const bench_engine_options *o, const lt_model_spec *spec,
                         run *w) {
    lt_err err = LT_OK;
    lt_request r = lt_request_defaults();
    int32_t *prompt = malloc((size_t)o->prompt * sizeof *prompt);
    uint64_t id;

    if (prompt == NULL) {
        LT_FAIL(LT_ERR_OOM, "a prompt of %lld tokens", (long long)o->prompt);
    }
    for (int64_t i = 0; i < w->streams; i++) { /* Stream i has the same prompt in every run. */
        const int64_t begins = i % o->beginnings;
        lt_rng rng = {.seed = 1, .stream = (uint64_t)i},
               common = {.seed = 2, .stream = (uint64_t)begins};
        for (int64_t k = 0; k < o->prompt; k++) {
            const size_t at = (size_t)((k < o->shared ? begins : i) * o->prompt + k);
            const uint64_t drawn = k < o->shared ? lt_rng_below(&common, (uint64_t)spec->vocab_size)
                                                 : lt_rng_below(&rng, (uint64_t)spec->vocab_size);
            prompt[k] = (int32_t)(w->text->n > 0 ? w->text->data[at % w->text->n] : drawn);
        }
        r.prompt = prompt;
        r.n_prompt = o->prompt;
        r.max_tokens = o->new;
        r.ignore_eos = true;
        r.sampling = sampling_of(o, i);
        LT_TRY_DONE(lt_engine_submit(e, &r, &w->seen[i], &id));
    }
done:
    free(prompt);
    return err;
}

static void take(run *w, const lt_event *e) {
    int64_t *seen = e->user;
    if (e->kind == LT_EVENT_TOKEN) {
        w->n_tokens++;
        w->ids[(seen - w->seen) * w->room + *seen] = e->id;
        if ((*seen)++ == 0 && ++w->n_first == w->streams) {
            w->first_s = lt_clock_s();
        }
        w->n_at_first += w->n_first < w->streams || w->n_tokens == 1;
    }
    w->n_done += e->kind == LT_EVENT_DONE;
}

static lt_err run_streams(lt_engine *e, const bench_engine_options *o, const lt_model_spec *spec,
                          run *w) {
    lt_err err = LT_OK;
    static lt_event events[EVENTS];
    struct pollfd p = {.fd = lt_engine_fd(e), .events = POLLIN};
    lt_engine_stats stats;

    w->room = o->new;
    w->seen = calloc((size_t)w->streams, sizeof *w->seen);
    w->ids = calloc((size_t)(w->streams * w->room), sizeof *w->ids);
    if (w->seen == NULL || w->ids == NULL) {
        LT_FAIL(LT_ERR_OOM, "%lld streams", (long long)w->streams);
    }
    w->start_s = lt_clock_s();
    LT_TRY_DONE(submit_all(e, o, spec, w));
    while (w->n_done < w->streams) {
        (void)poll(&p, 1, -1);
        const int64_t n = lt_engine_poll(e, events, EVENTS);
        for (int64_t i = 0; i < n; i++) {
            take(w, &events[i]);
        }
        lt_engine_get_stats(e, &stats);
        w->most_running = stats.running > w->most_running ? stats.running : w->most_running;
    }
    w->end_s = lt_clock_s();
done:
    return err;
}

static void print_ids(const run *w) {
    for (int64_t i = 0; i < w->streams; i++) {
        printf("ids %lld:", (long long)i);
        for (int64_t k = 0; k < w->seen[i]; k++) {
            printf(" %d", w->ids[i * w->room + k]);
        }
        putchar('\n');
    }
}

static double decode_rate(const run *w) {
    return (double)(w->n_tokens - w->n_at_first) / (w->end_s - w->first_s);
}

static void print_run(const bench_engine_options *o, const run *w) {
    const double prefill = (double)(w->streams * o->prompt) / (w->first_s - w->start_s);
    const double decode = decode_rate(w);
    if (o->json) {
        json_t *j = json_pack("{s:I, s:I, s:I, s:f, s:f, s:f}", "streams", (json_int_t)w->streams,
                              "prompt", (json_int_t)o->prompt, "new", (json_int_t)o->new, "first_s",
                              w->first_s - w->start_s, "prompt_tokens_per_s", prefill,
                              "decode_tokens_per_s", decode);
        json_dumpf(j, stdout, JSON_COMPACT | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(6));
        putchar('\n');
        json_decref(j);
    } else {
        printf("%6lld streams   prompts %8.0f tok/s, all begun after %.3f s   decoding %8.1f "
               "tok/s, %.2f ms a token\n",
               (long long)w->streams, prefill, w->first_s - w->start_s, decode,
               1e3 * (double)w->streams / decode);
    }
    fflush(stdout);
}

static void print_shares(const lt_engine *e, double total_s) {
    double seconds[LT_OP_COUNT];
    int64_t calls[LT_OP_COUNT];
    lt_engine_stats stats;
    lt_engine_get_stats(e, &stats);
    printf("    %lld steps, %lld of them queued ahead\n", (long long)stats.steps,
           (long long)stats.steps_ahead);
    lt_paged_forward_profile(e->forward, seconds, calls);
    for (int op = 0; op < LT_OP_COUNT; op++) {
        if (seconds[op] > SHARE_SHOWN * total_s) {
            printf("    %-16s %5.1f %%  %8lld calls of %.1f us\n", lt_op_name((lt_op)op),
                   100.0 * seconds[op] / total_s, (long long)calls[op],
                   1e6 * seconds[op] / (double)calls[op]);
        }
    }
}

/* Report the streams that waited for each other's memory. */
static void print_memory(const bench_engine_options *o, const lt_engine *e, const run *w) {
    const double rate = (double)w->n_tokens / (w->end_s - w->start_s);
    lt_engine_cache c;
    lt_engine_stats stats;
    lt_engine_get_cache(e, &c);
    lt_engine_get_stats(e, &stats);
    if (o->json) {
        json_t *j = json_pack("{s:I, s:I, s:I, s:I, s:I, s:f, s:f}", "cache_bytes",
                              (json_int_t)(c.pages * c.page_bytes), "groups", (json_int_t)c.groups,
                              "most_pages", (json_int_t)c.most_pages, "most_running",
                              (json_int_t)w->most_running, "preemptions",
                              (json_int_t)stats.preemptions, "seconds", w->end_s - w->start_s,
                              "new_tokens_per_s", rate);
        json_dumpf(j, stdout, JSON_COMPACT | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(6));
        putchar('\n');
        json_decref(j);
    } else {
        printf("    a cache of %.1f MiB, %lld pages, of which a stream holds at most %lld: at most "
               "%lld streams at once, %lld preemptions; %.1f s, %.1f new tok/s\n",
               (double)(c.pages * c.page_bytes) / 1048576.0, (long long)c.pages,
               (long long)c.most_pages, (long long)w->most_running, (long long)stats.preemptions,
               w->end_s - w->start_s, rate);
    }
}

/* The models of a bench, and the text of its prompts. */
typedef struct {
    lt_model *m, *draft;
    const lt_model *draft_model; /* For the engine's options. */
    lt_draft_head *head;
    const lt_draft_head *draft_head; /* The same. */
    lt_ids text;
} material;

static lt_engine_options engine_options(const bench_engine_options *o, const material *x,
                                        int64_t streams, int64_t draft_tokens) {
    lt_engine_options eo = lt_engine_defaults();
    eo.warm = LT_WARM_ALL;
    eo.max_running = streams;
    eo.max_waiting = streams;
    eo.max_seq = o->prompt + o->new;
    eo.step_tokens = o->step_tokens;
    eo.deterministic = o->deterministic;
    eo.ahead = o->ahead;
    eo.speculate = (lt_speculate)o->speculate;
    eo.draft = x->draft != NULL ? &x->draft_model : NULL;
    eo.head = x->head != NULL ? &x->draft_head : NULL;
    eo.draft_tokens = draft_tokens;
    eo.draft_branches = o->draft_branches;
    eo.cache_bytes = o->cache_bytes;
    eo.whole_pages = o->whole_pages;
    eo.cache_dtype = LT_OPENED_CACHE_DTYPE(o->cache);
    eo.value_dtype = LT_OPENED_CACHE_PART(o->cache_v, o->cache);
    eo.prefix_cache = o->turns == 0; /* All prompts are read again in each turn. */
    return eo;
}

static void free_run(run *w) {
    free(w->seen);
    free(w->ids);
}

/* Read each shared beginning with one stream, which leaves its pages in the cache. */
static lt_err read_shared(lt_engine *e, const bench_engine_options *o, const lt_model_spec *spec,
                          const lt_ids *text) {
    run w = {.streams = o->beginnings, .text = text};
    const lt_err err = run_streams(e, o, spec, &w);
    free_run(&w);
    return err;
}

static lt_err bench_one(const bench_engine_options *o, const material *x, int64_t streams,
                        int64_t draft_tokens) {
    lt_err err = LT_OK;
    lt_engine *e = NULL;
    const lt_engine_options eo = engine_options(o, x, streams, draft_tokens);
    run w = {.streams = streams, .text = &x->text};

    LT_TRY_DONE(lt_engine_open(&e, x->m, &eo));
    if (o->shared > 0) {
        LT_TRY_DONE(read_shared(e, o, lt_model_get_spec(x->m), &x->text));
    }
    LT_TRY_DONE(run_streams(e, o, lt_model_get_spec(x->m), &w));
    print_run(o, &w);
    if (o->cache_bytes > 0) {
        print_memory(o, e, &w);
    }
    if (o->ids) {
        print_ids(&w);
    }
    if (o->profile) {
        print_shares(e, w.end_s - w.start_s);
    }
done:
    lt_engine_close(e);
    free_run(&w);
    return err;
}

/* The engine's measured times of its steps and of its draft model's calls, by ranges of rows. */
static void print_times(const lt_engine *e) {
    const struct {
        const char *name;
        const lt_draft_times *times;
    } all[] = {{"steps without drafts", &e->times[0]},
               {"steps with short drafts", &e->times[1]},
               {"steps with long drafts", &e->times[2]},
               {"calls of the draft model", &e->drafter.times}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        printf("    %s, ms by rows:", all[i].name);
        for (int k = 0; k < LT_DRAFT_SIZES; k++) {
            if (all[i].times->of[k].n > 0) {
                printf("  %.1f: %.3f (%lld)", all[i].times->of[k].rows,
                       1e3 * all[i].times->of[k].seconds, (long long)all[i].times->of[k].n);
            }
        }
        putchar('\n');
    }
    printf(
        "    %lld steps with drafts were recorded or stood beside prompts, and took %.3f s more\n",
        (long long)e->n_unusual, e->unusual_s);
}

static void print_turns(const bench_engine_options *o, const lt_engine *e, int64_t streams,
                        int64_t draft_tokens, double rates[2][MAX_TURNS]) {
    const double plain = lt_bench_median(rates[0], o->turns);
    const double drafts = lt_bench_median(rates[1], o->turns); /* The rates have been sorted. */
    lt_engine_stats s;
    lt_engine_get_stats(e, &s);
    if (o->json) {
        json_t *j = json_pack(
            "{s:I, s:I, s:I, s:f, s:f, s:f, s:I, s:I, s:I, s:I, s:I, s:I}", "streams",
            (json_int_t)streams, "draft_tokens", (json_int_t)draft_tokens, "turns",
            (json_int_t)o->turns, "decode_tokens_per_s", plain, "drafts_tokens_per_s", drafts,
            "ratio", drafts / plain, "drafts", (json_int_t)s.drafts, "drafted",
            (json_int_t)s.drafted, "accepted", (json_int_t)s.accepted, "branches",
            (json_int_t)s.branches, "branch_drafted", (json_int_t)s.branch_drafted,
            "branch_accepted", (json_int_t)s.branch_accepted);
        json_dumpf(j, stdout, JSON_COMPACT | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(6));
        putchar('\n');
        json_decref(j);
    } else {
        char fixed[32] = "";
        if (draft_tokens > 0) {
            (void)snprintf(fixed, sizeof fixed, " of %lld tokens", (long long)draft_tokens);
        }
        printf("%6lld streams   decoding %8.1f tok/s, with drafts%s %8.1f (%.1f to %.1f): %.3f "
               "times   %lld drafts of %.2f tokens, %.1f %% accepted; %lld branches, %lld of "
               "their %lld tokens accepted\n",
               (long long)streams, plain, fixed, drafts, rates[1][0], rates[1][o->turns - 1],
               drafts / plain, (long long)s.drafts,
               s.drafts > 0 ? (double)(s.drafted - s.branch_drafted) / (double)s.drafts : 0,
               s.drafted > 0 ? 100 * (double)s.accepted / (double)s.drafted : 0,
               (long long)s.branches, (long long)s.branch_accepted, (long long)s.branch_drafted);
    }
    fflush(stdout);
}

/* The same streams alternately on an engine with drafts and on one without. The first turn of each
 * is not counted, because the engine then measures its steps. */
static lt_err bench_in_turn(const bench_engine_options *o, const material *x, int64_t streams,
                            int64_t draft_tokens) {
    lt_err err = LT_OK;
    lt_engine *engines[2] = {NULL};
    double rates[2][MAX_TURNS];
    lt_engine_options eo = engine_options(o, x, streams, draft_tokens);

    LT_TRY_DONE(lt_engine_open(&engines[1], x->m, &eo));
    eo.speculate = LT_SPECULATE_NONE;
    eo.draft = NULL;
    eo.head = NULL;
    eo.draft_tokens = eo.draft_branches = 0;
    LT_TRY_DONE(lt_engine_open(&engines[0], x->m, &eo));
    for (int64_t turn = -1; turn < o->turns; turn++) {
        for (int side = 0; side < 2; side++) {
            run w = {.streams = streams, .text = &x->text};
            err = run_streams(engines[side], o, lt_model_get_spec(x->m), &w);
            rates[side][turn < 0 ? 0 : turn] = decode_rate(&w);
            free_run(&w);
            LT_TRY_DONE(err);
        }
    }
    print_turns(o, engines[1], streams, draft_tokens, rates);
    if (o->profile) {
        print_times(engines[1]);
    }
done:
    lt_engine_close(engines[0]);
    lt_engine_close(engines[1]);
    return err;
}

/* The choices of --dtype from q4_0 on. */
static const lt_dtype block_types[] = {LT_Q4_0, LT_Q4_1, LT_Q5_0, LT_Q5_1,
                                       LT_Q8_0, LT_Q4_K, LT_Q5_K, LT_Q6_K};

static lt_err open_model(lt_model **m, const bench_engine_options *o, const char *from,
                         lt_device *device) {
    lt_model_spec spec;
    const bool blocks = o->dtype > LT_OPENED_BF16, random = lt_path_has_suffix(from, ".json");
    const lt_opened_dtype dtype = blocks ? LT_OPENED_STORED : (lt_opened_dtype)o->dtype;

    lt_model_options options = lt_opened_options(dtype, device);
    if (!random && blocks) {
        LT_FAIL(LT_ERR_ARG, "%s has its own weights: `lateen quantize` makes a GGUF of other types",
                from);
    }
    if (!random) {
        char path[LT_PATH_BYTES];
        LT_TRY(lt_cli_bring(path, from));
        return lt_model_open(m, path, &options);
    }
    if (options.stored && !blocks) {
        options.stored = false;
        options.dtype = device->backend->host_memory ? LT_F32 : LT_BF16;
    }
    options.stored_as = blocks ? block_types[o->dtype - LT_OPENED_BF16 - 1] : LT_F32;
    LT_TRY(lt_model_spec_read(&spec, from));
    return lt_model_create(m, &spec, &options, 1);
}

static lt_err read_text(const bench_engine_options *o, lt_ids *out) {
    lt_err err = LT_OK;
    lt_tokenizer *t = NULL;
    lt_tokenizer_scratch *scratch = NULL;
    char *text = NULL;
    size_t n = 0;
    LT_TRY_DONE(lt_file_read(&text, &n, o->text, MAX_TEXT));
    LT_TRY_DONE(lt_tokenizer_open(&t, o->tokenizer[0] != '\0' ? o->tokenizer : o->model, NULL));
    LT_TRY_DONE(lt_tokenizer_scratch_open(&scratch, t));
    LT_TRY_DONE(lt_tokenizer_encode(t, scratch, text, n, LT_ENCODE_PLAIN, out));
    if (out->n == 0) {
        LT_FAIL_DONE(LT_ERR_ARG, "--text %s is empty", o->text);
    }
done:
    lt_tokenizer_scratch_close(scratch);
    lt_tokenizer_close(t);
    free(text);
    return err;
}

static lt_err open_draft(material *x, const bench_engine_options *o, lt_device *device) {
    if (o->speculate == LT_SPECULATE_HEAD) {
        const char *path = o->draft[0] != '\0' ? o->draft : o->model;
        LT_TRY(lt_draft_head_open(&x->head, x->m, path));
        x->draft_head = x->head;
        return LT_OK;
    }
    LT_TRY(open_model(&x->draft, o, o->draft, device));
    x->draft_model = x->draft;
    return LT_OK;
}

static lt_err check_drafts(const bench_engine_options *o) {
    if (o->speculate == LT_SPECULATE_MODEL && o->draft[0] == '\0') {
        LT_FAIL(LT_ERR_ARG, "--speculate model needs --draft PATH");
    }
    if (o->speculate < LT_SPECULATE_MODEL && o->draft[0] != '\0') {
        LT_FAIL(LT_ERR_ARG, "--draft %s is for --speculate model and --speculate head", o->draft);
    }
    if (o->shared > o->prompt || (o->shared > 0 && o->turns > 0)) {
        LT_FAIL(LT_ERR_ARG,
                "--shared %lld must be at most --prompt %lld, and cannot be combined with --turns, "
                "which reads all prompts",
                (long long)o->shared, (long long)o->prompt);
    }
    if (o->beginnings > 1 && o->shared == 0) {
        LT_FAIL(LT_ERR_ARG, "--beginnings %lld needs --shared TOKENS", (long long)o->beginnings);
    }
    if (o->turns > 0 && (o->speculate == LT_SPECULATE_NONE || o->ids)) {
        LT_FAIL(LT_ERR_ARG,
                "--turns compares --speculate ngram, model or head with none, without --ids");
    }
    return LT_OK;
}

/* One run for each number of draft tokens. */
static lt_err bench_lengths(const bench_engine_options *o, const material *x, int64_t streams) {
    const char *at = o->draft_tokens;
    for (int i = 0; i < MAX_RUNS && *at != '\0'; i++) {
        long long n;
        if (!lt_cli_next_number(&at, &n) || n < 0 || n > LT_DRAFT_MOST) {
            LT_FAIL(LT_ERR_ARG, "draft-tokens %s: numbers from 0 to %d, with commas",
                    o->draft_tokens, LT_DRAFT_MOST);
        }
        LT_TRY((o->turns > 0 ? bench_in_turn : bench_one)(o, x, streams, n));
    }
    return LT_OK;
}

static lt_err bench(const bench_engine_options *o) {
    lt_err err = LT_OK;
    lt_device *device = NULL;
    material x = {0};
    const char *at = o->streams;

    LT_TRY_DONE(check_drafts(o));
    if (o->threads > 0) {
        lt_thread_set_count((int)o->threads);
    }
    LT_TRY_DONE(lt_device_open_named(&device, o->device));
    LT_TRY_DONE(open_model(&x.m, o, o->model, device));
    LT_TRY_DONE(o->speculate >= LT_SPECULATE_MODEL ? open_draft(&x, o, device) : LT_OK);
    LT_TRY_DONE(o->text[0] != '\0' ? read_text(o, &x.text) : LT_OK);
    for (int i = 0; i < MAX_RUNS && *at != '\0'; i++) {
        long long n;
        if (!lt_cli_next_number(&at, &n) || n < 1 || n > 65536) {
            LT_FAIL_DONE(LT_ERR_ARG, "streams %s: numbers from 1 to 65536, with commas",
                         o->streams);
        }
        LT_TRY_DONE(bench_lengths(o, &x, n));
    }
done:
    lt_ids_free(&x.text);
    lt_draft_head_close(x.head);
    lt_model_close(x.draft);
    lt_model_close(x.m);
    lt_device_close(device);
    return err;
}

int lt_bench_engine(int argc, char **argv) {
    bench_engine_options o;
    int n = 0, status = LT_EXIT_DONE;
    lt_err err;
    if (!lt_verb_parse(&table, &o, argc, argv,
                       "bench engine --model M [--streams 1,8,32] [--prompt N] [--new N] "
                       "[--profile] [--json]",
                       "Measure the tokens/s of the engine that `lateen serve` runs, without HTTP, "
                       "on random prompts that all start at once.",
                       NULL, 0, &n, &status)) {
        return status;
    }
    err = bench(&o);
    return err == LT_OK ? LT_EXIT_DONE : lt_verb_fail(err);
}
