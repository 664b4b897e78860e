/* reply_write.c: the parts that answers of several endpoints share: usage, finish reasons, tokens
 * with their log-probabilities. */
#include <stdlib.h>
#include <string.h>

#include "data/text_utf8.h"
#include "serve/api/reply.h"

const char *lt_finish_openai(const lt_reply_choice *c) {
    return c->finish == LT_FINISH_LENGTH ? "length" : "stop";
}

int64_t lt_reply_prompt_tokens(const lt_reply *j) {
    int64_t n = 0;
    for (int64_t i = 0; i < j->n_parts; i++) {
        n += (int64_t)j->parts[i].prompt.n;
    }
    return n;
}

int64_t lt_reply_cached_tokens(const lt_reply *j) {
    int64_t n = 0;
    for (int64_t i = 0; i < j->n_parts; i++) {
        n += j->parts[i].cached_tokens;
    }
    return n;
}

int64_t lt_reply_new_tokens(const lt_reply *j) {
    int64_t n = lt_control_tokens(j) + lt_blocks_dropped(j->blocks);
    for (int64_t i = 0; i < j->n_parts; i++) {
        for (int64_t k = 0; k < j->n_choices; k++) {
            n += j->parts[i].choices[k].new_tokens;
        }
    }
    return n;
}

int64_t lt_reply_reasoning_tokens(const lt_reply *j) {
    int64_t n = 0;
    for (int64_t i = 0; i < j->n_parts; i++) {
        for (int64_t k = 0; k < j->n_choices; k++) {
            n += j->parts[i].choices[k].reasoning_tokens;
        }
    }
    return n;
}

static bool is_truncated(const lt_reply *j) {
    bool any = false;
    for (int64_t i = 0; i < j->n_parts; i++) {
        for (int64_t k = 0; k < j->n_choices && j->parts[i].choices != NULL; k++) {
            any = any || lt_reply_is_truncated(&j->parts[i].choices[k]);
        }
    }
    return any;
}

void lt_reply_reports_write(lt_json_out *o, const lt_reply *j) {
    if (is_truncated(j)) {
        lt_out_key_bool(o, "truncated", true);
    }
    if (j->group != NULL) {
        lt_group_write(o, j);
    }
    if (j->blocks != NULL) {
        lt_blocks_write(o, j);
    }
    if (j->control != NULL) {
        lt_control_write(o, j);
    }
}

/* Write the draft tokens of all choices. Accepted ones are a part of completion_tokens, so none
 * after a stop string counts; no text begins with one. Rejected ones are not part of them. */
static void put_drafts(lt_json_out *o, const lt_reply *j) {
    int64_t rejected = 0, accepted = 0;
    for (int64_t i = 0; i < j->n_parts; i++) {
        for (int64_t k = 0; k < j->n_choices; k++) {
            const lt_reply_choice *c = &j->parts[i].choices[k];
            const int64_t most = c->new_tokens > 0 ? c->new_tokens - 1 : 0;
            accepted += c->accepted < most ? c->accepted : most;
            rejected += c->drafted - c->accepted;
        }
    }
    lt_out_key_int(o, "accepted_prediction_tokens", accepted);
    lt_out_key_int(o, "rejected_prediction_tokens", rejected);
}

void lt_usage_write(lt_json_out *o, const lt_reply *j, const char *key) {
    const int64_t prompt = lt_reply_prompt_tokens(j), answer = lt_reply_new_tokens(j);
    lt_out_key_open(o, key, '{');
    lt_out_key_int(o, "prompt_tokens", prompt);
    lt_out_key_int(o, "completion_tokens", answer);
    lt_out_key_int(o, "total_tokens", prompt + answer);
    lt_out_key_open(o, "prompt_tokens_details", '{');
    lt_out_key_int(o, "cached_tokens", lt_reply_cached_tokens(j));
    lt_out_shut(o, '}');
    lt_out_key_open(o, "completion_tokens_details", '{');
    lt_out_key_int(o, "reasoning_tokens", lt_reply_reasoning_tokens(j));
    put_drafts(o, j);
    lt_out_shut(o, '}');
    lt_out_shut(o, '}');
}

void lt_prompt_write(lt_json_out *o, const lt_part *p) {
    char *text = NULL;
    size_t n = 0;
    if (lt_tokenizer_decode(p->reply->server->tokenizer, p->prompt.data, p->prompt.n, false, &text,
                            &n) == LT_OK) {
        lt_out_key(o, "prompt");
        lt_out_str(o, text, n);
    }
    free(text);
}

static double per(double a, double b) {
    return b > 0 ? a / b : 0;
}

/* The prompt's last step gives the first token, so n tokens take n - 1 steps of decoding. */
void lt_timings_write(lt_json_out *o, const lt_part *p, int64_t made) {
    const double read = (double)((int64_t)p->prompt.n - p->cached_tokens);
    const double steps = made > 1 ? (double)(made - 1) : 0;
    const double prompt_ms = 1000 * p->prefill_s, decode_ms = 1000 * p->decode_s;

    lt_out_key_open(o, "timings", '{');
    lt_out_key_int(o, "cache_n", p->cached_tokens);
    lt_out_key_real(o, "prompt_n", read);
    lt_out_key_real(o, "prompt_ms", prompt_ms);
    lt_out_key_real(o, "prompt_per_token_ms", per(prompt_ms, read));
    lt_out_key_real(o, "prompt_per_second", per(1000 * read, prompt_ms));
    lt_out_key_int(o, "predicted_n", made);
    lt_out_key_real(o, "predicted_ms", decode_ms);
    lt_out_key_real(o, "predicted_per_token_ms", per(decode_ms, steps));
    lt_out_key_real(o, "predicted_per_second", per(1000 * steps, decode_ms));
    lt_out_shut(o, '}');
}

void lt_piece_write(lt_json_out *o, const lt_server *s, int32_t id) {
    char valid[1024];
    size_t n = 0;
    const char *piece = lt_tokenizer_text(s->tokenizer, (uint32_t)id, &n);

    if (piece == NULL || 3 * n > sizeof valid) {
        lt_out_str(o, piece != NULL ? piece : "",
                   piece != NULL ? lt_utf8_valid_prefix(piece, n) : 0);
        return;
    }
    n = lt_utf8_replace_invalid(valid, piece, n);
    lt_out_str(o, valid, n);
}

void lt_piece_or_id_write(lt_json_out *o, const lt_server *s, int32_t id, bool as_id) {
    char text[32];
    if (as_id) {
        snprintf(text, sizeof text, "token_id:%d", (int)id);
        lt_out_text(o, text);
    } else {
        lt_piece_write(o, s, id);
    }
}

void lt_token_write(lt_json_out *o, const lt_server *s, int32_t id, float logprob, bool as_id) {
    size_t n = 0;
    const char *piece = lt_tokenizer_text(s->tokenizer, (uint32_t)id, &n);

    lt_out_key(o, "token");
    lt_piece_or_id_write(o, s, id, as_id);
    lt_out_key_real(o, "logprob", logprob);
    lt_out_key_open(o, "bytes", '[');
    for (size_t i = 0; piece != NULL && i < n; i++) {
        lt_out_int(o, (unsigned char)piece[i]);
    }
    lt_out_shut(o, ']');
}

void lt_logprobs_write(lt_json_out *o, const lt_server *s, const lt_token_logs *l, size_t from,
                       size_t to, int top) {
    lt_out_open(o, '[');
    for (size_t i = from; i < to; i++) {
        const lt_token_log *row = &l->rows[i];
        lt_out_open(o, '{');
        lt_token_write(o, s, row->id, row->logprob, l->as_ids);
        lt_out_key_open(o, "top_logprobs", '[');
        for (int k = 0; k < row->n_top && k < top; k++) {
            const struct lt_token_top *t = &l->tops[row->top_at + (size_t)k];
            lt_out_open(o, '{');
            lt_token_write(o, s, t->id, t->logprob, l->as_ids);
            lt_out_shut(o, '}');
        }
        lt_out_shut(o, ']');
        lt_out_shut(o, '}');
    }
    lt_out_shut(o, ']');
}

static void put_prompt_logprob(lt_json_out *o, const lt_server *s, int32_t id, float logprob,
                               int rank) {
    char key[16];
    snprintf(key, sizeof key, "%d", (int)id);
    lt_out_key_open(o, key, '{');
    lt_out_key_real(o, "logprob", (double)logprob);
    lt_out_key_int(o, "rank", rank);
    lt_out_key(o, "decoded_token");
    lt_piece_write(o, s, id);
    lt_out_shut(o, '}');
}

void lt_prompt_logprobs_write(lt_json_out *o, const lt_part *p) {
    const lt_token_logs *l = &p->prompt_logs;
    /* The engine may report more, for echo. */
    const int64_t top = p->reply->params.prompt_logprobs;

    lt_out_key_open(o, "prompt_logprobs", '[');
    for (size_t i = 0; i < l->n; i++) {
        const lt_token_log *row = &l->rows[i];
        bool told = false;
        if (!row->has_logprob) {
            lt_out_null(o);
            continue;
        }
        lt_out_open(o, '{');
        for (int k = 0; k < row->n_top && k < top; k++) {
            const struct lt_token_top *t = &l->tops[row->top_at + (size_t)k];
            told |= t->id == row->id;
            put_prompt_logprob(o, p->reply->server, t->id, t->logprob, k + 1);
        }
        if (!told) {
            put_prompt_logprob(o, p->reply->server, row->id, row->logprob, row->rank + 1);
        }
        lt_out_shut(o, '}');
    }
    lt_out_shut(o, ']');
}

void lt_ids_write(lt_json_out *o, const char *key, const lt_token_logs *l, size_t from, size_t to) {
    lt_out_key_open(o, key, '[');
    for (size_t i = from; i < to; i++) {
        lt_out_int(o, l->rows[i].id);
    }
    lt_out_shut(o, ']');
}

void lt_prompt_ids_write(lt_json_out *o, const lt_part *p) {
    lt_out_key_open(o, "prompt_token_ids", '[');
    for (size_t i = 0; i < p->prompt.n; i++) {
        lt_out_int(o, (int64_t)p->prompt.data[i]);
    }
    lt_out_shut(o, ']');
}
