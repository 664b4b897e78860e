/* tokens.c: /tokenizer_info; /tokenize, /detokenize, /apply-template: in llama-server's shape
 * ({content: ...}) and in vLLM's ({prompt: ...} or {messages: ...}). */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "data/text_utf8.h"
#include "serve/api/formats/conversation.h"
#include "serve/api/formats/chat_output.h"
#include "serve/api/reply.h"
#include "serve/api/formats/prompts.h"
#include "serve/api/route.h"

static const lt_field tokenize_fields[] = {LT_JSON("content", content),
                                           LT_JSON("prompt", prompt),
                                           LT_JSON("messages", messages),
                                           LT_JSON("tools", tools),
                                           LT_JSON("chat_template_kwargs", template_kwargs),
                                           LT_BOOL("add_generation_prompt", add_generation_prompt),
                                           LT_BOOL("continue_final_message", continue_final),
                                           LT_STR("model", model),
                                           LT_BOOL("add_special", add_special),
                                           LT_BOOL("add_special_tokens", add_special),
                                           LT_BOOL("parse_special", parse_special),
                                           LT_BOOL("with_pieces", with_pieces),
                                           LT_BOOL("return_token_strs", with_pieces)};
const lt_field_table lt_fields_tokenize = LT_FIELD_TABLE(tokenize_fields, "");

static bool read(lt_call *call, lt_api_params *a, const lt_field *rows, size_t n, lt_api_error *e) {
    return lt_call_read(call, a, rows, n, e) && lt_server_check_model(call->server, a, e);
}

static bool to_ids(lt_server *s, lt_api_params *a, lt_ids *ids, lt_api_error *e) {
    lt_listen listen = {0};
    if (!lt_chat_output_tools(a, &listen, e)) {
        return false;
    }
    const lt_conversation c = {.messages = a->messages,
                               .tools = a->tools,
                               .kwargs = a->template_kwargs,
                               .add_generation_prompt = a->add_generation_prompt,
                               .continue_final = a->continue_final};
    if (a->messages != NULL) {
        return lt_conversation_ids(s, &c, ids, NULL, e);
    }
    if (a->prompt != NULL) {
        return lt_prompts_mixed(s, a->prompt, "prompt", a->add_special, a->parse_special, ids, e);
    }
    return a->content == NULL ||
           lt_prompts_mixed(s, a->content, "content", a->add_special, a->parse_special, ids, e);
}

/* {id, piece}: a piece that is not valid UTF-8 becomes a list of bytes. */
static void put_piece(lt_json_out *o, const lt_server *s, uint32_t id) {
    size_t n = 0;
    const char *piece = lt_tokenizer_text(s->tokenizer, id, &n);
    lt_out_open(o, '{');
    lt_out_key_int(o, "id", id);
    lt_out_key(o, "piece");
    if (piece == NULL || lt_utf8_valid_prefix(piece, n) == n) {
        lt_out_str(o, piece != NULL ? piece : "", n);
    } else {
        lt_out_open(o, '[');
        for (size_t i = 0; i < n; i++) {
            lt_out_int(o, (unsigned char)piece[i]);
        }
        lt_out_shut(o, ']');
    }
    lt_out_shut(o, '}');
}

void lt_api_tokenize(lt_call *call) {
    lt_api_error e = {0};
    lt_json_out o = {0};
    lt_ids ids = {0};
    lt_api_params a;
    bool vllm;

    lt_api_params_defaults(&a);
    if (!read(call, &a, tokenize_fields, sizeof tokenize_fields / sizeof *tokenize_fields, &e)) {
        goto done;
    }
    vllm = a.prompt != NULL || a.messages != NULL;
    if (vllm && json_object_get(a.root, "add_special_tokens") == NULL) {
        a.add_special = true; /* vLLM's default; llama-server's is false. */
    }
    if (!to_ids(call->server, &a, &ids, &e)) {
        goto done;
    }
    lt_out_open(&o, '{');
    lt_out_key_int(&o, "count", (int64_t)ids.n);
    lt_out_key_int(&o, "max_model_len", lt_server_context(call->server));
    lt_out_key_open(&o, "tokens", '[');
    for (size_t i = 0; i < ids.n; i++) {
        if (a.with_pieces && !vllm) {
            put_piece(&o, call->server, ids.data[i]);
        } else {
            lt_out_int(&o, ids.data[i]);
        }
    }
    lt_out_shut(&o, ']');
    if (a.with_pieces && vllm) {
        lt_out_key_open(&o, "token_strs", '[');
        for (size_t i = 0; i < ids.n; i++) {
            lt_piece_write(&o, call->server, (int32_t)ids.data[i]);
        }
        lt_out_shut(&o, ']');
    }
    lt_out_shut(&o, '}');
    lt_call_json(call, 200, &o);
done:
    if (e.status != 0) {
        lt_call_error(call, &e);
    }
    lt_ids_free(&ids);
    lt_api_params_free(&a);
}

static const lt_field detokenize_fields[] = {LT_JSON("tokens", tokens), LT_STR("model", model)};
const lt_field_table lt_fields_detokenize = LT_FIELD_TABLE(detokenize_fields, "tokens");

void lt_api_detokenize(lt_call *call) {
    lt_api_error e = {0};
    lt_json_out o = {0};
    lt_ids ids = {0};
    lt_api_params a;
    char *text = NULL;
    size_t n = 0;

    lt_api_params_defaults(&a);
    if (!read(call, &a, detokenize_fields, 2, &e)) {
        goto done;
    }
    for (size_t i = 0; i < json_array_size(a.tokens); i++) {
        if (!json_is_integer(json_array_get(a.tokens, i))) {
            lt_api_refuse(&e, "tokens", "'tokens' must be a list of ids");
            goto done;
        }
    }
    if (!json_is_array(a.tokens) ||
        !lt_prompts_mixed(call->server, a.tokens, "tokens", false, false, &ids, &e)) {
        if (e.status == 0) {
            lt_api_refuse(&e, "tokens", "'tokens' must be a list of ids");
        }
        goto done;
    }
    if (lt_tokenizer_decode(call->server->tokenizer, ids.data, ids.n, false, &text, &n) != LT_OK) {
        lt_api_refuse_error(&e, "tokens", LT_ERR_ARG);
        goto done;
    }
    lt_out_open(&o, '{');
    lt_out_key(&o, "content");
    lt_out_str(&o, text, n);
    lt_out_key(&o, "prompt");
    lt_out_str(&o, text, n);
    lt_out_shut(&o, '}');
    lt_call_json(call, 200, &o);
done:
    if (e.status != 0) {
        lt_call_error(call, &e);
    }
    free(text);
    lt_ids_free(&ids);
    lt_api_params_free(&a);
}

static const lt_field template_fields[] = {LT_JSON("messages", messages),
                                           LT_JSON("tools", tools),
                                           LT_JSON("tool_choice", tool_choice),
                                           LT_JSON("chat_template_kwargs", template_kwargs),
                                           LT_STR("reasoning_effort", reasoning_effort),
                                           LT_BOOL("add_generation_prompt", add_generation_prompt),
                                           LT_BOOL("continue_final_message", continue_final),
                                           LT_STR("model", model)};
const lt_field_table lt_fields_apply_template = LT_FIELD_TABLE(template_fields, "messages");

void lt_api_apply_template(lt_call *call) {
    lt_api_error e = {0};
    lt_json_out o = {0};
    lt_listen listen = {0};
    lt_conversation c;
    lt_api_params a;
    char *text = NULL;
    size_t n = 0;

    lt_server_ask(call->server, &a);
    if (!read(call, &a, template_fields, sizeof template_fields / sizeof *template_fields, &e) ||
        !lt_chat_output_tools(&a, &listen, &e)) {
        goto done;
    }
    c = (lt_conversation){.messages = a.messages,
                          .tools = a.tools,
                          .kwargs = a.template_kwargs,
                          .reasoning_effort = a.reasoning_effort,
                          .add_generation_prompt = a.add_generation_prompt,
                          .continue_final = a.continue_final};
    if (lt_conversation_text(call->server, &c, &text, &n, &e)) {
        lt_out_open(&o, '{');
        lt_out_key(&o, "prompt");
        lt_out_str(&o, text, n);
        lt_out_shut(&o, '}');
        lt_call_json(call, 200, &o);
    }
done:
    if (e.status != 0) {
        lt_call_error(call, &e);
    }
    free(text);
    lt_api_params_free(&a);
}

/* ---- Information about the tokenizer ---- */

static void put_special(lt_json_out *o, const lt_server *s, const char *key, uint32_t id) {
    lt_out_key(o, key);
    if (id == LT_TOKEN_NONE) {
        lt_out_null(o);
    } else {
        lt_piece_write(o, s, (int32_t)id);
    }
}

/* As in vLLM: the fields of tokenizer_config.json that clients need. */
void lt_api_tokenizer_info(lt_call *call) {
    const lt_server *s = call->server;
    const lt_tokenizer_info *v = &s->vocabulary;
    lt_json_out o = {0};

    lt_out_open(&o, '{');
    lt_out_key_str(&o, "tokenizer_class", "PreTrainedTokenizerFast");
    put_special(&o, s, "bos_token", v->bos);
    put_special(&o, s, "eos_token", v->eos);
    put_special(&o, s, "pad_token", v->pad != LT_TOKEN_NONE ? v->pad : v->eos);
    put_special(&o, s, "unk_token", v->unk);
    lt_out_key_bool(&o, "add_bos_token", v->adds_bos);
    lt_out_key_bool(&o, "add_eos_token", v->adds_eos);
    lt_out_key_int(&o, "vocab_size", lt_model_get_spec(s->model)->vocab_size);
    lt_out_key_int(&o, "model_max_length", lt_server_context(s));
    lt_out_key_open(&o, "additional_special_tokens", '[');
    for (uint32_t id = 0; id < v->n_ids; id++) {
        const bool named = id == v->bos || id == v->eos || id == v->pad || id == v->unk;
        if (!named && lt_tokenizer_is_special(s->tokenizer, id)) {
            lt_piece_write(&o, s, (int32_t)id);
        }
    }
    lt_out_shut(&o, ']');
    lt_out_key_str(&o, "chat_template", lt_chat_template_text(s->template));
    lt_out_shut(&o, '}');
    lt_call_json(call, 200, &o);
}
