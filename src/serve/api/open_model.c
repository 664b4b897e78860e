/* open_model.c: see open_model.h. */
#include "serve/api/open_model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "data/chat_format.h"
#include "lateen/copy.h"
#include "lateen/generate.h"
#include "serve/api/reply.h"

#define BIG_PROMPT ((size_t)1 << 20) /* A text of this many bytes is always read. */
/* At most this many grammars wait to be compiled; then 429. */
#define MAX_COMPILES 256
#define KEEP_BYTES   ((size_t)128 << 20) /* Bytes of grammars that are kept for later requests. */

const char *lt_server_files(const lt_server *s) {
    const char *files = s->model != NULL ? lt_model_files(s->model) : NULL;
    return files != NULL ? files : s->o.model != NULL ? s->o.model : "";
}

void lt_server_find_files(const lt_server *s, char out[LT_PATH_BYTES]) {
    const char *files = lt_server_files(s);
    if (strstr(files, "://") == NULL) {
        (void)snprintf(out, LT_PATH_BYTES, "%s", files);
    } else if (lt_copy_brought(out, files) != LT_OK) {
        out[0] = '\0';
    }
}

static int64_t file_bytes(const char *path) {
    struct stat st;
    return stat(path, &st) == 0 ? (int64_t)st.st_size : 0;
}

int64_t lt_server_weights_bytes(const lt_server *s) {
    static const char *const suffixes[] = {".safetensors", ".gguf", ".bin", NULL};
    char **names = NULL, path[LT_PATH_BYTES], whole[LT_PATH_BYTES];
    int64_t bytes = 0;
    size_t n = 0;

    lt_server_find_files(s, path);
    if (!lt_file_is_dir(path)) {
        return file_bytes(path);
    }
    if (lt_file_list(&names, &n, path) != LT_OK) {
        return 0;
    }
    for (size_t i = 0; i < n; i++) {
        for (const char *const *end = suffixes; *end != NULL; end++) {
            if (lt_path_has_suffix(names[i], *end) &&
                lt_path_join(whole, path, names[i]) == LT_OK) {
                bytes += file_bytes(whole);
            }
        }
    }
    lt_file_list_free(names, n);
    return bytes;
}

void lt_server_name_it(lt_server *s) {
    const char *path = s->o.model != NULL ? s->o.model : "model";
    const char *slash;
    char *dot;
    size_t n = strlen(path);

    if (s->o.name != NULL && s->o.name[0] != '\0') {
        snprintf(s->name, sizeof s->name, "%s", s->o.name);
        return;
    }
    while (n > 1 && path[n - 1] == '/') {
        n--;
    }
    snprintf(s->name, sizeof s->name, "%.*s", (int)(n < 255 ? n : 255), path);
    slash = strrchr(s->name, '/');
    if (slash != NULL && slash[1] != '\0') {
        memmove(s->name, slash + 1, strlen(slash));
    }
    dot = strrchr(s->name, '.');
    if (dot != NULL && (strcmp(dot, ".gguf") == 0 || strcmp(dot, ".bin") == 0)) {
        *dot = '\0';
    }
}

/* The engine sizes its cache by the served context, which is at most the model's. */
static void choose_context(lt_server *s) {
    const int64_t model = lt_model_get_spec(s->model)->max_seq;
    int64_t *asked = &s->o.engine.max_seq;
    if (*asked > model) {
        lt_log_warn("serve: --context %lld exceeds the model's %lld tokens; serving %lld",
                    (long long)*asked, (long long)model, (long long)model);
    }
    *asked = *asked > 0 && *asked < model ? *asked : model;
}

static void say_window(const lt_engine_cache *c, int64_t n_layers) {
    const int64_t sets = (c->max_seq + c->page_tokens - 1) / c->page_tokens;
    if (c->window > 0 && c->groups == 1) {
        lt_log_info("serve: every layer has a window of %lld tokens: a sequence of %lld holds at "
                    "most %lld of its %lld pages at a time",
                    (long long)c->window, (long long)c->max_seq, (long long)c->most_pages,
                    (long long)sets);
    } else if (c->window > 0) {
        lt_log_info("serve: a page has %lld of %lld layers; %lld of the %lld groups of layers have "
                    "a window of %lld tokens: a sequence of %lld holds at most %lld of its %lld "
                    "pages at a time",
                    (long long)c->page_layers, (long long)n_layers, (long long)c->windowed_groups,
                    (long long)c->groups, (long long)c->window, (long long)c->max_seq,
                    (long long)c->most_pages, (long long)(sets * c->groups));
    }
}

static void say_disk(const lt_server *s) {
    lt_engine_stats st;
    if (s->o.engine.disk != NULL) {
        lt_engine_get_stats(s->engine, &st);
        lt_log_info("serve: the cache on disk, %s, has %lld pages, %.1f of at most %.1f MiB",
                    s->o.engine.disk, (long long)st.disk_pages, (double)st.disk_bytes / 1048576.0,
                    (double)s->o.engine.disk_bytes / 1048576.0);
    }
}

/* The engine may have shortened sequences to what its cache holds. */
static void find_context(lt_server *s) {
    lt_engine_cache c;
    int64_t held;
    lt_engine_get_cache(s->engine, &c);
    held = c.pages / c.groups * c.page_tokens; /* This applies if no sequence returns pages. */
    s->context = c.max_seq;
    if (!s->o.quiet) {
        lt_log_info("serve: keys and values of %lld tokens in %lld pages of %lld, %s%s%s, %.1f MiB "
                    "(%s); %.1f MiB of it may keep unused prompts",
                    (long long)held, (long long)c.pages, (long long)c.page_tokens,
                    lt_dtype_name(c.dtype), c.value_dtype != c.dtype ? " and " : "",
                    c.value_dtype != c.dtype ? lt_dtype_name(c.value_dtype) : "",
                    (double)(c.pages * c.page_bytes) / 1048576.0, c.why,
                    s->o.engine.prefix_cache ? (double)(c.most_unused * c.page_bytes) / 1048576.0
                                             : 0.0);
        say_window(&c, lt_model_get_spec(s->model)->n_layers);
        say_disk(s);
    }
}

/* Normalisation can reduce a text to a third of its bytes (Hangul's letters to syllables); nothing
 * else makes it shorter. */
static size_t most_prompt_bytes(const lt_server *s) {
    const int64_t n = lt_model_get_spec(s->model)->vocab_size;
    size_t longest = 1;
    for (int64_t i = 0; i < n; i++) {
        size_t bytes = 0;
        (void)lt_tokenizer_piece(s->tokenizer, (uint32_t)i, &bytes);
        longest = bytes > longest ? bytes : longest;
    }
    longest *= 3 * (size_t)s->context;
    return longest > BIG_PROMPT ? longest : BIG_PROMPT;
}

/* ---- Opening ---- */

static bool holds(const lt_server *s, const char *token) {
    return lt_tokenizer_find(s->tokenizer, token, strlen(token)) != LT_TOKEN_NONE;
}

/* Open the chat template: a Jinja file, a format by name, the model's own, or one inferred from its
 * special tokens. */
static lt_err open_template(lt_server *s) {
    lt_err err;
    s->template_source = s->o.template != NULL ? "option" : "model";
    if (s->o.template != NULL && lt_file_exists(s->o.template)) {
        char *text = NULL;
        size_t n = 0;
        LT_TRY(lt_file_read(&text, &n, s->o.template, (size_t)1 << 20));
        err = lt_chat_template_open(&s->template, text, n, s->o.template);
        free(text);
        LT_TRY(err);
        return lt_chat_template_name_tokens(s->template, lt_server_files(s), s->tokenizer);
    }
    if (s->o.template != NULL) {
        return lt_chat_template_open_format(&s->template, s->o.template);
    }
    err = lt_chat_template_open_model(&s->template, lt_server_files(s), s->tokenizer, NULL);
    if (err != LT_ERR_NOT_FOUND) {
        return err;
    }
    for (const char *const *p = (const char *const[]){"chatml", "llama3", "gemma", NULL};
         *p != NULL; p++) {
        const lt_chat_format *f = lt_chat_format_find(*p);
        if (f != NULL && holds(s, f->mark)) {
            s->template_source = "tokens";
            return lt_chat_template_open_format(&s->template, *p);
        }
    }
    s->template_source = "none";
    if (!s->o.quiet) {
        lt_log_info(
            "serve: the model has no chat template: messages are joined as plain text, and the "
            "page starts in its completion mode");
    }
    return lt_chat_template_open_format(&s->template, "plain");
}

/* A template that reads a list of parts decides what it writes between two texts. Most read only a
 * string: then the parts of a user's or a system message are lines, as in vLLM and llama-server. */
static void find_part_gap(lt_server *s) {
    static const char first[] = "part-one", second[] = "part-two";
    json_t *context = json_pack("{s:[{s:s, s:[{s:s, s:s}, {s:s, s:s}]}], s:b}", "messages", "role",
                                "user", "content", "type", "text", "text", first, "type", "text",
                                "text", second, "add_generation_prompt", 0);
    char *text = NULL, *end, *next;
    size_t n = 0;
    strcpy(s->part_gap, "\n");
    if (context != NULL && lt_chat_template_render(s->template, context, &text, &n) == LT_OK) {
        end = strstr(text, first);
        end = end != NULL ? end + strlen(first) : NULL;
        next = end != NULL ? strstr(end, second) : NULL;
        /* A list that is printed as it is has more between its texts. */
        if (next != NULL && (size_t)(next - end) < sizeof s->part_gap) {
            snprintf(s->part_gap, sizeof s->part_gap, "%.*s", (int)(next - end), end);
        }
    }
    free(text);
    json_decref(context);
}

/* Make the sampling defaults in the model's files the defaults of every request. */
static lt_err read_own(lt_server *s) {
    const lt_generation_defaults d = lt_model_generation(s->model);
    char told[256] = "";
    lt_api_error e;
    lt_api_params a;

    s->own = json_object();
    for (int i = 0; i < d.n && s->own != NULL; i++) {
        const bool is_length = strcmp(d.rows[i].name, "max_tokens") == 0;
        const double most = is_length ? (double)s->context : HUGE_VAL;
        const double x = d.rows[i].value < most ? d.rows[i].value : most;
        const size_t used = strlen(told);
        json_object_set_new(s->own, d.rows[i].name,
                            x == floor(x) ? json_integer((json_int_t)x) : json_real(x));
        snprintf(told + used, sizeof told - used, "%s%s %g", used > 0 ? ", " : "", d.rows[i].name,
                 x);
    }
    lt_api_params_defaults(&a);
    if (s->own == NULL || !lt_api_params_preset(&a, s->own, &e)) {
        LT_FAIL(LT_ERR_FORMAT, "%s: %s", d.from, s->own == NULL ? "out of memory" : e.message);
    }
    if (d.n > 0 && !s->o.quiet) {
        lt_log_info("serve: defaults of %s: %s (--generation-config none ignores them)", d.from,
                    told);
    }
    return LT_OK;
}

/* The names of a score head's values. */
static lt_err read_labels(lt_server *s) {
    char path[LT_PATH_BYTES];
    json_t *config = NULL;
    LT_TRY(lt_path_join(path, lt_server_files(s), "config.json"));
    if (lt_model_get_spec(s->model)->n_scores == 0 || !lt_file_exists(path)) {
        return LT_OK; /* Then labels are numbers. */
    }
    LT_TRY(lt_json_load(&config, path, (size_t)1 << 20));
    s->labels = json_incref(json_object_get(config, "id2label"));
    json_decref(config);
    return LT_OK;
}

/* How embeddings are computed from the hidden states: as sentence-transformers' folder says,
 * otherwise their mean. */
static lt_err read_pooling(lt_server *s) {
    static const char *const others[] = {"pooling_mode_cls_token", "pooling_mode_max_tokens",
                                         "pooling_mode_mean_sqrt_len_tokens",
                                         "pooling_mode_weightedmean_tokens"};
    char path[LT_PATH_BYTES];
    json_t *config = NULL;
    LT_TRY(lt_path_join(path, lt_server_files(s), "1_Pooling/config.json"));
    if (!lt_file_exists(path)) {
        return LT_OK;
    }
    LT_TRY(lt_json_load(&config, path, (size_t)1 << 20));
    s->last_pooling = json_is_true(json_object_get(config, "pooling_mode_lasttoken"));
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        if (json_is_true(json_object_get(config, others[i]))) {
            lt_log_warn("serve: %s: %s is not supported: embeddings are of the %s", path, others[i],
                        s->last_pooling ? "last token" : "mean");
        }
    }
    json_decref(config);
    return LT_OK;
}

/* Model, tokenizer, template and engine: of the served model or of a reward model. */
static lt_err open_model(lt_server *s) {
    LT_TRY(s->o.load(s->o.ctx, &s->model, &s->tokenizer));
    s->vocabulary = lt_tokenizer_describe(s->tokenizer);
    if (lt_weight_source_type(s->weights_type, lt_server_files(s)) != LT_OK) {
        s->weights_type[0] = '\0'; /* The model was made in memory. */
    }
    LT_TRY(lt_tokenizer_scratch_open(&s->scratch, s->tokenizer));
    LT_TRY(open_template(s));
    find_part_gap(s);
    LT_TRY(read_labels(s));
    if (lt_model_spec_is_process(lt_model_get_spec(s->model))) {
        LT_TRY(lt_steps_open(&s->steps, s->tokenizer, s->scratch,
                             lt_model_get_spec(s->model)->step_separator));
    }
    LT_TRY(read_pooling(s));
    s->marks = lt_parse_detect(lt_chat_template_text(s->template));
    lt_model_ends(s->model, s->tokenizer, &s->ends);
    s->o.engine.ends = s->ends;
    s->model_s = lt_clock_s() - s->started_s;
    choose_context(s);
    LT_TRY(lt_adapter_set_load(s->adapters));
    LT_TRY(lt_engine_open(&s->engine, s->model, &s->o.engine));
    LT_TRY(lt_model_wait(s->model)); /* Weights may still be loaded while the engine opens. */
    find_context(s);
    s->most_prompt_bytes = most_prompt_bytes(s);
    for (int i = 0; i < s->n_pool_threads; i++) {
        LT_TRY(lt_tokenizer_scratch_open(&s->scratch_pool[i], s->tokenizer));
    }
    return LT_OK;
}

static lt_err load_reward(lt_server *s) {
    lt_server *r = calloc(1, sizeof *r);
    s->reward = r;
    if (r == NULL) {
        LT_FAIL(LT_ERR_OOM, "server: a reward model");
    }
    r->o = s->o;
    r->o.load = s->o.load_reward;
    r->o.unload = NULL; /* It is closed with its server's model. */
    r->o.model = s->o.reward;
    r->o.name = r->o.template = NULL;
    r->o.engine = lt_engine_defaults();
    r->o.engine.max_running = s->o.engine.max_running;
    r->o.engine.max_waiting = s->o.engine.max_waiting;
    r->o.engine.deterministic = s->o.engine.deterministic;
    r->started_s = s->started_s;
    r->pool = s->pool;
    r->n_pool_threads = s->n_pool_threads;
    r->events = calloc(LT_SERVER_POLL_EVENTS, sizeof *r->events);
    if (r->events == NULL) {
        LT_FAIL(LT_ERR_OOM, "server: a reward model");
    }
    lt_server_name_it(r);
    LT_TRY(open_model(r));
    const lt_model_spec *spec = lt_model_get_spec(r->model);
    if (!lt_model_spec_is_process(spec) && (spec->n_scores != 1 || spec->token_scores)) {
        LT_FAIL(LT_ERR_UNSUPPORTED,
                "--reward %s: a reward model has a score head of 1 value for each text (num_labels "
                "1), a process reward model one of 2 for each token; this one has %lld for each %s",
                s->o.reward, (long long)lt_model_spec_says(spec),
                spec->token_scores ? "token" : "text");
    }
    return LT_OK;
}

lt_err lt_server_load(lt_server *s) {
    LT_TRY(open_model(s));
    LT_TRY(lt_compiler_open(&s->compiler, &(lt_compiler_options){.base = s->base,
                                                                 .tokenizer = s->tokenizer,
                                                                 .ends = s->ends,
                                                                 .max_waiting = MAX_COMPILES,
                                                                 .keep_bytes = KEEP_BYTES,
                                                                 .done = lt_reply_compiled,
                                                                 .before = s->o.before_compile,
                                                                 .ctx = s->o.ctx}));
    LT_TRY(s->o.load_reward != NULL ? load_reward(s) : LT_OK);
    return s->o.own_defaults ? read_own(s) : LT_OK;
}

/* ---- Closing ---- */

void lt_server_stop_model(lt_server *s) {
    lt_server_deafen(s);
    lt_compiler_stop(s->compiler);
    lt_engine_close(s->engine);
    s->engine = NULL;
    if (s->reward != NULL) {
        lt_server_stop_model(s->reward);
    }
}

void lt_server_close_model(lt_server *s) {
    lt_server_stop_model(s);
    lt_compiler_close(s->compiler);
    s->compiler = NULL;
    if (s->reward != NULL) {
        lt_server_close_model(s->reward);
        free(s->reward->events);
        free(s->reward);
        s->reward = NULL;
    }
    lt_chat_template_close(s->template);
    s->template = NULL;
    lt_tokenizer_scratch_close(s->scratch);
    s->scratch = NULL;
    for (int i = 0; i < LT_WORKER_POOL_THREADS; i++) {
        lt_tokenizer_scratch_close(s->scratch_pool[i]);
        s->scratch_pool[i] = NULL;
    }
    lt_steps_close(&s->steps);
    s->steps = (lt_steps){0};
    lt_tokenizer_close(s->tokenizer);
    s->tokenizer = NULL;
    json_decref(s->labels);
    json_decref(s->own);
    s->labels = s->own = NULL;
    lt_adapter_set_unload(s->adapters);
    lt_model_close(s->model);
    s->model = NULL;
    if (s->o.unload != NULL) {
        s->o.unload(s->o.ctx);
    }
}
