/* reply.h: one generation request in progress: from prompts to the engine, and from the engine's
 * tokens to the text of an answer.
 *
 *   handler ─▶ lt_reply_open ─▶ add prompts ─▶ lt_reply_start ─▶ engine ─┐
 *                                                                    │ events, on the loop's thread
 *   formatter->text ◀── stop strings ◀── UTF-8 stream ◀── token ◀──────┘
 *      │
 *      ├─ a choice ends: formatter->choice_end
 *      └─ all have ended: formatter->finish, the answer is sent
 *
 * A reply has parts (one prompt = one request to the engine) and choices (part i's choice c is
 * choice i * n + c of the answer). The formatter writes the answer in the format of an endpoint. A
 * reply outlives its client: when the client disconnects, the parts are cancelled, and the reply is
 * freed at the engine's last DONE. */
#ifndef LT_SERVE_REPLY_H
#define LT_SERVE_REPLY_H

#include "serve/api/adapters.h"
#include "serve/api/compile.h"
#include "serve/api/align/blocks.h"
#include "serve/api/align/borders.h"
#include "serve/api/align/control.h"
#include "serve/api/align/group.h"
#include "serve/api/server.h"
#include "serve/stop_scan.h"

typedef struct lt_part lt_part;
typedef struct lt_reply_choice lt_reply_choice;

typedef struct {
    int32_t id, n_top, rank;
    float logprob;
    bool has_logprob;
    size_t top_at;  /* Index of its first alternative in tops. */
    size_t text_at; /* Characters of text before this token. */
} lt_token_log;

typedef struct {
    lt_token_log *rows;
    size_t n, room, sent; /* sent: number of rows that a stream has reported. */
    struct lt_token_top {
        int32_t id;
        float logprob;
    } * tops;
    size_t n_tops, tops_room;
    size_t text_n;
    bool behind_text; /* The first piece keeps its leading space, because it continues a text. */
    bool as_ids;      /* Tokens are written as "token_id:N". */
} lt_token_logs;

typedef struct {
    void (*begin)(lt_reply *j);        /* Streams: headers are sent. */
    void (*token)(lt_reply_choice *c); /* May be NULL. */
    /* Called with each piece of text. */
    void (*text)(lt_reply_choice *c, const char *text, size_t n);
    /* For chat_output.h: called with each piece as soon as it is final. fresh: the item has just
     * begun; a call begins without text, and its arguments follow. */
    void (*piece)(lt_reply_choice *c, int item, bool fresh, const char *text, size_t n);
    /* Append the text of a choice that counts as its answer; NULL: all of it. */
    void (*answer)(const lt_reply_choice *c, lt_json_out *out);
    void (*choice_end)(lt_reply_choice *c); /* finish and stop are set. */
    void (*finish)(lt_reply *j);            /* Write the answer's (last) part into j->out. */
    void (*failed)(lt_reply *j, const lt_api_error *e); /* In a stream: the error's event. */
    void (*free)(lt_reply *j);                          /* May be NULL. */
} lt_formatter;

struct lt_reply_choice {
    lt_reply *reply;
    lt_part *part;
    int32_t choice; /* Index in its part. */
    int index;      /* Index in the answer. */
    lt_tokenizer_stream *stream;
    lt_stop_scan stop;
    lt_json_out text;   /* All text that passed the stop strings. */
    lt_token_logs logs; /* When log-probabilities or ids are requested. */
    int64_t new_tokens, reasoning_tokens;
    int64_t dropped;           /* Number of tokens that shifts of its context have dropped. */
    int64_t drafted, accepted; /* Number of draft tokens, and of accepted ones. */
    double logprob_sum;
    bool ended;
    lt_finish finish;
    int stop_index; /* Index of the stop string; -1: none. */
    int32_t stop_id;
    void *state; /* The formatter's own. */
};

struct lt_part {
    lt_reply *reply;
    uint64_t id; /* Assigned by the engine. */
    lt_ids prompt;
    lt_reply_choice *choices; /* n_choices of them. */
    lt_token_logs prompt_logs;
    int32_t first_choice; /* The first of the choices that the engine is running. */
    int64_t most_tokens;  /* Most tokens of a choice, once it is submitted. */
    bool submitted, done;
    bool cut; /* Its prompt was longer than the context. */
    /* It was stopped and continues; the cost of its prompt was already reported. */
    bool resumed;
    double first_s, last_s; /* Times of the first and of the newest token. */
    int64_t cached_tokens;
    double queue_s, prefill_s, decode_s;
    float *embedding; /* (n_embedding), owned; embeddings and scores only. */
    int64_t n_embedding;
    lt_ids score_at; /* Tokens at which a score head is read; empty: the last token. */
    bool judged;     /* It is a candidate's text for the reward model. */
    /* Scores of the text's steps by a process reward model, owned; NULL: none. The first n_known
     * were known before, and the first n_ended steps are followed by a border. */
    double *steps;
    int64_t n_steps, n_known, n_ended;
};

/* How a chat answer is separated into parts. */
typedef struct {
    bool think, tools;
    bool forced;      /* Only a call is allowed. */
    bool opened;      /* The prompt ends inside the reasoning. */
    const char *tool; /* The only tool that may be called; NULL: any of callable. */
    const json_t *callable;
    uint32_t shown[8]; /* Special tokens that are the parser's marks: skip_special keeps them. */
    size_t n_shown;
} lt_listen;

/* The form of an answer's text, if one is requested. */
typedef struct {
    lt_grammar_kind kind;
    const char *param, *text; /* The name of the field, and the form's text; NULL: no form. */
    size_t bytes;
    char *owned; /* The text if it was made from a tree. */
} lt_form;

struct lt_reply {
    lt_disconnect_listener listener;
    lt_server *server;
    lt_server *model;   /* The server whose model reads its prompts: server, or its reward model. */
    lt_http_conn *conn; /* NULL once the client has gone or was answered. */
    lt_flavour flavour;
    char extra[512];
    const char *owner; /* Of the call. */
    const lt_formatter *formatter;
    lt_api_params params;
    char id[48];
    int64_t created;
    double arrived_s;
    size_t body_bytes; /* Bytes of the request, if the loop must release its memory. */
    bool stream, begun, failed;
    bool lines; /* A stream consists of JSON objects, one per line, instead of events. */

    lt_request request; /* Shared by the parts. */
    lt_adapter_choice adapters;
    int top;             /* Alternatives to report with each token; -1: no log-probabilities. */
    lt_control *control; /* Control of its reasoning; NULL: none. */
    struct {             /* How a process reward model judges its candidates. */
        lt_steps_fold_kind fold;
        lt_borders borders; /* The borders between steps. */
    } judging;
    lt_blocks *blocks; /* The answer is written block by block; NULL: at once. */
    lt_group *group;   /* One of the choices becomes the answer; NULL: each is an answer. */
    lt_logit_bias *bias;
    int32_t dry_breakers[LT_API_PARAMS_BREAKERS];
    int32_t *stop_ids, *think_begin, *think_end, *allowed;
    lt_ids negative;  /* The negative prompt of guidance. */
    lt_ids predicted; /* What the answer may say. */
    lt_ids bad;       /* All spellings of bad words, concatenated. */
    int64_t *bad_ends;
    lt_form form;
    bool ruled;         /* The answer has a grammar, which must be compiled before it begins. */
    lt_compile compile; /* The grammar and its source. */
    bool compiling;     /* The compiler is working on it. */
    const char *stops[LT_API_PARAMS_STOPS];
    size_t stop_lengths[LT_API_PARAMS_STOPS];
    int n_stops;

    lt_listen listen;
    lt_part *parts;
    int64_t n_parts, parts_left;
    int64_t n_choices; /* Choices per part, as the engine runs them. */
    lt_json_out out;   /* Reused for each event, and for the whole answer. */
    lt_json_out error;
    void *format_state;
    lt_reply *next, *prev; /* In the server's list. */
    bool listed;
};

/* Take over the call: the parameters' tree moves into the reply. NULL: the call was answered with
 * an error. */
lt_reply *lt_reply_open(lt_call *call, const lt_formatter *formatter, lt_api_params *params,
                        const char *id_prefix);
void lt_reply_free(lt_reply *j);

/* Copy sampling, stops and logprobs from the parameters to the request, and read the form. top:
 * alternatives to report with each token; -1: none. */
bool lt_reply_configure(lt_reply *j, int64_t max_tokens, int top, lt_api_error *e);
/* Set the thinking budget, the request's or the server's, after which the engine ends the
 * reasoning. opened: the answer begins inside it. */
bool lt_reply_think(lt_reply *j, bool opened, lt_api_error *e);
/* Apply the form, if there is one, to the whole answer; chats use lt_chat_output_add instead. */
bool lt_reply_rule(lt_reply *j, lt_api_error *e);

/* reply_narrow.c: allowed_token_ids, bad_words; and truncate_prompt_tokens, which keeps the first
 * id of a prompt if that begins a text. */
bool lt_reply_narrow(lt_reply *j, lt_api_error *e);
void lt_reply_truncate(const lt_reply *j, lt_ids *prompt);

/* reply_shift.c: --context-shift: whether the answer continues at the end of the context, by
 * dropping its oldest tokens. */
bool lt_reply_shifts(const lt_reply *j);
/* Cut a prompt that does not fit, as llama-server does: after the first n_keep tokens, drop as few
 * blocks of half the context as possible. True: it was cut. */
bool lt_reply_cut(const lt_reply *j, lt_ids *prompt);
/* Number of tokens that may follow the prompt. */
int64_t lt_reply_room(const lt_reply *j, const lt_part *p);
lt_shift lt_reply_shift(const lt_reply *j); /* The settings for the engine. */
/* Whether the choice has lost a part of its context. */
bool lt_reply_is_truncated(const lt_reply_choice *c);

/* Add a prompt; the ids move into the reply. */
bool lt_reply_add(lt_reply *j, lt_ids *prompt, lt_api_error *e);

/* Load the adapters and compile the grammar, if any, then submit all parts; for a call on the
 * worker pool, this happens later. On failure the reply is freed and the call answered. */
void lt_reply_start(lt_call *call, lt_reply *j);

/* Answer with e and free the reply (before start only). */
void lt_reply_refuse(lt_call *call, lt_reply *j, const lt_api_error *e);

/* Add a token that the server itself puts into the text, as if the model had chosen it with
 * probability 1. */
void lt_reply_put_token(lt_reply_choice *c, int32_t id);
/* Continue a part that was stopped, after the tokens that it has made. */
bool lt_reply_resume(lt_part *p, const lt_ids *made, lt_api_error *e);
/* Work for which the answer waited besides its parts (parts_left was increased) is done. If nothing
 * is left, the answer ends and the reply is freed. */
void lt_reply_let_go(lt_reply *j);
/* Handle a token of the part's choice ev->choice, and its end, as if the engine had reported them
 * now. */
void lt_reply_token(lt_part *p, const lt_event *ev);
void lt_reply_choice_over(lt_part *p, const lt_event *ev);
/* The part has ended. With the last part the answer ends, and the reply is freed. */
void lt_reply_part_done(lt_part *p);

/* Continue with the adapters in memory; e: they could not be loaded. */
void lt_reply_adapted(lt_reply *j, const lt_api_error *e);
/* Continue after the grammar was compiled, or failed to compile. */
void lt_reply_compiled(lt_compile *made);
/* reply_log.c: store a token, with its log-probability and alternatives if it has any. */
void lt_reply_log_token(lt_reply *j, lt_token_logs *l, const lt_event *ev, bool has_logprob);
void lt_token_logs_free(lt_token_logs *l);
/* Handle an event of the engine. */
void lt_reply_event(const lt_event *ev);
/* Fail the whole reply: the client gets the error once, as a stream's last event or as the
 * answer. */
void lt_reply_fail(lt_reply *j, const lt_api_error *e);
/* Sends j->out as one event of the stream and clears it: "event: NAME\n" (when not NULL) "data:
 * ...\n\n". */
void lt_reply_send(lt_reply *j, const char *event);

/* ---- What formatters share ---- */

/* The name of the answering model: an adapter's if the request named one. */
static inline const char *lt_reply_model(const lt_reply *j) {
    return j->adapters.name != NULL ? j->adapters.name : j->server->name;
}

/* Whether each piece of a text is sent at once. The answer of a group is known only at its end. */
static inline bool lt_reply_is_live(const lt_reply *j) {
    return j->stream && j->group == NULL;
}
/* Write the reports of the group and of the control of reasoning, if any. */
void lt_reply_reports_write(lt_json_out *o, const lt_reply *j);

const char *lt_finish_openai(const lt_reply_choice *c);
int64_t lt_reply_prompt_tokens(const lt_reply *j);
int64_t lt_reply_cached_tokens(const lt_reply *j);
int64_t lt_reply_new_tokens(const lt_reply *j);
int64_t lt_reply_reasoning_tokens(const lt_reply *j);
void lt_usage_write(lt_json_out *o, const lt_reply *j, const char *key);
/* "prompt": the text that the model reads, with its special tokens. */
void lt_prompt_write(lt_json_out *o, const lt_part *p);
/* "timings": {...} in llama-server's format, for a part with `made` tokens so far. */
void lt_timings_write(lt_json_out *o, const lt_part *p, int64_t made);
/* "token": ..., "logprob": ..., "bytes": [...] without braces. */
void lt_token_write(lt_json_out *o, const lt_server *s, int32_t id, float logprob, bool as_id);
/* [{token, logprob, bytes, top_logprobs: [...]}, ...] of rows [from, to). */
void lt_logprobs_write(lt_json_out *o, const lt_server *s, const lt_token_logs *l, size_t from,
                       size_t to, int top);
/* "prompt_logprobs" in vLLM's format: for each token an object by ids, with the most likely ones
 * and the token itself; null for the first. */
void lt_prompt_logprobs_write(lt_json_out *o, const lt_part *p);
/* A list of the ids of rows [from, to), and of the prompt's. */
void lt_ids_write(lt_json_out *o, const char *key, const lt_token_logs *l, size_t from, size_t to);
void lt_prompt_ids_write(lt_json_out *o, const lt_part *p);
/* The same, or "token_id:N". */
void lt_piece_or_id_write(lt_json_out *o, const lt_server *s, int32_t id, bool as_id);
/* encoding_format of an embedding: whether it is base64, and whether it is known. And n values in
 * it. */
bool lt_embedding_in_base64(const lt_api_params *a);
bool lt_embedding_check_format(const lt_api_params *a, lt_api_error *e);
void lt_embedding_write(lt_json_out *o, const float *x, int64_t n, bool in_base64);
/* Append the piece of a token as valid UTF-8 to out. */
void lt_piece_write(lt_json_out *o, const lt_server *s, int32_t id);

#endif
