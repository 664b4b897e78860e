/* scores.c: texts are judged, not written: /score, /rerank, /classify and /pooling, in the
 * shapes of vLLM and Jina, by the served model or by the reward model beside it.
 *
 *     model with a score head   a prompt is a text, or a query followed by a document; its values
 *                               are those of the head at the last token
 *     head that judges tokens   pooling gives the values of each token or, where the model's folder
 *                               says what follows a step, of the ends of steps
 *     language model            score and rerank compare embeddings (their cosine); pooling gives
 *                               the embedding
 *
 * As at vLLM, values pass through an activation unless use_activation is false: the sigmoid of one
 * value, the softmax of several. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/json.h"
#include "data/tokenizer/bpe.h"
#include "serve/api/formats/conversation.h"
#include "serve/api/align/judge.h"
#include "serve/api/formats/prompts.h"
#include "serve/api/reply.h"
#include "serve/api/route.h"

#define SHARED_FIELDS                                                                              \
    LT_STR("model", model), LT_BOOL("use_activation", judge.activate),                             \
        LT_BOOL("activation", judge.activate),                                                     \
        LT_I64("truncate_prompt_tokens", truncate_prompt, -1, 1e9),                                \
        LT_I64("priority", priority, -1e6, 1e6), LT_STR("cache_salt", cache_salt),                 \
        LT_NOTHING("user"), LT_NOTHING("request_id")

static const lt_field score_fields[] = {
    LT_JSON("queries", judge.queries),       LT_JSON("documents", judge.documents),
    LT_JSON("text_1", judge.queries),        LT_JSON("text_2", judge.documents),
    LT_JSON("data_1", judge.queries),        LT_JSON("data_2", judge.documents),
    LT_ONLY("encoding_format", "\"float\""), SHARED_FIELDS};
const lt_field_table lt_fields_score = LT_FIELD_TABLE(score_fields, "");

static const lt_field rerank_fields[] = {
    LT_JSON("query", judge.queries), LT_JSON("documents", judge.documents),
    LT_I64("top_n", judge.top_n, 0, 1e9), LT_BOOL("return_documents", judge.with_documents),
    SHARED_FIELDS};
const lt_field_table lt_fields_rerank = LT_FIELD_TABLE(rerank_fields, "query,documents");

static const lt_field classify_fields[] = {LT_JSON("input", input), LT_JSON("messages", messages),
                                           SHARED_FIELDS};
const lt_field_table lt_fields_classify = LT_FIELD_TABLE(classify_fields, "");

static const lt_field pooling_fields[] = {LT_JSON("input", input),
                                          LT_JSON("messages", messages),
                                          LT_STR("task", judge.task),
                                          LT_STR("encoding_format", encoding_format),
                                          LT_I64("dimensions", dimensions, 1, 1e6),
                                          LT_BOOL("add_generation_prompt", judge.generation),
                                          SHARED_FIELDS};
const lt_field_table lt_fields_pooling = LT_FIELD_TABLE(pooling_fields, "");

/* ---- Values ---- */

static int64_t n_scores(const lt_reply *j) {
    return lt_model_spec_says(lt_model_get_spec(j->model->model));
}

/* Whether the head judges tokens, and their values are requested. */
static bool of_tokens(const lt_reply *j) {
    return j->request.score && lt_model_get_spec(j->model->model)->token_scores;
}

/* Apply the activation to the n values of a text or token; the results are out (n). */
static void activate(const lt_reply *j, const float *values, int64_t n, double *out) {
    double high = (double)values[0], sum = 0;
    for (int64_t i = 0; i < n; i++) {
        out[i] = (double)values[i];
        high = out[i] > high ? out[i] : high;
    }
    if (!j->params.judge.activate || !j->request.score) {
        return;
    }
    if (n == 1) {
        out[0] = 1 / (1 + exp(-out[0]));
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        out[i] = exp(out[i] - high);
        sum += out[i];
    }
    for (int64_t i = 0; i < n; i++) {
        out[i] /= sum;
    }
}

/* The cosine of the angle between the embeddings of query and document, which have length 1. */
static double cosine(const lt_part *a, const lt_part *b) {
    double sum = 0;
    for (int64_t i = 0; i < a->n_embedding; i++) {
        sum += (double)a->embedding[i] * (double)b->embedding[i];
    }
    return sum;
}

/* The number of pairs is that of documents. With a score head each part is a pair; with embeddings
 * the parts are the queries and then the documents. */
static int64_t n_pairs(const lt_reply *j) {
    return j->request.score ? j->n_parts : j->n_parts - j->params.judge.n_queries;
}

static double pair_score(const lt_reply *j, int64_t i) {
    const int64_t n = j->params.judge.n_queries;
    double value = 0;
    if (!j->request.score) {
        return cosine(&j->parts[n == 1 ? 0 : i], &j->parts[n + i]);
    }
    activate(j, j->parts[i].embedding, 1, &value);
    return value;
}

/* ---- Answers ---- */

static bool complete(lt_reply *j) {
    for (int64_t i = 0; i < j->n_parts; i++) {
        j->out.failed = j->out.failed || j->parts[i].embedding == NULL;
    }
    return !j->out.failed;
}

static void head(lt_reply *j, bool is_list) {
    lt_json_out *o = &j->out;
    lt_out_open(o, '{');
    lt_out_key_str(o, "id", j->id);
    if (is_list) {
        lt_out_key_str(o, "object", "list");
        lt_out_key_int(o, "created", j->created);
    }
    lt_out_key_str(o, "model", j->model->name);
}

static void tail(lt_reply *j) {
    lt_json_out *o = &j->out;
    const int64_t tokens = lt_reply_prompt_tokens(j);
    lt_out_key_open(o, "usage", '{');
    lt_out_key_int(o, "prompt_tokens", tokens);
    lt_out_key_int(o, "total_tokens", tokens);
    lt_out_shut(o, '}');
    lt_out_shut(o, '}');
}

static void finish_score(lt_reply *j) {
    lt_json_out *o = &j->out;
    if (!complete(j)) {
        return;
    }
    head(j, true);
    lt_out_key_open(o, "data", '[');
    for (int64_t i = 0; i < n_pairs(j); i++) {
        lt_out_open(o, '{');
        lt_out_key_int(o, "index", i);
        lt_out_key_str(o, "object", "score");
        lt_out_key_real(o, "score", pair_score(j, i));
        lt_out_shut(o, '}');
    }
    lt_out_shut(o, ']');
    tail(j);
}

typedef struct {
    double score;
    int64_t index;
} ranked;

static int best_first(const void *a, const void *b) {
    const ranked *x = a, *y = b;
    return x->score != y->score ? (x->score < y->score) - (x->score > y->score)
                                : (x->index > y->index) - (x->index < y->index);
}

static void put_document(lt_json_out *o, const json_t *document) {
    lt_out_key_open(o, "document", '{');
    lt_out_key_value(o, "text",
                     json_is_object(document) ? json_object_get(document, "text") : document);
    lt_out_shut(o, '}');
}

static void finish_rerank(lt_reply *j) {
    lt_json_out *o = &j->out;
    const int64_t n = n_pairs(j), top = j->params.judge.top_n;
    ranked *order = malloc((size_t)n * sizeof *order);
    if (order == NULL || !complete(j)) {
        o->failed = true;
        free(order);
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        order[i] = (ranked){pair_score(j, i), i};
    }
    qsort(order, (size_t)n, sizeof *order, best_first);
    head(j, false);
    lt_out_key_open(o, "results", '[');
    for (int64_t i = 0; i < n && (top == 0 || i < top); i++) {
        lt_out_open(o, '{');
        lt_out_key_int(o, "index", order[i].index);
        if (j->params.judge.with_documents) {
            put_document(o, json_array_get(j->params.judge.documents, (size_t)order[i].index));
        }
        lt_out_key_real(o, "relevance_score", order[i].score);
        lt_out_shut(o, '}');
    }
    lt_out_shut(o, ']');
    tail(j);
    free(order);
}

static void put_label(lt_json_out *o, const lt_reply *j, int64_t best) {
    char key[32], usual[48];
    const char *name;
    snprintf(key, sizeof key, "%lld", (long long)best);
    snprintf(usual, sizeof usual, "LABEL_%lld", (long long)best);
    name = json_string_value(json_object_get(j->model->labels, key));
    lt_out_key_str(o, "label", name != NULL ? name : usual);
}

static void put_class(lt_json_out *o, const lt_reply *j, const lt_part *p, double *values) {
    int64_t best = 0;
    activate(j, p->embedding, p->n_embedding, values);
    for (int64_t i = 1; i < p->n_embedding; i++) {
        best = values[i] > values[best] ? i : best;
    }
    put_label(o, j, best);
    lt_out_key_open(o, "probs", '[');
    for (int64_t i = 0; i < p->n_embedding; i++) {
        lt_out_real(o, values[i]);
    }
    lt_out_shut(o, ']');
    lt_out_key_int(o, "num_classes", p->n_embedding);
}

static void put_pooled(lt_json_out *o, const lt_reply *j, const lt_part *p, double *values) {
    lt_out_key_str(o, "object", "pooling");
    lt_out_key(o, "data");
    const bool in_base64 = lt_embedding_in_base64(&j->params);
    const int64_t n = of_tokens(j) ? n_scores(j) : p->n_embedding;
    for (int64_t from = 0; from < p->n_embedding; from += n) {
        activate(j, p->embedding + from, n, values);
        for (int64_t i = 0; i < n; i++) {
            p->embedding[from + i] = (float)values[i];
        }
    }
    if (!of_tokens(j) || in_base64) { /* The rows of tokens, one after another. */
        lt_embedding_write(o, p->embedding, p->n_embedding, in_base64);
        return;
    }
    lt_out_open(o, '[');
    for (int64_t from = 0; from < p->n_embedding; from += n) {
        lt_embedding_write(o, p->embedding + from, n, false);
    }
    lt_out_shut(o, ']');
}

/* One object of `data` for each part. */
static void finish_each(lt_reply *j, void (*put)(lt_json_out *o, const lt_reply *j,
                                                 const lt_part *p, double *values)) {
    lt_json_out *o = &j->out;
    double *values = complete(j) ? calloc((size_t)j->parts[0].n_embedding, sizeof *values) : NULL;
    if (values == NULL) {
        o->failed = true;
        return;
    }
    head(j, true);
    lt_out_key_open(o, "data", '[');
    for (int64_t i = 0; i < j->n_parts; i++) {
        lt_out_open(o, '{');
        lt_out_key_int(o, "index", i);
        put(o, j, &j->parts[i], values);
        lt_out_shut(o, '}');
    }
    lt_out_shut(o, ']');
    tail(j);
    free(values);
}

static void finish_classify(lt_reply *j) {
    finish_each(j, put_class);
}

static void finish_pooling(lt_reply *j) {
    finish_each(j, put_pooled);
}

/* ---- Requests ---- */

/* By its own name or by the served model's. */
static bool check_model(const lt_reply *j, lt_api_error *e) {
    const char *name = j->params.model;
    return (name != NULL && strcmp(name, j->model->name) == 0) ||
           lt_server_check_model(j->server, &j->params, e);
}

/* transformers reads the last token that is not padding, even if the text itself ends with the
 * padding token. */
static void cut_padding(const lt_reply *j, lt_ids *ids) {
    if (j->request.score && ids->n > 0) {
        ids->n = (size_t)lt_model_score_at(lt_model_get_spec(j->model->model),
                                           (const int32_t *)ids->data, (int64_t)ids->n) +
                 1;
    }
}

static bool add_ids(lt_reply *j, lt_ids *ids, const char *param, lt_api_error *e) {
    if (!of_tokens(j)) {
        cut_padding(j, ids);
    }
    if (!lt_reply_add(j, ids, e)) {
        snprintf(e->param, sizeof e->param, "%s", param);
        return false;
    }
    return true;
}

static bool encode(lt_reply *j, const json_t *text, const char *param, lt_ids *out,
                   lt_api_error *e) {
    return lt_server_may_fit(j->model, json_string_length(text), param, e) &&
           lt_server_encode(j->model, json_string_value(text), json_string_length(text),
                            LT_ENCODE_DEFAULT, out, e);
}

/* A document is a string, or Jina's {"text": string}. */
static const json_t *text_of(const json_t *one) {
    const json_t *text = json_is_object(one) ? json_object_get(one, "text") : one;
    return lt_json_is_text(text) ? text : NULL;
}

/* A list of texts; one text counts as a list. */
static bool read_texts(const json_t **list, const char *param, lt_reply *j, lt_api_error *e) {
    if (*list == NULL) {
        return lt_api_refuse(e, param, "'%s' is missing", param);
    }
    if (text_of(*list) != NULL) { /* The request's tree owns the list. */
        json_t *one = json_pack("[O]", *list);
        if (one == NULL || json_object_set_new(j->params.root, param, one) != 0) {
            return lt_api_refuse_oom(e);
        }
        *list = one;
    }
    for (size_t i = 0; i < json_array_size(*list); i++) {
        if (text_of(json_array_get(*list, i)) == NULL) {
            return lt_api_refuse(e, param, "'%s'[%zu] is not a text", param, i);
        }
    }
    return json_array_size(*list) > 0 ||
           lt_api_refuse(e, param, "'%s' must be a text or a list of texts", param);
}

/* The query, then the document, each encoded as a separate text: this equals transformers'
 * tokenizer(query, document) if the tokenizer adds one token before a text, or none. */
static bool add_pair(lt_reply *j, const json_t *query, const json_t *document, const char *param,
                     lt_api_error *e) {
    lt_ids ids = {0};
    if (!encode(j, text_of(query), param, &ids, e) ||
        !encode(j, text_of(document), param, &ids, e)) {
        lt_ids_free(&ids);
        return false;
    }
    return add_ids(j, &ids, param, e);
}

static bool add_texts(lt_reply *j, const json_t *list, const char *param, lt_api_error *e) {
    for (size_t i = 0; i < json_array_size(list); i++) {
        lt_ids ids = {0};
        if (!encode(j, text_of(json_array_get(list, i)), param, &ids, e)) {
            lt_ids_free(&ids);
            return false;
        }
        if (!add_ids(j, &ids, param, e)) {
            return false;
        }
    }
    return true;
}

static bool prepare_pairs(lt_reply *j, lt_api_error *e) {
    const char *const q = lt_api_params_said(
        &j->params, (const char *const[]){"queries", "query", "text_1", "data_1", NULL});
    const char *const d = lt_api_params_said(
        &j->params, (const char *const[]){"documents", "text_2", "data_2", NULL});
    const json_t **queries = &j->params.judge.queries, **documents = &j->params.judge.documents;
    size_t n, n_documents;
    if (!read_texts(queries, q, j, e) || !read_texts(documents, d, j, e)) {
        return false;
    }
    n = json_array_size(*queries);
    n_documents = json_array_size(*documents);
    if (n != 1 && n != n_documents) {
        return lt_api_refuse(e, q,
                             "'%s' has %zu texts and '%s' %zu: the first must be 1, or both equal",
                             q, n, d, n_documents);
    }
    j->params.judge.n_queries = (int64_t)n;
    if (of_tokens(j)) {
        return lt_api_refuse(e, "model", "this model judges tokens, not texts: use /pooling");
    }
    if (n_scores(j) > 1) {
        return lt_api_refuse(e, "model", "a score is one value; this model has %lld: use /classify",
                             (long long)n_scores(j));
    }
    if (!j->request.score) {
        return add_texts(j, *queries, q, e) && add_texts(j, *documents, d, e);
    }
    for (size_t i = 0; i < n_documents; i++) {
        if (!add_pair(j, json_array_get(*queries, n == 1 ? 0 : i), json_array_get(*documents, i), d,
                      e)) {
            return false;
        }
    }
    return true;
}

/* The rerank calls of Cohere, Jina and vLLM have one query. */
static bool prepare_rerank(lt_reply *j, lt_api_error *e) {
    return (text_of(j->params.judge.queries) != NULL ||
            lt_api_refuse(e, "query", "'query' must be a text")) &&
           prepare_pairs(j, e);
}

/* If the head judges tokens, read it at each token of every part. */
static bool read_all_tokens(lt_reply *j, lt_api_error *e) {
    for (int64_t i = 0; of_tokens(j) && i < j->n_parts; i++) {
        lt_part *p = &j->parts[i];
        for (uint32_t k = 0; k < p->prompt.n; k++) {
            if (lt_ids_append(&p->score_at, &k, 1) != LT_OK) {
                return lt_api_refuse_oom(e);
            }
        }
    }
    return true;
}

static bool add_messages(lt_reply *j, lt_api_error *e) {
    const lt_conversation c = {.messages = j->params.messages,
                               .add_generation_prompt = j->params.judge.generation};
    lt_ids ids = {0};
    bool opened;
    if (!lt_conversation_ids(j->model, &c, &ids, &opened, e)) {
        lt_ids_free(&ids);
        return false;
    }
    return add_ids(j, &ids, "messages", e) && read_all_tokens(j, e);
}

/* ---- Steps ---- */

/* Whether it is a process reward model whose folder names the separator of steps. */
static bool of_steps(const lt_reply *j) {
    return of_tokens(j) && lt_model_get_spec(j->model->model)->step_separator[0] != '\0';
}

/* Append the tokens of a text's steps to *ids, and the position of each step's last token to *at.
 * Text after the last separator is not a whole step, and is omitted. */
static bool add_steps(lt_reply *j, const char *text, size_t n, lt_ids *ids, lt_ids *at,
                      lt_api_error *e) {
    const lt_steps *s = &j->model->steps;
    const char *step;
    size_t bytes;
    bool ok = true;
    while (ok && lt_steps_next(&text, &n, &s->text, &s->bytes, 1, &step, &bytes)) {
        ok = text == step + bytes || lt_judge_add_step(j->model, step, bytes, ids, at, e);
    }
    return ok;
}

/* Add a part: the prompt *ids, which is taken over, followed by the steps of the text. */
static bool add_judged(lt_reply *j, lt_ids *ids, const char *text, size_t n, const char *param,
                       lt_api_error *e) {
    lt_ids at = {0};
    bool ok = add_steps(j, text, n, ids, &at, e);
    ok = ok && (at.n > 0 || lt_api_refuse(e, param,
                                          "'%s' has no step: the text after each, \"%.40s\", is "
                                          "not in it",
                                          param, j->model->steps.text));
    if (!ok) {
        lt_ids_free(ids);
    }
    if (!ok || !add_ids(j, ids, param, e)) {
        lt_ids_free(&at);
        return false;
    }
    j->parts[j->n_parts - 1].score_at = at;
    return true;
}

/* The last message is the answer whose steps are judged. The messages before it become the prompt,
 * with the template's opening of an answer. */
static bool add_judged_messages(lt_reply *j, lt_api_error *e) {
    const json_t *all = j->params.messages;
    const size_t n = json_array_size(all);
    const json_t *last = json_array_get(all, n > 0 ? n - 1 : 0),
                 *text = json_object_get(last, "content");
    const char *role = json_string_value(json_object_get(last, "role"));
    json_t *before;
    lt_ids ids = {0};
    bool opened, ok;
    if (role == NULL || strcmp(role, "assistant") != 0 || !json_is_string(text)) {
        return lt_api_refuse(e, "messages",
                             "the last of 'messages' must be the assistant's, a text: its steps "
                             "are judged");
    }
    before = json_copy((json_t *)(uintptr_t)all);
    (void)json_array_remove(before, n - 1);
    const lt_conversation c = {.messages = before, .add_generation_prompt = true};
    ok = lt_conversation_ids(j->model, &c, &ids, &opened, e);
    json_decref(before);
    if (!ok) {
        lt_ids_free(&ids);
        return false;
    }
    return add_judged(j, &ids, json_string_value(text), json_string_length(text), "messages", e);
}

static bool add_judged_texts(lt_reply *j, const json_t *input, lt_api_error *e) {
    const uint32_t bos = j->model->vocabulary.bos;
    const size_t n = json_is_array(input) ? json_array_size(input) : 1;
    for (size_t i = 0; i < n; i++) {
        const json_t *one = json_is_array(input) ? json_array_get(input, i) : input;
        lt_ids ids = {0};
        if (!lt_json_is_text(one)) {
            return lt_api_refuse(e, "input",
                                 "'input' must be a text or a list of texts: steps are found in "
                                 "them by what follows each");
        }
        if (bos != LT_TOKEN_NONE && lt_ids_append(&ids, &bos, 1) != LT_OK) {
            return lt_api_refuse_oom(e);
        }
        if (!lt_server_may_fit(j->model, json_string_length(one), "input", e) ||
            !add_judged(j, &ids, json_string_value(one), json_string_length(one), "input", e)) {
            return false;
        }
    }
    return n > 0 || lt_api_refuse(e, "input", "'input' is an empty list");
}

/* input: as in /v1/embeddings; or messages, by the chat template. */
static bool prepare_input(lt_reply *j, lt_api_error *e) {
    const lt_api_params *a = &j->params;
    if ((a->input == NULL) == (a->messages == NULL)) {
        return lt_api_refuse(e, "input", "one of 'input' and 'messages' is needed");
    }
    if (of_steps(j)) {
        return a->messages != NULL ? add_judged_messages(j, e) : add_judged_texts(j, a->input, e);
    }
    if (a->messages != NULL) {
        return add_messages(j, e);
    }
    if (!lt_prompts_add(j, a->input, "input", e)) {
        return false;
    }
    for (int64_t i = 0; !of_tokens(j) && i < j->n_parts; i++) {
        cut_padding(j, &j->parts[i].prompt);
    }
    return read_all_tokens(j, e);
}

static bool prepare_classify(lt_reply *j, lt_api_error *e) {
    if (n_scores(j) == 0) {
        return lt_api_refuse(e, "model",
                             "this model has no score head; /classify needs one (num_labels)");
    }
    if (of_tokens(j)) {
        return lt_api_refuse(e, "model", "this model judges tokens, not texts: use /pooling");
    }
    return prepare_input(j, e);
}

static bool prepare_pooling(lt_reply *j, lt_api_error *e) {
    const char *task = j->params.judge.task;
    const char *const usual = of_tokens(j) ? "token_classify" : "classify";
    const bool classifies = task != NULL && strcmp(task, usual) == 0;
    const int64_t width = lt_model_get_spec(j->model->model)->width;
    int64_t n;
    if (task != NULL && strcmp(task, "embed") != 0 && !classifies) {
        return lt_api_refuse(e, "task", "'task' = %.40s; it may be embed or %s", task, usual);
    }
    if (classifies && n_scores(j) == 0) {
        return lt_api_refuse(e, "task", "this model has no score head: 'task' may be embed");
    }
    j->request.score = j->request.score && (task == NULL || classifies);
    n = j->request.score ? n_scores(j) : width;
    if (j->params.dimensions > 0 && j->params.dimensions != n) {
        return lt_api_refuse(e, "dimensions", "'dimensions' is %lld; here they are %lld",
                             (long long)j->params.dimensions, (long long)n);
    }
    return lt_embedding_check_format(&j->params, e) && prepare_input(j, e);
}

static void judge(lt_call *call, const lt_field_table *fields, const lt_formatter *formatter,
                  const char *prefix, bool (*prepare)(lt_reply *j, lt_api_error *e)) {
    lt_api_error e = {0};
    lt_api_params a;
    lt_reply *j;

    lt_api_params_defaults(&a);
    a.add_special = true;
    if (!lt_call_read(call, &a, fields->rows, fields->n, &e)) {
        lt_call_error(call, &e);
        lt_api_params_free(&a);
        return;
    }
    j = lt_reply_open(call, formatter, &a, prefix);
    if (j == NULL) {
        return;
    }
    j->model = lt_server_judge(call->server);
    j->request.embed = true;
    j->request.score = n_scores(j) > 0;
    j->request.priority = (int)j->params.priority;
    if (!check_model(j, &e) || !prepare(j, &e)) {
        lt_reply_refuse(call, j, &e);
        return;
    }
    lt_reply_start(call, j);
}

void lt_api_score(lt_call *call) {
    static const lt_formatter formatter = {.finish = finish_score};
    judge(call, &lt_fields_score, &formatter, "score-", prepare_pairs);
}

void lt_api_rerank(lt_call *call) {
    static const lt_formatter formatter = {.finish = finish_rerank};
    judge(call, &lt_fields_rerank, &formatter, "rerank-", prepare_rerank);
}

void lt_api_classify(lt_call *call) {
    static const lt_formatter formatter = {.finish = finish_classify};
    judge(call, &lt_fields_classify, &formatter, "classify-", prepare_classify);
}

void lt_api_pooling(lt_call *call) {
    static const lt_formatter formatter = {.finish = finish_pooling};
    judge(call, &lt_fields_pooling, &formatter, "pool-", prepare_pooling);
}
