/* opened.c: see opened.h. */
#include "cli/opened.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/thread.h"
#include "cli/platform/copying.h"
#include "lateen/generate.h"
#include "model/lora/lora_gguf.h"
#include "model/params.h"
#include "tensor/backend.h"

/* Find a *.gguf in a folder: the first by name that begins with `begins`, otherwise the first of
 * all. */
static bool find_gguf(char out[LT_PATH_BYTES], const char *folder, const char *begins) {
    char **names = NULL;
    size_t n = 0;
    bool found = false;
    if (!lt_file_is_dir(folder) || lt_file_list(&names, &n, folder) != LT_OK) {
        return false;
    }
    for (size_t i = 0; i < n; i++) {
        const bool meant = strncmp(names[i], begins, strlen(begins)) == 0;
        if (lt_path_has_suffix(names[i], ".gguf") && (meant || !found) &&
            lt_path_join(out, folder, names[i]) == LT_OK) {
            found = true;
            if (meant) {
                break;
            }
        }
    }
    lt_file_list_free(names, n);
    return found;
}

lt_err lt_opened_default_model(char out[LT_PATH_BYTES], lt_default_use use) {
    static const char *const names[] = {
        [LT_DEFAULT_WRITES] = "polyglot-", [LT_DEFAULT_TALKS] = "reasoner-"};
    static const char *const places[] = {"models", "../models", "../share/lateen/models"};
    char self[LT_PATH_BYTES], folder[LT_PATH_BYTES];
    const ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    char *slash;

    self[n > 0 ? n : 0] = '\0';
    slash = strrchr(self, '/');
    if (slash != NULL) {
        *slash = '\0';
        for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
            if (lt_path_join(folder, self, places[i]) == LT_OK &&
                find_gguf(out, folder, names[use])) {
                return LT_OK;
            }
        }
    }
    LT_FAIL(LT_ERR_ARG,
            "no model: give a Hugging Face folder, a GGUF or a llama2.c .bin (none came with this "
            "installation)");
}

lt_model_options lt_opened_options(lt_opened_dtype dtype, lt_device *device) {
    return (lt_model_options){.device = device,
                              .stored = dtype == LT_OPENED_STORED,
                              .dtype = dtype == LT_OPENED_F32 ? LT_F32 : LT_BF16};
}

/* A tokenizer is read in parallel with the weights, which take longer. */
typedef struct {
    const char *model_path, *path; /* path "": the tokenizer is in the model's file or folder. */
    lt_tokenizer *tokenizer;
    lt_failure failure;
    bool apart; /* Another thread reads it. */
    pthread_t thread;
} reading;

static lt_err open_tokenizer(reading *r) {
    const bool apart = r->path[0] != '\0';
    if (!apart && !lt_file_is_dir(r->model_path) && !lt_path_has_suffix(r->model_path, ".gguf")) {
        LT_FAIL(LT_ERR_ARG, "%s has no tokenizer: give --tokenizer", r->model_path);
    }
    return lt_tokenizer_open(&r->tokenizer, apart ? r->path : r->model_path, NULL);
}

static void *read_tokenizer(void *arg) {
    reading *r = arg;
    lt_failure_keep(&r->failure, open_tokenizer(r));
    return NULL;
}

static void read_begin(reading *r, const char *model_path, const char *path) {
    *r = (reading){.model_path = model_path, .path = path};
    r->apart = pthread_create(&r->thread, NULL, read_tokenizer, r) == 0;
}

static lt_err read_end(reading *r) {
    if (r->apart) {
        pthread_join(r->thread, NULL);
    } else {
        (void)read_tokenizer(r);
    }
    return lt_failure_raise(&r->failure);
}

/* The model that the adapters name. */
static lt_err find_base(char base[LT_PATH_BYTES], const char *adapters) {
    char *named = NULL;
    lt_err err;
    LT_TRY(lt_lora_base_of(&named, adapters));
    err = lt_cli_bring(base, named);
    free(named);
    LT_TRY(err);
    if (!lt_file_exists(base)) {
        LT_FAIL(LT_ERR_NOT_FOUND,
                "%s is an adapter of the model '%s', which is not here; lateen convert --base "
                "merges it into that model at another path",
                adapters, base);
    }
    return LT_OK;
}

lt_err lt_opened_adapters(lt_lora **out, lt_model *m, const char *path, bool merging) {
    lt_err err = LT_OK;
    const bool gguf = lt_lora_is_gguf_path(path);
    lt_lora_config c = {.targets = NULL};
    lt_lora *l = NULL;
    LT_TRY_DONE(gguf ? lt_lora_gguf_config_read(&c, path, lt_model_get_spec(m))
                     : lt_lora_config_read_uneven(&c, path, lt_model_get_spec(m), merging));
    LT_TRY_DONE(lt_lora_open(&l, m, &c.options, 0));
    LT_TRY_DONE(gguf       ? lt_lora_gguf_load(l, path)
                : c.uneven ? lt_lora_load_uneven(l, path)
                           : lt_lora_load(l, path));
    *out = l;
    l = NULL;
done:
    lt_lora_close(l);
    lt_lora_config_close(&c);
    return err;
}

/* How to open the model to which adapters belong. DoRA and score heads need weights that are not
 * quantised, and so do all adapters on a GPU. */
static lt_err choose_options(lt_model_options *options, const lt_opened *o, const char *adapters,
                             lt_opened_dtype dtype) {
    const bool host = o->device->backend->host_memory;
    lt_model_options head = {.n_scores = 0};
    bool dora = false;
    if (!lt_lora_is_gguf_path(adapters)) {
        LT_TRY(lt_lora_scores_of(&head, adapters));
        LT_TRY(lt_lora_dora_of(&dora, adapters));
    }
    if (dtype == LT_OPENED_STORED && (dora || head.n_scores > 0 || !host)) {
        dtype = host ? LT_OPENED_F32 : LT_OPENED_BF16;
    }
    *options = lt_opened_options(dtype, o->device);
    options->n_scores = head.n_scores;
    options->token_scores = head.token_scores;
    return LT_OK;
}

/* Open the model that the adapters name, or base if it is not "", and the adapters beside it. */
static lt_err open_adapted(lt_opened *o, const char *adapters, const char *base,
                           lt_opened_dtype dtype) {
    char named[LT_PATH_BYTES];
    lt_model_options options;
    LT_TRY(lt_device_ready(o->device)); /* It was opened asynchronously. */
    if (base[0] == '\0') {
        LT_TRY(find_base(named, adapters));
        base = named;
    }
    LT_TRY(choose_options(&options, o, adapters, dtype));
    LT_TRY(lt_model_open(&o->model, base, &options));
    return lt_opened_adapters(&o->adapters, o->model, adapters, false);
}

/* Whether the adapters have their own tokenizer, and so their own template. Adapters in a GGUF have
 * none. */
static lt_err has_tokenizer(bool *out, const char *adapters) {
    char path[LT_PATH_BYTES];
    LT_TRY(lt_path_join(path, adapters, "tokenizer.json"));
    *out = lt_file_exists(path);
    return LT_OK;
}

/* Find out which adapters to open ("": none) and their base model ("": the one that they name). The
 * model may itself be a folder of adapters, or `lora` names one ("": none). o->path becomes the
 * place of the tokenizer and the template: with the adapters, which were trained with them, or else
 * with their model. */
static lt_err find_adapters(lt_opened *o, char adapters[LT_PATH_BYTES], char base[LT_PATH_BYTES],
                            const char *lora) {
    const bool is_adapter = lt_lora_is_folder(o->path);
    bool own = false;
    adapters[0] = base[0] = '\0';
    if (lora[0] != '\0' && is_adapter) {
        LT_FAIL(LT_ERR_ARG, "--lora %s beside the model %s, which is an adapter itself", lora,
                o->path);
    }
    if (is_adapter) {
        (void)snprintf(adapters, LT_PATH_BYTES, "%s", o->path);
        LT_TRY(has_tokenizer(&own, adapters));
        return own ? LT_OK : find_base(o->path, adapters);
    }
    if (lora[0] != '\0') {
        LT_TRY(lt_cli_bring(adapters, lora));
        (void)snprintf(base, LT_PATH_BYTES, "%s", o->path);
        LT_TRY(has_tokenizer(&own, adapters));
        (void)snprintf(o->path, LT_PATH_BYTES, "%s", own ? adapters : base);
    }
    return LT_OK;
}

lt_err lt_opened_begin(lt_opened *out, const char *model_path, const char *lora,
                       const char *tokenizer_path, lt_opened_dtype dtype, const char *device,
                       int64_t threads) {
    lt_model_options options;
    lt_err err = LT_OK, tokenizer_err = LT_OK;
    lt_failure failure;
    lt_opened o = {0};
    char tokenizer[LT_PATH_BYTES], adapters[LT_PATH_BYTES], base[LT_PATH_BYTES];
    reading r;

    if (model_path[0] == '\0') {
        LT_TRY(lt_opened_default_model(o.path, LT_DEFAULT_WRITES));
    } else {
        LT_TRY(lt_cli_bring(o.path, model_path));
    }
    LT_TRY(lt_cli_bring(tokenizer, tokenizer_path));
    if (!lt_file_exists(o.path)) {
        LT_FAIL(LT_ERR_NOT_FOUND, "model %s: no such file or folder", o.path);
    }
    if (threads > 0) {
        lt_thread_set_count((int)threads);
    }
    LT_TRY(find_adapters(&o, adapters, base, lora));
    LT_TRY(lt_device_open_async(&o.device, device));
    read_begin(&r, o.path, tokenizer);
    options = lt_opened_options(dtype, o.device);
    options.load_async = true;
    err = adapters[0] != '\0' ? open_adapted(&o, adapters, base, dtype)
                              : lt_model_open(&o.model, o.path, &options);
    /* Reported before a failure of the tokenizer in the same file. */
    lt_failure_keep(&failure, err);
    tokenizer_err = read_end(&r);
    o.tokenizer = r.tokenizer;
    LT_TRY_DONE(lt_failure_raise(&failure));
    LT_TRY_DONE(tokenizer_err);
    *out = o;
    o = (lt_opened){0};
done:
    lt_opened_close(&o);
    return err;
}

lt_err lt_opened_open(lt_opened *out, const char *model_path, const char *lora,
                      const char *tokenizer_path, lt_opened_dtype dtype, const char *device,
                      int64_t threads) {
    lt_err err = LT_OK;
    lt_opened o = {0};
    LT_TRY(lt_opened_begin(&o, model_path, lora, tokenizer_path, dtype, device, threads));
    LT_TRY_DONE(lt_model_wait(o.model));
    *out = o;
    o = (lt_opened){0};
done:
    lt_opened_close(&o);
    return err;
}

lt_err lt_opened_give(lt_opened *out, lt_model **model, lt_tokenizer **tokenizer,
                      const char *model_path, const char *lora, const char *tokenizer_path,
                      lt_opened_dtype dtype, const char *device, int64_t threads) {
    LT_TRY(lt_opened_begin(out, model_path, lora, tokenizer_path, dtype, device, threads));
    out->model->files = strdup(out->path);
    if (out->model->files == NULL) {
        LT_FAIL(LT_ERR_OOM, "%s", out->path);
    }
    *model = out->model;
    *tokenizer = out->tokenizer;
    out->model = NULL;
    out->tokenizer = NULL;
    return LT_OK;
}

void lt_opened_close(lt_opened *o) {
    lt_lora_close(o->adapters);
    lt_model_close(o->model);
    lt_device_close(o->device);
    lt_tokenizer_close(o->tokenizer);
    *o = (lt_opened){0};
}

void lt_opened_types(const lt_model *m, char out[LT_OPENED_TYPES_BYTES], bool *blocks) {
    unsigned char seen[LT_DTYPE_COUNT] = {0};
    out[0] = '\0';
    *blocks = false;
    for (int i = 0; i < m->table.n_params; i++) {
        const lt_stored_weight *h = m->stored != NULL ? &m->stored[i] : NULL;
        const int n = h != NULL ? h->n_ranges : 0;
        for (int k = 0; k < n; k++) {
            seen[h->ranges[k].w.dtype] = 1;
        }
        if (n == 0 && m->table.params[i].n_dims >= 2) {
            seen[m->options.dtype] = 1;
        }
    }
    for (int type = 0; type < LT_DTYPE_COUNT; type++) {
        const size_t used = strlen(out);
        if (seen[type] != 0) {
            (void)snprintf(out + used, LT_OPENED_TYPES_BYTES - used, "%s%s", used > 0 ? ", " : "",
                           lt_dtype_name((lt_dtype)type));
            *blocks = *blocks || lt_dtype_is_block((lt_dtype)type);
        }
    }
}

lt_err lt_opened_defaults(const lt_model *m, const lt_option_table *t, void *obj, int argc,
                          char **argv) {
    const lt_generation_defaults d = lt_model_generation(m);
    const char *words[1];
    int n_words = 0;
    bool help = false;

    lt_options_default(t, obj);
    for (int i = 0; i < d.n; i++) {
        char value[32];
        (void)snprintf(value, sizeof value, "%.17g", d.rows[i].value);
        if (lt_options_set(t, obj, d.rows[i].name, value, d.from) != LT_OK) {
            lt_log_warn("%s: it is left out", lt_error_message());
        }
    }
    return lt_options_parse(t, obj, argc, argv, words, 1, &n_words, &help);
}

lt_err lt_bias_read(lt_sampling *s, lt_logit_bias **owned, const char *text) {
    int64_t n = 1;
    for (const char *p = text; *p != '\0'; p++) {
        n += *p == ',';
    }
    if (text[0] == '\0') {
        return LT_OK;
    }
    *owned = malloc((size_t)n * sizeof **owned);
    if (*owned == NULL) {
        LT_FAIL(LT_ERR_OOM, "%lld logit biases", (long long)n);
    }
    s->bias = *owned;
    for (s->n_bias = 0; s->n_bias < n; text++) {
        char *end = NULL;
        const long long id = strtoll(text, &end, 10);
        const bool named = end != text && *end == '=' && id >= 0 && id <= INT32_MAX;
        const char *number = named ? end + 1 : text;
        const float bias = named ? strtof(number, &end) : 0.0f;
        if (!named || end == number || (*end != ',' && *end != '\0')) {
            LT_FAIL(LT_ERR_ARG, "--logit-bias: '%.40s' is not ID=BIAS", text);
        }
        (*owned)[s->n_bias++] = (lt_logit_bias){(int32_t)id, bias};
        text = end;
    }
    s->n_bias = lt_sampling_merge_bias(*owned, n);
    return LT_OK;
}

double lt_generate_rate(const lt_generate_stats *st) {
    return st->new_tokens > 1 && st->new_s > 0 ? (double)(st->new_tokens - 1) / st->new_s : 0.0;
}

int64_t lt_generate_room(const lt_model *m, size_t prompt_bytes, int64_t max_tokens) {
    const int64_t want = (int64_t)prompt_bytes + max_tokens + 2,
                  /* BOS, and one token in reserve. */
        most = lt_model_spec_context(lt_model_get_spec(m));
    return want < most ? want : most;
}

lt_err lt_prompt_read(char **out, const char *path) {
    size_t bytes = 0;
    LT_TRY(
        lt_file_read(out, &bytes, strcmp(path, "-") == 0 ? "/dev/stdin" : path, (size_t)64 << 20));
    if (strlen(*out) != bytes) {
        free(*out);
        *out = NULL;
        LT_FAIL(LT_ERR_FORMAT, "prompt %s holds a zero byte", path);
    }
    return LT_OK;
}

void lt_prompt_free(char *prompt) {
    free(prompt);
}
