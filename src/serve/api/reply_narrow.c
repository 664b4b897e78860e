/* reply_narrow.c: vLLM's restrictions of a request: allowed_token_ids, bad_words,
 * truncate_prompt_tokens.
 *
 * A bad word is encoded as at the beginning of a text and as after a space, which differ in most
 * vocabularies. The last token of either encoding is not chosen after its other tokens. Other
 * encodings of the same letters remain possible, as in vLLM. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "serve/narrow.h"
#include "serve/api/reply.h"

static bool read_allowed(lt_reply *j, lt_api_error *e) {
    const json_t *ids = j->params.allowed_ids;
    const size_t n = json_array_size(ids);
    const int64_t V = lt_model_get_spec(j->server->model)->vocab_size;

    if (ids == NULL) {
        return true;
    }
    if (!json_is_array(ids) || n == 0 || (int64_t)n > V) {
        return lt_api_refuse(e, "allowed_token_ids",
                             "'allowed_token_ids' must be a list of 1 to %lld ids", (long long)V);
    }
    j->allowed = malloc(n * sizeof *j->allowed);
    if (j->allowed == NULL) {
        return lt_api_refuse_oom(e);
    }
    for (size_t i = 0; i < n; i++) {
        const json_t *id = json_array_get(ids, i);
        if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) >= V) {
            return lt_api_refuse(e, "allowed_token_ids",
                                 "'allowed_token_ids' must hold ids of the vocabulary of %lld",
                                 (long long)V);
        }
        j->allowed[i] = (int32_t)json_integer_value(id);
    }
    j->request.allowed = j->allowed;
    j->request.n_allowed = (int64_t)n;
    return true;
}

static bool encode_word(lt_reply *j, const char *text, size_t n, lt_ids *out, lt_api_error *e) {
    return lt_server_encode(j->server, text, n, 0, out, e);
}

static bool add_spelling(lt_reply *j, const lt_ids *ids, lt_api_error *e) {
    uint32_t *grown;
    if (ids->n == 0) {
        return true;
    }
    grown = realloc(j->bad.data, (j->bad.n + ids->n) * sizeof *grown);
    if (grown == NULL) {
        return lt_api_refuse_oom(e);
    }
    memcpy(grown + j->bad.n, ids->data, ids->n * sizeof *grown);
    j->bad.data = grown;
    j->bad.n += ids->n;
    j->bad_ends[j->request.n_bad++] = (int64_t)j->bad.n;
    return true;
}

/* As in vLLM: the encoding after a space counts if its first token differs and it has the same
 * number of tokens. */
static bool add_word(lt_reply *j, const json_t *word, lt_api_error *e) {
    const char *text = json_string_value(word);
    const size_t n = json_string_length(word), skip = strspn(text, " ");
    lt_ids bare = {0}, spaced = {0};
    char *behind = malloc(n + 2);
    bool ok = behind != NULL ? true : lt_api_refuse_oom(e);

    if (ok) {
        behind[0] = ' ';
        memcpy(behind + 1, text + skip, n - skip);
        ok = encode_word(j, text, n, &bare, e) &&
             encode_word(j, behind, n - skip + 1, &spaced, e) && add_spelling(j, &bare, e);
    }
    if (ok && spaced.n == bare.n && bare.n > 0 && spaced.data[0] != bare.data[0]) {
        ok = add_spelling(j, &spaced, e);
    }
    free(behind);
    lt_ids_free(&bare);
    lt_ids_free(&spaced);
    return ok;
}

static bool read_bad(lt_reply *j, lt_api_error *e) {
    const json_t *words = j->params.bad_words;
    const size_t n = json_array_size(words);

    if (words == NULL) {
        return true;
    }
    if (!json_is_array(words) || n > LT_NARROW_BAD / 2) {
        return lt_api_refuse(e, "bad_words", "'bad_words' must be a list of at most %d strings",
                             LT_NARROW_BAD / 2);
    }
    j->bad_ends = calloc(2 * n + 1, sizeof *j->bad_ends);
    if (j->bad_ends == NULL) {
        return lt_api_refuse_oom(e);
    }
    for (size_t i = 0; i < n; i++) {
        const json_t *word = json_array_get(words, i);
        if (json_string_length(word) == 0) {
            return lt_api_refuse(e, "bad_words",
                                 "'bad_words' must hold strings of a letter or more");
        }
        if (!add_word(j, word, e)) {
            return false;
        }
    }
    j->request.bad = (const int32_t *)j->bad.data;
    j->request.bad_ends = j->bad_ends;
    return true;
}

bool lt_reply_narrow(lt_reply *j, lt_api_error *e) {
    return read_allowed(j, e) && read_bad(j, e);
}

void lt_reply_truncate(const lt_reply *j, lt_ids *prompt) {
    const int64_t context = lt_server_context(j->model), asked = j->request.max_tokens;
    const int64_t room = asked < 0 ? 1 : asked < context ? asked : context - 1;
    const int64_t most = j->params.truncate_prompt >= 0 ? j->params.truncate_prompt
                         : j->request.embed             ? context
                                                        : context - (room > 0 ? room : 1);
    const size_t keep = most > 0 ? (size_t)most : 1;
    const bool bos = prompt->n > 0 && prompt->data[0] == j->model->vocabulary.bos;

    if (j->params.truncate_prompt < -1 || prompt->n <= keep) {
        return;
    }
    if (j->flavour == LT_FLAVOUR_OLLAMA) { /* Ollama keeps the beginning of a text. */
        prompt->n = keep;
        return;
    }
    memmove(prompt->data, prompt->data + prompt->n - keep, keep * sizeof *prompt->data);
    prompt->n = keep;
    if (bos && keep > 1) {
        prompt->data[0] = j->model->vocabulary.bos;
    }
}
