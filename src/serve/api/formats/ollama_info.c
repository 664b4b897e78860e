/* ollama_info.c: the rest of Ollama's /api: version, tags, ps, show, embed, embeddings. The
 * server has the models that it was started with, so requests to pull, push, create, copy or delete
 * one are refused by name. */
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "base/error.h"
#include "serve/api/access.h"
#include "serve/api/formats/ollama.h"
#include "serve/api/formats/prompts.h"
#include "serve/api/route.h"

/* Ollama's names always have a tag. */
static void put_name(lt_json_out *o, const lt_server *s, const char *key) {
    char name[sizeof s->name + 8];
    snprintf(name, sizeof name, "%s%s", s->name, strchr(s->name, ':') != NULL ? "" : ":latest");
    lt_out_key_str(o, key, name);
}

static bool is_gguf(const lt_server *s) {
    const size_t n = strlen(s->o.model);
    return n > 5 && strcmp(s->o.model + n - 5, ".gguf") == 0;
}

/* "46.2M" */
static void put_size(lt_json_out *o, int64_t params) {
    static const struct {
        double unit;
        char letter;
    } units[] = {{1e12, 'T'}, {1e9, 'B'}, {1e6, 'M'}, {1e3, 'K'}};
    char text[32];
    int i = 0;
    while (i < 3 && (double)params < units[i].unit) {
        i++;
    }
    snprintf(text, sizeof text, "%.1f%c", (double)params / units[i].unit, units[i].letter);
    lt_out_key_str(o, "parameter_size", text);
}

/* For a model that is not loaded, only the format is known. */
static void put_details(lt_json_out *o, const lt_server *s) {
    const lt_model_spec *spec = lt_server_has_model(s) ? lt_model_get_spec(s->model) : NULL;
    const char *family = spec != NULL ? lt_family_name(spec->family) : "";
    lt_out_key_open(o, "details", '{');
    lt_out_key_str(o, "parent_model", "");
    lt_out_key_str(o, "format", is_gguf(s) ? "gguf" : "safetensors");
    lt_out_key_str(o, "family", family);
    lt_out_key_open(o, "families", '[');
    lt_out_text(o, family);
    lt_out_shut(o, ']');
    if (spec != NULL) {
        put_size(o, lt_model_spec_params(spec));
    } else {
        lt_out_key_str(o, "parameter_size", "");
    }
    lt_out_key_str(o, "quantization_level",
                   spec != NULL && s->weights_type[0] != '\0' ? s->weights_type : "unknown");
    lt_out_shut(o, '}');
}

/* When the model's file, or its folder, was written; 0: it is not on this machine. */
static double modified(const lt_server *s) {
    char path[LT_PATH_BYTES];
    struct stat st = {0};
    lt_server_find_files(s, path);
    (void)stat(path, &st);
    return (double)st.st_mtime;
}

static void put_model(lt_json_out *o, const lt_server *s, bool running) {
    const int64_t bytes = lt_server_weights_bytes(s);
    const double modified_s = modified(s);
    char digest[65];
    snprintf(digest, sizeof digest, "%016llx%016llx%032x", (unsigned long long)bytes,
             /* It identifies the files without hashing them. */
             (unsigned long long)modified_s, 0U);
    lt_out_open(o, '{');
    put_name(o, s, "name");
    put_name(o, s, "model");
    if (!running) {
        lt_out_key(o, "modified_at");
        lt_ollama_when(o, modified_s);
    }
    lt_out_key_int(o, "size", s->slot != NULL ? s->slot->bytes : bytes);
    lt_out_key_str(o, "digest", digest);
    put_details(o, s);
    if (running) { /* A model that stays loaded expires in a hundred years. */
        const double expires = s->slot != NULL ? lt_model_slot_expires(s->slot) : -1;
        lt_out_key(o, "expires_at");
        lt_ollama_when(o, expires >= 0 ? expires : lt_clock_unix_s() + 100.0 * 365 * 86400);
        lt_out_key_int(o, "size_vram", 0);
        lt_out_key_int(o, "context_length", lt_server_context(s));
    }
    lt_out_shut(o, '}');
}

static void answer_models(lt_call *call, bool running) {
    lt_json_out o = {0};
    lt_out_open(&o, '{');
    lt_out_key_open(&o, "models", '[');
    for (int i = 0; i < lt_server_count(call->server); i++) {
        const lt_server *s = lt_server_at(call->server, i);
        if ((!running || lt_server_has_model(s)) && lt_access_may_use(s, call->owner)) {
            put_model(&o, s, running);
        }
    }
    lt_out_shut(&o, ']');
    lt_out_shut(&o, '}');
    lt_call_json(call, 200, &o);
}

void lt_api_ollama_tags(lt_call *call) {
    answer_models(call, false);
}

void lt_api_ollama_ps(lt_call *call) {
    answer_models(call, true);
}

static void put_capabilities(lt_json_out *o, const lt_server *s) {
    const bool chats = strcmp(s->template_source, "none") != 0;
    lt_out_key_open(o, "capabilities", '[');
    lt_out_text(o, "completion");
    lt_out_text(o, "embedding");
    if (chats) {
        lt_out_text(o, "tools");
    }
    if (lt_parse_reasons(&s->marks)) {
        lt_out_text(o, "thinking");
    }
    lt_out_shut(o, ']');
}

static void put_model_info(lt_json_out *o, const lt_server *s) {
    const lt_model_spec *spec = lt_model_get_spec(s->model);
    const char *family = lt_family_name(spec->family);
    const struct {
        const char *key;
        int64_t value;
    } rows[] = {{"context_length", lt_server_context(s)},
                {"embedding_length", spec->width},
                {"block_count", spec->n_layers},
                {"attention.head_count", spec->n_heads},
                {"vocab_size", spec->vocab_size}};
    lt_out_key_open(o, "model_info", '{');
    lt_out_key_str(o, "general.architecture", family);
    lt_out_key_str(o, "general.basename", s->name);
    lt_out_key_int(o, "general.parameter_count", lt_model_spec_params(spec));
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char key[96];
        snprintf(key, sizeof key, "%s.%s", family, rows[i].key);
        lt_out_key_int(o, key, rows[i].value);
    }
    lt_out_shut(o, '}');
}

static const lt_field show_fields[] = {
    LT_STR("model", model),    LT_STR("name", model),
    LT_NOTHING("verbose"),     LT_REFUSED("options", "there are none"),
    LT_ONLY("system", "\"\""), LT_ONLY("template", "\"\"")};
const lt_field_table lt_fields_ollama_show = LT_FIELD_TABLE(show_fields, "model");

void lt_api_ollama_show(lt_call *call) {
    const lt_server *s = call->server;
    lt_api_error e = {0};
    lt_json_out o = {0};
    lt_api_params a;

    lt_api_params_defaults(&a);
    if (!lt_call_read(call, &a, show_fields, sizeof show_fields / sizeof *show_fields, &e) ||
        !lt_ollama_check_model(s, &a, &e)) {
        lt_call_error(call, &e);
        lt_api_params_free(&a);
        return;
    }
    lt_out_open(&o, '{');
    lt_out_key_str(&o, "modelfile", "");
    lt_out_key_str(&o, "parameters", "");
    lt_out_key_str(&o, "template", lt_chat_template_text(s->template));
    put_details(&o, s);
    put_model_info(&o, s);
    put_capabilities(&o, s);
    lt_out_key(&o, "modified_at");
    lt_ollama_when(&o, modified(s));
    lt_out_shut(&o, '}');
    lt_call_json(call, 200, &o);
    lt_api_params_free(&a);
}

/* ---- Embeddings ---- */

static void put_embedding(lt_json_out *o, const float *x, int64_t width) {
    lt_out_open(o, '[');
    for (int64_t i = 0; i < width; i++) {
        lt_out_real(o, (double)x[i]);
    }
    lt_out_shut(o, ']');
}

/* api/embeddings has a single prompt, and a single list. */
static void format_finish(lt_reply *j) {
    lt_json_out *o = &j->out;
    const int64_t width = lt_model_get_spec(j->server->model)->width;
    const bool one = j->params.prompt != NULL;

    for (int64_t i = 0; i < j->n_parts; i++) {
        o->failed = o->failed || j->parts[i].embedding == NULL;
    }
    if (o->failed) {
        return;
    }
    lt_out_open(o, '{');
    if (one) {
        lt_out_key(o, "embedding");
        put_embedding(o, j->parts[0].embedding, width);
        lt_out_shut(o, '}');
        return;
    }
    lt_out_key_str(o, "model", j->params.model);
    lt_out_key_open(o, "embeddings", '[');
    for (int64_t i = 0; i < j->n_parts; i++) {
        put_embedding(o, j->parts[i].embedding, width);
    }
    lt_out_shut(o, ']');
    lt_out_key_int(o, "total_duration", (int64_t)(1e9 * (lt_clock_s() - j->arrived_s)));
    lt_out_key_int(o, "load_duration", 0);
    lt_out_key_int(o, "prompt_eval_count", lt_reply_prompt_tokens(j));
    lt_out_shut(o, '}');
}

static const lt_formatter formatter = {.finish = format_finish};

static bool prepare(lt_reply *j, lt_api_error *e) {
    const lt_api_params *a = &j->params;
    const int64_t width = lt_model_get_spec(j->server->model)->width;
    const json_t *input = a->prompt != NULL ? a->prompt : a->input;

    if (input == NULL) {
        return lt_api_refuse(e, "input", "'input' is missing");
    }
    if (a->dimensions > 0 && a->dimensions != width) {
        return lt_api_refuse(e, "dimensions",
                             "'dimensions' is %lld; this model's embeddings have %lld",
                             (long long)a->dimensions, (long long)width);
    }
    j->request.embed = true;
    j->request.logprobs = j->request.prompt_logprobs = -1;
    return lt_prompts_add(j, input, a->prompt != NULL ? "prompt" : "input", e);
}

static void embed(lt_call *call, const lt_field *rows, size_t n_rows) {
    lt_api_error e = {0};
    lt_api_params a;
    lt_reply *j;

    lt_api_params_defaults(&a);
    a.add_special = true;
    a.truncate = true;
    if (!lt_call_read(call, &a, rows, n_rows, &e) || !lt_ollama_check_model(call->server, &a, &e)) {
        lt_call_error(call, &e);
        lt_api_params_free(&a);
        return;
    }
    a.truncate_prompt = a.truncate ? -1 : -2;
    j = lt_reply_open(call, &formatter, &a, "embd-");
    if (j == NULL) {
        return;
    }
    if (!prepare(j, &e)) {
        lt_reply_refuse(call, j, &e);
        return;
    }
    lt_reply_start(call, j);
}

static const lt_field embed_fields[] = {LT_JSON("input", input), LT_STR("model", model),
                                        LT_BOOL("truncate", truncate),
                                        LT_I64("dimensions", dimensions, 1, 1e6),
                                        /* Options of text generation. */
                                        LT_NOTHING("options"), LT_NOTHING("keep_alive")};
const lt_field_table lt_fields_ollama_embed = LT_FIELD_TABLE(embed_fields, "model");

void lt_api_ollama_embed(lt_call *call) {
    embed(call, embed_fields, sizeof embed_fields / sizeof *embed_fields);
}

static const lt_field embeddings_fields[] = {LT_JSON("prompt", prompt), LT_STR("model", model),
                                             LT_NOTHING("options"), LT_NOTHING("keep_alive")};
const lt_field_table lt_fields_ollama_embeddings = LT_FIELD_TABLE(embeddings_fields, "model");

void lt_api_ollama_embeddings(lt_call *call) {
    embed(call, embeddings_fields, sizeof embeddings_fields / sizeof *embeddings_fields);
}

/* ---- What the server does not do ---- */

void lt_api_ollama_refuse(lt_call *call) {
    lt_api_error e;
    lt_api_refuse(
        &e, NULL,
        "%.60s is not supported here: the server has the models that it was started with, "
        "'%.100s' first",
        call->request->path, call->server->name);
    e.status = 501;
    lt_call_error(call, &e);
}
