/* embeddings.c: /v1/embeddings: the mean of the last hidden states, or the last of them if the
 * model's folder says so, normalised to length 1, as numbers or base64 of little-endian float32. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "serve/api/reply.h"
#include "serve/api/formats/prompts.h"
#include "serve/api/route.h"

static const lt_field fields[] = {LT_I64("truncate_prompt_tokens", truncate_prompt, -1, 1e9),
                                  LT_JSON("input", input),
                                  LT_JSON("content", input),
                                  LT_STR("model", model),
                                  LT_STR("encoding_format", encoding_format),
                                  LT_I64("dimensions", dimensions, 1, 1e6),
                                  LT_I64("priority", priority, -1e6, 1e6),
                                  LT_NOTHING("user")};
const lt_field_table lt_fields_embeddings = LT_FIELD_TABLE(fields, "input");

/* ---- The answer ---- */

static void put_base64(lt_json_out *o, const unsigned char *data, size_t n) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    char *text = malloc((n + 2) / 3 * 4 + 1);
    size_t at = 0;

    if (text == NULL) {
        o->failed = true;
        return;
    }
    for (size_t i = 0; i < n; i += 3) {
        const unsigned left = (unsigned)(n - i);
        const unsigned bits = (unsigned)data[i] << 16 |
                              (left > 1 ? (unsigned)data[i + 1] << 8 : 0) |
                              (left > 2 ? data[i + 2] : 0U);
        text[at++] = digits[bits >> 18];
        text[at++] = digits[bits >> 12 & 63];
        text[at++] = left > 1 ? digits[bits >> 6 & 63] : '=';
        text[at++] = left > 2 ? digits[bits & 63] : '=';
    }
    lt_out_str(o, text, at);
    free(text);
}

bool lt_embedding_in_base64(const lt_api_params *a) {
    return a->encoding_format != NULL && strcmp(a->encoding_format, "base64") == 0;
}

bool lt_embedding_check_format(const lt_api_params *a, lt_api_error *e) {
    return a->encoding_format == NULL || strcmp(a->encoding_format, "float") == 0 ||
           lt_embedding_in_base64(a) ||
           lt_api_refuse(e, "encoding_format",
                         "'encoding_format' = %.40s; it may be float or base64",
                         a->encoding_format);
}

void lt_embedding_write(lt_json_out *o, const float *x, int64_t n, bool in_base64) {
    if (in_base64) { /* x86 and ARM are little-endian, as the format is. */
        put_base64(o, (const unsigned char *)x, (size_t)n * sizeof *x);
        return;
    }
    lt_out_open(o, '[');
    for (int64_t i = 0; i < n; i++) {
        lt_out_real(o, x[i]);
    }
    lt_out_shut(o, ']');
}

static void format_finish(lt_reply *j) {
    lt_json_out *o = &j->out;
    const int64_t tokens = lt_reply_prompt_tokens(j);
    lt_out_open(o, '{');
    lt_out_key_str(o, "object", "list");
    lt_out_key_open(o, "data", '[');
    for (int64_t i = 0; i < j->n_parts; i++) {
        if (j->parts[i].embedding == NULL) {
            o->failed = true;
            return;
        }
        lt_out_open(o, '{');
        lt_out_key_str(o, "object", "embedding");
        lt_out_key_int(o, "index", i);
        lt_out_key(o, "embedding");
        lt_embedding_write(o, j->parts[i].embedding, j->parts[i].n_embedding,
                           lt_embedding_in_base64(&j->params));
        lt_out_shut(o, '}');
    }
    lt_out_shut(o, ']');
    lt_out_key_str(o, "model", lt_reply_model(j));
    lt_out_key_open(o, "usage", '{');
    lt_out_key_int(o, "prompt_tokens", tokens);
    lt_out_key_int(o, "total_tokens", tokens);
    lt_out_shut(o, '}');
    lt_out_shut(o, '}');
}

static const lt_formatter formatter = {.finish = format_finish};

/* ---- The request ---- */

static bool prepare(lt_reply *j, lt_api_error *e) {
    const lt_api_params *a = &j->params;
    const int64_t width = lt_model_get_spec(j->server->model)->width;

    if (!lt_embedding_check_format(a, e)) {
        return false;
    }
    if (a->dimensions > 0 && a->dimensions != width) {
        return lt_api_refuse(e, "dimensions",
                             "'dimensions' is %lld; this model's embeddings have "
                             "%lld",
                             (long long)a->dimensions, (long long)width);
    }
    if (a->input == NULL) {
        return lt_api_refuse(e, "input", "'input' is missing");
    }
    j->request.embed = true;
    j->request.logprobs = j->request.prompt_logprobs = -1;
    j->request.priority = (int)a->priority;
    return lt_server_check_model(j->server, a, e) && lt_prompts_add(j, a->input, "input", e);
}

void lt_api_embeddings(lt_call *call) {
    lt_api_error e = {0};
    lt_api_params a;
    lt_reply *j;

    lt_api_params_defaults(&a);
    a.add_special = true;
    if (!lt_call_read(call, &a, fields, sizeof fields / sizeof *fields, &e)) {
        lt_call_error(call, &e);
        lt_api_params_free(&a);
        return;
    }
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
